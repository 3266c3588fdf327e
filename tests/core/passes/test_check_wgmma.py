"""Registers of wgmma in flight: what is refused, and pipelines that are not."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest

import kdsl_core as kd
from kdsl_core.errors import KdslError

ATOM = kd.atoms.wgmma(16, kd.f16)
FROM_REGISTERS = kd.atoms.wgmma(16, kd.f16, a_from="registers")


class Operands:
    """One k tile of A and B in shared memory, and two sets of accumulators."""

    def __init__(self, atom: Any = ATOM) -> None:
        self.mma = kd.tiled_mma(atom)
        view = self.mma.get_slice(kd.thread_rank())
        a = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (64, 16), stages=1))
        b = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (16, 16), stages=1))
        self.a = view.partition_A(a)[..., 0] if atom is ATOM else self.mma.make_fragment_A((64, 16))
        self.b = view.partition_B(b)[..., 0]
        self.acc = self.mma.make_fragment_C((64, 16))
        self.other = self.mma.make_fragment_C((64, 16))

    def start(self, acc: Any = None, accumulate: Any = True) -> None:
        """Start a product, in a group of its own."""
        acc = self.acc if acc is None else acc
        kd.gemm(self.mma, self.a, self.b, acc, accumulate=accumulate)
        kd.wgmma_commit()


def store(C: Any, acc: Any) -> None:
    """Use the accumulators."""
    C[kd.thread_rank()] = acc[0]


@kd.kernel
def pipelined(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """Prologue, loop with one group in flight, epilogue, in a persistent loop with branches."""
    o = Operands()
    for tile in kd.range(tiles):
        if kd.warp_uniform(kd.warp_idx()) < 4:
            kd.wgmma_fence()
            o.start(accumulate=False)
            for k in kd.range(1, tile):
                kd.wgmma_fence()
                o.start()
                kd.wgmma_wait(1)
                if k == 7:
                    break
                if k == 5:
                    continue
                kd.sync_warp()
            kd.wgmma_wait(0)
            store(C, o.acc)


@kd.kernel
def two_accumulators(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """One product is used while the next, into other registers, is in flight."""
    o = Operands()
    kd.wgmma_fence()
    o.start(accumulate=False)
    for _ in kd.range(tiles):
        o.start(o.other, accumulate=False)
        kd.wgmma_wait(1)
        store(C, o.acc)
        kd.wgmma_fence()
        o.start(accumulate=False)
        kd.wgmma_wait(1)
        store(C, o.other)
        kd.wgmma_fence()
    kd.wgmma_wait(0)


@kd.kernel
def scaled_after_the_wait(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """Accumulators are changed between products, with a fence behind."""
    o = Operands()
    o.acc.fill(0.0)
    for _ in kd.range(tiles):
        kd.wgmma_fence()
        o.start()
        kd.wgmma_wait(0)
        o.acc[0] = o.acc[0] * 2.0
    store(C, o.acc)


@pytest.mark.parametrize("kernel", [pipelined, two_accumulators, scaled_after_the_wait])
def test_right_pipelines_pass(kernel: Any) -> None:
    """No false alarm on what Hopper kernels do."""
    assert "wgmma" in module(kernel).text


@kd.kernel
def reads_too_early(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """The group is committed but not waited for."""
    o = Operands()
    kd.wgmma_fence()
    o.start(accumulate=False)
    store(C, o.acc)  # here


@kd.kernel
def waits_for_too_few(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """One group may still run."""
    o = Operands()
    kd.wgmma_fence()
    for _ in kd.range(tiles):
        o.start()
        kd.wgmma_wait(1)
    store(C, o.acc)  # here


@kd.kernel
def scales_in_flight(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """The write meets the product of the iteration before."""
    o = Operands()
    for _ in kd.range(tiles):
        o.acc[0] = 0.0  # here
        kd.wgmma_fence()
        o.start()


@kd.kernel
def forgets_the_commit(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """A wait covers committed groups only."""
    o = Operands()
    kd.wgmma_fence()
    kd.gemm(o.mma, o.a, o.b, o.acc, accumulate=False)
    kd.wgmma_wait(0)
    store(C, o.acc)  # here


@kd.kernel
def writes_a_in_flight(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """A's registers belong to the product, too."""
    o = Operands(FROM_REGISTERS)
    o.a.fill(1.0)
    kd.wgmma_fence()
    o.start(accumulate=False)
    o.a.fill(2.0)  # here
    kd.wgmma_wait(0)
    store(C, o.acc)


@pytest.mark.parametrize(
    "kernel",
    [reads_too_early, waits_for_too_few, scales_in_flight, forgets_the_commit, writes_a_in_flight],
)
def test_registers_in_flight_are_left_alone(kernel: Any) -> None:
    """The author's line is named, and where the product was started."""
    error = refusal(kernel)
    assert error.code == "K444" and "may still be running" in str(error)
    assert "started at test_check_wgmma.py" in str(error)


@kd.kernel
def no_fence(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """The first product of a kernel needs a fence."""
    o = Operands()
    o.start(accumulate=False)  # here
    kd.wgmma_wait(0)
    store(C, o.acc)


@kd.kernel
def no_second_fence(C: kd.Tensor["f32", "m"], tiles: kd.i32):
    """The accumulators were written since the fence."""
    o = Operands()
    kd.wgmma_fence()
    o.acc.fill(0.0)
    o.start()  # here
    kd.wgmma_wait(0)
    store(C, o.acc)


@pytest.mark.parametrize("kernel", [no_fence, no_second_fence])
def test_a_missing_fence(kernel: Any) -> None:
    """Registers that others used need a fence before a product uses them."""
    assert refusal(kernel).code == "K445"


@kd.kernel
def wide(C: kd.Tensor["f32", "m"], n: kd.Static, blocks: kd.Static):
    """`blocks` accumulator blocks of 64 × n in flight."""
    mma = kd.tiled_mma(kd.atoms.wgmma(n, kd.f16))
    view = mma.get_slice(kd.thread_rank())
    a = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (64 * blocks, 16), stages=1))
    b = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (n, 16), stages=1))
    acc = mma.make_fragment_C((64 * blocks, n))
    kd.wgmma_fence()
    tiles = view.partition_A(a)[..., 0], view.partition_B(b)[..., 0]
    kd.gemm(mma, *tiles, acc, accumulate=False)  # here
    kd.wgmma_commit()
    kd.wgmma_wait(0)
    store(C, acc)


def test_accumulators_that_do_not_fit() -> None:
    """One instruction must fit the registers at entry, all in flight those that a thread has."""
    error = refusal(wide, block=512, n=256, blocks=1)
    assert error.code == "K446" and "starts with 128" in str(error)
    assert refusal(wide, block=384, n=256, blocks=2).code == "K447"
    assert "m64n192k16" in module(wide, block=512, n=192, blocks=1).text


def module(kernel: Any, block: int = 128, **statics: Any) -> Any:
    """A kernel's PTX for Hopper."""
    scalars = () if statics else (3,)
    return kernel.module(kd.spec("f32", (128,)), *scalars, target="sm_90a", block=block, **statics)


def refusal(kernel: Any, **more: Any) -> KdslError:
    """The error of a kernel, at its line that says so."""
    with pytest.raises(KdslError) as caught:
        module(kernel, **more)
    places = str(caught.value).partition("it was started")[0]
    lines = re.findall(rf"{Path(__file__).name}:(\d+)", places)
    assert any("# here" in linecache.getline(__file__, int(line)) for line in lines), places
    return caught.value
