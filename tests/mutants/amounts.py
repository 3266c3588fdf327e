"""Mutation operators on numbers: phases, stages, counts, bytes, groups, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kdsl_core.ir import Builder, Const, Op, Operand
from kdsl_core.isa import arith, compare
from kdsl_core.isa.async_copy import CpAsyncOp, CpAsyncWaitOp
from kdsl_core.isa.barrier import BarrierArriveOp, BarrierSyncOp
from kdsl_core.isa.bulk import BULK_BYTES, BulkLoadOp
from kdsl_core.isa.bulk_groups import BulkWaitOp
from kdsl_core.isa.cluster import MapAddressOp
from kdsl_core.isa.instruction import InstructionOp
from kdsl_core.isa.launch import SetMaxRegistersOp
from kdsl_core.isa.matrix_copy import LdmatrixOp, StmatrixOp
from kdsl_core.isa.mbarrier import (
    MBARRIER_BYTES,
    MbarrierArriveOp,
    MbarrierExpectOp,
    MbarrierInitOp,
    MbarrierTestOp,
    MbarrierWaitOp,
)
from kdsl_core.isa.memory import LoadOp, StoreOp
from kdsl_core.isa.tma import TensorLoadOp, TensorStoreOp
from kdsl_core.isa.wgmma import WgmmaOp, WgmmaWaitOp
from mutants.subject import Mutant, Subject

Change = Callable[[Builder, Operand], Operand]
# operation → its operands that say where: those that may name a stage
PLACES: dict[type[Op], tuple[str, ...]] = {
    MbarrierArriveOp: ("address",),
    MbarrierExpectOp: ("address",),
    MbarrierWaitOp: ("address",),
    MbarrierTestOp: ("address",),
    TensorLoadOp: ("destination", "barrier"),
    TensorStoreOp: ("source",),
    WgmmaOp: ("a", "b"),
    CpAsyncOp: ("dst",),
    LdmatrixOp: ("address",),
    StmatrixOp: ("address",),
    LoadOp: ("address",),
    StoreOp: ("address",),
}


def parity(subject: Subject) -> Iterator[Mutant]:
    """A wait names the other phase."""
    for op in subject.of(MbarrierWaitOp, MbarrierTestOp):
        yield _recomputed(subject, "parity", op, "parity", op.parity, _plus("xor", 1), "flipped")


def phase(subject: Subject) -> Iterator[Mutant]:
    """A variable that holds a phase begins with the other one, or does not turn."""
    waits = subject.of(MbarrierWaitOp, MbarrierTestOp)
    variables = {subject.behind(op.parity) for op in waits}
    for variable in dict.fromkeys(x for x in subject.assignments if x in variables):
        for op in subject.assignments[variable]:
            if isinstance(op.source, Const):
                other = replace(op, source=Const(op.d.dtype, int(op.source.value) ^ 1))
                yield Mutant("phase", op, "begins with the other", {op: (other,)})
            else:
                yield Mutant("phase", op, "does not turn", {op: ()})


def stage(subject: Subject) -> Iterator[Mutant]:
    """An access or a barrier takes the next stage of its ring, or the one before."""
    for op in subject.of(*PLACES):
        if getattr(op, "space", "shared") == "global":
            continue
        for name in PLACES[type(op)]:
            operand = getattr(op, name)
            if isinstance(operand, tuple):
                continue
            for leaf in subject.leaves(operand):
                count = subject.rings.get(leaf, 0)
                for step in {1, count - 1} if count > 1 else ():
                    sign = "+1" if step == 1 else "-1"
                    yield _recomputed(
                        subject, "stage", op, name, leaf, _around(step, count), f"stage {sign}"
                    )
                if count > 1:
                    break


def depth(subject: Subject) -> Iterator[Mutant]:
    """A ring wraps one stage early."""
    for op in subject.of(InstructionOp):
        last = op.operands[-1]
        if op.name != "compare.eq" or not isinstance(last, Const) or last.value == 0:
            continue
        if subject.behind(op.operands[0]) in subject.rings:
            shorter = Const(last.dtype, int(last.value) - 1)
            other = replace(op, operands=(op.operands[0], shorter))
            yield Mutant("depth", op, f"wraps at {shorter.value}", {op: (other,)})


def bytes_expected(subject: Subject) -> Iterator[Mutant]:
    """A phase expects an element more or fewer than come."""
    size = min(p.tensor[1].bytes for p in subject.kernel.params if p.tensor)
    for op in subject.of(MbarrierArriveOp, MbarrierExpectOp):
        name = "expect_bytes" if isinstance(op, MbarrierArriveOp) else "size"
        given = getattr(op, name)
        for step in (size, -size) if given is not None else ():
            yield _recomputed(
                subject, "bytes_expected", op, name, given, _plus("add", step), f"{step:+}"
            )


def bulk(subject: Subject) -> Iterator[Mutant]:
    """A bulk copy brings 16 bytes more or fewer, or puts them 16 bytes further."""
    for op in subject.of(BulkLoadOp):
        for step in (BULK_BYTES, -BULK_BYTES):
            yield _recomputed(subject, "bulk", op, "size", op.size, _plus("add", step), f"{step:+}")
        further = op.destination_offset + BULK_BYTES
        yield _with("bulk", op, "destination further", destination_offset=further)


def neighbour(subject: Subject) -> Iterator[Mutant]:
    """An mbarrier that belongs to no ring is the one beside it."""
    for op in subject.of(MbarrierArriveOp, MbarrierWaitOp, BulkLoadOp):
        address, name = (
            (op.barrier, "barrier_offset") if isinstance(op, BulkLoadOp) else (op.address, "offset")
        )
        if any(leaf in subject.rings for leaf in subject.leaves(address)):
            continue
        for step in (MBARRIER_BYTES, -MBARRIER_BYTES):
            if (beside := getattr(op, name) + step) >= 0:
                yield _with("neighbour", op, f"{step:+}", **{name: beside})


def count(subject: Subject) -> Iterator[Mutant]:
    """A barrier waits for more or fewer arrivals, or somebody arrives once more."""
    for op in subject.of(MbarrierInitOp):
        for step in (1, -1):
            if int(op.count.value) + step > 0:
                yield _with("count", op, f"{step:+}", count=_moved(op.count, step))
    for op in subject.of(MbarrierArriveOp):
        if op.expect_bytes is None:
            once = op.count or Const(op.address.dtype, 1)
            yield _with("count", op, "+1", count=_moved(once, 1))
    for op in subject.of(BarrierSyncOp, BarrierArriveOp):
        for step in (32, -32):
            if op.threads is not None and op.threads + step > 0:
                yield _with("count", op, f"threads {step:+}", threads=op.threads + step)


def barrier_id(subject: Subject) -> Iterator[Mutant]:
    """A named barrier is another one."""
    for op in subject.of(BarrierSyncOp, BarrierArriveOp):
        for step in (1, -1):
            change = _plus("add", step)
            if not isinstance(op.number, Const) or op.number.value + step >= 0:
                yield _recomputed(
                    subject, "barrier_id", op, "number", op.number, change, f"{step:+}"
                )


def pending(subject: Subject) -> Iterator[Mutant]:
    """A wait leaves one group more unfinished."""
    for op in subject.of(CpAsyncWaitOp, WgmmaWaitOp, BulkWaitOp):
        yield _with("pending", op, f"{op.pending + 1}", pending=op.pending + 1)


def rank(subject: Subject) -> Iterator[Mutant]:
    """Memory of another block of the cluster is meant."""
    size = 1
    for blocks in subject.kernel.cluster_dim or ():
        size *= blocks
    for op in subject.of(MapAddressOp):
        yield _recomputed(subject, "rank", op, "rank", op.rank, _around(1, size), "+1")


def multicast(subject: Subject) -> Iterator[Mutant]:
    """A copy for several blocks goes to its own block only."""
    for op in subject.of(TensorLoadOp):
        if op.multicast is not None:
            yield _with("multicast", op, "left out", multicast=None)


def registers(subject: Subject) -> Iterator[Mutant]:
    """Warps ask for more registers, or give fewer away."""
    for op in subject.of(SetMaxRegistersOp):
        yield _with("registers", op, "+8", count=op.count + 8)


# -- parts ----------------------------------------------------------------------------------------
def _with(operator: str, op: Op, what: str, **changes: Any) -> Mutant:
    return Mutant(operator, op, what, {op: (replace(op, **changes),)})


def _recomputed(
    subject: Subject, operator: str, op: Op, name: str, leaf: Operand, change: Change, what: str
) -> Mutant:
    """The operation with an operand computed from a changed register."""
    before, operand = subject.recomputed(getattr(op, name), leaf, change)
    ops = (*(replace(new, loc=op.loc) for new in before), replace(op, **{name: operand}))
    return Mutant(operator, op, f"{name} {what}", {op: ops})


def _plus(name: str, number: int) -> Change:
    return lambda b, x: arith.binary(b, name, x, Const(x.dtype, number))


def _around(step: int, count: int) -> Change:
    """x + step, modulo count."""

    def change(b: Builder, x: Operand) -> Operand:
        there = arith.binary(b, "add", x, Const(x.dtype, step))
        over = compare.compare(b, "ge", there, Const(x.dtype, count))
        back = arith.binary(b, "sub", there, Const(x.dtype, count))
        return compare.select(b, over, back, there)

    return change


def _moved(number: Operand, step: int) -> Const:
    assert isinstance(number, Const)
    return Const(number.dtype, int(number.value) + step)


OPERATORS = (
    parity, phase, stage, depth, bytes_expected, bulk, neighbour, count, barrier_id, pending, rank,
    multicast, registers,
)  # fmt: skip
