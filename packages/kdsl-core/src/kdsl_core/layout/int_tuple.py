"""Nested tuples of integers: the shapes, strides and coordinates of layouts.

A leaf is a *static* integer (a Python int, decided now), a *symbolic* one (`sym`, which decides
what its facts imply), or a *run-time* one: any object with ``+ - * // %`` that stands for a number.
Nothing here compares or branches on a run-time leaf, and products with 0 and 1 fold, so no useless
code is emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from numbers import Integral
from typing import Any, TypeAlias

from kdsl_core.errors import LayoutError
from kdsl_core.layout.symbolic import SymInt, undecided

Leaf: TypeAlias = Any  # int or a dynamic integer
IntTuple: TypeAlias = Any  # Leaf or a tuple of IntTuple


def is_static(x: object) -> bool:
    """Whether a value, or every leaf of a tuple or layout, is known now.

    >>> is_static(((2, 4), 8))
    True
    """
    if type(x) is int:
        return True
    if isinstance(x, tuple):
        for item in x:  # noqa: SIM110 — a loop is twice as fast, and this runs for every layout
            if type(item) is not int and not is_static(item):
                return False
        return True
    if x is None or isinstance(x, Integral):
        return True
    known = getattr(x, "static", None)
    return known if isinstance(known, bool) else False


DEEPEST = 128
"""Most levels of nesting; every operation recurses over them."""


def as_int_tuple(x: object, what: str = "a shape or stride", level: int = 0) -> IntTuple:
    """The same nested integers with lists turned to tuples and any Integral to int."""
    if type(x) is int:
        return x
    if isinstance(x, (tuple, list)):
        check_level(level, what)
        return tuple([as_int_tuple(item, what, level + 1) for item in x])
    if isinstance(x, Integral):
        return int(x)
    if _acts_as_integer(x):
        return x
    raise LayoutError(
        f"expected {what} made of integers and tuples, got {x!r} of type {type(x).__name__}",
        code="K101",
        fix="use int leaves, or a dynamic integer of a kernel",
    )


def check_level(level: int, what: str) -> None:
    """Refuse nesting that is too deep to recurse over."""
    if level >= DEEPEST:
        raise LayoutError(
            f"expected {what} of at most {DEEPEST} levels of nesting",
            code="K114",
            fix="flatten it",
        )


def _acts_as_integer(x: object) -> bool:
    if x is None or isinstance(x, (str, bytes, float, complex)):
        return False
    return all(hasattr(x, name) for name in ("__add__", "__mul__", "__floordiv__", "__mod__"))


def require_static(x: IntTuple, fact: str) -> IntTuple:
    """`x`, refused when a decision on its value would be needed at run time."""
    if not is_static(x):
        raise LayoutError(
            f"the decision needs {fact}, but the value {x!r} is known only at run time",
            code="K102",
            fix="tile this mode on its own, or make the extent or stride a static integer",
        )
    return x


# -- leaves --------------------------------------------------------------------------------------


def add(a: Leaf, b: Leaf) -> Leaf:
    """a + b, folding a static 0."""
    if type(a) is int and a == 0:
        return b
    if type(b) is int and b == 0:
        return a
    return a + b


def mul(a: Leaf, b: Leaf) -> Leaf:
    """a * b, folding a static 0 and 1."""
    if type(a) is int:
        if a == 0:
            return 0
        if a == 1:
            return b
    if type(b) is int:
        if b == 0:
            return 0
        if b == 1:
            return a
    return a * b


def floordiv(a: Leaf, b: Leaf) -> Leaf:
    """a // b, folding a divisor 1 and a dividend 0."""
    if type(b) is int:
        if b == 1:
            return a
        if b == 0:
            raise LayoutError(f"division of {a!r} by an extent of 0", code="K103")
    if type(a) is int and a == 0:
        return 0
    return a // b


def mod(a: Leaf, b: Leaf) -> Leaf:
    """a % b, folding a divisor 1 and a dividend 0."""
    if type(b) is int:
        if b == 1:
            return 0
        if b == 0:
            raise LayoutError(f"remainder of {a!r} by an extent of 0", code="K103")
    if type(a) is int and a == 0:
        return 0
    return a % b


