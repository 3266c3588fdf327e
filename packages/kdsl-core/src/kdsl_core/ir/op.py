"""The base of every operation: its fields, its rules and its meanings, side by side.

An operation is a frozen dataclass. `READS` and `WRITES` name the fields that hold registers (one
register, a tuple of them, or None); a field in both is updated in place. `REGIONS` names the fields
that hold nested blocks. `ARRIVES` names the fields that say at which barrier it arrives, by its
number or an mbarrier's address, and `COMPLETES` those that say at which mbarrier bytes complete:
reports of a deadlock ask. Everything else is an attribute that is known while tracing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import field, fields, replace
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kdsl_core.errors import VerifyError
from kdsl_core.ir.target import BASELINE, Need
from kdsl_core.ir.value import Const, Operand, Value, Var
from kdsl_core.loc import Loc
from kdsl_core.records import dataclass

if TYPE_CHECKING:
    from kdsl_core.ir.block import Block
    from kdsl_core.ir.protocols import Flattener, Machine, PtxWriter


class Effect(enum.Flag):
    """What an operation does beyond writing its registers."""

    NONE = 0
    READS_GLOBAL = enum.auto()
    WRITES_GLOBAL = enum.auto()
    READS_SHARED = enum.auto()
    WRITES_SHARED = enum.auto()
    SYNC = enum.auto()  # orders memory or waits for other threads
    LANES = enum.auto()  # exchanges data between lanes: every lane named must take part
    CONVERGED = enum.auto()  # all live lanes of the warp must execute it together (".aligned")
    CONTROL = enum.auto()  # decides what runs next
    OBSERVABLE = enum.auto()  # must stay even when nobody reads its results


@dataclass(frozen=True, kw_only=True, eq=False)
class Op:
    """One operation of the IR.

    Subclasses state, beside their fields: `verify` (the type rule), `ptx` (what is printed),
    `simulate` (what it means for a group of warps), `effects` and `need`.
    """

    loc: Loc | None = field(default=None, repr=False)

    NAME: ClassVar[str] = ""
    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()
    REGIONS: ClassVar[tuple[str, ...]] = ()
    ARRIVES: ClassVar[tuple[str, ...]] = ()
    COMPLETES: ClassVar[tuple[str, ...]] = ()
    _ATTRIBUTES: ClassVar[tuple[tuple[str, bool], ...]]

    @property
    def name(self) -> str:
        """The text name, "family.instruction"."""
        return self.NAME

    # -- rules, overridden by each operation -------------------------------------------------
    def verify(self) -> None:
        """Raise VerifyError or TypeMismatch when the operands break the operation's type rule."""

    def ptx(self, w: PtxWriter) -> None:
        """Print the operation as PTX."""
        raise VerifyError(f"{self.name} has no PTX of its own", code="K410", loc=self.loc)

    def simulate(self, m: Machine) -> None:
        """Execute the operation for the machine's current group of warps."""
        raise VerifyError(f"{self.name} has no meaning of its own", code="K411", loc=self.loc)

    def lower(self, f: Flattener) -> None:
        """Append the operation to a flat program; control flow overrides this with jumps."""
        f.instruction(self)

    @property
    def effects(self) -> Effect:
        """What it does beyond its registers; `Effect.NONE` allows removal and sharing."""
        return Effect.NONE

    @property
    def need(self) -> Need:
        """What it asks of the target."""
        return BASELINE

    @property
    def fills_in(self) -> bool:
        """Whether it replaces a part of a register whose other parts may be undefined so far."""
        return False

    def origins(self, byte: int) -> Iterator[tuple[Operand, int]]:
        """Operands that byte `byte` of what it gives or writes comes from, and the byte of each.

        The likeliest first; none where it comes from memory.
        """
        if self.effects is Effect.NONE:
            yield from ((operand, 0) for operand in self.reads())

    # -- structure, the same for all ---------------------------------------------------------
    def reads(self) -> list[Operand]:
        """Operands that it reads, in field order."""
        return self._operands(self.READS)

    def writes(self) -> list[Value | Var]:
        """Registers that it writes, in field order."""
        return [reg for reg in self._operands(self.WRITES) if not isinstance(reg, Const)]

    def regions(self) -> Iterator[Block]:
        """Nested blocks, in field order."""
        return (getattr(self, name) for name in self.REGIONS)

    def _operands(self, names: tuple[str, ...]) -> list[Operand]:
        found: list[Operand] = []
        for name in names:
            held = getattr(self, name)
            if isinstance(held, tuple):
                found += [item for item in held if item is not None]
            elif held is not None:
                found.append(held)
        return found

    def map_reads(self, change: Callable[[Operand], Operand]) -> Self:
        """A copy whose read-only operands went through `change`; self when nothing changed."""
        changed: dict[str, Any] = {}
        for name in self.READS:
            if name in self.WRITES:
                continue
            held = getattr(self, name)
            if isinstance(held, tuple):
                new: Any = tuple([None if item is None else change(item) for item in held])
                different = not all(map(is_, new, held))
            else:
                new = change(held) if held is not None else None
                different = new is not held
            if different:
                changed[name] = new
        return replace(self, **changed) if changed else self

    @classmethod
    def _attributes(cls) -> tuple[tuple[str, bool], ...]:
        """The fields that the result depends on, and whether each holds operands."""
        known: tuple[tuple[str, bool], ...] | None = vars(cls).get("_ATTRIBUTES")
        if known is None:
            names = (item.name for item in fields(cls) if item.name != "loc")
            known = tuple((name, name in cls.READS) for name in names if name not in cls.WRITES)
            cls._ATTRIBUTES = known  # of this class alone, whose own are more than its base's
        return known

    def key(self) -> tuple[Any, ...] | None:
        """Equal for two operations that must give equal results; None when it may not be shared."""
        parts: list[Any] = [type(self)]
        for name, read in self._attributes():
            held = getattr(self, name)
            if read:
                held = (
                    tuple(map(_operand_key, held))
                    if isinstance(held, tuple)
                    else _operand_key(held)
                )
            parts.append(held)
        return tuple(parts)


def _operand_key(operand: Operand | None) -> Any:
    return operand.key() if isinstance(operand, Const) else operand
