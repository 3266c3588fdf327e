"""A traced kernel that is about to be changed: who defines what, and copies with edits."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kdsl_core.ir import Block, Builder, Const, Effect, Kernel, MapShape, Op, Operand, Value, Var
from kdsl_core.isa.control import Terminator
from kdsl_core.isa.instruction import InstructionOp
from kdsl_core.isa.register import MoveOp
from kdsl_core.isa.wgmma import WgmmaOp

Edits = Mapping[Op, Sequence[Op]]
_INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")  # frames before Python 3.12 only


@dataclass(frozen=True, eq=False)
class Mutant:
    """One change: operations that stand in the place of others, or tensor maps of another shape.

    `at` is the operation that the change is about, `what` says it in words.
    """

    operator: str
    at: Op
    what: str
    edits: Edits = field(default_factory=dict)
    maps: Mapping[str, MapShape] = field(default_factory=dict)

    @property
    def site(self) -> str:
        """Where and what, without line numbers: ``file.py:function<caller operation: change``."""
        codes = [code for code, _ in self.at.loc.frames] if self.at.loc else []
        frames = [code for code in codes if code.co_name not in _INLINED][:2]
        names = "<".join(code.co_name for code in frames)
        file = Path(frames[0].co_filename).name if frames else "?"
        return f"{file}:{names} {self.at.name}: {self.what}"

    @property
    def line(self) -> str:
        """The author's line that the change is about."""
        loc = self.at.loc
        return linecache.getline(loc.file, loc.line).strip() if loc else ""

    def apply(self, kernel: Kernel) -> Kernel:
        """The kernel with the change; the given one stays as it is."""
        params = [
            replace(param, map=replace(param.map, shape=self.maps[param.name]))
            if param.map is not None and param.name in self.maps
            else param
            for param in kernel.params
        ]
        return replace(kernel, params=params, body=_edited(kernel.body, self.edits))


def _edited(block: Block, edits: Edits) -> Block:
    found: list[Op] = []
    for op in block.ops:
        found += [_with_regions(new, edits) for new in edits.get(op, (op,))]
    return Block(found)


def _with_regions(op: Op, edits: Edits) -> Op:
    regions = {name: _edited(getattr(op, name), edits) for name in op.REGIONS}
    return replace(op, **regions) if regions else op


