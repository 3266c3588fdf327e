"""What a kernel's runs have in common: its flat program and what is known of it beforehand."""

from __future__ import annotations

from dataclasses import field
from weakref import WeakKeyDictionary

from kdsl_core.ir import Effect, Kernel, Op, Reg, flatten
from kdsl_core.ir.flat import FlatProgram
from kdsl_core.records import dataclass
from kdsl_core.sim.flights import wgmma_registers
from kdsl_core.sim.instruction_facts import Facts, facts
from kdsl_core.sim.matrix_operands import MatrixOperands
from kdsl_core.sim.registers import warp_bytes
from kdsl_core.sim.written import written_parameters


@dataclass(frozen=True, eq=False)
class Analysis:
    """Of one kernel.

    `loads` are the instructions whose data may not have come when something lets a copy go,
    `watched` the registers that some wgmma takes, `written` the names of parameters that are
    written through; `combines` says that blocks may update what others wrote, so that it matters
    which run side by side. Units: `warp_bytes`, of all registers of a warp.

    `matrices` are what groups of warps read by matrix descriptors in runs so far.
    """

    program: FlatProgram
    facts: list[Facts]
    loads: tuple[int, ...]
    watched: frozenset[Reg]
    written: frozenset[str]
    warp_bytes: int
    combines: bool
    matrices: dict[object, MatrixOperands] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[Kernel, tuple[int, Analysis]] = WeakKeyDictionary()


def analysis(kernel: Kernel) -> Analysis:
    """What is known of a kernel, which is not changed any more but at its end."""
    size = len(kernel.body.ops)
    known = _KNOWN.get(kernel)
    if known is None or known[0] != size:
        program = flatten(kernel)
        of_each = facts(program)
        known = (
            size,
            Analysis(
                program,
                of_each,
                tuple(pc for pc, of in enumerate(of_each) if of.loads and of.loads.begins),
                wgmma_registers(program),
                frozenset(written_parameters(kernel)),
                warp_bytes(program),
                any(_combines(op) for op in program.instructions if isinstance(op, Op)),
            ),
        )
        _KNOWN[kernel] = known
    return known[1]


def _combines(op: Op) -> bool:
    """Whether an operation changes what is in global memory: atomics, and copies that reduce."""
    both = Effect.READS_GLOBAL | Effect.WRITES_GLOBAL
    return (op.effects & both) == both or getattr(op, "reduce", None) is not None
