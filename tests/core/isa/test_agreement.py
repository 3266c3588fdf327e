"""The simulator and an H200 give the same bits for each instruction family.

Every case is a kernel of two warps in which each thread reads 16 words and writes 16 words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from kdsl_core.dtypes import DType, boolean, e4m3, f32, i8, i32, i64, u8, u32, u64
from kdsl_core.ir import Array, Builder, Const, Kernel, Operand, Param, Value, target_of
from kdsl_core.isa.arith import binary
from kdsl_core.isa.async_copy import cp_async, cp_async_commit, cp_async_wait
from kdsl_core.isa.atomic import atomic, reduce
from kdsl_core.isa.barrier import barrier_sync, sync_warp
from kdsl_core.isa.compare import compare
from kdsl_core.isa.convert import bitcast, convert
from kdsl_core.isa.matrix_copy import ldmatrix, stmatrix
from kdsl_core.isa.memory import load, shared_address, store
from kdsl_core.isa.mma import MMA_SHAPES, MmaShape, mma
from kdsl_core.isa.register import declare
from kdsl_core.isa.special import special
from kdsl_core.isa.warp import SHUFFLES, ballot, match, reduce_sync, shuffle, vote
from kdsl_core.passes import optimise
from kdsl_core.ptx import emit
from kdsl_core.sim import GlobalMemory, run

THREADS, WORDS = 64, 16


class Parts:
    """What a case works with: its thread's words, its place in the output, and shared memory."""

    def __init__(self, name: str) -> None:
        x, y = Value(u64), Value(u64)
        params = [Param("x", x, ("x", u32)), Param("y", y, ("y", u32))]
        self.kernel = Kernel(name, (THREADS, 1, 1), params)
        self.b = b = Builder(self.kernel)
        self.thread = special(b, "tid.x")
        self.lane = binary(b, "and", self.thread, Const(u32, 31))
        own = convert(b, binary(b, "mul", self.thread, Const(u32, 4 * WORDS)), u64)
        self.x, self.y = binary(b, "add", x, own), binary(b, "add", y, own)
        tile = shared_address(b, self.kernel.allocate_shared("tile", THREADS * 64, 128))
        self.tile = tile
        self.own = binary(b, "add", tile, binary(b, "shl", self.thread, Const(u32, 6)))
        self.words: list[Operand] = [
            word for i in range(4) for word in load(b, "global", self.x, u32, 4, 16 * i)
        ]

    def out(self, *values: Operand) -> None:
        """Write up to 16 words to the thread's output."""
        for i, value in enumerate(values):
            store(self.b, "global", self.y, (value,), 4 * i)


def shuffles(p: Parts) -> None:
    """Every mode and width, by the lane's own distance."""
    distance = binary(p.b, "and", p.words[0], Const(u32, 31))
    p.out(*(shuffle(p.b, m, p.words[1], distance, width=w) for m in SHUFFLES for w in (32, 8, 4)))
    wide = shuffle(p.b, "bfly", convert(p.b, p.words[2], i64), Const(u32, 3))
    store(p.b, "global", p.y, (wide,), 48)


def votes(p: Parts) -> None:
    """Votes, ballots, matches and reductions."""
    b, odd = p.b, compare(p.b, "lt", p.words[0], Const(u32, 1 << 31))
    small = binary(b, "and", p.words[1], Const(u32, 3))
    signed = bitcast(b, p.words[2], i32)
    held = [vote(b, mode, compare(b, "lt", small, Const(u32, 4))) for mode in ("all", "any")]
    for i, value in enumerate(held):
        store(b, "global", p.y, (value,), 60 + i)
    p.out(
        ballot(b, odd),
        match(b, small),
        *(reduce_sync(b, op, p.words[3]) for op in ("add", "min", "max", "and", "or", "xor")),
        *(reduce_sync(b, op, signed) for op in ("add", "min", "max")),
    )


def matrices(p: Parts) -> None:
    """Load and store 8×8 matrices, straight and transposed."""
    b = p.b
    for i in range(4):
        store(b, "shared", p.own, tuple(p.words[4 * i : 4 * i + 4]), 16 * i)
    barrier_sync(b)
    dst = tuple(declare(b, u32) for _ in range(12))
    ldmatrix(b, p.own, dst[:4])
    ldmatrix(b, p.own, dst[4:8], transposed=True, offset=16)
    ldmatrix(b, p.own, dst[8:10], offset=32)
    ldmatrix(b, p.own, dst[10:11], transposed=True, offset=48)
    barrier_sync(b)
    stmatrix(b, p.own, dst[:4], transposed=True)
    sync_warp(b)
    p.out(*dst[:11], *load(b, "shared", p.own, u32, 4))


def narrow(p: Parts) -> None:
    """Bytes of every kind, predicated loads and stores, and truth values."""
    b = p.b
    even = compare(b, "eq", binary(b, "and", p.lane, Const(u32, 1)), Const(u32, 0))
    out: list[Operand] = []
    for dtype in (i8, u8):
        out += [convert(b, v, i32) for v in load(b, "global", p.x, dtype, 4, 8, cache="nc")]
    (masked,) = load(b, "global", p.x, u32, offset=4, pred=even)
    flags = load(b, "global", p.x, boolean, 2, 12)
    store(b, "global", p.y, flags, 56)
    store(b, "global", p.y, load(b, "global", p.x, e4m3, 4, 20), 52)
    store(b, "global", p.y, (Const(u32, 77),), 60, pred=even)
    p.out(*out, masked)


