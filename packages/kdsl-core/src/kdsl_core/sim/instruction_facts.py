"""What the scheduler knows of each instruction before it runs."""

from __future__ import annotations

from kdsl_core.ir import Effect, Op
from kdsl_core.ir.flat import FlatProgram, Instruction
from kdsl_core.records import dataclass
from kdsl_core.sim.flights import WGMMA
from kdsl_core.sim.load_uses import LoadStep, load_steps

_SHARED = Effect.READS_SHARED | Effect.WRITES_SHARED


@dataclass(frozen=True, slots=True)
class Facts:
    """`aligned`: all living lanes of a warp execute it together, and all 32 of them when `whole`.

    `meets` says that it orders what the lanes of a warp did before it; `fills_in` that it writes a
    part of a register; `wgmma` that it is one. `loads` is what it does to loads under way.
    """

    aligned: bool = False
    whole: bool = False
    meets: bool = False
    fills_in: bool = False
    wgmma: bool = False
    loads: LoadStep | None = None


def facts(program: FlatProgram) -> list[Facts]:
    """Of each instruction of a program."""
    steps = load_steps(program)
    return [_facts_of(op, steps.get(pc)) for pc, op in enumerate(program.instructions)]


def _facts_of(op: Instruction, loads: LoadStep | None) -> Facts:
    if not isinstance(op, Op):
        return Facts(loads=loads)
    aligned = Effect.CONVERGED in op.effects
    return Facts(
        aligned=aligned,
        whole=Effect.SYNC not in op.effects,
        meets=aligned and not op.effects & _SHARED,
        fills_in=op.fills_in,
        wgmma=op.NAME == WGMMA,
        loads=loads,
    )