def is_one(x: IntTuple) -> bool:
    """Whether a leaf is the static integer 1."""
    return type(x) is int and x == 1


def is_zero(x: IntTuple) -> bool:
    """Whether a leaf is the static integer 0."""
    return type(x) is int and x == 0


def sign(x: int) -> int:
    """-1, 0 or 1."""
    return (x > 0) - (x < 0)


def magnitude(x: Leaf) -> Leaf:
    """|x| of a static or symbolic leaf; a run-time one counts as non-negative."""
    return abs(x) if type(x) is int or isinstance(x, SymInt) else x


# -- trees ---------------------------------------------------------------------------------------


def wrap(t: IntTuple) -> tuple[IntTuple, ...]:
    """A leaf as a one-element tuple, a tuple as itself."""
    return t if isinstance(t, tuple) else (t,)


def unwrap(t: IntTuple) -> IntTuple:
    """The element of a one-element tuple, everything else as itself."""
    return t[0] if isinstance(t, tuple) and len(t) == 1 else t


def leaves(t: IntTuple) -> list[Leaf]:
    """The leaves from left to right.

    >>> leaves(((2, 4), 8))
    [2, 4, 8]
    """
    if not isinstance(t, tuple):
        return [t]
    out: list[Leaf] = []
    for item in t:
        if isinstance(item, tuple):
            out += leaves(item)
        else:
            out.append(item)
    return out


def flatten_tuple(t: IntTuple) -> IntTuple:
    """All leaves in one tuple; a bare leaf stays bare.

    >>> flatten_tuple(((2, 4), (8,)))
    (2, 4, 8)
    """
    return tuple(leaves(t)) if isinstance(t, tuple) else t


def unflatten_tuple(flat: Iterable[Any], profile: IntTuple) -> IntTuple:
    """The leaves of `flat` arranged in the nesting of `profile`.

    >>> unflatten_tuple((2, 4, 8), ((0, 0), 0))
    ((2, 4), 8)
    """
    source = iter(flat)

    def build(p: IntTuple) -> IntTuple:
        return tuple([build(item) for item in p]) if isinstance(p, tuple) else next(source)

    return build(profile)


def map_leaves(f: Callable[..., Any], t: IntTuple, *more: IntTuple) -> IntTuple:
    """`f` on the corresponding leaves of trees of the same nesting."""
    if isinstance(t, tuple):
        return tuple([map_leaves(f, *items) for items in zip(t, *more, strict=True)])
    return f(t, *more)


def tuple_rank(t: IntTuple) -> int:
    """The number of modes; a leaf has one."""
    return len(t) if isinstance(t, tuple) else 1


def tuple_depth(t: IntTuple) -> int:
    """The levels of nesting; a leaf has none.

    >>> tuple_depth(((2, 4), 8))
    2
    """
    return 1 + max(map(tuple_depth, t), default=0) if isinstance(t, tuple) else 0


def product(t: IntTuple) -> Leaf:
    """The product of all leaves.

    >>> product(((2, 4), 8))
    64
    """
    if not isinstance(t, tuple):
        return t
    total: Leaf = 1
    for item in t:
        total = mul(total, product(item) if isinstance(item, tuple) else item)
    return total


def product_each(t: IntTuple) -> tuple[Leaf, ...]:
    """The product of each mode.

    >>> product_each(((2, 4), 8))
    (8, 8)
    """
    return tuple([product(item) for item in wrap(t)])


def product_like(t: IntTuple, profile: IntTuple) -> IntTuple:
    """The products of `t` at the leaves of `profile`.

    >>> product_like(((2, 4), 8), (1, 1))
    (8, 8)
    """
    if isinstance(profile, tuple):
        _same_rank(t, profile, "product_like")
        return tuple([product_like(a, p) for a, p in zip(t, profile, strict=True)])
    return product(t)


