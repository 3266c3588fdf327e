"""What is proven about leaves: decisions that static and symbolic integers allow.

A symbolic integer decides what follows from its facts; an opaque run-time integer decides nothing
but the divisor that it states as `divisible_by`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cmp_to_key
from typing import Any

from kdsl_core.errors import LayoutError
from kdsl_core.layout.int_tuple import IntTuple, Leaf, floordiv, leaves
from kdsl_core.layout.symbolic import SymInt, bounds, undecided


def is_decidable(x: IntTuple) -> bool:
    """Whether every leaf is static or symbolic, so that its facts can decide."""
    if type(x) is int:
        return True
    return all(type(leaf) is int or isinstance(leaf, SymInt) for leaf in leaves(x))


def divides(divisor: Leaf, x: Leaf) -> bool:
    """Whether ``x % divisor == 0`` is proven."""
    if type(divisor) is int and not isinstance(x, SymInt):
        known = x if type(x) is int else getattr(x, "divisible_by", 1)
        return bool(known % divisor == 0)
    if is_decidable(x) and is_decidable(divisor):
        rest = x % divisor
        return type(rest) is int and rest == 0
    return False


def known_divisor(x: Leaf) -> int:
    """A number that surely divides a leaf (0 for 0: everything divides it)."""
    return abs(x) if type(x) is int else int(getattr(x, "divisible_by", 1))


def exact_quotient(x: Leaf, divisor: Leaf, purpose: str) -> Leaf:
    """x / divisor.

    Raises: LayoutError naming the divisibility that is not proven.
    """
    if not divides(divisor, x):
        raise missing(f"{x} % {divisor} == 0, {purpose}")
    return floordiv(x, divisor)


def missing(fact: str) -> LayoutError:
    """The error of an operation that needs a fact which nothing implies."""
    return undecided(fact)


def smaller(a: Leaf, b: Leaf, purpose: str) -> Leaf:
    """min(a, b) of decidable leaves; a symbol that is divisible by the other is not below it.

    Raises: LayoutError naming that divisibility where nothing decides.
    """
    try:
        return a if a <= b else b
    except LayoutError:
        multiple, divisor = (b, a) if type(a) is int else (a, b)
        raise missing(f"{multiple} % {divisor} == 0, {purpose}") from None


def proven_equal(a: Leaf, b: Leaf) -> bool:
    """Whether two leaves are equal.

    Raises: LayoutError when they may be equal or not.
    """
    if a == b:
        return True
    low, high = bounds(a - b)
    if (low is not None and low > 0) or (high is not None and high < 0):
        return False
    raise missing(f"{a} == {b}")


def sorted_by_size(modes: Iterable[Any], key: Any) -> list[Any]:
    """`modes` in ascending order of a decidable key; equal ones keep their place."""
    modes = list(modes)
    if all(type(key(m)) is int for m in modes):
        return sorted(modes, key=key)

    def compare(m: Any, n: Any) -> int:
        return _order_of(key(m), key(n))

    return sorted(modes, key=cmp_to_key(compare))


def _order_of(x: Leaf, y: Leaf) -> int:
    if x == y:
        return 0
    try:
        return -1 if x <= y else 1
    except LayoutError:
        if y <= x:
            return 1
        raise
