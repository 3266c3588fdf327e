"""The types inside of a trace-time argument: values that are equal may trace to different code.

1, 1.0 and True are equal, and so are two configurations that hold them; 0.0 equals -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from kdsl_core.lang.values import slots_of, vars_of

# Their own type says it all, and that is part of a specialisation anyway.
PLAIN = frozenset(
    [int, bool, str, bytes, type(None), type, FunctionType, BuiltinFunctionType, ModuleType]
)
_MOST_KEPT = 1024
# By identity, with the value, so that no other can come to have its address meanwhile.
_known: dict[int, tuple[Any, Any]] = {}


def nested_types(value: Any) -> Any:
    """The types and the signs of zeros within a hashable value; None when there is nothing within.

    Two values that are equal, have one type and have equal nested types are the same to a kernel.
    Threads: safe.
    """
    kind = type(value)
    if kind in PLAIN:
        return None
    if kind is float:
        return math.copysign(1.0, value)
    known = _known.get(id(value))
    if known is not None:
        return known[1]
    found = _within(value, frozenset())
    if len(_known) >= _MOST_KEPT:
        _known.clear()
    _known[id(value)] = value, found
    return found


def _within(value: Any, outer: frozenset[int]) -> Any:
    if type(value) in PLAIN or id(value) in outer:
        return None
    outer |= {id(value)}
    if isinstance(value, float):
        return math.copysign(1.0, value)
    if isinstance(value, complex):
        return math.copysign(1.0, value.real), math.copysign(1.0, value.imag)
    if isinstance(value, frozenset):
        return frozenset((item, type(item), _within(item, outer)) for item in value)
    if isinstance(value, (type, Enum)) or not _compares(type(value)):
        return None  # equal to itself alone
    return tuple((type(part), _within(part, outer)) for part in _parts(value))


def _compares(kind: Any) -> bool:
    """Whether objects of a class may equal others."""
    return kind.__eq__ is not object.__eq__


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple):
        return value
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value) if field.compare]
    held = dict(vars_of(value))
    slots = slots_of(value)
    if slots is not None:
        held |= {name: slots[name] for name in sorted(slots.keys()) if name in slots}
    return [held[name] for name in sorted(held)]