def copies(p: Parts) -> None:
    """Asynchronous copies, whole and with the rest filled with zeros."""
    b = p.b
    cp_async(b, p.own, p.x, 16)
    limit = binary(b, "and", p.lane, Const(u32, 15))
    cp_async(b, p.own, p.x, 16, 16, 16, source_bytes=limit)
    cp_async(b, p.own, p.x, 4, 32, 32, source_bytes=Const(u32, 2), cache="ca")
    cp_async_commit(b)
    cp_async_wait(b, 0)
    p.out(*load(b, "shared", p.own, u32, 4), *load(b, "shared", p.own, u32, 4, 16))
    store(b, "global", p.y, load(b, "shared", p.own, u32, 1, 32), 32)


def atomics(p: Parts) -> None:
    """Sums, extremes and flushed subnormals; each result does not depend on the order."""
    b = p.b
    store(b, "shared", p.own, (Const(u32, 0),) * 4)
    barrier_sync(b)
    for i, (op, value) in enumerate(
        [("add", p.words[0]), ("max", bitcast(b, p.words[1], i32)), ("xor", p.words[2])]
    ):
        reduce(b, "shared", p.tile, op, value, 4 * i)
    tiny = Const(f32, 1e-40)
    reduce(b, "global", p.y, "add", tiny, 32)
    (kept,) = load(b, "shared", p.own, f32, offset=12)
    barrier_sync(b)
    sums = load(b, "shared", p.tile, u32, 2)
    (last,) = load(b, "shared", p.tile, u32, offset=8)
    old = atomic(b, "global", p.y, "exch", p.words[3], offset=36)
    won = atomic(b, "global", p.y, "cas", p.words[4], compare=p.words[3], offset=36)
    p.out(*sums, last, old, won, kept)


def mma_case(shape: MmaShape) -> Callable[[Parts], None]:
    """One tensor-core instruction on the thread's words."""

    def build(p: Parts) -> None:
        counts = [shape.registers(matrix) for matrix in "abc"]
        at, words = 0, []
        for count in counts:
            words.append(p.words[at : at + count])
            at += count
        dtype = shape.register_types("c")[0]
        acc = tuple(declare(p.b, dtype, bitcast(p.b, word, dtype)) for word in words[2])
        types = (shape.d, shape.a, shape.b, shape.d)
        mma(p.b, (shape.m, shape.n, shape.k), types, acc, tuple(words[0]), tuple(words[1]), acc)
        p.out(*acc)

    return build


@dataclass(frozen=True)
class Case:
    """A kernel body and the types of each thread's words; integers are random bits."""

    build: Callable[[Parts], None]
    words: tuple[DType, ...] = (u32,) * WORDS

    def inputs(self) -> Array:
        """Words [THREADS, WORDS] with finite floats of many magnitudes."""
        rng = np.random.default_rng(7)
        out = rng.integers(0, 1 << 32, (THREADS, WORDS), np.uint32)
        for i, dtype in enumerate(self.words):
            if dtype.is_float:
                count = 4 // dtype.bytes
                scale = 2.0 ** rng.integers(-4, 4, (THREADS, count))
                values = rng.standard_normal((THREADS, count)) * scale
                out[:, i] = values.astype(dtype.numpy).view(np.uint32)[:, 0]
        return out


def mma_words(shape: MmaShape) -> tuple[DType, ...]:
    """The types of the words of A, B and C."""
    parts = [(shape.a, "a"), (shape.b, "b"), (shape.d, "c")]
    return tuple(dtype for dtype, matrix in parts for _ in range(shape.registers(matrix)))


CASES: dict[str, Case] = {
    **{f.__name__: Case(f) for f in (shuffles, votes, matrices, narrow, copies, atomics)},
    **{s.text.split("aligned.")[1]: Case(mma_case(s), mma_words(s)) for s in MMA_SHAPES},
}


def kernel_of(name: str) -> Kernel:
    """The optimised kernel of a case."""
    parts = Parts(name)
    CASES[name].build(parts)
    return optimise(parts.kernel)


def simulated(name: str, numerics: str = "exact") -> Array:
    """The output words of the simulator, which finds no hazard."""
    x, y = CASES[name].inputs(), np.zeros((THREADS, WORDS), np.uint32)
    memory = GlobalMemory()
    params = {"x": memory.add("x", x, u32), "y": memory.add("y", y, u32)}
    run(kernel_of(name), (1, 1, 1), params, memory.buffers, numerics=numerics)
    return y


@pytest.mark.parametrize("name", CASES)
def test_runs_without_hazard(name: str) -> None:
    """Each case is clean under all checks and writes something."""
    assert simulated(name).any()


def test_fast_numerics_reach_the_tensor_core() -> None:
    """`numerics="fast"` gives close numbers, not the same bits."""
    name = next(name for name in CASES if "m16n8k16.row.col.f32.bf16" in name)
    exact, fast = (simulated(name, way)[:, :4].view(np.float32) for way in ("exact", "fast"))
    np.testing.assert_allclose(fast, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_gpu_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    """Every output word of the device equals the simulator's."""
    from kdsl_runtime import driver, launch
    from kdsl_runtime.cache import Cache
    from kdsl_runtime.device_array import to_device

    module = emit(kernel_of(name), target_of(driver.device(0).target))
    loaded = launch.load(module, cache=Cache.at(tmp_path / "cache"))
    x, y = to_device(CASES[name].inputs()), to_device(np.zeros((THREADS, WORDS), np.uint32))
    loaded.launch(1, THREADS, [x.pointer, y.pointer])
    np.testing.assert_array_equal(y.read(), simulated(name))
