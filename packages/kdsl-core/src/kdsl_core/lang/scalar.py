"""Scalars: the per-thread numbers that kernel code computes with.

An integer scalar is kept as `base + plus` with a static `plus`, so that constants travel outward
through address arithmetic and end as immediates of memory instructions. `divisor` and `bound` are
facts that were proven on the way: they decide vector widths and cheap divisions.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn, TypeAlias

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import DType
from kdsl_core.errors import StagingError, TypeMismatch
from kdsl_core.ir import Const, Operand
from kdsl_core.isa import arith, compare, convert, division
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import ScaledBasis
from kdsl_core.loc import here

Number: TypeAlias = "Scalar | int | float | bool"
_ANY_DIVISOR = 1 << 30  # what a static 0 is divisible by


class Scalar:
    """A number that every thread has for itself at run time.

    `divisor` is a positive integer known to divide it; `bound`, when not None, says that it lies
    in ``0 ≤ x < bound``; `nonneg` that it is at least 0.
    """

    __slots__ = ("_base", "_root", "bound", "divisor", "nonneg", "plus")

    def __init__(
        self,
        operand: Operand,
        *,
        divisor: int = 1,
        nonneg: bool = False,
        bound: int | None = None,
    ) -> None:
        self._base = operand
        self._root = self
        self.plus = 0
        self.divisor = divisor
        self.nonneg = nonneg or bound is not None or operand.dtype.kind == "u"
        self.bound = bound

    def moved(self, plus: int) -> Scalar:
        """This integer plus a static constant, with what is then known of the sum."""
        total = self.plus + plus
        if total == 0:
            return self._root
        root = self._root
        nonneg = (self.nonneg and plus >= 0) or (root.nonneg and total >= 0)
        bound = root.bound + total if root.bound is not None and nonneg else None
        divisor = math.gcd(root.divisor, total)
        sum_ = Scalar(self._base, divisor=divisor, nonneg=nonneg, bound=bound)
        sum_._root, sum_.plus = root, total
        return sum_

    # -- what it is --------------------------------------------------------------------------
    @property
    def dtype(self) -> DType:
        """Its numeric type."""
        return self._base.dtype

    @property
    def base(self) -> Scalar:
        """The part that is not a static constant."""
        return self._root

    @property
    def operand(self) -> Operand:
        """The IR operand that holds its value."""
        if self.plus == 0:
            return self._base
        constant = Const(self.dtype, self.plus)
        return arith.binary(builder(), "add", self._base, constant)

    @property
    def divisible_by(self) -> int:
        """The fact `divisor`, under the layout algebra's name."""
        return self.divisor

    def __repr__(self) -> str:
        plus = f" + {self.plus}" if self.plus else ""
        base = self._base
        named = repr(base.value) if isinstance(base, Const) else base.hint
        return f"<run-time {self.dtype}{' ' if named else ''}{named}{plus}>"

    # -- arithmetic ----------------------------------------------------------------------------
    def __add__(self, other: Number) -> Scalar:
        return _add(self, other, 1)

    def __radd__(self, other: Number) -> Scalar:
        return _add(self, other, 1)

    def __sub__(self, other: Number) -> Scalar:
        return _add(self, other, -1)

    def __rsub__(self, other: Number) -> Scalar:
        return _add(_negated(self), other, 1)

    def __mul__(self, other: Number) -> Scalar:
        if isinstance(other, ScaledBasis):
            return NotImplemented  # the basis scales itself
        return _multiply(self, other)

    def __rmul__(self, other: Number) -> Scalar:
        return _multiply(self, other)

    def __truediv__(self, other: Number) -> Scalar:
        return _true_divide(self, other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return _true_divide(other, self)

    def __floordiv__(self, other: Number) -> Scalar:
        return _divide(self, other)[0]

    def __rfloordiv__(self, other: Number) -> Scalar:
        return _divide(other, self)[0]

    def __mod__(self, other: Number) -> Scalar:
        return _divide(self, other)[1]

    def __rmod__(self, other: Number) -> Scalar:
        return _divide(other, self)[1]

    def __pow__(self, exponent: int) -> Scalar:
        return _power(self, exponent)

    def __neg__(self) -> Scalar:
        if self.dtype.is_int:
            return _negated(self)
        return Scalar(arith.unary(builder(), "neg", self.operand))

    def __pos__(self) -> Scalar:
        return self

    def __abs__(self) -> Scalar:
        return Scalar(arith.unary(builder(), "abs", self.operand), nonneg=self.dtype.is_int)

    # -- bits ------------------------------------------------------------------------------------
    def __and__(self, other: Number) -> Scalar:
        return _bits("and", self, other)

    def __rand__(self, other: Number) -> Scalar:
        return _bits("and", self, other)

    def __or__(self, other: Number) -> Scalar:
        return _bits("or", self, other)

    def __ror__(self, other: Number) -> Scalar:
        return _bits("or", self, other)

    def __xor__(self, other: Number) -> Scalar:
        return _bits("xor", self, other)

    def __rxor__(self, other: Number) -> Scalar:
        return _bits("xor", self, other)

    def __invert__(self) -> Scalar:
        return Scalar(arith.unary(builder(), "not", self.operand))

    def __lshift__(self, count: Number) -> Scalar:
        if isinstance(count, int) and 0 <= count < self.dtype.bits and self.dtype.is_int:
            return _multiply(self, 1 << count)
        return _shift("shl", self, count)

    def __rshift__(self, count: Number) -> Scalar:
        return _shift("shr", self, count)

    # -- comparison ----------------------------------------------------------------------------
    def __eq__(self, other: object) -> Scalar:  # type: ignore[override] # a truth value per thread
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Scalar:  # type: ignore[override] # a truth value per thread
        return _compare("ne", self, other)

    def __lt__(self, other: Number) -> Scalar:
        return _compare("lt", self, other)

    def __le__(self, other: Number) -> Scalar:
        return _compare("le", self, other)

    def __gt__(self, other: Number) -> Scalar:
        return _compare("gt", self, other)

    def __ge__(self, other: Number) -> Scalar:
        return _compare("ge", self, other)

    def __hash__(self) -> int:
        return id(self)

    # -- conversion ------------------------------------------------------------------------------
    def to(self, dtype: DType, *, rounding: str | None = None, saturate: bool = False) -> Scalar:
        """The value converted to `dtype`: nearest-even for floats, toward zero for integers."""
        if dtype is self.dtype:
            return self
        operand = convert.convert(builder(), self.operand, dtype, rounding, saturate)
        keeps = dtype.is_int and self.dtype.is_int and dtype.bits >= self.dtype.bits
        if not keeps:
            return Scalar(operand)
        return Scalar(operand, divisor=self.divisor, nonneg=self.nonneg, bound=self.bound)

    def bitcast(self, dtype: DType) -> Scalar:
        """The same bits read as another type of equal width."""
        return Scalar(convert.bitcast(builder(), self.operand, dtype))

    def assume_divisible(self, divisor: int) -> Scalar:
        """The same value with the author's word that `divisor` divides it."""
        return Scalar(self.operand, divisor=divisor, nonneg=self.nonneg, bound=self.bound)

    def __bool__(self) -> NoReturn:
        raise StagingError(
            f"a {self.dtype} value of the kernel is not known while tracing, so Python cannot "
            "decide on it here",
            code="K302",
            loc=here(),
            fix="put the `if`/`while` in a function under @kd.kernel or @kd.func, or use kd.where",
        )

    def __index__(self) -> NoReturn:
        raise StagingError(
            f"a Python integer is needed here, but this {self.dtype} value is known only at run "
            "time",
            code="K303",
            loc=here(),
            fix="use a kd.Static argument, or a loop over kd.range",
        )

    __int__ = __index__
    __float__ = __index__

    def __iter__(self) -> NoReturn:
        raise StagingError(f"a {self.dtype} scalar cannot be iterated", code="K304", loc=here())


# -- making operands ---------------------------------------------------------------------------
def as_scalar(value: Any, dtype: DType | None = None) -> Scalar:
    """`value` as a Scalar: Python numbers become constants (int → i32, float → f32, bool).

    With `dtype`, the constant or scalar must fit that type without loss of meaning.
    """
    if isinstance(value, Scalar):
        return value if dtype is None else value.to(dtype)
    if isinstance(value, bool):
        return Scalar(Const(dtype or dt.boolean, value))
    if isinstance(value, int):
        return _constant(value, dtype or (dt.i32 if -(2**31) <= value < 2**31 else dt.i64))
    if isinstance(value, float):
        return Scalar(Const(dtype if dtype and dtype.is_float else dt.f32, value))
    raise TypeMismatch(
        f"expected a number, got {type(value).__name__}: {value!r}",
        code="K202",
        loc=here(),
        fix="use a kernel value, an int, a float or a bool",
    )


def _constant(value: int, dtype: DType) -> Scalar:
    if dtype.is_int:
        low = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
        high = low + (1 << dtype.bits)
        if not low <= value < high:
            raise TypeMismatch(
                f"{value} does not fit into {dtype}, which holds {low} … {high - 1}",
                code="K203",
                loc=here(),
                fix="convert the other operand to a wider type first",
            )
        bound = value + 1 if value >= 0 else None
        return Scalar(Const(dtype, value), divisor=abs(value) or _ANY_DIVISOR, bound=bound)
    return Scalar(Const(dtype, value))


def unify(a: Any, b: Any) -> tuple[Scalar, Scalar]:
    """Two numbers brought to one type by the language's promotion rules."""
    if not isinstance(a, Scalar) and not isinstance(b, Scalar):
        a = as_scalar(a)
    if not isinstance(a, Scalar):
        return as_scalar(a, _adapted(a, b.dtype)), _widened(b, _adapted(a, b.dtype))
    if not isinstance(b, Scalar):
        return _widened(a, _adapted(b, a.dtype)), as_scalar(b, _adapted(b, a.dtype))
    dtype = common_type(a.dtype, b.dtype)
    return _widened(a, dtype), _widened(b, dtype)


def _adapted(number: Any, dtype: DType) -> DType:
    """The type in which a Python number meets a scalar of `dtype`."""
    if isinstance(number, float) and not dtype.is_float:
        return dt.f32
    if isinstance(number, int) and not isinstance(number, bool) and dtype is dt.boolean:
        return dt.i32
    return dtype


def _widened(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype is dtype else value.to(dtype)


def common_type(a: DType, b: DType) -> DType:
    """The type in which values of two types meet.

    Raises: TypeMismatch where no type holds both without a choice (u32 with i32, f16 with bf16).
    """
    if a is b:
        return a
    if a.is_float and b.is_float and {a, b} <= {dt.f16, dt.bf16, dt.f32, dt.f64, dt.tf32}:
        if a.bits != b.bits or dt.tf32 in (a, b):
            wide = a if a.bits > b.bits else b
            return dt.f32 if wide is dt.tf32 else wide
    elif a.is_float != b.is_float and a.kind != "b" and b.kind != "b":
        return a if a.is_float else b
    elif a.kind == b.kind:
        return a if a.bits > b.bits else b
    elif a.is_int and b.is_int and a.bits != b.bits and max(a, b, key=_bits_of).kind == "i":
        return max(a, b, key=_bits_of)
    raise TypeMismatch(
        f"{a} and {b} have no common type",
        code="K204",
        loc=here(),
        fix=f"convert one of them: x.to(kd.{a}) or y.to(kd.{b})",
    )


def _bits_of(dtype: DType) -> int:
    return dtype.bits


# -- rules of arithmetic -----------------------------------------------------------------------
def _add(a: Scalar, b: Any, sign: int) -> Scalar:
    if a.dtype.is_int and isinstance(b, int) and not isinstance(b, bool):
        _constant(b, a.dtype)
        return a.moved(sign * b)
    x, y = unify(a, b)
    if not x.dtype.is_int:
        name = "add" if sign > 0 else "sub"
        return Scalar(arith.binary(builder(), name, x.operand, y.operand))
    known = _known(y)
    if known is not None:
        return x.moved(sign * known)
    if _known(x) is not None and sign > 0:
        return y.moved(_known(x) or 0)
    return _sum_of_bases(x.base, y.base, sign).moved(x.plus + sign * y.plus)


def _negated(x: Scalar) -> Scalar:
    return Scalar(arith.unary(builder(), "neg", x.base.operand), divisor=x.divisor).moved(-x.plus)


def _sum_of_bases(x: Scalar, y: Scalar, sign: int) -> Scalar:
    operand = arith.binary(builder(), "add" if sign > 0 else "sub", x._base, y._base)
    bound = x.bound + y.bound - 1 if sign > 0 and x.bound and y.bound else None
    nonneg = sign > 0 and x.nonneg and y.nonneg
    return Scalar(operand, divisor=math.gcd(x.divisor, y.divisor), nonneg=nonneg, bound=bound)


def _known(x: Scalar) -> int | None:
    """The value of a constant scalar."""
    return int(x._base.value) + x.plus if isinstance(x._base, Const) else None


def _multiply(a: Scalar, b: Any) -> Scalar:
    x, y = unify(a, b)
    if not x.dtype.is_int:
        return Scalar(arith.binary(builder(), "mul", x.operand, y.operand))
    factor = _known(y)
    if factor is None and _known(x) is not None:
        x, y, factor = y, x, _known(x)
    if factor == 0:
        return _constant(0, x.dtype)
    if factor is not None and x.plus:
        return _multiply(x.base, factor).moved(x.plus * factor)
    divisor = min(x.divisor * y.divisor, _ANY_DIVISOR)
    nonneg = x.nonneg and y.nonneg
    bound = (x.bound - 1) * (y.bound - 1) + 1 if x.bound and y.bound else None
    operand = arith.binary(builder(), "mul", x.operand, y.operand)
    return Scalar(operand, divisor=divisor, nonneg=nonneg, bound=bound)


def _true_divide(a: Any, b: Any) -> Scalar:
    x, y = unify(a, b)
    if not x.dtype.is_float:
        raise TypeMismatch(
            f"`/` divides floats, got {x.dtype} and {y.dtype}",
            code="K205",
            loc=here(),
            fix="use // for integers, or convert: x.to(kd.f32) / y",
        )
    return Scalar(arith.binary(builder(), "div", x.operand, y.operand))


def _divide(a: Any, b: Any) -> tuple[Scalar, Scalar]:
    """Quotient and remainder as Python's // and %: the remainder has the divisor's sign."""
    x, y = unify(a, b)
    if not x.dtype.is_int:
        raise TypeMismatch(
            f"// and % take integers, got {x.dtype} and {y.dtype}",
            code="K206",
            loc=here(),
            fix="use / for floats",
        )
    number = _known(y)
    if number is not None and number > 0:
        return _divide_by_constant(x, number)
    nonneg = x.nonneg and y.nonneg
    q, r = division.divide(builder(), x.operand, y.operand, nonneg=nonneg)
    return Scalar(q, nonneg=nonneg), Scalar(r, nonneg=nonneg)


def _divide_by_constant(x: Scalar, n: int) -> tuple[Scalar, Scalar]:
    """Division by a positive constant, with what the dividend's facts make unnecessary."""
    if x.bound is not None and x.bound <= n:
        return _constant(0, x.dtype), x
    bound = None if x.bound is None else -(-x.bound // n)
    divisor = x.divisor // n if x.divisor % n == 0 else 1
    q, r = division.divide_by_constant(builder(), x.operand, n, nonneg=x.nonneg)
    quotient = Scalar(q, divisor=divisor, nonneg=x.nonneg, bound=bound)
    if x.divisor % n == 0:
        return quotient, _constant(0, x.dtype)
    return quotient, Scalar(r, divisor=math.gcd(x.divisor, n), bound=n)


def _power(x: Scalar, exponent: int) -> Scalar:
    if not isinstance(exponent, int) or exponent < 1:
        raise TypeMismatch(
            f"** takes a Python integer ≥ 1 as exponent, got {exponent!r}",
            code="K207",
            loc=here(),
            fix="write kd.exp2(y * kd.log2(x)) for other exponents",
        )
    half = _power(x, exponent // 2) if exponent > 1 else None
    if half is None:
        return x
    return half * half * x if exponent % 2 else half * half


def _bits(name: str, a: Scalar, b: Any) -> Scalar:
    x, y = unify(a, b)
    operand = arith.binary(builder(), name, x.operand, y.operand)
    if not x.dtype.is_int or not (x.nonneg and y.nonneg):
        return Scalar(operand)
    if name == "and":
        bounds = [v.bound for v in (x, y) if v.bound is not None]
        low = max(_low_zero_bits(x.divisor), _low_zero_bits(y.divisor))
        return Scalar(operand, nonneg=True, divisor=1 << low, bound=min(bounds, default=None))
    low = min(_low_zero_bits(x.divisor), _low_zero_bits(y.divisor))
    bound = 1 << (max(x.bound, y.bound) - 1).bit_length() if x.bound and y.bound else None
    return Scalar(operand, nonneg=True, divisor=1 << low, bound=bound)


def _low_zero_bits(divisor: int) -> int:
    return (divisor & -divisor).bit_length() - 1


def _shift(name: str, x: Scalar, count: Any) -> Scalar:
    by = as_scalar(count)
    amount = by.operand if by.dtype in (dt.u32, dt.i32) else by.to(dt.u32).operand
    if name == "shr" and x.nonneg and isinstance(count, int) and count >= 0:
        return _divide_by_constant(x, 1 << count)[0]
    return Scalar(arith.binary(builder(), name, x.operand, amount))


def _compare(name: str, a: Scalar, b: Any) -> Scalar:
    if not isinstance(b, (Scalar, int, float)):
        if name in ("eq", "ne") and b is None:
            raise TypeMismatch(
                "a kernel value is compared with None",
                code="K208",
                loc=here(),
                fix="write `x is None` to ask a question of meta code",
            )
        as_scalar(b)
    x, y = unify(a, b)
    return Scalar(compare.compare(builder(), name, x.operand, y.operand))
