"""Copies of arguments that a kernel cannot tell from the originals."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from kdsl_core.sim.memory import reach

_PAGE = 256  # bytes: the largest alignment that a kernel may be specialised for

T = TypeVar("T")


def copied(arguments: T) -> T:
    """The arguments, tuples and dicts of them, with every array copied.

    Strides, alignment and writability stay; views of one array are views of one copy.
    """
    copies: dict[int, np.ndarray[Any, Any]] = {}

    def copy(given: Any) -> Any:
        if isinstance(given, np.ndarray):
            return _view(given, copies)
        if isinstance(given, tuple):
            return tuple(map(copy, given))
        return {k: copy(v) for k, v in given.items()} if type(given) is dict else given

    made: T = copy(arguments)
    return made


def _view(array: np.ndarray[Any, Any], copies: dict[int, np.ndarray[Any, Any]]) -> Any:
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    low, high = reach(base)
    first = _address(base) + low
    if id(base) not in copies:
        room = np.zeros(high - low + 2 * _PAGE, np.uint8)
        shift = (first - _address(room)) % _PAGE
        room = room[shift : shift + high - low]
        whole = np.ndarray(base.shape, base.dtype, room.data, -low, base.strides)
        whole[...] = base
        copies[id(base)] = room
    room = copies[id(base)]
    offset = _address(array) - first
    view = np.ndarray(array.shape, array.dtype, room.data, offset, array.strides)
    view.flags.writeable = array.flags.writeable
    return view


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])
