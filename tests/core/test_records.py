"""Frozen classes of kdsl's own behave as those that `dataclasses` makes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from kdsl_core.records import dataclass


@dataclass(frozen=True)
class Point:
    """A class with every kind of field."""

    KINDS: ClassVar[int] = 3
    x: int
    y: float = 0.5
    tags: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False, repr=False)

    @cached_property
    def double(self) -> int:
        """Computed once."""
        return 2 * self.x


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """A class that is compared by identity."""

    place: int | None = None


@dataclass(frozen=True, eq=False)
class Derived(Base):
    """Adds a field by position, and looks at it."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("no name")


@dataclass(frozen=True)
class Wrapped:
    """One field."""

    value: Any


@dataclass(frozen=True)
class Own:
    """Says itself how it is shown and compared."""

    value: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __repr__(self) -> str:
        return "own"


@dataclass
class Free:
    """Not frozen."""

    x: int = 1
    made: list[int] = field(default_factory=list, kw_only=True)

    def __post_init__(self) -> None:
        self.x += 1


@dataclass(slots=True)
class Slotted:
    """Python's own."""

    x: int


def test_values_and_defaults():
    """By position and by name; a default that is made is made for each."""
    first, second = Point(1), Point(x=1, y=2.0, note="seen")
    assert (first.x, first.y, first.tags, first.note) == (1, 0.5, [], "")
    assert first.tags is not Point(1).tags and second.note == "seen" and first.double == 2
    assert Point.KINDS == 3 and Point.__match_args__ == ("x", "y", "tags", "note")
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y", "tags", "note"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg] # what is tested
    with pytest.raises(TypeError, match="unexpected keyword"):
        Point(1, z=2)  # type: ignore[call-arg] # what is tested


def test_they_are_frozen():
    """Neither set nor deleted, known or new."""
    point = Point(1)
    for name in ("x", "fresh"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign .* '{name}'"):
            setattr(point, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete"):
        del point.x  # type: ignore[misc] # what is tested
    assert point.x == 1


def test_comparison():
    """By the compared fields, of the same class alone; without `eq`, by identity."""
    assert Point(1, tags=["a"]) == Point(1, tags=["a"], note="else") != Point(1)
    assert Point(1) != (1, 0.5, [], "")
    nan = float("nan")
    assert Wrapped(nan) == Wrapped(nan) and Wrapped(1) != Point(1)
    assert hash(Wrapped(7)) == hash(Wrapped(7)) and Wrapped(7) in {Wrapped(7)}
    base = Base(place=1)
    assert base == base and base != Base(place=1) and len({base, Base(place=1)}) == 2
    assert Own(1) == Own(2) and repr(Own(1)) == "own"


def test_text():
    """As `dataclasses` writes it, also of one that holds itself."""
    assert repr(Point(1, note="hidden")) == "Point(x=1, y=0.5, tags=[])"
    around: list[Any] = []
    around.append(Wrapped(around))
    assert repr(around[0]) == "Wrapped(value=[...])"


def test_families():
    """Fields of the base come first, those by name last; `__post_init__` runs."""
    made = Derived("a", place=3)
    assert (made.name, made.place) == ("a", 3) and isinstance(made, Base)
    with pytest.raises(ValueError, match="no name"):
        Derived("")
    with pytest.raises(TypeError, match="positional"):
        Derived("a", 3)  # type: ignore[misc] # what is tested


def test_copies():
    """`replace`, `asdict`, copies and pickles."""
    point = Point(1, tags=["a"])
    assert dataclasses.replace(point, x=2) == Point(2, tags=["a"])
    assert dataclasses.asdict(point) == {"x": 1, "y": 0.5, "tags": ["a"], "note": ""}
    for other in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert other == point and other is not point


def test_what_is_not_frozen():
    """It can be set, is compared as ever, and has no hash."""
    free = Free(made=[3])
    assert (free.x, free.made, Free().made) == (2, [3], []) and Free().made is not Free().made
    free.x, free.other = 3, 4  # type: ignore[attr-defined] # what is tested
    del free.other  # type: ignore[attr-defined] # the same
    assert free == Free(2, made=[3]) != Free() and repr(free) == "Free(x=3, made=[3])"
    with pytest.raises(TypeError, match="unhashable"):
        hash(free)
    with pytest.raises(TypeError, match="positional"):
        Free(1, [])  # type: ignore[misc] # what is tested
    assert Slotted(1) == Slotted(1) and not hasattr(Slotted(1), "__dict__")


def test_signatures():
    """Parameters with their names and defaults, those by name last."""
    assert str(inspect.signature(Derived)) == "(name, *, place=None)"
    assert [*inspect.signature(Point).parameters] == ["x", "y", "tags", "note"]
    assert Derived.__init__.__qualname__ == "Derived.__init__"


def test_defaults_come_last():
    """A field without one cannot be left out behind one that can."""
    with pytest.raises(TypeError, match=r"Wrong\.y: without a default behind one"):

        @dataclass(frozen=True)
        class Wrong:
            """A class of no use."""

            x: int = 1
            y: int  # type: ignore[misc] # what is tested


def test_fields_that_are_not_given_are_refused():
    """Nobody could set them later."""
    with pytest.raises(TypeError, match=r"Late\.x: __init__ sets every field"):

        @dataclass(frozen=True)
        class Late:
            """A class of no use."""

            x: int = field(init=False)