class Subject:
    """The operations of a kernel, what defines each value, and its rings of stages.

    `rings` says of each register that holds a place in a ring how many places there are.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.ops = list(kernel.body.walk())
        self.definitions = {reg: op for op in self.ops for reg in op.writes() if _is_value(reg)}
        self.assignments: dict[Operand, list[MoveOp]] = {}
        for op in self.ops:
            if isinstance(op, MoveOp) and isinstance(op.d, Var):
                self.assignments.setdefault(op.d, []).append(op)
        accumulators = {r for op in self.ops if isinstance(op, WgmmaOp) for r in op.writes()}
        self._accumulators = accumulators
        self.rings = dict(self._rings())

    def of(self, *kinds: type[Op]) -> Iterator[Op]:
        """The operations of some kinds."""
        return (op for op in self.ops if isinstance(op, kinds))

    def blocks(self) -> Iterator[Block]:
        """All blocks, nested ones included."""
        yield self.kernel.body
        for op in self.ops:
            yield from op.regions()

    def acts(self, op: Op) -> bool:
        """Whether an operation, or one inside it, touches memory or accumulators, or orders."""
        quiet = Effect.CONTROL | Effect.OBSERVABLE | Effect.CONVERGED | Effect.LANES
        return any(
            each.effects & ~quiet
            or any(reg in self._accumulators for reg in (*each.reads(), *each.writes()))
            for each in _inside(op)
        )

    # -- registers --------------------------------------------------------------------------------
    def behind(self, operand: Operand) -> Operand:
        """The register or constant that an operand is a snapshot of."""
        op = self.definitions.get(operand)
        return self.behind(op.source) if isinstance(op, MoveOp) else operand

    def leaves(self, operand: Operand) -> list[Operand]:
        """Registers in an operand's computation, itself included, each once."""
        found: list[Operand] = []
        waiting = [operand]
        while waiting:
            reg = waiting.pop()
            if isinstance(reg, Const) or reg in found:
                continue
            found.append(reg)
            op = self.definitions.get(reg)
            if isinstance(op, InstructionOp | MoveOp):
                waiting += op.reads()
        return found

    def recomputed(
        self, operand: Operand, leaf: Operand, other: Callable[[Builder, Operand], Operand]
    ) -> tuple[list[Op], Operand]:
        """The operand computed anew from `other(leaf)`: the operations, and the new operand."""
        builder = Builder(Kernel("", (1, 1, 1)))
        known = {leaf: other(builder, leaf)}
        new = self._recompute(builder, operand, known)
        return list(builder.block.ops), new

    def _recompute(
        self, builder: Builder, operand: Operand, known: dict[Operand, Operand]
    ) -> Operand:
        if operand in known:
            return known[operand]
        op = self.definitions.get(operand)
        if not isinstance(op, InstructionOp | MoveOp):
            return operand
        changed = op.map_reads(lambda x: self._recompute(builder, x, known))
        if changed is op:
            known[operand] = operand
            return operand
        new = builder.value(operand.dtype)
        builder.append(replace(changed, d=new))
        known[operand] = new
        return new

    def _rings(self) -> Iterator[tuple[Operand, int]]:
        """Registers that wrap: compared with their last place, or remainders of a constant."""
        for op in self.of(InstructionOp):
            last = op.operands[-1]
            if not isinstance(last, Const) or op.d.dtype.is_float:
                continue
            if op.name == "compare.eq" and self._wraps(op):
                variable = self.behind(op.operands[0])
                count = int(last.value) + 1
                yield variable, count
                yield from ((x, count) for x in self.definitions if self.behind(x) is variable)
            elif op.name == "arith.rem" and 2 <= int(last.value) <= 16 and op.d.dtype.bits == 32:
                yield op.d, int(last.value)

    def _wraps(self, test: InstructionOp) -> bool:
        """Whether a comparison decides that a variable starts again at 0."""
        variable = self.behind(test.operands[0])
        return isinstance(variable, Var) and any(
            op.name == "compare.select"
            and op.operands[0] is test.d
            and isinstance(op.operands[1], Const)
            and op.operands[1].value == 0
            for op in self.of(InstructionOp)
        )


def _is_value(reg: Operand) -> bool:
    return isinstance(reg, Value)


def swapped(ops: Sequence[Op], first: int, last: int) -> Edits | None:
    """Edits that let operation `last` of a block run before `first`, an earlier one.

    What it needs of the operations between them comes with it. None when it needs `first` itself,
    or when either would then see another value of a variable.
    """
    early, late = ops[first], ops[last]
    needed: list[Op] = []
    wanted = _reads(late)
    for op in reversed(ops[first + 1 : last]):
        if wanted & _writes(op):
            needed.insert(0, op)
            wanted |= _reads(op)
    overtaking = (*needed, late)
    written = set().union(*map(_writes, overtaking))
    ends = any(isinstance(op, Terminator) for op in (*_inside(early), *_inside(late)))
    if wanted & _writes(early) or written & _reads(early) or ends:
        return None
    return {**dict.fromkeys(overtaking, ()), early: (*overtaking, early)}


def _reads(op: Op) -> set[Operand]:
    return {reg for each in _inside(op) for reg in each.reads() if not isinstance(reg, Const)}


def _writes(op: Op) -> set[Operand]:
    return {reg for each in _inside(op) for reg in each.writes()}


def _inside(op: Op) -> Iterator[Op]:
    yield op
    for region in op.regions():
        yield from region.walk()
