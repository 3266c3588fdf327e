"""Kernels of two warps in which each thread reads 64 bytes and writes 256, and who runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from gpu.agreement.comparison import Array
from kdsl_core.dtypes import DType, f64, u8, u32, u64
from kdsl_core.ir import Builder, Const, Kernel, Operand, Param, Value, target_of
from kdsl_core.isa.arith import binary
from kdsl_core.isa.convert import convert
from kdsl_core.isa.memory import load, shared_address, store
from kdsl_core.isa.special import special
from kdsl_core.passes import optimise
from kdsl_core.ptx import emit
from kdsl_core.sim import GlobalMemory, run

Dim3: TypeAlias = tuple[int, int, int]
# Runs a kernel on a grid with arrays of bytes by the names of its parameters, and writes them.
Runner: TypeAlias = Callable[[Kernel, Dim3, dict[str, Array]], None]

WORDS, OUTPUT = 16, 256  # words that each thread reads, bytes that it writes


class Parts:
    """What a case works with: its thread's words, its place in the output, and shared memory."""

    def __init__(self, name: str, block: Dim3, cluster: Dim3 | None) -> None:
        x, y = Value(u64), Value(u64)
        params = [Param("x", x, ("x", u8)), Param("y", y, ("y", u8))]
        self.kernel = Kernel(name, block, params, cluster_dim=cluster)
        self.b = b = Builder(self.kernel)
        self.lane = special(b, "laneid")
        first = binary(b, "shl", special(b, "warpid"), Const(u32, 5))
        self.thread = binary(b, "add", first, self.lane)
        thread = binary(b, "add", self._threads_before(), self.thread)
        self.x, self.y = (
            binary(b, "add", start, convert(b, binary(b, "mul", thread, Const(u32, size)), u64))
            for start, size in ((x, 4 * WORDS), (y, OUTPUT))
        )
        tile = shared_address(b, self.kernel.allocate_shared("tile", 64 * self.kernel.threads, 128))
        self.tile = tile
        self.own = binary(b, "add", tile, binary(b, "shl", self.thread, Const(u32, 6)))
        self.words: list[Operand] = [
            word for i in range(4) for word in load(b, "global", self.x, u32, 4, 16 * i)
        ]

    def _threads_before(self) -> Operand:
        """How many threads the blocks before this one have."""
        b, linear = self.b, special(self.b, "ctaid.z")
        for axis in "yx":
            row = binary(b, "mul", linear, special(b, f"nctaid.{axis}"))
            linear = binary(b, "add", row, special(b, f"ctaid.{axis}"))
        return binary(b, "mul", linear, Const(u32, self.kernel.threads))

    def out(self, *values: Operand, at: int = 0) -> None:
        """Write values to the thread's output, from byte `at` on, each on its own alignment."""
        for value in values:
            size = value.dtype.bytes
            at = -(-at // size) * size
            store(self.b, "global", self.y, (value,), at)
            at += size
        assert at <= OUTPUT, f"{self.kernel.name} writes {at} bytes"


@dataclass(frozen=True)
class Case:
    """A kernel body, the types of each thread's words (integers: random bits), and the launch."""

    family: str
    build: Callable[[Parts], None]
    words: tuple[DType, ...] = (u32,) * WORDS
    block: Dim3 = (64, 1, 1)
    grid: Dim3 = (4, 1, 1)
    cluster: Dim3 | None = None

    def kernel(self, name: str) -> Kernel:
        """The optimised kernel."""
        parts = Parts(name, self.block, self.cluster)
        self.build(parts)
        return optimise(parts.kernel)

    def arrays(self) -> dict[str, Array]:
        """Inputs with finite floats of many magnitudes, and outputs that are zero."""
        threads = int(np.prod(self.grid)) * int(np.prod(self.block))
        rng = np.random.default_rng(7)
        x = rng.integers(0, 1 << 32, (threads, WORDS), np.uint32)
        for i, dtype in enumerate(self.words):
            if dtype is f64:
                wide = rng.standard_normal(threads) * 2.0 ** rng.integers(-300, 300, threads)
                x[:, 2 * i : 2 * i + 2] = wide.view(np.uint32).reshape(threads, 2)
            elif dtype.is_float:
                count = 4 // dtype.bytes
                scale = 2.0 ** rng.integers(-4, 4, (threads, count))
                values = rng.standard_normal((threads, count)) * scale
                x[:, i] = values.astype(dtype.numpy).view(np.uint32)[:, 0]
        return {"x": x.view(np.uint8), "y": np.zeros((threads, OUTPUT), np.uint8)}

    def outputs(self, name: str, runner: Runner) -> Array:
        """The output bytes (threads, OUTPUT)."""
        arrays = self.arrays()
        runner(self.kernel(name), self.grid, arrays)
        return arrays["y"]


def simulator(kernel: Kernel, grid: Dim3, arrays: dict[str, Array], **options: object) -> None:
    """Runs a kernel in the simulator with all checks."""
    memory = GlobalMemory()
    params = {name: memory.add(name, array, u8) for name, array in arrays.items()}
    run(kernel, grid, params, memory.buffers, **options)  # type: ignore[arg-type] # the keyword options of `run`


def gpu(kernel: Kernel, grid: Dim3, arrays: dict[str, Array]) -> None:
    """Runs a kernel on the first GPU."""
    from kdsl_runtime import driver
    from kdsl_runtime.device_array import to_device
    from kdsl_runtime.launch import load as load_kernel

    module = emit(kernel, target_of(driver.device(0).target))
    held = {name: to_device(array) for name, array in arrays.items()}
    pointers = [held[param.name].pointer for param in kernel.params]
    load_kernel(module).launch(grid, kernel.block_dim, pointers, cluster=kernel.cluster_dim)
    for name, array in arrays.items():
        array[...] = held[name].read()
