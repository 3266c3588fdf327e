"""Mutation operators on what orders accesses: left out, moved, weakened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from kdsl_core.ir import Op
from kdsl_core.isa.async_copy import CpAsyncCommitOp, CpAsyncWaitOp
from kdsl_core.isa.barrier import (
    BarrierArriveOp,
    BarrierSyncOp,
    FenceOp,
    FenceProxyOp,
    SyncWarpOp,
)
from kdsl_core.isa.bulk_groups import BulkCommitOp, BulkWaitOp
from kdsl_core.isa.cluster import ClusterArriveOp, ClusterWaitOp
from kdsl_core.isa.launch import LaunchDependentsOp, SetMaxRegistersOp, WaitForDependenciesOp
from kdsl_core.isa.mbarrier import (
    AsyncCopyArriveOp,
    MbarrierArriveOp,
    MbarrierExpectOp,
    MbarrierFenceOp,
    MbarrierInitOp,
    MbarrierInvalidateOp,
    MbarrierWaitOp,
)
from kdsl_core.isa.wgmma import WgmmaCommitOp, WgmmaFenceOp, WgmmaWaitOp
from mutants.subject import Mutant, Subject, swapped

ORDERING: tuple[type[Op], ...] = (
    BarrierSyncOp, BarrierArriveOp, SyncWarpOp, FenceOp, FenceProxyOp,
    MbarrierInitOp, MbarrierInvalidateOp, MbarrierArriveOp, MbarrierExpectOp, MbarrierWaitOp,
    MbarrierFenceOp, AsyncCopyArriveOp, CpAsyncCommitOp, CpAsyncWaitOp, BulkCommitOp, BulkWaitOp,
    ClusterArriveOp, ClusterWaitOp, WgmmaFenceOp, WgmmaCommitOp, WgmmaWaitOp,
    SetMaxRegistersOp, WaitForDependenciesOp, LaunchDependentsOp,
)  # fmt: skip
COMMITS = {CpAsyncCommitOp: CpAsyncWaitOp, BulkCommitOp: BulkWaitOp, WgmmaCommitOp: WgmmaWaitOp}


def drop(subject: Subject) -> Iterator[Mutant]:
    """A barrier, fence, wait, commit or arrival is left out."""
    for op in subject.of(*ORDERING):
        yield Mutant("drop", op, "left out", {op: ()})


def drop_cluster_sync(subject: Subject) -> Iterator[Mutant]:
    """A cluster's barrier is left out, both halves."""
    for block in subject.blocks():
        for op, following in pairwise(block.ops):
            if isinstance(op, ClusterArriveOp) and isinstance(following, ClusterWaitOp):
                yield Mutant("drop_cluster_sync", op, "left out with its wait", {
                    op: (), following: (),
                })  # fmt: skip


def move(subject: Subject) -> Iterator[Mutant]:
    """What orders accesses changes places with its neighbour that acts, before or behind it."""
    for block in subject.blocks():
        acting = [at for at, op in enumerate(block.ops) if subject.acts(op)]
        for first, last in pairwise(acting):
            early, late = block.ops[first], block.ops[last]
            if not isinstance(early, ORDERING) and not isinstance(late, ORDERING):
                continue
            edits = swapped(block.ops, first, last)
            if edits is not None:
                at, verb = (early, "behind") if isinstance(early, ORDERING) else (late, "before")
                other = late if at is early else early
                yield Mutant("move", at, f"{verb} {other.name}", edits)


def late_commit(subject: Subject) -> Iterator[Mutant]:
    """A group is closed behind the wait for it."""
    for block in subject.blocks():
        for at, op in enumerate(block.ops):
            wait = COMMITS.get(type(op))
            following = (x for x in block.ops[at:] if wait is not None and isinstance(x, wait))
            behind = next(following, None)
            if behind is not None:
                edits = {op: (), behind: (behind, op)}
                yield Mutant("late_commit", op, "behind the wait", edits)


def weaken(subject: Subject) -> Iterator[Mutant]:
    """What orders accesses does so for fewer: another scope, space or kind of access."""
    for op in subject.of(*ORDERING):
        for name, weaker in _weaker(op):
            yield Mutant("weaken", op, f"{name} {weaker}", {op: (replace(op, **{name: weaker}),)})


def _weaker(op: Op) -> Iterator[tuple[str, object]]:
    if isinstance(op, MbarrierArriveOp) and not op.relaxed:
        yield "relaxed", True
    elif isinstance(op, ClusterArriveOp) and op.release:
        yield "release", False
    elif isinstance(op, MbarrierWaitOp | FenceOp) and op.scope != "cta":
        yield "scope", "cta"
    elif isinstance(op, FenceProxyOp) and op.space.startswith("shared"):
        yield "space", "global"
    elif isinstance(op, BulkWaitOp) and not op.read:
        yield "read", True


OPERATORS = (drop, drop_cluster_sync, move, late_commit, weaken)
