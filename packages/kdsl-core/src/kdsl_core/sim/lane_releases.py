"""Arrivals of some lanes of a warp, which release nothing that its other lanes did since they met.

Vector clocks speak of whole warps. Where a lane arrives at an mbarrier although others of its warp
have accessed memory since the warp last synchronised, the exception is kept here; programs that
synchronise the warp first, as they should, have none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kdsl_core.ir.protocols import Array

_NEVER = 1 << 40


@dataclass(eq=False)
class Release:
    """Lanes (a mask) that released their accesses of the epochs above `synced` up to `epoch`.

    In epoch `until` the warp synchronised, which makes the exception void for who learns of it.
    """

    synced: int
    epoch: int
    lanes: int
    until: int = _NEVER


class LaneReleases:
    """What lanes did since their warp synchronised; `epoch` is the clocks', changed in place."""

    def __init__(self, epoch: Array) -> None:
        self._epoch = epoch
        self.touched = np.zeros(epoch.size, np.uint32)
        self._synced = np.zeros(epoch.size, np.int64)
        self._releases: dict[int, list[Release]] = {}

    def touch(self, rows: Array, lanes: Array) -> None:
        """Lanes, bool (W, 32), of warps access memory."""
        self.touched[rows] |= as_words(lanes)

    def meet(self, rows: Array) -> None:
        """All lanes of warps synchronise."""
        if self.touched[rows].any():
            self._synced[rows] = self._epoch[rows]
            self._epoch[rows] += 1
            self.touched[rows] = 0
            self._close(rows)

    def release(self, rows: Array, lanes: Array) -> None:
        """Lanes, bool (W, 32), of warps are about to close the warps' epochs by an arrival."""
        words = as_words(lanes)
        others = (self.touched[rows] & ~words) != 0
        for row, word in zip(rows[others].tolist(), words[others].tolist(), strict=True):
            release = Release(int(self._synced[row]), int(self._epoch[row]), word)
            self._releases.setdefault(row, []).append(release)
        whole = rows[~others]
        self._synced[whole] = self._epoch[whole]
        self.touched[whole] = 0
        self._close(whole)

    def _close(self, rows: Array) -> None:
        if not self._releases:
            return
        for row in rows.tolist():
            for release in self._releases.get(row, ()):
                release.until = min(release.until, int(self._synced[row]))

    # -- checks --------------------------------------------------------------------------------
    @property
    def any(self) -> bool:
        """Whether there is an exception at all."""
        return bool(self._releases)

    def withheld(self, row: Array, known: Array, other: Array, lane: Array, epoch: Array) -> Array:
        """Which accesses of lanes of rows `other`, known to rows `row`, were not released to them.

        Shapes: all (n,); `known` is up to which epoch the row knows the other; lane −1 stands for
        several lanes.
        """
        found = np.zeros(row.size, bool)
        for warp, releases in self._releases.items():
            for at in np.nonzero((other == warp) & (row != warp))[0].tolist():
                found[at] = _withholds(releases, int(known[at]), int(lane[at]), int(epoch[at]))
        return found


def _withholds(releases: list[Release], known: int, lane: int, epoch: int) -> bool:
    over = [r for r in releases if r.synced < epoch <= r.epoch <= known < r.until]
    return bool(over) and (lane < 0 or not any(r.lanes >> lane & 1 for r in over))


def as_words(lanes: Array) -> Array:
    """One 32-bit mask (W,) for the lanes, bool (W, 32), of each warp."""
    bits = np.packbits(lanes, axis=1, bitorder="little")
    return np.ascontiguousarray(bits).view(np.uint32)[:, 0]
