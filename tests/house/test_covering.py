"""Combinations that every run tries hold what they say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from covering import combined, first_of_each

AXES = (("a", "b", "c"), {"on": True, "off": False}, (1, 2, 3, 4))


def quick(params: list[Any]) -> list[tuple[Any, ...]]:
    """The values of those that are not slow."""
    return [param.values for param in params if not param.marks]


@pytest.mark.parametrize("together", (1, 2, 3))
def test_values_meet(together: int) -> None:
    """All combinations are there, each once; the quick ones hold every tuple, and are few."""
    values = [[*axis.values()] if isinstance(axis, dict) else [*axis] for axis in AXES]
    params = combined(*AXES, together=together)
    assert {param.values for param in params} == {*itertools.product(*values)}
    assert len({param.id for param in params}) == len(params) == 24
    few = quick(params)
    for axes in itertools.combinations(range(3), together):
        tuples = itertools.product(*(values[axis] for axis in axes))
        assert {tuple(row[axis] for axis in axes) for row in few} == {*tuples}
    assert len(few) <= {1: 4, 2: 14, 3: 24}[together]


def test_values_of_long_axes_take_turns() -> None:
    """No value of a short axis is tried much more often than its neighbours."""
    second = [row[1] for row in quick(combined(range(12), "xyz", together=1))]
    assert sorted(second) == sorted("xyz" * 4)


def test_the_first_of_a_kind_is_quick() -> None:
    """Later ones are slow, none is lost."""
    params = first_of_each(["b1", "a1", "b2", "a2", "c1"], lambda name: name[0])
    assert [param.values[0] for param in params] == ["b1", "a1", "b2", "a2", "c1"]
    assert quick(params) == [("b1",), ("a1",), ("c1",)]