def inner_product(a: IntTuple, b: IntTuple) -> Leaf:
    """The sum of the products of corresponding leaves.

    >>> inner_product((2, 3), (5, 7))
    31
    """
    if isinstance(a, tuple):
        _same_rank(a, b, "inner_product")
        return reduce(add, [inner_product(x, y) for x, y in zip(a, b, strict=True)], 0)
    return mul(a, b)


def elem_scale(a: IntTuple, b: IntTuple) -> IntTuple:
    """Each leaf of `a` times the product of the corresponding part of `b`.

    >>> elem_scale((2, 3), ((1, 4), 5))
    (8, 15)
    """
    if isinstance(a, tuple):
        _same_rank(a, b, "elem_scale")
        return tuple([elem_scale(x, y) for x, y in zip(a, b, strict=True)])
    return mul(a, product(b))


def _same_rank(a: IntTuple, b: IntTuple, name: str) -> None:
    if tuple_rank(a) != tuple_rank(b) or not isinstance(a, tuple) or not isinstance(b, tuple):
        raise LayoutError(
            f"{name} expects tuples of the same rank, got {a} and {b}",
            code="K104",
            fix="give both arguments the same nesting",
        )


# -- division ------------------------------------------------------------------------------------


def ceil_div(a: IntTuple, b: IntTuple) -> IntTuple:
    """a / b rounded up; an int divisor folds through the modes of a tuple.

    >>> ceil_div(9, 5), ceil_div((15, 4, 10), 16)
    (2, (1, 2, 10))
    """
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(b) > len(a):
                _same_rank(a, b, "ceil_div")
            return tuple([ceil_div(x, y) for x, y in zip(a, b, strict=False)]) + a[len(b) :]
        return _fold_divide(ceil_div, a, b)
    divisor = product(b)
    if type(a) is int and type(divisor) is int:
        if divisor == 0:
            raise LayoutError(f"ceil_div of {a} by 0", code="K103")
        return -(-a // divisor)
    return a if is_one(divisor) else floordiv(add(a, add(divisor, -1)), divisor)


def _fold_divide(op: Callable[[Any, Any], Any], a: tuple[Any, ...], divisor: Leaf) -> IntTuple:
    """Divide mode after mode by what the earlier modes have left of the divisor."""
    out = []
    for mode in a:
        out.append(op(mode, divisor))
        divisor = op(divisor, product(mode))
    return tuple(out)


def shape_div(a: IntTuple, b: IntTuple) -> IntTuple:
    """The shape left of `a` after removing `b` elements, for divisors that divide.

    Raises: LayoutError when neither extent divides the other.

    >>> shape_div((4, 4, 4), 2), shape_div(4, 8)
    ((2, 4, 4), 1)
    """
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            _same_rank(a, b, "shape_div")
            return tuple([shape_div(x, y) for x, y in zip(a, b, strict=True)])
        return _fold_divide(shape_div, a, b)
    b = product(b)
    if is_one(b):
        return a
    if is_one(a):
        return 1
    if is_zero(b):
        raise LayoutError(f"shape_div of {a} by 0", code="K103")
    if isinstance(a, SymInt) or isinstance(b, SymInt):
        return _symbolic_shape_div(a, b)
    require_static((a, b), f"{a} % {b} == 0 or {b} % {a} == 0")
    if a % b != 0 and b % a != 0:
        raise LayoutError(
            f"shape_div expects extents of which one divides the other, got {a} and {b}",
            code="K105",
            fix="choose a tile that divides the mode, or ceil_div for overhanging tiles",
        )
    return ceil_div(a, b)


def _symbolic_shape_div(a: Leaf, b: Leaf) -> Leaf:
    if is_zero(a % b):
        return a // b
    if is_zero(b % a):
        return 1
    raise undecided(f"{a} % {b} == 0")


def round_up(a: IntTuple, b: IntTuple) -> IntTuple:
    """`a` rounded up to a multiple of `b`.

    >>> round_up((4, 9), (2, 2))
    (4, 10)
    """
    if isinstance(a, tuple) or isinstance(b, tuple):
        _same_rank(a, b, "round_up")
        return tuple([round_up(x, y) for x, y in zip(a, b, strict=True)])
    return mul(ceil_div(a, b), b)
