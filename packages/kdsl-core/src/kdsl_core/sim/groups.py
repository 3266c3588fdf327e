"""Groups: warps, or lanes of warps, that stand at one program counter and run as one array."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from kdsl_core.ir.protocols import Array

Rows: TypeAlias = "slice | Array"
LANES = 32
_ALL_LANES = np.ones((1, LANES), bool)


class Group:
    """Warps at one program counter.

    `index` are the rows of its `size` warps in the batch, ascending; `rows` selects them from an
    array, as a slice where they are contiguous. `mask` is bool (W, 32), or None for all lanes.
    Groups of different `team`s never merge. A group that waits does so for something of the kind
    `waits_for`, since it executed the instruction `stopped`; one that is `alone` waits no longer
    for lanes of its warps that are elsewhere.
    """

    __slots__ = (
        "_idle", "_key", "_lane_key", "_lanes", "_threads", "alone", "back_jumps", "full", "index",
        "mask", "pc", "rows", "size", "stopped", "team", "waits_for",
    )  # fmt: skip

    def __init__(self, index: Array, mask: Array | None, pc: int, total: int, team: int) -> None:
        self.index = index
        self.size = int(index.size)
        self.mask = None if mask is None or mask.all() else mask
        self.pc = pc
        self.team = team
        self.back_jumps = 0
        self.waits_for = ""
        self.stopped = pc
        self.alone = False
        self.rows: Rows = index
        if index.size and int(index[-1]) - int(index[0]) + 1 == index.size:
            self.rows = slice(int(index[0]), int(index[-1]) + 1)
        self.full = index.size == total
        self._idle: int | None = None if self.mask is not None else 0
        self._threads: Array | None = None
        self._lanes: Array | None = None
        self._key: bytes | None = None
        self._lane_key: bytes | None = None

    @property
    def key(self) -> bytes:
        """The same for groups of the same warps, whatever their lanes."""
        if self._key is None:
            self._key = self.index.tobytes()
        return self._key

    @property
    def lane_key(self) -> bytes:
        """The same for groups of the same lanes of the same warps."""
        if self._lane_key is None:
            mask = b"" if self.mask is None else b"|" + np.packbits(self.mask).tobytes()
            self._lane_key = self.key + mask
        return self._lane_key

    @property
    def idle(self) -> int:
        """Lanes of its warps that take no part."""
        if self._idle is None:
            assert self.mask is not None
            self._idle = self.mask.size - int(np.count_nonzero(self.mask))
        return self._idle

    @property
    def flat_rows(self) -> Array:
        """The row of each thread (W·32,), masked ones included."""
        if self._threads is None:
            self._threads = np.repeat(self.index, LANES)
        return self._threads

    @property
    def flat_lanes(self) -> Array:
        """The lane of each thread (W·32,), masked ones included."""
        if self._lanes is None:
            self._lanes = np.tile(np.arange(LANES), self.index.size)
        return self._lanes

    def lanes(self) -> Array:
        """Lanes that take part, bool (W, 32)."""
        if self.mask is not None:
            return self.mask
        return np.broadcast_to(_ALL_LANES, (self.size, LANES))

    def part(self, lanes: Array, pc: int, total: int) -> Group | None:
        """The group of the given lanes, bool (W, 32), at `pc`; None when there is none."""
        rows = lanes.any(axis=1)
        if not rows.any():
            return None
        return Group(self.index[rows], lanes[rows], pc, total, self.team)

    def keep(self, rows: Array, pc: int, total: int) -> Group | None:
        """The group of the given warps, bool (W,), at `pc`; None when there is none."""
        if not rows.any():
            return None
        mask = None if self.mask is None else self.mask[rows]
        return Group(self.index[rows], mask, pc, total, self.team)


def merge(groups: list[Group], total: int) -> Group:
    """One group of the lanes of several that stand at one program counter."""
    first = groups[0]
    if len(groups) == 1:
        return first
    index = np.unique(np.concatenate([g.index for g in groups]))
    mask = np.zeros((index.size, LANES), bool)
    for group in groups:
        at = np.searchsorted(index, group.index)
        mask[at] |= True if group.mask is None else group.mask
    merged = Group(index, mask, first.pc, total, first.team)
    merged.back_jumps = max(g.back_jumps for g in groups)
    return merged
