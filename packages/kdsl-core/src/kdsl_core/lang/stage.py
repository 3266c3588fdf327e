"""The stage: what rewritten code calls, under the name `_kdsl`."""

from __future__ import annotations

import threading
from typing import Any, NoReturn

from kdsl_core.errors import StagingError
from kdsl_core.ir import Operand
from kdsl_core.isa import arith
from kdsl_core.isa.control import assert_that
from kdsl_core.lang import guards
from kdsl_core.lang.choices import Choice, open_choices
from kdsl_core.lang.frames import Frame
from kdsl_core.lang.loops import ForLoop, WhileLoop
from kdsl_core.lang.regions import Branch, open_regions, truth
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder
from kdsl_core.loc import here


class _Pending(threading.local):
    """What one expression of this thread keeps until its next part is evaluated."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.asserted: list[Operand] = []


_pending = _Pending()


class Stage:
    """Decides for each rewritten construct whether Python or the kernel runs it."""

    branch = Branch
    loop = ForLoop
    while_loop = WhileLoop
    enter = Frame
    container = staticmethod(guards.container)
    target = staticmethod(guards.target)

    # -- expressions ------------------------------------------------------------------------
    def choice(self, test: Any) -> Choice:
        """Begin `a if test else b`."""
        return Choice(truth(test), "choice").opened()

    def both(self, left: Any) -> Choice:
        """Begin `left and …`."""
        return Choice(truth(left), "and", left).opened()

    def either(self, left: Any) -> Choice:
        """Begin `left or …`."""
        return Choice(truth(left), "or", left).opened()

    def then(self) -> bool:
        """Whether the first alternative of the innermost choice is evaluated now."""
        return open_choices()[-1].then()

    def otherwise(self) -> bool:
        """Whether its second alternative is evaluated now."""
        return open_choices()[-1].otherwise()

    def end_choice(self, choice: Choice, first: Any, second: Any) -> Any:
        """The value of a conditional expression."""
        return choice.closed(first, second)

    def end_logic(self, choice: Choice, right: Any) -> Any:
        """The value of `and` and `or`."""
        return choice.logic(right)

    def negation(self, value: Any) -> Any:
        """`not value`."""
        decided = truth(value)
        if isinstance(decided, bool):
            return not decided
        return Scalar(arith.unary(builder(), "not", decided))

    def hold(self, slot: int, value: Any) -> Any:
        """Keep the middle of a chained comparison."""
        _pending.held[slot] = value
        return value

    def held(self, slot: int) -> Any:
        """The middle of a chained comparison, which is evaluated once."""
        return _pending.held.pop(slot)

    # -- statements -------------------------------------------------------------------------
    def may_fail(self, test: Any) -> bool:
        """Whether an assertion fails now, or may fail in the kernel."""
        decided = truth(test)
        if not isinstance(decided, bool):
            _pending.asserted.append(decided)
        return decided is not True

    def assertion_failed(self, message: Any) -> None:
        """Raise, or trace the assertion."""
        if not _pending.asserted:
            raise AssertionError(message)
        condition: Operand = _pending.asserted.pop()
        assert_that(builder(), condition, str(message))

    def rebinds(self, name: str) -> None:
        """A global or nonlocal name is about to be rebound."""
        if open_regions():
            raise StagingError(
                f"{name} belongs to another function or the module and is rebound in kernel "
                "control flow: it would happen once, while tracing",
                code="K334",
                loc=here(),
                fix="return the value, or keep it in a field of a @kd.struct",
            )

    def refuse(self, what: str) -> NoReturn:
        """A construct that cannot be kernel code."""
        raise StagingError(
            f"{what} cannot stand in a function under @kd.kernel or @kd.func",
            code="K335",
            loc=here(),
            fix="return a tuple, or make it an ordinary Python function of meta code",
        )


STAGE = Stage()
