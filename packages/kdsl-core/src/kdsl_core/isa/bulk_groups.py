"""Groups of a thread's bulk and tensor stores."""

from __future__ import annotations

from kdsl_core.ir import Builder, Effect, Machine, Need, Op, PtxWriter
from kdsl_core.isa.operands import expect_count
from kdsl_core.records import dataclass

HOPPER = Need(sm=90, ptx=(8, 0))
MOST_PENDING = 64  # a wait for more groups than any kernel keeps in flight is a mistake


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


def commit(b: Builder) -> None:
    """Close the thread's open bulk group."""
    b.append(BulkCommitOp(loc=b.loc()))


def wait(b: Builder, pending: int, read: bool) -> None:
    """Wait until at most `pending` bulk groups are unfinished, or still reading."""
    b.append(BulkWaitOp(loc=b.loc(), pending=pending, read=read))


OPS: tuple[type[Op], ...] = (BulkCommitOp, BulkWaitOp)
