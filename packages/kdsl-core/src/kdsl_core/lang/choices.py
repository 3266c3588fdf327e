"""Conditional expressions, `and` and `or`: decided by Python or computed by the kernel."""

from __future__ import annotations

import threading
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.errors import StagingError
from kdsl_core.ir import Block, Effect, Operand, Var
from kdsl_core.isa import arith, compare
from kdsl_core.isa.control import IfOp
from kdsl_core.lang.merge import (
    Arm,
    Site,
    fitted,
    is_number,
    join,
    register_dtype,
    same,
    spelled,
    with_common_facts,
)
from kdsl_core.lang.regions import Region
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder
from kdsl_core.loc import here

# Up to this many pure operations are computed on both paths rather than branched around.
_CHEAP_OPS = 8
_local = threading.local()


def open_choices() -> list[Choice]:
    """The choices whose alternatives are being evaluated on this thread, innermost last."""
    if not hasattr(_local, "choices"):
        _local.choices = []
    found: list[Choice] = _local.choices
    return found


class Choice(Region):
    """One conditional expression, or one `and` or `or` with its left side."""

    def __init__(self, test: bool | Operand, word: str, left: Any = None) -> None:
        self._test = test
        self._word = word
        self._left = left
        self.kernel = not isinstance(test, bool)
        self.before = {}
        self._blocks = (Block(), Block())
        self._entered = -1
        if self.kernel and word != "choice":
            _require_truth_value(left, word)

    def opened(self) -> Choice:
        """Make it the innermost choice."""
        open_choices().append(self)
        return self

    def then(self) -> bool:
        """Whether the first alternative, or the right side, is evaluated now."""
        if isinstance(self._test, bool):
            return self._test != (self._word == "or")
        self._enter(0)
        return True

    def otherwise(self) -> bool:
        """Whether the second alternative is evaluated now."""
        if isinstance(self._test, bool):
            return not self._test
        self._leave()
        self._enter(1)
        return True

    def _enter(self, arm: int) -> None:
        self._entered = arm
        # Names of the enclosing regions still count as made outside of this one.
        self._open(self._blocks[arm])

    def _leave(self) -> None:
        if self._entered >= 0:
            self._close()
            self._entered = -1

    def _end(self) -> None:
        """Forget this choice, and those that an exception left open inside it."""
        self._leave()
        pending = open_choices()
        while pending and pending.pop() is not self:
            pass

    def closed(self, first: Any, second: Any) -> Any:
        """The value of the conditional expression."""
        self._end()
        if isinstance(self._test, bool):
            return first if self._test else second
        return self._joined(first, second, *self._blocks)

    def logic(self, right: Any) -> Any:
        """The value of `left and right` or `left or right`."""
        evaluated = self.kernel or self._test != (self._word == "or")
        self._end()
        if isinstance(self._test, bool):
            return right if evaluated else self._left
        _require_truth_value(right, self._word)
        operand = fitted(right, dt.boolean)
        assert operand is not None
        block = self._blocks[0]
        if _is_cheap(block):
            builder().block.ops.extend(block.ops)
            return Scalar(arith.binary(builder(), self._word, self._test, operand))
        if self._word == "and":
            return self._joined(right, False, block, Block())
        return self._joined(True, right, Block(), block)

    def _joined(self, first: Any, second: Any, then: Block, otherwise: Block) -> Any:
        assert not isinstance(self._test, bool)
        if _is_cheap(then) and _is_cheap(otherwise):
            builder().block.ops.extend([*then.ops, *otherwise.ops])
            return self._selected(self._test, first, second)
        loc = here()
        site = Site(loc.file if loc else "", loc.line if loc else 0)
        builder().append(IfOp(condition=self._test, then=then, otherwise=otherwise, loc=loc))
        return join("the expression", Arm(then, first, site), Arm(otherwise, second, site))

    def _selected(self, test: Operand, first: Any, second: Any) -> Any:
        if same(first, second):
            return first
        if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
            pairs = zip(first, second, strict=True)
            return tuple(self._selected(test, a, b) for a, b in pairs)
        if not all(isinstance(v, Scalar) or is_number(v) for v in (first, second)):
            raise _differ(first, second)
        dtype = register_dtype(second if is_number(first) else first)
        a, b = fitted(first, dtype), fitted(second, dtype)
        if a is None or b is None:
            raise _differ(first, second)
        if dtype is dt.boolean:
            return Scalar(_boolean_select(test, a, b))
        return with_common_facts(compare.select(builder(), test, a, b), first, second)


def _boolean_select(test: Operand, a: Operand, b: Operand) -> Operand:
    both = arith.binary(builder(), "and", test, a)
    opposite = arith.unary(builder(), "not", test)
    return arith.binary(builder(), "or", both, arith.binary(builder(), "and", opposite, b))


def _is_cheap(block: Block) -> bool:
    """Whether running a block where it is not asked for costs little and changes nothing."""
    if len(block.ops) > _CHEAP_OPS:
        return False
    pure = all(op.effects is Effect.NONE and not op.REGIONS for op in block.ops)
    return pure and not any(isinstance(reg, Var) for op in block.ops for reg in op.writes())


def _require_truth_value(value: Any, word: str) -> None:
    if type(value) is bool or (isinstance(value, Scalar) and value.dtype is dt.boolean):
        return
    raise StagingError(
        f"`{word}` joins truth values, got {spelled(value)}",
        code="K336",
        loc=here(),
        fix="compare it: write `n != 0`",
    )


def _differ(first: Any, second: Any) -> StagingError:
    return StagingError(
        f"the two values of a conditional expression differ in type: {spelled(first)} and "
        f"{spelled(second)}",
        code="K337",
        loc=here(),
        fix="convert one: x.to(kd.f32); Python objects cannot depend on the kernel's values",
    )
