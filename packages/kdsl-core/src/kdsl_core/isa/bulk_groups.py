"""Groups of a thread's bulk and tensor stores, and the L2 policies of such copies."""

from __future__ import annotations

from kdsl_core.dtypes import u64
from kdsl_core.ir import Builder, Const, Effect, Machine, Need, Op, Operand, PtxWriter, Value
from kdsl_core.isa.operands import expect_choice, expect_count, expect_type
from kdsl_core.records import dataclass

HOPPER = Need(sm=90, ptx=(8, 0))
MOST_PENDING = 64  # a wait for more groups than any kernel keeps in flight is a mistake
POLICIES = ("evict_first", "evict_last", "evict_normal", "evict_unchanged")


@dataclass(frozen=True, kw_only=True, eq=False)
class BulkCommitOp(Op):
    """Close the thread's bulk group. Source: PTX ISA 9.0 `cp.async.bulk.commit_group`."""

    NAME = "bulk.commit"

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    @property
    def need(self) -> Need:
        return HOPPER

    def ptx(self, w: PtxWriter) -> None:
        w.emit("cp.async.bulk.commit_group")

    def simulate(self, m: Machine) -> None:
        m.bulk_commit()


@dataclass(frozen=True, kw_only=True, eq=False)
class BulkWaitOp(Op):
    """Wait until at most `pending` of the thread's bulk groups are unfinished.

    `read` waits only until their sources have been read, so that these may be written again.
    Source: PTX ISA 9.0 `cp.async.bulk.wait_group`.
    """

    pending: int
    read: bool

    NAME = "bulk.wait"

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    @property
    def need(self) -> Need:
        return HOPPER

    def verify(self) -> None:
        expect_count(self, "the number of pending groups", self.pending, range(MOST_PENDING))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"cp.async.bulk.wait_group{'.read' if self.read else ''} {self.pending}")

    def simulate(self, m: Machine) -> None:
        m.bulk_wait(self.pending, read=self.read)


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyOp(Op):
    """How long L2 is to keep what a copy moves. Source: PTX ISA 9.0 `createpolicy`."""

    kind: str
    d: Value

    NAME = "bulk.policy"
    WRITES = ("d",)

    @property
    def need(self) -> Need:
        return Need(sm=80, ptx=(7, 4))

    def verify(self) -> None:
        expect_choice(self, "the cache policy", self.kind, POLICIES)
        expect_type(self, "a cache policy", self.d, (u64,))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"createpolicy.fractional.L2::{self.kind}.b64 {w.reg(self.d)}, 1.0")

    def simulate(self, m: Machine) -> None:
        m.write(self.d, Const(u64, POLICIES.index(self.kind)).array())


def expect_policy(op: Op, policy: Operand | None) -> None:
    """Check the type of an optional cache policy."""
    if policy is not None:
        expect_type(op, "a cache policy", policy, (u64,))


def cache_hint(w: PtxWriter, policy: Operand | None) -> tuple[str, str]:
    """The qualifier and the last operand of a copy with a cache policy."""
    return ("", "") if policy is None else (".L2::cache_hint", f", {w.reg(policy)}")


def commit(b: Builder) -> None:
    """Close the thread's open bulk group."""
    b.append(BulkCommitOp(loc=b.loc()))


def wait(b: Builder, pending: int, read: bool) -> None:
    """Wait until at most `pending` bulk groups are unfinished, or still reading."""
    b.append(BulkWaitOp(loc=b.loc(), pending=pending, read=read))


def policy(b: Builder, kind: str) -> Operand:
    """The cache policy of that name; equal ones are shared."""
    return b.share(PolicyOp(loc=b.loc(), kind=kind, d=b.value(u64))).d


OPS: tuple[type[Op], ...] = (BulkCommitOp, BulkWaitOp, PolicyOp)
