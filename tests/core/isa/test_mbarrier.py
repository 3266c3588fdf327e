"""Mbarriers: text, what the machine is asked, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.isa.warps import SHARED_BASE, Bench, ptx_of
from kdsl_core.dtypes import boolean, f32, u32, u64
from kdsl_core.errors import KdslError
from kdsl_core.ir import Builder, Const, Effect, Kernel, target_of
from kdsl_core.isa import mbarrier


def word(value: int) -> Const:
    """A constant count, size or parity."""
    return Const(u32, value)


def every_form(b: Builder) -> None:
    """Append each operation once, or in each of its forms."""
    bar, pred = b.var(u32), b.var(boolean)
    mbarrier.init(b, bar, word(3))
    mbarrier.fence_init(b)
    mbarrier.arrive(b, bar, 8)
    mbarrier.arrive(b, bar, count=word(2), remote=True)
    mbarrier.arrive(b, bar, expect_bytes=word(512), pred=pred)
    mbarrier.expect(b, bar, word(16), 16)
    mbarrier.test_wait(b, bar, word(1), suspend=False)
    mbarrier.wait(b, bar, word(0), 8)
    mbarrier.async_copy_arrive(b, bar)
    mbarrier.async_copy_arrive(b, bar, counted=False)
    mbarrier.arrive(b, bar, remote=True, relaxed=True)
    mbarrier.invalidate(b, bar)


def test_text() -> None:
    """Each form is spelled as PTX does; a wait is a loop of its own."""
    bench = Bench(1)
    every_form(bench.b)
    assert ptx_of(bench.kernel.body) == [
        "mbarrier.init.shared::cta.b64 [b32_1], #3",
        "fence.mbarrier_init.release.cluster",
        "mbarrier.arrive.shared::cta.b64 _, [b32_1+8]",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [b32_1], #2",
        "@pred_2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [b32_1], #512",
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [b32_1+16], #16",
        "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 pred_3, [b32_1], #1",
        "wait_4:",
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 pred_5, [b32_1+8], #0",
        "@!pred_5 bra wait_4",
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [b32_1]",
        "cp.async.mbarrier.arrive.shared::cta.b64 [b32_1]",
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [b32_1]",
        "mbarrier.inval.shared::cta.b64 [b32_1]",
    ]
    assert all(op.effects & Effect.SYNC for op in bench.kernel.body.ops)


@pytest.mark.parametrize(
    ("cluster", "scope"), [(None, "cta"), ((1, 1, 1), "cta"), ((2, 1, 1), "cluster")]
)
def test_waits_acquire_from_all_who_may_arrive(
    cluster: tuple[int, int, int] | None, scope: str
) -> None:
    """In a cluster of several blocks the threads of all of them may have arrived."""
    kernel = Kernel("waits", (32, 1, 1), cluster_dim=cluster)
    b = Builder(kernel)
    mbarrier.wait(b, b.var(u32), word(0))
    mbarrier.test_wait(b, b.var(u32), word(0))
    assert [op.scope for op in kernel.body.ops] == [scope, scope]  # type: ignore[attr-defined] # both acquire
    assert f".acquire.{scope}." in ptx_of(kernel.body)[1]


def test_machine() -> None:
    """Each operation reaches the machine with an address and a number per lane."""
    bench = Bench(2)
    b = bench.b
    bar = bench.holding(u32, SHARED_BASE)
    where = bench.holding(boolean, np.arange(32) < 3)
    mbarrier.init(b, bar, bench.holding(u32, np.arange(32)), 8)
    mbarrier.arrive(b, bar, pred=where)
    mbarrier.arrive(b, bar, expect_bytes=word(64), remote=True)
    mbarrier.expect(b, bar, word(16), pred=where)
    done = mbarrier.test_wait(b, bar, bench.holding(u32, np.arange(32) & 1))
    mbarrier.wait(b, bar, word(1), 8)
    mbarrier.async_copy_arrive(b, bar, counted=False)
    mbarrier.fence_init(b)
    mbarrier.invalidate(b, bar)
    init, arrive, expecting, expect, test, wait, copies, fence, end = bench.run().asked
    assert init[0] == "mbarrier_init" and (init[1] == SHARED_BASE + 8).all()
    assert init[2].shape == (2, 32) and init[2][1, 5] == 5
    assert arrive[0] == "mbarrier_arrive" and (arrive[2] == 1).all() and arrive[3] is None
    assert arrive[4].sum() == 6 and arrive[5] is False
    assert (expecting[3] == 64).all() and expecting[4] is None and expecting[5] is True
    assert expect[0] == "mbarrier_expect" and (expect[2] == 16).all() and expect[3].sum() == 6
    assert test[0] == "mbarrier_test" and bench.got(done)[0].tolist() == [False, True] * 16
    assert (
        wait[0] == "mbarrier_wait" and (wait[1] == SHARED_BASE + 8).all() and (wait[2] == 1).all()
    )
    assert copies[0] == "async_copy_arrive" and copies[2] is False
    assert fence == ("fence_mbarrier_init",) and end[0] == "mbarrier_invalidate"


def test_a_predicate_that_always_holds_is_none() -> None:
    """A constant true predicate prints nothing."""
    bench = Bench(1)
    true = Const(boolean, True)
    mbarrier.arrive(bench.b, bench.b.var(u32), pred=true)
    mbarrier.expect(bench.b, bench.b.var(u32), word(1), pred=true)
    assert not any(line.startswith("@") for line in ptx_of(bench.kernel.body))


def test_only_hopper_and_newer_have_them() -> None:
    """Each operation asks for sm_90; a relaxed arrival also for a newer PTX."""
    bench = Bench(1)
    every_form(bench.b)
    ops = bench.kernel.body.ops
    assert {type(op) for op in ops} == set(mbarrier.OPS)
    for op in ops:
        assert op.need.missing(target_of("sm_89")) == "it needs sm_90 or newer"
        assert op.need.missing(target_of("sm_90")) is None
        assert op.need.ptx == ((8, 6) if getattr(op, "relaxed", False) else (8, 0))


Refused = Callable[[Builder], None]
REFUSED: list[tuple[str, str, Refused]] = [
    ("K270", "a shared address must be u32, got u64",
     lambda b: mbarrier.invalidate(b, b.var(u64))),
    ("K432", "a multiple of 8 bytes, got the offset 4",
     lambda b: mbarrier.invalidate(b, b.var(u32), 4)),
    ("K271", "arrivals must be 1 to 1048575, got 0",
     lambda b: mbarrier.init(b, b.var(u32), word(0))),
    ("K270", "arrivals must be u32, got f32",
     lambda b: mbarrier.init(b, b.var(u32), b.var(f32))),
    ("K271", "arrivals must be 1 to 1048575, got 1048576",
     lambda b: mbarrier.arrive(b, b.var(u32), count=word(1 << 20))),
    ("K271", "bytes must be 0 to 1048575, got 1048576",
     lambda b: mbarrier.arrive(b, b.var(u32), expect_bytes=word(1 << 20))),
    ("K271", "bytes must be 0 to 1048575, got 2097152",
     lambda b: mbarrier.expect(b, b.var(u32), word(1 << 21))),
    ("K434", "of arrivals or of bytes, got both",
     lambda b: mbarrier.arrive(b, b.var(u32), count=word(2), expect_bytes=word(2))),
    ("K270", "the condition must be boolean, got u32",
     lambda b: mbarrier.arrive(b, b.var(u32), pred=b.var(u32))),
    ("K270", "the condition must be boolean, got u32",
     lambda b: mbarrier.expect(b, b.var(u32), word(2), pred=b.var(u32))),
    ("K271", "the parity must be 0 to 1, got 2",
     lambda b: mbarrier.wait(b, b.var(u32), word(2))),
    ("K270", "the parity must be u32, got boolean",
     lambda b: mbarrier.wait(b, b.var(u32), b.var(boolean))),
    ("K430", "the scope must be one of 'cta', 'cluster', got 'gpu'",
     lambda b: mbarrier.MbarrierWaitOp(address=b.var(u32), parity=word(0), scope="gpu").verify()),
    ("K270", "the result must be boolean, got u32",
     lambda b: mbarrier.MbarrierTestOp(
         address=b.var(u32), parity=word(0), dst=b.value(u32)).verify()),
]  # fmt: skip


@pytest.mark.parametrize(("code", "words", "build"), REFUSED)
def test_refused(code: str, words: str, build: Refused) -> None:
    """Types and limits are checked, in words with numbers."""
    with pytest.raises(KdslError, match=words) as caught:
        build(Bench(1).b)
    assert caught.value.code == code
