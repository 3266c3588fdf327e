"""`kd.range`: the iterations of a loop that the kernel itself runs."""

from __future__ import annotations

import math
from typing import Any, NoReturn

from kdsl_core.errors import StagingError, TypeMismatch
from kdsl_core.ir import Operand
from kdsl_core.lang.scalar import Scalar, as_scalar, common_type
from kdsl_core.loc import here


class Range:
    """start, start + step, … below stop; above it with a negative step.

    Shapes: bounds are integers, of Python or of the kernel; a Python step may be negative, a step
    of the kernel must be known not to be.
    """

    def __init__(self, *bounds: Any) -> None:
        if not 1 <= len(bounds) <= 3:
            raise TypeMismatch(
                f"kd.range takes stop; start, stop; or start, stop, step; got {len(bounds)} values",
                code="K331",
                loc=here(),
                fix="call it as Python's range",
            )
        start = 0 if len(bounds) == 1 else bounds[0]
        stop = bounds[0] if len(bounds) == 1 else bounds[1]
        step = bounds[2] if len(bounds) == 3 else 1
        self._start, self._stop, self._step = map(_integer, (start, stop, step))
        if (isinstance(step, int) and step == 0) or (not isinstance(step, int) and not step.nonneg):
            raise TypeMismatch(
                f"the step of kd.range must have a known sign and not be 0, got {step!r}",
                code="K332",
                loc=here(),
                fix="use a Python integer as step",
            )
        self.upward = not isinstance(step, int) or step > 0

    def __iter__(self) -> NoReturn:
        raise StagingError(
            "kd.range is a loop of the kernel, and Python iterates over it here",
            code="K330",
            loc=here(),
            fix="write `for i in kd.range(n):` as a statement of a function under @kd.kernel or "
            "@kd.func; use Python's range in comprehensions",
        )

    def operands(self) -> tuple[Operand, Operand, Operand]:
        """Start, stop and step in one type."""
        dtype = common_type(common_type(self._start.dtype, self._stop.dtype), self._step.dtype)
        start, stop, step = (x.to(dtype).operand for x in (self._start, self._stop, self._step))
        return start, stop, step

    def index(self, operand: Operand) -> Scalar:
        """The loop index, with what the bounds prove about it."""
        divisor = math.gcd(self._start.divisor, self._step.divisor)
        nonneg = self.upward and self._start.nonneg
        stop = self._stop.bound
        bound = stop - 1 if nonneg and stop is not None and stop > 1 else None
        return Scalar(operand, divisor=divisor, nonneg=nonneg, bound=bound)


def _integer(value: Any) -> Scalar:
    scalar = as_scalar(value)
    if not scalar.dtype.is_int or scalar.dtype.bits < 32:
        raise TypeMismatch(
            f"kd.range takes integers of 32 or 64 bits, got {value!r}",
            code="K333",
            loc=here(),
            fix="convert it: x.to(kd.i32)",
        )
    return scalar
