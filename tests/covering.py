"""Which combinations of parameters every run tries, and which only `dev.py test --all` does."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Axis = Mapping[str, Any] | Sequence[Any]
Places = tuple[int, ...]  # of one value in each axis


def combined(*axes: Axis, together: int = 2) -> list[Any]:
    """All combinations of a value of each axis, most of them slow.

    Those that are not hold any values of `together` axes once at least: nearly every mistake shows
    in two values that meet. An axis is a sequence, or a mapping from names in the test's id.
    """
    named = [axis if isinstance(axis, Mapping) else {str(x): x for x in axis} for axis in axes]
    kept = _covering([len(axis) for axis in named], together)
    found = []
    for places in itertools.product(*(range(len(axis)) for axis in named)):
        items = [[*axis.items()][i] for axis, i in zip(named, places, strict=True)]
        name, marks = "-".join(name for name, _ in items), [pytest.mark.slow][places in kept :]
        found.append(pytest.param(*(value for _, value in items), id=name, marks=marks))
    return found


def first_of_each(values: Iterable[T], kind: Callable[[T], Hashable]) -> list[Any]:
    """All values, slow from the second one of a kind."""
    seen: set[Hashable] = set()
    found = []
    for value in values:
        found.append(pytest.param(value, marks=[pytest.mark.slow][: kind(value) in seen]))
        seen.add(kind(value))
    return found


def _covering(sizes: Sequence[int], together: int) -> list[Places]:
    """Places that hold every tuple of `together` axes': always those with the most new ones.

    Of alike ones that whose values were taken least, so that none is tried much more than others.
    """
    everything = [*itertools.product(*map(range, sizes))]
    left = {part for places in everything for part in _parts(places, together)}
    taken: Counter[tuple[int, int]] = Counter()
    chosen = []
    while left:
        best = max(
            everything,
            key=lambda places: (
                len(left & _parts(places, together)),
                -sum(taken[part] for part in enumerate(places)),
            ),
        )
        chosen.append(best)
        left -= _parts(best, together)
        taken.update(enumerate(best))
    return chosen


def _parts(places: Places, together: int) -> set[Any]:
    return {*itertools.combinations(enumerate(places), together)}
