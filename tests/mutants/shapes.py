"""Mutation operators on where data lie: edges, swizzles, descriptors, thread-value modes."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from itertools import pairwise

from kdsl_core.dtypes import boolean, u64
from kdsl_core.ir import Block, Const, Op, Operand
from kdsl_core.isa.async_copy import CpAsyncOp
from kdsl_core.isa.control import IfOp
from kdsl_core.isa.instruction import InstructionOp
from kdsl_core.isa.matrix_copy import LdmatrixOp, StmatrixOp
from kdsl_core.isa.memory import LoadOp, StoreOp
from kdsl_core.isa.tma import TensorLoadOp, TensorStoreOp
from kdsl_core.isa.wgmma import WgmmaOp
from mutants.amounts import PLACES
from mutants.subject import Mutant, Subject

# field of a wgmma descriptor → its lowest bit and a change of it
DESCRIPTOR = {"leading stride": (16, 1), "row stride": (32, 1), "swizzle": (62, 1)}
_FIELD = (1 << 14) - 1
VECTORS: dict[type[Op], str] = {
    LoadOp: "dst", StoreOp: "values", LdmatrixOp: "dst", StmatrixOp: "src",
}  # fmt: skip


def predicate(subject: Subject) -> Iterator[Mutant]:
    """What only some threads do at an edge, or in a role, all do."""
    for op in subject.of(IfOp):
        if not isinstance(op.condition, Const):
            always = replace(op, condition=Const(boolean, True))
            yield Mutant("predicate", op, "always taken", {op: (always,)})
    for op in subject.ops:
        if getattr(op, "pred", None) is not None:
            yield Mutant("predicate", op, "no predicate", {op: (replace(op, pred=None),)})
    for op in subject.of(CpAsyncOp):
        if op.source_bytes is not None:
            whole = replace(op, source_bytes=None)
            yield Mutant("predicate", op, "whole vector", {op: (whole,)})


def swizzle(subject: Subject) -> Iterator[Mutant]:
    """One side swizzles otherwise: a tensor map, or the address of an access."""
    for param in subject.kernel.params:
        if param.map is not None and param.map.shape.swizzle:
            for op in subject.of(TensorLoadOp, TensorStoreOp):
                if op.tensor_map is param.value:
                    narrower = param.map.shape.swizzle // 2
                    shape = replace(param.map.shape, swizzle=narrower if narrower > 16 else 0)
                    what = f"map of {param.map.tensor} swizzled by {shape.swizzle}"
                    yield Mutant("swizzle", op, what, maps={param.name: shape})
                    break
    tests = (op for op in subject.of(InstructionOp) if op.name.startswith("compare."))
    compared = {x for op in tests for x in op.operands}
    for op in subject.of(LdmatrixOp, StmatrixOp, CpAsyncOp, LoadOp, StoreOp):
        if getattr(op, "space", "shared") != "shared":
            continue
        name = PLACES[type(op)][0]
        for leaf in subject.leaves(getattr(op, name)):
            made = subject.definitions.get(leaf)
            if isinstance(made, InstructionOp) and _swizzles(subject, made, compared):
                plain = made.operands[0]
                new, operand = subject.recomputed(getattr(op, name), leaf, lambda b, x, y=plain: y)
                edits = {op: (*new, replace(op, **{name: operand}))}
                yield Mutant("swizzle", op, "not swizzled", edits)
                break


def _swizzles(subject: Subject, op: InstructionOp, compared: Set[Operand]) -> bool:
    """Whether an operation is an exclusive or, but not one of signs, for a quotient."""
    made = (subject.definitions.get(x) for x in op.operands)
    signs = (x for x in made if isinstance(x, InstructionOp) and x.name == "arith.shr")
    signed = op.d in compared or any(_is_constant(x.operands[-1], 31) for x in signs)
    return op.name == "arith.xor" and not signed


def _is_constant(operand: Operand, value: int) -> bool:
    return isinstance(operand, Const) and operand.value == value


def descriptor(subject: Subject) -> Iterator[Mutant]:
    """A stride or the swizzle in a descriptor is another one."""
    used = {
        leaf
        for op in subject.of(WgmmaOp)
        for x in (op.a, op.b)
        if not isinstance(x, tuple)
        for leaf in subject.leaves(x)
    }
    for op in subject.of(InstructionOp):
        last = op.operands[-1]
        if op.d not in used or not isinstance(last, Const) or last.dtype is not u64:
            continue
        if int(last.value) >> 16 == 0:
            continue
        for name, (bit, step) in DESCRIPTOR.items():
            mask = _FIELD if bit < 48 else 3
            old = int(last.value) >> bit & mask
            bits = int(last.value) & ~(mask << bit) | (old + step & mask) << bit
            other = replace(op, operands=(*op.operands[:-1], Const(u64, bits)))
            yield Mutant("descriptor", op, f"{name} {old} → {old + step & mask}", {op: (other,)})


def modes(subject: Subject) -> Iterator[Mutant]:
    """Values of an access in another order: those of one vector, or of two accesses."""
    for op in subject.of(*VECTORS):
        name = VECTORS[type(op)]
        held = getattr(op, name)
        if len(held) > 1 and len(set(held)) > 1:
            turned = replace(op, **{name: (*held[1:], held[0])})
            yield Mutant("modes", op, "values rotated", {op: (turned,)})
    for block in subject.blocks():
        yield from _exchanged(subject, block)


def _exchanged(subject: Subject, block: Block) -> Iterator[Mutant]:
    """Neighbouring accesses of one kind take each other's values."""
    accesses = [op for op in block.ops if subject.acts(op)]
    for first, second in pairwise(accesses):
        if type(first) is not type(second) or not isinstance(first, StoreOp | StmatrixOp):
            continue
        name = VECTORS[type(first)]
        one, other = getattr(first, name), getattr(second, name)
        if one != other and [x.dtype for x in one] == [x.dtype for x in other]:
            both = replace(first, **{name: other}), replace(second, **{name: one})
            yield Mutant("modes", first, "values of its neighbour", {first: (), second: both})


def transposed(subject: Subject) -> Iterator[Mutant]:
    """A matrix copy exchanges rows and columns."""
    for op in subject.of(LdmatrixOp, StmatrixOp):
        other = replace(op, transposed=not op.transposed)
        yield Mutant("transposed", op, f"{other.transposed}", {op: (other,)})


OPERATORS = (predicate, swizzle, descriptor, modes, transposed)
