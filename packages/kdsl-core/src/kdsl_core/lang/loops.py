"""Loops: over `kd.range`, or with a test of the kernel, they are traced; others are unrolled."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from kdsl_core import dtypes as dt
from kdsl_core.errors import StagingError
from kdsl_core.ir import Block, Const, Operand
from kdsl_core.isa import arith, compare, register
from kdsl_core.isa.control import BreakOp, ContinueOp, LoopOp
from kdsl_core.lang.merge import Carried, Poison, Site
from kdsl_core.lang.ranges import Range
from kdsl_core.lang.regions import (
    KERNEL_WHILES,
    TRUE,
    Leave,
    Names,
    Region,
    Retrace,
    open_regions,
    truth,
)
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder, current, is_tracing
from kdsl_core.loc import here

# name, line, whether its value is needed, whether it is the loop's target
LoopSpec = tuple[tuple[str, int, bool, bool], ...]


class Returning(Protocol):
    """The call of a function that a return inside a loop leaves."""

    def leave_again(self) -> None:
        """Leave what is around a loop that was left by the return."""


class Loop(Region):
    """What `for` and `while` share: names carried from one iteration to the next, and jumps."""

    def __init__(self, spec: LoopSpec, file: str, site: str, has_else: bool, names: Names) -> None:
        self._spec, self._file, self.site = spec, file, site
        self._has_else = has_else
        self.depth = len(open_regions())
        self.before = names
        self._over = False
        self._broken = False
        self._returns: Returning | None = None

    def _begin(self) -> None:
        """Make it a loop of the kernel: everything that it changes moves to registers."""
        self.kernel = True
        if self._has_else:
            raise StagingError(
                "a loop of the kernel has no `else`",
                code="K325",
                loc=here(),
                fix="remember in a variable whether the loop was left by break",
            )
        self._line = here()
        self.before = dict(self.before)
        self._head, self._body, self._step = Block(), Block(), Block()
        line = self._line.line if self._line else 0
        self._carried = {
            name: Carried(name, self.before[name], Site(self._file, line), Site(self._file, at))
            for name, at, needed, _ in self._spec
            if needed and not isinstance(self.before.get(name, _UNBOUND), Poison)
        }
        for carried in self._carried.values():
            carried.promote()

    def _value(self, name: str, line: int, where: str) -> Any:
        if name in self._carried:
            return self._carried[name].read()
        return Poison(name, f"is not bound {where}", f"it is bound at {Site(self._file, line)}")

    def enter(self, _: Names) -> tuple[Any, ...]:
        """What each name is at the start of an iteration, the target left out."""
        where = "at the start of the first iteration"
        return tuple(self._value(n, at, where) for n, at, _, target in self._spec if not target)

    def _store(self, names: Names) -> None:
        for name, carried in self._carried.items():
            if name not in names:
                self._refuse_deleted(name)
            carried.write(names[name])

    def _refuse_deleted(self, name: str) -> None:
        raise StagingError(
            f"{name} is deleted in a loop of the kernel",
            code="K326",
            loc=here(),
            fix="leave the name bound",
        )

    def leave(self, names: Names) -> tuple[Any, ...]:
        """End the loop; gives what each name is behind it."""
        if not self._over:
            self._store(names)
        self._close()
        builder().append(
            LoopOp(
                head=self._head,
                condition=self._condition(),
                body=self._body,
                step=self._step,
                loc=self._line,
            )
        )
        if self._returns is not None:
            self._returns.leave_again()
            if self._is_endless() and not self._broken:
                raise Leave  # it ends by return only
        where = "when the loop runs no iteration"
        return tuple(self._value(name, at, where) for name, at, _, _ in self._spec)

    def _condition(self) -> Operand:
        return TRUE

    def _is_endless(self) -> bool:
        condition = self._condition()
        return isinstance(condition, Const) and bool(condition.value)

    def _ended(self) -> None:
        self._over = True

    def returns(self, frame: Returning) -> None:
        """A return inside leaves this loop too."""
        self._returns = frame

    # -- jumps -----------------------------------------------------------------------------------
    def breaks(self, names: Names) -> bool:
        """`break`: whether Python does it; a loop of the kernel traces it."""
        return self._jump(names, BreakOp, "break")

    def continues(self, names: Names) -> bool:
        """`continue`: whether Python does it; a loop of the kernel traces it."""
        return self._jump(names, ContinueOp, "continue")

    def _jump(self, names: Names, op: type[BreakOp | ContinueOp], word: str) -> bool:
        if not self.kernel:
            if len(open_regions()) > self.depth:
                self._undecided(word)
            return True
        self._store(names)
        self._broken = self._broken or op is BreakOp
        builder().append(op(loc=here()))
        raise Leave

    def _undecided(self, word: str) -> None:
        raise StagingError(
            f"{word} depends on a value of the kernel, but this loop is unrolled while tracing",
            code="K327",
            loc=here(),
            notes=(f"the loop is at {os.path.basename(self.site.rsplit(':', 1)[0])}",),
            fix="write `for … in kd.range(…)`, or put the rest of the body under an `if`",
        )


_UNBOUND = Poison("", "is not bound")


class ForLoop(Loop):
    """A `for` statement: over `kd.range` it is the kernel's, over anything else Python's."""

    def __init__(
        self, items: Any, spec: LoopSpec, file: str, site: str, has_else: bool, names: Names
    ) -> None:
        super().__init__(spec, file, site, has_else, names)
        self._items = items
        if isinstance(items, Range) and is_tracing():
            self._begin()

    def items(self) -> Iterable[Any]:
        """What the target takes: the loop index once, or Python's items."""
        return self._index() if self.kernel else self._items

    def _index(self) -> Iterator[Scalar]:
        items: Range = self._items
        b = builder()
        start, stop, step = items.operands()
        counter = register.declare(b, start.dtype, start, hint="i")
        with b.inside(self._head):
            index = register.snapshot(b, counter)
            self._test = compare.compare(b, "lt" if items.upward else "gt", index, stop)
        with b.inside(self._step):
            register.assign(b, counter, arith.binary(b, "add", counter, step))
        self._open(self._body)
        yield items.index(index)

    def _condition(self) -> Operand:
        return self._test


