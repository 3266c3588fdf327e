"""Configurations of the Hopper GEMM whose machine code is looked at: one row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels import gemm_sm90_table as table
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config


@dataclass(frozen=True)
class Build:
    """A configuration with what a kernel is built for.

    `majors` has a letter each for A, B and C: "t" where the last mode is contiguous, "n" where the
    first one is. `pitch` is an odd number of elements where C is not one for TMA. `extras` are
    operands of the epilogue: "r" of C's shape, "n" one for each column, "m" one for each row.
    """

    config: Sm90Config
    types: tuple[str, str, str] = ("bf16", "bf16", "bf16")
    majors: str = "ttt"
    pitch: int | None = None
    batched: bool = False
    epilogue: Callable[..., Any] = identity
    extras: str = ""

    def specs(self) -> list[Any]:
        """The kernel's arguments: A, B, C or its parts, and operands of the epilogue."""
        a, b, c = (
            matrix(dtype, self.batched, major == "t")
            for dtype, major in zip(self.types, self.majors, strict=True)
        )
        if self.pitch:
            c = matrix(self.types[2], self.batched, self.majors[2] == "t", self.pitch)
        if self.config.splits > 1:
            (m, n), strides = c.shape, (*c.strides, SIZE * SIZE)
            c = kd.spec("f32", (m, n, self.config.splits), strides=strides)
        return [a, b, c, *(self.extra(kind) for kind in self.extras)]

    def extra(self, kind: str) -> Any:
        """An operand of the epilogue."""
        if kind == "r":
            return matrix(self.types[2], self.batched, self.majors[2] == "t")
        strides = (0, 1) if kind == "n" else (1, 0)
        shape = (SIZE, SIZE, 3)[: 3 if self.batched else 2]
        return kd.spec("f32", shape, strides=(*strides, 0)[: len(shape)])

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """The cluster's shape."""
        together = self.config.blocks_together
        return (together, 1, 1) if together > 1 else None


SIZE = 4096


def matrix(dtype: str, batched: bool, rows: bool, pitch: int = SIZE) -> Any:
    """A square matrix, or a batch of three along mode 2."""
    strides = (pitch, 1) if rows else (1, pitch)
    if not batched:
        return kd.spec(dtype, (SIZE, SIZE), strides=strides)
    return kd.spec(dtype, (SIZE, SIZE, 3), strides=(*strides, pitch * SIZE))


def biased(acc: Any, bias: Any, residual: Any) -> Any:
    """ReLU of a biased product, and a residual."""
    return kd.maximum(acc + bias, 0.0) + residual.to(kd.f32)


def gelu(acc: Any, bias: Any) -> Any:
    """tanh-GELU of a biased product."""
    x = acc + bias
    return 0.5 * x * (1.0 + kd.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


FP8 = ("e4m3", "e4m3", "bf16")
SMALL = Sm90Config((64, 64, 128), 4, consumers=1)
WIDE = Sm90Config((128, 256, 64), 4)
FULL = Sm90Config((128, 256, 64), 4, registers=(40, 232))  # 168 registers spill beside extras
TALL = Sm90Config((256, 128, 64), 4)
PINGPONG = Sm90Config((64, 256, 64), 4, "pingpong", registers=(40, 232))

BUILDS: dict[str, Build] = {
    "cooperative 128x256": Build(WIDE),
    "cooperative 128x256, setmaxnreg": Build(Sm90Config((128, 256, 64), 4, registers=(40, 232))),
    "cooperative 256x128, cluster 2x1": Build(
        Sm90Config((256, 128, 64), 4, cluster=(2, 1), registers=(40, 232))
    ),
    "cooperative 128x256, cluster 1x2": Build(
        Sm90Config((128, 256, 64), 4, cluster=(1, 2), registers=(40, 232))
    ),
    "cooperative 128x192, cluster 2x2": Build(Sm90Config((128, 192, 64), 4, cluster=(2, 2))),
    "pingpong 64x256": Build(PINGPONG),
    "pingpong 128x128": Build(Sm90Config((128, 128, 64), 5, "pingpong", registers=(40, 232))),
    "pingpong 64x208, cluster 2x1": Build(Sm90Config((64, 208, 64), 5, "pingpong", cluster=(2, 1))),
    "one group 64x64": Build(SMALL),
    "one group 64x8, peers 8": Build(Sm90Config((64, 8, 128), 8, consumers=1, peers=8)),
    "one group 64x16, peers 4": Build(Sm90Config((64, 16, 128), 8, consumers=1, peers=4)),
    "cooperative 128x64, splits 3": Build(Sm90Config((128, 64, 64), 5, splits=3)),
    "one group 64x128, peers 2, splits 2": Build(
        Sm90Config((64, 128, 64), 4, consumers=1, peers=2, splits=2)
    ),
    "policies of L2": Build(Sm90Config((128, 256, 64), 4, caches=("evict_first", "evict_last"))),
    "A MN-major": Build(TALL, ("f16", "f16", "f16"), "ntt"),
    "B MN-major": Build(WIDE, majors="tnt"),
    "all MN-major": Build(WIDE, majors="nnn"),
    "odd pitch of C": Build(Sm90Config((128, 192, 64), 4), pitch=SIZE + 1),
    "odd pitch of C, MN-major": Build(Sm90Config((128, 128, 64), 4), majors="ttn", pitch=SIZE + 1),
    "f32 results": Build(Sm90Config((128, 128, 64), 4), ("f16", "f16", "f32")),
    "e4m3": Build(Sm90Config((128, 256, 128), 4, registers=(40, 232)), FP8),
    "e5m2 pingpong": Build(
        Sm90Config((64, 256, 128), 4, "pingpong"), ("e5m2", "e4m3", "f16"), majors="ttn"
    ),
    "i8": Build(Sm90Config((128, 128, 128), 4), ("i8", "i8", "i32")),
    "u8 by i8, peers 2": Build(
        Sm90Config((64, 64, 128), 4, consumers=1, peers=2), ("u8", "i8", "i32")
    ),
    "batched": Build(WIDE, batched=True),
    "batched, odd pitch": Build(SMALL, batched=True, pitch=SIZE + 1),
    "bias and residual": Build(FULL, epilogue=biased, extras="nr"),
    "bias and residual, pingpong": Build(PINGPONG, epilogue=biased, extras="nr"),
    "bias and residual, peers 4": Build(
        Sm90Config((64, 64, 64), 4, consumers=1, peers=4), epilogue=biased, extras="nr"
    ),
    "bias along rows, MN-major": Build(TALL, majors="ttn", epilogue=gelu, extras="m"),
    "gelu": Build(FULL, epilogue=gelu, extras="n"),
    "gelu, batched": Build(FULL, epilogue=gelu, extras="n", batched=True),
}


def measured() -> dict[str, Build]:
    """The configurations of all dispatch tables, each once for its types and the way C lies."""
    found: dict[Build, str] = {}
    for path in sorted(Path(table.TABLES).glob("gemm_sm90-*.json")):
        for key, entry in table.read_table(path).items():
            odd = key.n * dtype_of(key.result).bytes % 16 != 0
            types = (key.dtype, key.dtype, key.result)
            majors, pitch = "ttn" if entry.swap else "ttt", SIZE + 1 if odd else None
            build = Build(entry.config, types, majors, pitch)
            found.setdefault(build, f"{path.stem} {key.m}x{key.n}x{key.k}")
    return {name: build for build, name in found.items()}


BUILDS |= measured()
