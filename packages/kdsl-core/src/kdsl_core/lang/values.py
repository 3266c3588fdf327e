"""What Python values consist of, as far as code can read them."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import (
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from kdsl_core import records
from kdsl_core.lang.origins import LIBRARIES, is_library


class _Absent:
    """The class of what stands for a name without a value."""

    def __repr__(self) -> str:
        return "nothing"


absent = _Absent()
_WRAPPERS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)),
    (property, ("fget",)),
    (MethodType, ("__func__", "__self__")),
    (functools.partial, ("func", "args", "keywords")),
    (functools.partialmethod, ("func", "args", "keywords")),
    (functools.cached_property, ("func",)),
    (type(functools.cache(len)), ("__wrapped__",)),
)
_CONTAINERS = (list, dict, set, tuple, frozenset, deque, MappingProxyType)
_CALLABLES = (FunctionType, staticmethod, classmethod, property, MethodType)
_WRITTEN_BY_PYTHON = "<string>"


class Slots:
    """The attributes that an object keeps in `__slots__`, as a mapping that can be asked."""

    def __init__(self, value: Any, names: Iterable[str]) -> None:
        self._value = value
        self._names = frozenset(names)

    def keys(self) -> frozenset[str]:
        """Names of the slots."""
        return self._names

    def __contains__(self, name: str) -> bool:
        return self.get(name, absent) is not absent

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        return getattr(self._value, name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value in a slot; `default` for an empty one."""
        return getattr(self._value, name, default) if name in self._names else default


def vars_of(value: Any) -> Mapping[str, Any]:
    """The attributes that a value holds itself; none where it has no room for them."""
    found = getattr(value, "__dict__", None)
    return found if isinstance(found, Mapping) else {}


def slots_of(value: Any) -> Slots | None:
    """The slots of an object; None where its classes have none."""
    names = [
        name
        for kind in type(value).__mro__
        for name, member in vars(kind).items()
        if isinstance(member, MemberDescriptorType)
    ]
    return Slots(value, names) if names and not isinstance(value, type | ModuleType) else None


def spaces_of(value: Any) -> list[Any]:
    """Where an attribute of a value is looked for: itself, its slots, its author's classes."""
    spaces: list[Any] = [vars_of(value)]
    slots = slots_of(value)
    if slots is not None:
        spaces.append(slots)
    if not isinstance(value, ModuleType):
        bases = value.__mro__[1:] if isinstance(value, type) else ()
        kinds: tuple[type, ...] = (*bases, *type(value).__mro__)
        spaces += [vars_of(kind) for kind in kinds if not is_library(kind)]
    return spaces


def held_by(spaces: Sequence[Any], names: Iterable[str], *, everything: bool) -> set[str]:
    """The names among `names` that one of the spaces has, and special methods of classes.

    Python calls special methods without naming them. `everything` takes each name that there is.
    """
    wanted = frozenset(names)
    held: set[str] = set()
    for space in spaces:
        there = space.keys()
        special = {name for name in there if name[:2] == name[-2:] == "__"}
        chosen = there - special if everything else set()
        held.update(name for name in chosen | (there & wanted) if _is_read(space.get(name)))
        held.update(name for name in special if _is_called(space.get(name)))
    return held


def _is_read(member: Any) -> bool:
    return not isinstance(member, GetSetDescriptorType | MemberDescriptorType)


def _is_called(member: Any) -> bool:
    """Whether a special method is the author's: those that dataclasses have follow the fields."""
    written = (_WRITTEN_BY_PYTHON, records.__file__)
    if isinstance(member, FunctionType) and member.__code__.co_filename in written:
        return member.__name__ == "__init__"  # its defaults are values
    return isinstance(member, _CALLABLES)


def parts_of(value: Any) -> list[tuple[str, Any]] | None:
    """What a wrapper of Python's own wraps; None for anything else."""
    for kind, names in _WRAPPERS:
        if isinstance(value, kind):
            return [(f".{name}", getattr(value, name, None)) for name in names]
    return None


def items_of(container: Any) -> list[Any]:
    """The contents of a container of Python's own, in their order; none for anything else."""
    if isinstance(container, dict | MappingProxyType):
        return [part for pair in container.items() for part in pair]
    return list(container) if isinstance(container, _CONTAINERS) else []


def is_container(value: Any) -> bool:
    """Whether `items_of` knows its contents."""
    return isinstance(value, _CONTAINERS)


def is_buffer(value: Any) -> bool:
    """Whether it holds numbers that can be changed in place."""
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    arrays = sys.modules.get("array")  # few programs import it
    return isinstance(value, bytearray) or (arrays is not None and isinstance(value, arrays.array))


def bytes_of(buffer: Any) -> bytes:
    """The contents of what `is_buffer` knows."""
    return bytes(buffer) if isinstance(buffer, bytearray) else buffer.tobytes()


def has_state(value: Any) -> bool:
    """Whether an author decides what its attributes are: not so for what libraries define."""
    if not is_library(value):
        return True
    if isinstance(value, type | ModuleType) or not vars_of(value):
        return False
    return type(value).__module__.partition(".")[0] not in LIBRARIES


def content(cell: Any) -> Any:
    """What a closure's cell holds; `absent` while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return absent
