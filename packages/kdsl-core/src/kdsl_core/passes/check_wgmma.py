"""Check that registers of `wgmma` are left alone while it runs, and that they are enough.

The assembler would otherwise wait after every instruction, and only warn of it. The walk follows
structured control flow and assumes, where paths meet, that whatever runs on one of them runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from kdsl_core.errors import ResourceError, VerifyError
from kdsl_core.ir import Block, Const, Kernel, Op, Operand
from kdsl_core.isa.control import BreakOp, ContinueOp, IfOp, LoopOp, Terminator
from kdsl_core.isa.launch import SetMaxRegistersOp
from kdsl_core.isa.wgmma import WgmmaCommitOp, WgmmaFenceOp, WgmmaOp, WgmmaWaitOp
from kdsl_core.records import dataclass

_REGISTERS = 65536  # of a multiprocessor
_MOST = 255  # of a thread
_BESIDE = 26  # that a thread needs beside the accumulators of one instruction, as ptxas counts


def check_wgmma(kernel: Kernel) -> None:
    """Raise VerifyError or ResourceError at the author's line of the first misuse of `wgmma`."""
    ops = [op for op in kernel.body.walk() if isinstance(op, WgmmaOp)]
    if not ops:
        return
    _check_registers(kernel, ops)
    tracked = {register for op in ops for register in (*op.d, *op.a_registers)}
    _Walk(tracked, _most_registers(kernel)).block(kernel.body, _State(touched=set(tracked)))


