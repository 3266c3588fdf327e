"""Relations between shapes and coordinates: congruence, compatibility and orders."""

from __future__ import annotations

from kdsl_core.layout.facts import exact_quotient, is_decidable, proven_equal
from kdsl_core.layout.int_tuple import IntTuple, Leaf, is_static, product, require_static, wrap


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Whether two trees have the same nesting.

    >>> congruent((1, (2, 3)), (4, (5, 6)))
    True
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return isinstance(a, tuple) == isinstance(b, tuple)


def weakly_congruent(a: IntTuple, b: IntTuple) -> bool:
    """Whether `b` has the nesting of `a` or refines its leaves.

    >>> weakly_congruent(1, (2, 3)), weakly_congruent((2, 3), 1)
    (True, False)
    """
    if not isinstance(a, tuple):
        return True
    return isinstance(b, tuple) and len(a) == len(b) and all(map(weakly_congruent, a, b))


def compatible(a: IntTuple, b: IntTuple) -> bool:
    """Whether every coordinate of shape `a` is also one of shape `b`: same sizes, `b` finer.

    >>> compatible(24, (4, 6)), compatible((4, 6), 24)
    (True, False)
    """
    if not isinstance(a, tuple):
        return proven_equal(_known(a, "the extent"), _known(product(b), "the size"))
    return isinstance(b, tuple) and len(a) == len(b) and all(map(compatible, a, b))


def evenly_divides(a: IntTuple, b: IntTuple) -> bool:
    """Whether the modes of `b` divide the corresponding modes of `a`.

    >>> evenly_divides((8, 6), (4, 3)), evenly_divides((8, 6), (3, 3))
    (True, False)
    """
    if isinstance(b, tuple):
        modes = wrap(a)
        return len(b) <= len(modes) and all(
            evenly_divides(x, y) for x, y in zip(modes, b, strict=False)
        )
    if b is None:
        return False
    size = _known(product(a), "the size")
    divisor = product(b.shape) if hasattr(b, "shape") else b  # a layout divides by its size
    if is_static(size) and is_static(divisor):
        return bool(size % divisor == 0)
    exact_quotient(size, _known(divisor, "the divisor"), "to divide evenly")
    return True


def _known(x: Leaf, fact: str) -> Leaf:
    """A leaf that decides, static or symbolic."""
    return x if is_decidable(x) else require_static(x, fact)


def elem_less(a: IntTuple, b: IntTuple) -> bool:
    """Whether every leaf of `a` is less than its partner in `b`."""
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) <= len(b) and all(map(elem_less, a, b))
    return not isinstance(b, tuple) and bool(_known(a, "a < b") < _known(b, "a < b"))


def lex_less(a: IntTuple, b: IntTuple) -> bool:
    """Whether `a` comes before `b` when the first mode is the most significant."""
    return bool(require_static(a, "the order") < require_static(b, "the order"))


def colex_less(a: IntTuple, b: IntTuple) -> bool:
    """Whether `a` comes before `b` when the last mode is the most significant."""
    return lex_less(_reversed(a), _reversed(b))


def _reversed(t: IntTuple) -> IntTuple:
    return tuple([_reversed(item) for item in reversed(t)]) if isinstance(t, tuple) else t
