"""Room for intermediate arrays, which each thread uses again and again.

New arrays of such sizes would be new pages of the process each time.
"""

from __future__ import annotations

import math
import threading
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

_LEAST = 1 << 15  # elements
_REMEMBERED = 256  # shapes


class Scratch(threading.local):
    """Rooms by name; who asks for one again gets the same memory."""

    def __init__(self) -> None:
        self._rooms: dict[str, Array] = {}
        self._shaped: dict[tuple[str, tuple[int, ...]], Array] = {}

    def room(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array, whatever is in it; a name always goes with the same type."""
        found = self._shaped.get((name, shape))
        if found is None:
            size = math.prod(shape)
            room = self._rooms.get(name)
            if room is None or room.size < size:
                room = self._rooms[name] = np.empty(max(size, _LEAST), dtype)
                self._shaped.clear()
            elif len(self._shaped) >= _REMEMBERED:
                self._shaped.clear()
            found = self._shaped[name, shape] = room[:size].reshape(shape)
        return found


SCRATCH = Scratch()
