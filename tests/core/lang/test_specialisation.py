"""Two calls share code only when nothing tells their trace-time arguments apart."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.lang import nested_types as nested
from kdsl_core.lang.nested_types import nested_types
from kdsl_core.lang.specialisation import Specialisation


@dataclass(frozen=True)
class Config:
    """A kernel's configuration."""

    stages: Any = 2
    tile: Any = (64, 64)


class Weight:
    """A value of its own kind, which compares by what it holds."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weight) and self.held == other.held

    def __hash__(self) -> int:
        return hash(self.held)


class Mode(enum.Enum):
    """A choice."""

    FAST = 1


EQUAL_VALUES = [
    (Config(stages=2), Config(stages=2.0)),
    ((1,), (True,)),
    ((1, (2, 3)), (1, (2, 3.0))),
    (Config(tile=(64, 1)), Config(tile=(64, True))),
    (0.0, -0.0),
    ((0.0,), (-0.0,)),
    (0j, complex(0.0, -0.0)),
    (Weight(1), Weight(1.0)),
    (Weight((1, 1)), Weight((1, True))),
    (frozenset([1, 2]), frozenset([1.0, 2])),
    ((np.float32(2.0),), (np.float64(2.0),)),
]
SAME = [Config(), (1, 2.5, "a", None), Weight((1, 2)), frozenset([(1, 2), 3]), Mode.FAST, Config]


def specialised(value: Any) -> Specialisation:
    """A specialisation with one trace-time argument."""
    return Specialisation.of((), {"value": value}, (32, 1, 1), None)


@pytest.mark.parametrize(("one", "other"), EQUAL_VALUES)
def test_equal_values_of_different_types(one: Any, other: Any) -> None:
    """They are different keys, and the difference can be told."""
    assert one == other
    first, second = specialised(one), specialised(other)
    assert first != second
    (difference,) = first.differences(second)
    assert difference.kind == "static" and difference.name.startswith("value")


def test_the_difference_names_the_field() -> None:
    """The innermost part that differs is named, with both types."""
    first, second = specialised(Config(tile=(64, 1))), specialised(Config(tile=(64, True)))
    (difference,) = first.differences(second)
    assert str(difference) == "static value.tile[1]: int 1 was built, got bool True"


@pytest.mark.parametrize("value", SAME)
def test_values_made_anew_are_the_same(value: Any) -> None:
    """Equal values of equal types share the code, whether or not they are one object."""
    made = type(value)(*value.__dict__.values()) if isinstance(value, Config) else value
    if isinstance(value, tuple | frozenset):
        made = type(value)(list(value))
    if isinstance(value, Weight):
        made = Weight(value.held)
    assert specialised(value) == specialised(made)
    assert hash(specialised(value)) == hash(specialised(made))


def test_memory_of_types_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are looked into once, and forgotten when there are many."""
    monkeypatch.setattr(nested, "_known", {})
    monkeypatch.setattr(nested, "_MOST_KEPT", 4)
    values = [(number, 0.5) for number in range(9)]
    for value in (*values, values[-1]):
        nested_types(value)
    assert len(nested._known) == 1


def test_a_value_that_holds_itself() -> None:
    """A cycle ends."""
    weight = Weight(1)
    weight.held = (weight, 1.0)
    assert nested_types(weight) is not None


@kd.kernel
def filled(y: kd.Tensor["f32", "n"], by: kd.Static):
    """Each element is what the type of a nested value says."""
    y[kd.thread_idx()[0]] = 1.0 if isinstance(by[0], bool) else 2.0


def test_traces_are_not_shared() -> None:
    """(1,) and (True,) run their own code."""
    y = np.zeros(32, np.float32)
    found = []
    for by in ((1,), (True,), (1,)):
        filled[1, 32](y, by=by)
        found.append(float(y[0]))
    assert found == [2.0, 1.0, 2.0]


def test_a_size_may_be_called_as_an_argument_is() -> None:
    """`w` is a width in one place and a tensor, or a number, in another."""

    @kd.kernel
    def scaled(
        x: kd.Tensor["f32", "h w"], w: kd.Tensor["f32", "h"], y: kd.Tensor["f32", "h w"], h: kd.f32
    ):
        i = kd.thread_idx()[0]
        if i < x.shape[1]:
            y[0, i] = x[0, i] * w[0] + h

    x = np.ones((1, 40), np.float32)
    y = np.zeros_like(x)
    scaled[1, 64](x, np.full(1, 3, np.float32), y, 0.5)
    assert (y == 3.5).all()
