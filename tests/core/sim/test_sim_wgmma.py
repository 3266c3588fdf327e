"""wgmma in whole kernels: the numbers, and every hazard of its registers and shared memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from core.sim.author import Author, codes
from kdsl_core import sim
from kdsl_core.dtypes import bf16, boolean, dtype_of, f32, i32, u32, u64
from kdsl_core.ir import Const, MapShape, Operand, Param, TensorMap, Var
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.isa import mbarrier, memory, register, tma, wgmma
from kdsl_core.isa.barrier import barrier_sync, fence_proxy
from kdsl_core.isa.convert import convert
from kdsl_core.isa.wgmma_shapes import WgmmaShape

ROWS, COLUMNS, DEPTH = 64, 8, 64
SHAPE = WgmmaShape(COLUMNS, 16, f32, bf16, bf16)
STEPS = DEPTH // SHAPE.k
BYTES = {"x": ROWS * DEPTH * 2, "y": COLUMNS * DEPTH * 2}
SWIZZLED = 0x4000004000010000  # 128-byte lines, 1024 bytes from eight rows to the next
Values = np.ndarray[Any, Any]


class GemmAuthor(Author):
    """A warp group that multiplies one tile of x and y, both K-major with swizzled lines."""

    def __init__(self, threads: int = 128) -> None:
        super().__init__(threads, x="bfloat16", y="bfloat16", z="float32")
        self.tiles = {name: self.tile(name) for name in BYTES}
        self.maps = {name: self.tensor_map(name) for name in BYTES}
        self.bar = self.shared("bar", 8)
        self.d = tuple(register.declare(self.b, f32) for _ in range(COLUMNS // 2))

    def tile(self, name: str) -> Operand:
        """The address of an operand's tile."""
        alloc = self.kernel.allocate_shared(f"{name}_tile", BYTES[name], 1024)
        return memory.shared_address(self.b, alloc)

    def tensor_map(self, name: str) -> Operand:
        """A parameter that holds an operand's map."""
        value = self.b.value(u64, f"{name}_map")
        spec = TensorMapSpec(_box(name), name, self.pointers[name], (), ())
        self.kernel.params.append(Param(f"{name}_map", value, map=spec))
        return value

    def init(self) -> None:
        """Make the barrier that the tiles complete at."""
        first = self.test("eq", self.tid, 0)
        self.when(first, lambda: mbarrier.init(self.b, self.bar, self.const(1)))
        mbarrier.fence_init(self.b)
        barrier_sync(self.b)

    def load(self) -> None:
        """Thread 0 loads both tiles."""
        zero = Const(i32, 0)

        def go() -> None:
            size = self.const(sum(BYTES.values()))
            mbarrier.arrive(self.b, self.bar, expect_bytes=size)
            for name in BYTES:
                tma.load(self.b, self.maps[name], (zero, zero), self.tiles[name], self.bar)

        self.when(self.test("eq", self.tid, 0), go)

    def copy(self) -> None:
        """All threads copy both tiles by ordinary stores, as swizzled lines."""
        for name, size in BYTES.items():
            self.loop(-(-size // 2048), partial(self._copy_some, name, size // 16))

    def _copy_some(self, name: str, chunks: int, i: Operand) -> None:
        chunk = self.do("add", self.do("mul", i, 128), self.tid)
        row, column = self.do("div", chunk, 8), self.do("and", chunk, 7)
        place = self.do("xor", column, self.do("and", row, 7))
        line = self.do("add", self.tiles[name], self.do("mul", row, 128))
        to = self.do("add", line, self.do("mul", place, 16))

        def move() -> None:
            source = self.address(name, chunk, 16)
            got = memory.load(self.b, "global", source, u32, vector=4)
            memory.store(self.b, "shared", to, got)

        self.when(self.test("lt", chunk, chunks), move)

    def descriptor(self, name: str, step: int) -> Operand:
        """The descriptor of 16 columns of a tile."""
        start = self.do("shr", self.tiles[name], 4)
        return self.do("add", convert(self.b, start, u64), SWIZZLED + 2 * step)

    def multiply(self, *, zero_first: bool = True) -> None:
        """All steps along K."""
        for step in range(STEPS):
            scale = Const(boolean, step > 0 or not zero_first)
            wgmma.wgmma(
                self.b, SHAPE, self.d, self.descriptor("x", step), self.descriptor("y", step),
                scale_d=scale,
            )  # fmt: skip

    def store(self, registers: tuple[Var, ...]) -> None:
        """Store the accumulators where the fragment's layout says."""
        row = self.do("add", self.do("mul", self.do("shr", self.tid, 5), 16), self._in_warp(2))
        column = self.do("mul", self.do("and", self.tid, 3), 2)
        for at, value in enumerate(registers):
            line = self.do("add", row, 8 * (at // 2))
            index = self.do("add", self.do("mul", line, COLUMNS), self.do("add", column, at % 2))
            self.put("global", self.address("z", index, 4), value)

    def _in_warp(self, shift: int) -> Operand:
        return self.do("shr", self.do("and", self.tid, 31), shift)

    def launch(self, x: Values, y: Values, z: Values, **options: Any) -> sim.Result:
        """Run one block; collects hazards."""
        heap = sim.GlobalMemory()
        params: dict[str, Any] = {}
        for name, array in (("x", x), ("y", y), ("z", z)):
            params[name] = heap.add(name, array, dtype_of(array.dtype))
        for name, array in (("x", x), ("y", y)):
            sizes, pitch = (DEPTH, array.shape[0]), (DEPTH * 2,)
            params[f"{name}_map"] = TensorMap(_box(name), name, params[name], sizes, pitch)
        return sim.run(self.kernel, (1, 1, 1), params, heap.buffers, on_hazard="collect", **options)


def _box(name: str) -> MapShape:
    return MapShape(bf16, (DEPTH, BYTES[name] // (2 * DEPTH)), 128)


def operands() -> tuple[Values, Values, Values]:
    """x, y and room for their product."""
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal((rows, DEPTH)).astype(ml_dtypes.bfloat16) for rows in (64, 8))
    return x, y, np.zeros((ROWS, COLUMNS), np.float32)


def kernel(
    *,
    ordinary: bool = False,
    proxy: bool = True,
    arrived: bool = True,
    fence: bool = True,
    commit: bool = True,
    pending: int = 0,
    reload: str = "",
    touch: str = "",
) -> GemmAuthor:
    """Loads tiles, multiplies, waits and stores; each option leaves one thing out or adds one."""
    a = GemmAuthor()
    a.init()
    if ordinary:
        a.copy()
        if proxy:
            fence_proxy(a.b, "shared::cta")
        barrier_sync(a.b)
    else:
        a.load()
        if arrived:
            mbarrier.wait(a.b, a.bar, a.const(0))
    if touch == "zeros":
        for value in a.d:
            register.assign(a.b, value, Const(f32, 0.0))
    if fence:
        wgmma.fence(a.b)
    if touch == "between":
        register.assign(a.b, a.d[0], Const(f32, 0.0))
    a.multiply(zero_first=touch != "zeros")
    if commit:
        wgmma.commit(a.b)
    if reload == "early":
        a.copy()
    wgmma.wait(a.b, pending)
    if reload == "late":
        barrier_sync(a.b)
        a.copy()
    if touch == "write":
        register.assign(a.b, a.d[0], Const(f32, 0.0))
    a.store(a.d)
    if pending or not commit:
        wgmma.commit(a.b)
        wgmma.wait(a.b, 0)
    return a


@pytest.mark.parametrize("order", ["linear", "shuffle"])
@pytest.mark.parametrize("change", [{}, {"ordinary": True}, {"touch": "zeros"}, {"reload": "late"}])
def test_product(change: dict[str, Any], order: str) -> None:
    """The product is right and nothing is found, whoever brings the operands."""
    x, y, z = operands()
    result = kernel(**change).launch(x, y, z, order=order, seed=3)
    assert codes(result) == []
    np.testing.assert_allclose(
        z, x.astype(np.float64) @ y.astype(np.float64).T, rtol=1e-4, atol=1e-4
    )
    totals = result.profile.totals
    assert totals["wgmma"] == STEPS * 4
    # each step reads both operands once, 128 bytes at a time
    assert totals["wgmma_wavefronts"] == STEPS * (ROWS + COLUMNS) * SHAPE.k * 2 / 128
    assert totals["wgmma_ideal_wavefronts"] == totals["wgmma_wavefronts"]


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"arrived": False}, "inflight"),
        ({"fence": False}, "inflight"),
        ({"touch": "between"}, "inflight"),
        ({"ordinary": True, "proxy": False}, "proxy"),
        ({"pending": 1}, "inflight"),
        ({"commit": False}, "inflight"),
        ({"reload": "early"}, "inflight"),
        ({"pending": 1, "touch": "write"}, "inflight"),
    ],
)
def test_what_is_left_out_is_found(change: dict[str, Any], want: str) -> None:
    """No wait for the tiles, no fence, a change after it, no proxy fence, too short a wait, …"""
    assert want in codes(kernel(**change).launch(*operands()))


def test_messages_name_the_missing_call() -> None:
    """Hazards say which call mends them, with the line of the wgmma or the store."""
    for change, call in (
        ({"fence": False}, "kd.wgmma_fence()"),
        ({"pending": 1}, "kd.wgmma_wait(0)"),
        ({"ordinary": True, "proxy": False}, "kd.fence_proxy_async()"),
        ({"arrived": False}, "bar.wait(parity)"),
    ):
        text = str(kernel(**change).launch(*operands()).hazards[0])
        assert call in text


def test_a_missing_proxy_fence_names_both_lines() -> None:
    """The report has a code of its own, who wrote what, and where."""
    (hazard, *_) = kernel(ordinary=True, proxy=False).launch(*operands()).hazards
    assert hazard.error().code == "K512"
    assert "x_tile" in hazard.message or "y_tile" in hazard.message
    assert "by an ordinary store" in hazard.message
    assert len(hazard.lines) == 2


def test_ending_with_unfinished_wgmma() -> None:
    """A kernel must wait for its wgmma even when nobody reads the result."""
    a = GemmAuthor()
    a.init()
    a.load()
    mbarrier.wait(a.b, a.bar, a.const(0))
    wgmma.fence(a.b)
    a.multiply()
    wgmma.commit(a.b)
    assert codes(a.launch(*operands())) == ["inflight"]


def test_warps_that_do_not_take_part() -> None:
    """A warp group's wgmma is never done when one of its warps does not start it."""
    a = GemmAuthor()
    a.init()
    a.load()
    mbarrier.wait(a.b, a.bar, a.const(0))

    def most() -> None:
        wgmma.fence(a.b)
        a.multiply()
        wgmma.commit(a.b)
        wgmma.wait(a.b, 0)

    a.when(a.test("lt", a.tid, 96), most)
    barrier_sync(a.b)
    hazards = a.launch(*operands()).hazards
    assert [hazard.code for hazard in hazards] == ["deadlock"]
    assert "warp group" in hazards[0].message