class WhileLoop(Loop):
    """A `while` statement: the kernel's when its test, or a jump out of it, is the kernel's."""

    def __init__(self, spec: LoopSpec, file: str, site: str, has_else: bool, names: Names) -> None:
        super().__init__(spec, file, site, has_else, names)
        self.pending = True
        self._holds: bool | Operand = True
        self._forced = is_tracing() and site in current().facts.get(KERNEL_WHILES, ())
        self._trial = Block()
        if is_tracing():
            builder().open(self._trial)

    def probe(self, test: Any) -> None:
        """Decide by the first value of the test whose loop this is."""
        decided = truth(test)
        if is_tracing():
            builder().close()
        if self._forced or not isinstance(decided, bool):
            self._begin()
            self._open(self._head)
            return
        if is_tracing():
            builder().block.ops.extend(self._trial.ops)
        self._holds = decided

    def head(self, test: Any) -> None:
        """Take the test as it is computed before each iteration."""
        decided = truth(test)
        self._holds = Const(dt.boolean, decided) if isinstance(decided, bool) else decided
        builder().close()
        builder().open(self._body)

    def known(self) -> bool:
        """Whether the body runs now, by what is known already; once for a loop of the kernel."""
        if not self.kernel:
            self.pending = False
            return bool(self._holds)
        entered, self._entered = getattr(self, "_entered", False), True
        return not entered

    def test(self, test: Any) -> bool:
        """Python's decision on a later iteration."""
        decided = truth(test)
        if not isinstance(decided, bool):
            raise Retrace(self.site)
        return decided

    def _condition(self) -> Operand:
        assert not isinstance(self._holds, bool)
        return self._holds

    def _undecided(self, word: str) -> None:
        raise Retrace(self.site)
