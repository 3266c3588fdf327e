"""Bank conflicts of an access to shared memory, counted from its layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdsl_core.atoms import Operand
from kdsl_core.inspect.accesses import (
    Access,
    Op,
    Requests,
    as_access,
    requests_of,
    sort_arguments,
)
from kdsl_core.inspect.elements import Subject
from kdsl_core.ir.protocols import Array
from kdsl_core.layout import AnyLayout
from kdsl_core.records import dataclass
from kdsl_core.sim.traffic import count_wavefronts

BANKS = 32
BANK_BYTES = 4


@dataclass(frozen=True)
class Collision:
    """Lanes of one warp that want different words of one bank at once.

    `lanes` has one tuple for each word; lanes of one tuple share their word.
    """

    warp: int
    value: int
    bank: int
    lanes: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        wanted = " | ".join(" ".join(map(str, together)) for together in self.lanes)
        return f"warp {self.warp}, value {self.value}, bank {self.bank}: lanes {wanted}"


@dataclass(frozen=True)
class BankConflicts:
    """The passes through shared memory that an access takes, as the simulator counts them.

    `ideal` counts them without conflicts; `ways` is how many passes the worst part of a warp takes
    that one pass could serve. `worst` is a bank of that part and who wants it, None without
    conflicts.

    Units: `width` in bytes.
    """

    op: Op
    width: int
    wavefronts: int
    ideal: int
    ways: int
    worst: Collision | None

    @property
    def free(self) -> bool:
        """Whether nothing collides."""
        return self.wavefronts == self.ideal

    def __str__(self) -> str:
        text = (
            f"{self.op} of {self.width} bytes a lane: {self.wavefronts} wavefronts, {self.ideal}"
            f" ideal, {self.ways}-way"
        )
        return f"{text}\n  {self.worst}" if self.worst else f"{text} (no conflicts)"


def bank_conflicts(
    access: Subject | Access,
    memory: AnyLayout | Any = None,
    dtype: Any = None,
    *,
    width: int | None = None,
    op: Op | None = None,
    operand: Operand = "A",
    start: int = 0,
) -> BankConflicts:
    """How often the lanes of a warp collide in the banks of shared memory.

    `access` maps (thread, value) to the index in the layout `memory`, or, where that is left out,
    to the offset in elements, and may be swizzled itself; or it is a tiled copy or a tiled mma
    over `memory`. `op` is "ld", "st", "ldmatrix" or "stmatrix"; for these two, the values of lane
    8j + r are row r of matrix j (or its first element alone). `Access` says what the others mean.

    Units: `width` in bytes, the widest that the addresses allow unless given; `start` in bytes.
    Threads: whole warps in the order of their threads; a last part of a warp has lanes off.

    >>> from kdsl_core.dtypes import f32
    >>> from kdsl_core.layout import Layout
    >>> print(bank_conflicts(Layout(8, 32), f32))  # a column of rows of 32 words
    ld of 4 bytes a lane: 8 wavefronts, 1 ideal, 8-way
      warp 0, value 0, bank 0: lanes 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7
    >>> bank_conflicts(Layout(8, 33), f32).free
    True

    Raises: LayoutError when the access and the memory do not fit together.
    """
    layout, element = sort_arguments(memory, dtype)
    found = requests_of(as_access(access, op, width, operand), layout, element, start, "shared")
    wavefronts, ideal = count(found)
    ways, at, lanes = _worst_part(found)
    worst = _collision(found, at, lanes) if ways > 1 else None
    return BankConflicts(found.op, found.width, wavefronts, ideal, ways, worst)


def count(found: Requests) -> tuple[int, int]:
    """(wavefronts, wavefronts without conflicts) of all instructions."""
    return _count(found, slice(None), slice(None))


def _count(found: Requests, instructions: slice, lanes: Any) -> tuple[int, int]:
    """The same of some instructions and some of their lanes."""
    on = None if found.active is None else found.active[instructions, lanes]
    address, merged = found.address[instructions, lanes], found.op == "ld"
    return count_wavefronts(address, on, found.width, merged=merged)


def _worst_part(found: Requests) -> tuple[int, int, Array]:
    """(passes, instruction, lanes) of the part of a warp that one pass could serve and most do."""
    lanes = np.arange(found.address.shape[1])
    together = min(lanes.size, BANKS * BANK_BYTES // max(found.width, BANK_BYTES))
    pairs = found.op == "ld" and 2 * together <= lanes.size
    most, where = 0, (0, lanes[:together])
    for i in range(found.address.shape[0]):
        for size in (together, 2 * together) if pairs else (together,):
            for part in lanes.reshape(-1, size):
                passes, least = _count(found, slice(i, i + 1), part)
                if least == 1 and passes > most:
                    most, where = passes, (i, part)
    return (most, *where)


def _collision(found: Requests, at: int, lanes: Array) -> Collision:
    """The first bank from which the lanes want most words."""
    wanted: dict[int, dict[int, list[int]]] = {}
    for lane in lanes.tolist():
        if found.active is None or found.active[at, lane]:
            first = int(found.address[at, lane]) // BANK_BYTES
            for word in range(first, first + max(found.width // BANK_BYTES, 1)):
                wanted.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
    bank = max(sorted(wanted), key=lambda b: len(wanted[b]))
    words = tuple(tuple(together) for together in wanted[bank].values())
    return Collision(int(found.warp[at]), int(found.value[at]), bank, words)