# -- registers of a thread -----------------------------------------------------------------------
def _at_entry(kernel: Kernel) -> int:
    """Registers of a thread when the kernel starts, if it takes all there are."""
    threads = kernel.threads * (kernel.min_blocks_per_sm or 1)
    return min(_MOST, _REGISTERS // threads // 8 * 8)


def _most_registers(kernel: Kernel) -> int:
    """Registers of a thread once it has asked for more."""
    asked = [op.count for op in kernel.body.walk() if isinstance(op, SetMaxRegistersOp)]
    return max(_at_entry(kernel), *asked, 0)


def _check_registers(kernel: Kernel, ops: Iterable[WgmmaOp]) -> None:
    """Every single instruction fits the registers at entry: the assembler demands it."""
    there = _at_entry(kernel)
    for op in ops:
        needed = op.shape.registers + _BESIDE
        if needed > there:
            raise ResourceError(
                f"{op.name} needs {op.shape.registers} accumulators and {_BESIDE} other registers "
                f"a thread, but a block of {kernel.threads} threads starts with {there}",
                code="K446",
                loc=op.loc,
                fix="use a smaller N or fewer threads; kd.set_max_registers comes too late",
            )


# -- the walk --------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class _Use:
    """Registers in use by `op`; `age` counts commits since, and is 0 before the first."""

    op: WgmmaOp
    age: int
    accumulates: bool

    def older(self) -> _Use:
        """The same after one more commit."""
        return _Use(self.op, self.age + 1, self.accumulates)


@dataclass
class _State:
    """What may be so at a place: registers in flight, and those touched since the last fence."""

    flying: dict[Operand, _Use] = field(default_factory=dict)
    touched: set[Operand] = field(default_factory=set)

    def copy(self) -> _State:
        return _State(dict(self.flying), set(self.touched))

    def joined(self, others: Iterable[_State]) -> _State:
        """Where paths meet: everything that may be so on one of them."""
        both = self.copy()
        for other in others:
            both.touched |= other.touched
            for register, use in other.flying.items():
                mine = both.flying.get(register)
                if mine is None or use.age < mine.age:
                    both.flying[register] = use
        return both

    def same(self, other: _State) -> bool:
        ages = [{r: use.age for r, use in x.flying.items()} for x in (self, other)]
        return ages[0] == ages[1] and self.touched == other.touched


@dataclass
class _Exits:
    """States at the jumps out of one loop's body."""

    breaks: list[_State] = field(default_factory=list)
    continues: list[_State] = field(default_factory=list)


class _Walk:
    """Carries a state through a program; None stands for a place that is never reached."""

    def __init__(self, tracked: set[Operand], registers: int) -> None:
        self.tracked = tracked
        self.registers = registers
        self.loops: list[_Exits] = []

    def block(self, block: Block, state: _State | None) -> _State | None:
        for op in block.ops:
            if state is None:
                return None
            state = self.operation(op, state)
        return state

    def operation(self, op: Op, state: _State) -> _State | None:
        if isinstance(op, WgmmaOp):
            self.start(op, state)
        elif isinstance(op, WgmmaFenceOp):
            state.touched.clear()
        elif isinstance(op, WgmmaCommitOp):
            older = {use: use.older() for use in set(state.flying.values())}
            state.flying = {register: older[use] for register, use in state.flying.items()}
        elif isinstance(op, WgmmaWaitOp):
            state.flying = {r: use for r, use in state.flying.items() if use.age <= op.pending}
        elif isinstance(op, LoopOp):
            return self.loop(op, state)
        else:
            self.touch(op, state)
            if isinstance(op, IfOp):
                return self.branches(op, state)
            if isinstance(op, Terminator):
                self.leave(op, state)
                return None
        return state

    # -- registers ---------------------------------------------------------------------------------
    def start(self, op: WgmmaOp, state: _State) -> None:
        for register in (*op.d, *op.a_registers):
            if register in state.touched:
                raise _unfenced(op, register)
        mine = _Use(op, 0, True)
        for register in op.d:
            use = state.flying.get(register)
            if use is not None and not use.accumulates:
                raise _in_flight(op, "writes", use)
            state.flying[register] = mine
        for register in op.a_registers:
            use = state.flying.get(register)
            if use is not None and use.accumulates:
                raise _in_flight(op, "reads", use)
            if not isinstance(register, Const):
                state.flying[register] = _Use(op, 0, False)
        self.check_room(op, state)

    def touch(self, op: Op, state: _State) -> None:
        """An ordinary operation reads or writes registers."""
        for verb, registers in (("reads", op.reads()), ("writes", op.writes())):
            for register in registers:
                if register in self.tracked:
                    use = state.flying.get(register)
                    if use is not None:
                        raise _in_flight(op, verb, use)
                    state.touched.add(register)

    def check_room(self, op: WgmmaOp, state: _State) -> None:
        count = sum(use.accumulates for use in state.flying.values())
        if count + _BESIDE > self.registers:
            raise ResourceError(
                f"{op.name} brings the accumulators in flight to {count} registers; with "
                f"{_BESIDE} others that is more than the {self.registers} that a thread has",
                code="K447",
                loc=op.loc,
                fix="wait for earlier groups first, or use smaller tiles",
            )

    # -- control flow ------------------------------------------------------------------------------
    def branches(self, op: IfOp, state: _State) -> _State | None:
        if isinstance(op.condition, Const):
            return self.block(op.then if op.condition.value else op.otherwise, state)
        ends = [self.block(op.then, state.copy()), self.block(op.otherwise, state)]
        return _meet(end for end in ends if end is not None)

    def loop(self, op: LoopOp, state: _State) -> _State | None:
        while True:
            exits = _Exits()
            again = self.iteration(op, state.copy(), exits)
            wider = state if again is None else state.joined([again])
            if wider.same(state):
                return _meet(exits.breaks)
            state = wider

    def iteration(self, op: LoopOp, state: _State, exits: _Exits) -> _State | None:
        """One run of head, body and step; gives the state before the next."""
        begun = self.block(op.head, state)
        if begun is None:
            return None
        self.touch(op, begun)
        if not (isinstance(op.condition, Const) and op.condition.value):
            exits.breaks.append(begun.copy())
        self.loops.append(exits)
        body = self.block(op.body, begun)
        self.loops.pop()
        ends = exits.continues + ([] if body is None else [body])
        return self.block(op.step, _meet(ends))

    def leave(self, op: Op, state: _State) -> None:
        if isinstance(op, BreakOp):
            self.loops[-1].breaks.append(state)
        elif isinstance(op, ContinueOp):
            self.loops[-1].continues.append(state)


def _meet(states: Iterable[_State]) -> _State | None:
    """The state where paths meet; None when there are none."""
    found = [*states]
    return found[0].joined(found[1:]) if found else None


def _in_flight(op: Op, verb: str, use: _Use) -> VerifyError:
    what = "an accumulator" if use.accumulates else "a register of A"
    started = use.op.loc.short() if use.op.loc else "before"
    return VerifyError(
        f"{op.name} {verb} {what} of {use.op.name}, which may still be running",
        code="K444",
        loc=op.loc,
        notes=[f"it was started at {started}"],
        fix="kd.wgmma_commit() it, and kd.wgmma_wait(…) for it before its registers are used",
    )


def _unfenced(op: WgmmaOp, register: Operand) -> VerifyError:
    what = "an accumulator" if register in op.d else "a register of A"
    return VerifyError(
        f"{op.name} uses {what} that other operations may have used since the last wgmma fence",
        code="K445",
        loc=op.loc,
        fix="call kd.wgmma_fence() before the first kd.gemm of a batch",
    )
