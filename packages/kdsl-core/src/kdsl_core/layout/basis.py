"""Basis strides: layouts whose values are coordinates instead of offsets."""

from __future__ import annotations

from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.int_tuple import IntTuple, add, is_zero, leaves, mul
from kdsl_core.layout.symbolic import SymInt


class ArithmeticTuple(tuple[Any, ...]):
    """A coordinate that adds element by element, the shorter one filled up with zeros."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        if is_zero(other):
            return self
        if isinstance(other, ScaledBasis):
            other = other.as_tuple()
        if not isinstance(other, tuple):
            return NotImplemented
        return _add_coords(self, other)

    __radd__ = __add__


def _add_coords(a: Any, b: Any) -> Any:
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        return add(a, b)
    if not isinstance(a, tuple):
        return b if is_zero(a) else _add_coords((a,), b)
    if not isinstance(b, tuple):
        return a if is_zero(b) else _add_coords(a, (b,))
    n = max(len(a), len(b))
    longer_a = tuple(a) + (0,) * (n - len(a))
    longer_b = tuple(b) + (0,) * (n - len(b))
    return ArithmeticTuple([_add_coords(x, y) for x, y in zip(longer_a, longer_b, strict=True)])


class ScaledBasis:
    """value · e_path: a stride that moves `value` along the mode that `path` names.

    >>> 3 * E(0, 1)
    ScaledBasis(3, 0, 1)
    >>> E(0) + 2 * E(1)
    (1, 2)
    """

    __slots__ = ("path", "value")
    value: Any
    path: tuple[int, ...]

    def __init__(self, value: Any, *path: int) -> None:
        if not path:
            raise LayoutError(f"a basis stride needs a mode, got value {value!r}", code="K106")
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "path", path)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("ScaledBasis is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return ScaledBasis, (self.value, *self.path)

    @property
    def static(self) -> bool:
        """Whether the scale is known now."""
        return type(self.value) is int

    def as_tuple(self) -> ArithmeticTuple:
        """The coordinate with `value` at `path` and zeros before it."""
        *outer, last = self.path
        out = ArithmeticTuple((0,) * last + (self.value,))
        for index in reversed(outer):
            out = ArithmeticTuple((0,) * index + (out,))
        return out

    def __mul__(self, other: Any) -> Any:
        return 0 if is_zero(other) else ScaledBasis(mul(self.value, other), *self.path)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return ScaledBasis(self.value // other, *self.path)

    def __mod__(self, other: Any) -> Any:
        return ScaledBasis(self.value % other, *self.path)

    def __add__(self, other: Any) -> Any:
        return self if is_zero(other) else self.as_tuple() + other

    __radd__ = __add__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScaledBasis) or self.path != other.path:
            return False
        if self.value is other.value:
            return True
        return _by_value(self.value) and _by_value(other.value) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((self.path, self.value if _by_value(self.value) else id(self.value)))

    def __repr__(self) -> str:
        return f"ScaledBasis({self.value!r}, {', '.join(map(str, self.path))})"

    def __str__(self) -> str:
        return f"{self.value}@{'@'.join(map(str, reversed(self.path)))}"


def _by_value(x: Any) -> bool:
    """Whether a leaf compares by value; run-time integers compare by identity."""
    return type(x) is int or isinstance(x, SymInt)


def E(*path: int) -> ScaledBasis:
    """The unit stride along the mode that `path` names.

    >>> E(1).as_tuple()
    (0, 1)
    """
    return ScaledBasis(1, *path)


def has_basis(stride: IntTuple) -> bool:
    """Whether some leaf of a stride is a basis stride."""
    if not isinstance(stride, tuple):
        return isinstance(stride, ScaledBasis)
    return any(type(item) is not int and has_basis(item) for item in stride)


def basis_zero(stride: IntTuple) -> Any:
    """The origin of the coordinates that a basis-strided layout returns."""
    origin: Any = 0
    for leaf in leaves(stride):
        if isinstance(leaf, ScaledBasis):
            origin = _add_coords(origin, ScaledBasis(0, *leaf.path).as_tuple())
    return origin
