"""How two specialisations of one kernel differ, fact by fact, for reports and errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from kdsl_core.lang.nested_types import nested_types
from kdsl_core.lang.specialisation import Specialisation
from kdsl_core.lang.tensor_class import TensorClass

_NONE = "none"


class Difference(NamedTuple):
    """One fact in which two specialisations differ: of which argument, and what it is in each.

    `kind` is "argument", "static", "block" or "cluster"; `name` is empty for the last two.
    """

    kind: str
    name: str
    fact: str
    before: Any
    after: Any

    def __str__(self) -> str:
        subject = " ".join(word for word in (self.kind, self.name) if word)
        fact = f"{self.fact} " if self.fact else ""
        return f"{subject}: {fact}{self.before} was built, got {self.after}"


def between(first: Specialisation, second: Specialisation) -> list[Difference]:
    """Every fact that is different in the second one."""
    found = list(_between_classes(first.classes, second.classes))
    theirs = {name: value for name, _, value in second.statics}
    for name, _, value in first.statics:
        found += _between_values(name, value, theirs[name])
    if first.block != second.block:
        found.append(Difference("block", "", "", first.block, second.block))
    if first.cluster != second.cluster:
        shapes = (each.cluster or _NONE for each in (first, second))
        found.append(Difference("cluster", "", "", *shapes))
    return found


def _between_classes(
    before: Sequence[TensorClass], after: Sequence[TensorClass]
) -> Iterator[Difference]:
    first, second = ({c.name: c for c in classes} for classes in (before, after))
    for name in {**first, **second}:
        if name in first and name in second:
            for fact, a, b in first[name].differences(second[name]):
                yield Difference("argument", name, fact, a, b)
        else:
            held = (
                f"{c[name].dtype} {c[name].sizes_text}" if name in c else _NONE
                for c in (first, second)
            )
            yield Difference("argument", name, "", *held)


def _between_values(name: str, before: Any, after: Any) -> Iterator[Difference]:
    """The differing fields of two dataclasses of one type, else the values themselves."""
    if type(before) is not type(after):
        yield Difference("static", name, "", _typed(before), _typed(after))
    elif before != after or nested_types(before) != nested_types(after):
        inner = [
            difference
            for part, *pair in _parts(before, after)
            for difference in _between_values(f"{name}{part}", *pair)
        ]
        yield from inner or [
            Difference("static", name, "", _shown(before), _another(before, after))
        ]


def _parts(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """What two values of one type consist of, where that can be named."""
    if is_dataclass(before) and not isinstance(before, type):
        for field in fields(before):
            if field.compare:
                yield f".{field.name}", getattr(before, field.name), getattr(after, field.name)
    elif isinstance(before, tuple) and before == after:
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield f"[{i}]", *pair


def _typed(value: Any) -> str:
    return f"{type(value).__name__} {_shown(value)}"


def _shown(value: Any) -> str:
    return getattr(value, "__qualname__", None) or repr(value)


def _another(before: Any, after: Any) -> str:
    """The new value; one that only looks the same compares by identity."""
    text = _shown(after)
    return "another object of that name" if text == _shown(before) else text
