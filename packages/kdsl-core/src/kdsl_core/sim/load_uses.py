"""Which loads of shared memory may be under way at an arrival, and what waits for their data.

A load is under way until an instruction needs its value that the assembler does not move: an access
to memory, a branch, a wgmma, or anything else that acts. Arithmetic, `mma.sync` and exchanges
between lanes do not end it: ptxas puts arrivals at mbarriers in front of them (docs/facts.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kdsl_core.ir import Effect, Op, Operand, Reg
from kdsl_core.ir.flat import Branch, Exit, FlatProgram, Instruction, Jump
from kdsl_core.records import dataclass
from kdsl_core.sim.flights import WGMMA

_MOVES = Effect.LANES | Effect.CONVERGED  # alone, these keep no instruction in its place
_WRITES = Effect.WRITES_SHARED | Effect.WRITES_GLOBAL


@dataclass(frozen=True, slots=True)
class LoadStep:
    """What an instruction does to loads under way, which are named by their instructions.

    It needs the values of those it `ends`, and with `begins` it is one itself.
    """

    ends: tuple[int, ...] = ()
    begins: bool = False


def load_steps(program: FlatProgram) -> dict[int, LoadStep]:
    """Of each instruction that matters to loads which may be under way at an arrival or a copy.

    Fences and barriers, which end all loads, are left out: they are known when they run.
    """
    instructions = program.instructions
    loads = [pc for pc, instruction in enumerate(instructions) if _loads(instruction)]
    if not loads or not any(map(_lets_go, instructions)):
        return {}
    return _Flow(instructions, loads).steps()


def _loads(instruction: Instruction) -> bool:
    """Whether an instruction reads shared memory into registers."""
    if not isinstance(instruction, Op) or instruction.NAME == WGMMA:
        return False
    effects = instruction.effects
    return Effect.READS_SHARED in effects and not effects & _WRITES


def _lets_go(instruction: Instruction) -> bool:
    """Whether a copy to shared memory may follow at once: arrivals at mbarriers, copies."""
    if not isinstance(instruction, Op):
        return False
    arrives = instruction.ARRIVES and Effect.CONVERGED not in instruction.effects
    return bool(arrives or instruction.COMPLETES)


class _State:
    """Loads under way (a set of bits), and those that registers were computed from."""

    def __init__(self, under_way: int, sources: dict[Reg, int]) -> None:
        self.under_way = under_way
        self.sources = {reg: bits & under_way for reg, bits in sources.items() if bits & under_way}

    def joined(self, other: _State) -> _State | None:
        """Both ways to one place; None when the other adds nothing."""
        sources, more = dict(self.sources), other.under_way & ~self.under_way
        for reg, bits in other.sources.items():
            old = sources.get(reg, 0)
            if bits & ~old:
                sources[reg], more = old | bits, 1
        return _State(self.under_way | other.under_way, sources) if more else None


class _Flow:
    """Follows loads along all ways through a program, until nothing new is found."""

    def __init__(self, instructions: Sequence[Instruction], loads: Sequence[int]) -> None:
        self._instructions = instructions
        self._loads = {pc: 1 << number for number, pc in enumerate(loads)}
        self._entries: dict[int, _State] = {0: _State(0, {})}
        self._ends: dict[int, int] = {}
        self._late = 0  # loads that are under way where something is let go

    def steps(self) -> dict[int, LoadStep]:
        """The instructions that matter to loads which are under way where it counts."""
        heads = {i.label.index for i in self._instructions if isinstance(i, Jump | Branch)}
        ahead = {0}
        while ahead:
            first = min(ahead)
            ahead.remove(first)
            ahead.update(self._block(first, heads))
        late = {pc: bit for pc, bit in self._loads.items() if bit & self._late}
        places = sorted({*late, *(pc for pc, bits in self._ends.items() if bits & self._late)})
        return {
            pc: LoadStep(
                tuple(load for load, bit in late.items() if bit & self._ends.get(pc, 0)),
                pc in late,
            )
            for pc in places
        }

    def _block(self, start: int, heads: set[int]) -> list[int]:
        """Follow the instructions from `start`; gives the blocks behind that must be followed."""
        entry = self._entries[start]
        state = _State(entry.under_way, entry.sources)
        for pc in range(start, len(self._instructions)):
            if pc in heads and pc != start:
                return self._goes((pc,), state)
            instruction = self._instructions[pc]
            if isinstance(instruction, Op):
                self._step(pc, instruction, state)
            elif isinstance(instruction, Branch):
                self._needs(pc, (instruction.condition,), state)
                return self._goes((pc + 1, instruction.label.index), state)
            elif isinstance(instruction, Jump):
                return self._goes((instruction.label.index,), state)
            else:
                assert isinstance(instruction, Exit)
                return []
        return []

    def _goes(self, places: Iterable[int], state: _State) -> list[int]:
        changed = []
        for place in places:
            old = self._entries.get(place)
            new = _State(state.under_way, state.sources) if old is None else old.joined(state)
            if new is not None:
                self._entries[place] = new
                changed.append(place)
        return changed

    def _step(self, pc: int, op: Op, state: _State) -> None:
        sources, bit = state.sources, self._loads.get(pc, 0)
        if state.under_way:
            if op.effects & ~_MOVES:
                self._needs(pc, op.reads(), state)
            if _lets_go(op):
                self._late |= state.under_way
            if bit & state.under_way:  # what it read the last time is no longer followed
                for reg in sources:
                    sources[reg] &= ~bit
        found = bit
        if sources:
            found |= _sources(op.reads(), state)
        if found or sources:
            for reg in op.writes():
                sources[reg] = found | (sources.get(reg, 0) if op.fills_in else 0)
        state.under_way |= bit

    def _needs(self, pc: int, operands: Iterable[Operand], state: _State) -> None:
        """An instruction waits for the values of operands."""
        bits = _sources(operands, state) & state.under_way
        if bits:
            self._ends[pc] = self._ends.get(pc, 0) | bits
            state.under_way &= ~bits


def _sources(operands: Iterable[Operand], state: _State) -> int:
    """The loads that operands were computed from."""
    found = 0
    for operand in operands:
        if isinstance(operand, Reg):
            found |= state.sources.get(operand, 0)
    return found
