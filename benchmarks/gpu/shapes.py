"""The products that are measured, by the names of their sets in `benchmarks/shapes.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHAPES_FILE = Path(__file__).parents[1] / "shapes.toml"
ELEMENT_BYTES = {"bf16": 2, "f16": 2, "e4m3": 1, "i8": 1}
OUTPUT_BYTES = {"bf16": 2, "f16": 2, "e4m3": 2, "i8": 4}
EPILOGUES = ("none", "bias", "gelu", "gelu+bias")


@dataclass(frozen=True)
class Case:
    """C[M, N] = epilogue(A[M, K] · W[N, K]ᵀ), quoted in one set."""

    set: str
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    epilogue: str = "none"

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 1:
            raise ValueError(f"a product needs positive sizes, got {self.shape}")
        if self.dtype not in ELEMENT_BYTES or self.epilogue not in EPILOGUES:
            raise ValueError(f"no such product is measured: {self.dtype}, {self.epilogue}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.m, self.n, self.k

    @property
    def name(self) -> str:
        """The case in words, one of a kind."""
        tail = "" if self.epilogue == "none" else f" {self.epilogue}"
        return f"{self.set} {self.m}x{self.n}x{self.k} {self.dtype}{tail}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """What must cross the memory's pins once: A, W and C."""
        operands = (self.m + self.n) * self.k * ELEMENT_BYTES[self.dtype]
        return operands + self.m * self.n * OUTPUT_BYTES[self.dtype]


def load_cases(path: Path = SHAPES_FILE) -> dict[str, list[Case]]:
    """All sets: those of `gemm` under their names, `fp8`, `int8`, and `fused`."""
    with path.open("rb") as file:
        tables: dict[str, Any] = tomllib.load(file)
    sets = {
        name: [Case(name, *shape) for shape in shapes] for name, shapes in tables["gemm"].items()
    }
    for name, dtype in (("fp8", "e4m3"), ("int8", "i8")):
        sets[name] = [Case(name, *shape, dtype) for shape in tables["gemm_8bit"][name]]
    sets["fused"] = [
        Case("fused", m, inner, hidden, "bf16", epilogue)
        for m, hidden, inner, epilogue in tables["fused_mlp"]["plain"]
    ]
    return sets


def buffer_sets(case_bytes: int, total: int = 150_000_000, least: int = 3) -> int:
    """How many sets of buffers take turns, so that the L2 cache has forgotten each by then."""
    return max(least, -(-total // case_bytes))


def launches_per_graph(seconds: float, sets: int, least_seconds: float = 250e-6) -> int:
    """A multiple of `sets` launches that together last long against the timer's resolution."""
    rounds = -(-least_seconds // (seconds * sets))
    return sets * max(1, int(rounds))
