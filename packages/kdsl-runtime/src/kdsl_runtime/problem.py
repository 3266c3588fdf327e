"""What a kernel is asked to compute, in a few named values, and how near two such problems are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kdsl_core.errors import ArgumentError
from kdsl_core.records import dataclass

Value = int | str


@dataclass(frozen=True, eq=False)
class Problem:
    """Sizes (whole numbers from 1) and traits (words, such as a dtype's name) by name.

    Problems with the same values are equal, in whatever order they were given.
    Raises: ArgumentError K760 for any other value.
    """

    values: Mapping[str, Value]

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            is_size = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not is_size and not isinstance(value, str):
                raise _refused(f"{name}={value!r}")

    @classmethod
    def of(cls, **values: Value) -> Problem:
        """`Problem.of(m=512, n=512, dtype="bf16")`."""
        return cls(values)

    @classmethod
    def parse(cls, text: str) -> Problem:
        """The problem of "m=512,n=512,dtype=bf16".

        Raises: ArgumentError K760.
        """
        values: dict[str, Value] = {}
        for part in text.split(","):
            name, equals, value = (word.strip() for word in part.partition("="))
            if not (name.isidentifier() and equals and value) or name in values:
                raise _refused(repr(part))
            values[name] = int(value) if value.lstrip("-").isdigit() else value
        return cls(values)

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.values == other.values

    def __hash__(self) -> int:
        return hash(frozenset(self.values.items()))

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.values.items())

    def size(self, name: str) -> int:
        """The size `name`.

        Raises: ArgumentError K760 when there is none.
        """
        value = self.values.get(name)
        if not isinstance(value, int):
            raise _refused(f"{self}, without a size {name!r}")
        return value

    def distance(self, other: Problem) -> float:
        """log2 of the largest factor between two sizes of the same name; ∞ when traits differ.

        1.0 means that some size is twice the other problem's, and none is more than that.
        """
        if self.values.keys() != other.values.keys():
            return math.inf
        farthest = 0.0
        for name, value in self.values.items():
            theirs = other.values[name]
            if isinstance(value, int) and isinstance(theirs, int):
                farthest = max(farthest, abs(math.log2(value / theirs)))
            elif value != theirs:
                return math.inf
        return farthest


def _refused(got: str) -> ArgumentError:
    return ArgumentError(
        f"a problem is sizes (whole numbers from 1) and traits (words) by name, got {got}",
        code="K760",
        fix="write it like m=512,n=512,dtype=bf16",
    )
