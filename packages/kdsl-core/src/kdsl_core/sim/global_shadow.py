"""Shadow of a global allocation: unordered accesses within a cluster and between clusters."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.clocks import Clocks
from kdsl_core.sim.entries import (
    AGENT,
    AGENT_SHIFT,
    ASYNC,
    ATOMIC,
    EPOCH_SHIFT,
    INFLIGHT,
    THREAD,
    Conflict,
    entries,
    first_of,
    unfenced,
    unordered,
)
from kdsl_core.sim.shadow import Granules
from kdsl_core.sim.unfinished import NO_BARRIER, UnfinishedWrites, Writes


class Releases:
    """What clusters released by fences and acquired by atomics, in the order of the run.

    Without clusters, a block is one. A fence of a warp releases its past and what it knows of its
    cluster's past; a later atomic of another cluster acquires it. That errs towards "ordered":
    which atomic read which is not followed.
    """

    def __init__(self) -> None:
        self._time = 0
        self._released: dict[int, list[tuple[int, Array]]] = defaultdict(list)
        self._acquired: dict[int, int] = {}

    def fence(self, clusters: Array, known: Array) -> None:
        """Warps of linear `clusters` (W,), with clocks (W, warps), release."""
        self._time += 1
        for cluster, clock in zip(clusters.tolist(), known, strict=True):
            self._released[cluster].append((self._time, clock.copy()))

    def atomic(self, clusters: Array) -> None:
        """Warps of linear `clusters` acquire what was released so far."""
        if self._released:
            self._time += 1
            for cluster in np.unique(clusters).tolist():
                self._acquired[cluster] = self._time

    def ordered(self, cluster: int, entry: int, reader: int) -> bool:
        """Whether an access of `cluster` was released before `reader` last acquired."""
        seen = self._acquired.get(reader, 0)
        warp, epoch = entry >> AGENT_SHIFT & AGENT, entry >> EPOCH_SHIFT
        return any(time < seen and clock[warp] >= epoch for time, clock in self._released[cluster])


class GlobalShadow:
    """Last writer and the last two different readers of each granule of an allocation.

    Clusters go by the linear number of their first block, stored plus 1 so that 0 means nobody.
    """

    def __init__(self, size: int, releases: Releases) -> None:
        self._granules = Granules(size)
        count = self._granules.count
        self._releases = releases
        self._writer = np.zeros(count, np.int64)
        self._writer_cluster = np.zeros(count, np.int32)
        self._reader = np.zeros((2, 0), np.int64)  # made by the first read
        self._reader_cluster = np.zeros((2, 0), np.int32)
        self._was_read = False
        self._was_written = False
        self._writes: UnfinishedWrites | None = None

    def begin(self, clocks: Clocks) -> None:
        """Other blocks run from now on."""
        self._writes = UnfinishedWrites(clocks)

    def finish_stores(self, finished: Array) -> None:
        """Stores of bulk groups below `finished` (rows, 32) are done."""
        if self._writes is not None:
            self._writes.finish_groups(self._writer, finished)

    def written_bytes(self) -> Array:
        """Which bytes somebody wrote, bool (bytes,)."""
        return np.repeat(self._writer_cluster != 0, self._granules.bytes)

    def last_writes(self, place: Array) -> tuple[Array, Array]:
        """The entries of the last writes at some bytes, and their clusters, −1 for nobody."""
        at = place // self._granules.bytes
        return self._writer[at], self._writer_cluster[at] - 1

    def read(
        self,
        clocks: Clocks,
        access: Access,
        offset: Array,
        cluster: Array,
        *,
        asynchronous: bool = False,
    ) -> list[Conflict]:
        """Check a read of threads of clusters `cluster` (L,), and remember it."""
        granules = self._locate(offset, access.size)
        found: list[Conflict] = []
        if self._was_written:
            old, old_cluster = self._writer[granules], self._writer_cluster[granules]
            found = self._conflicts(clocks, access, cluster, old, old_cluster, "wrote")
            if asynchronous and not found:
                hidden = unfenced(clocks.global_proxy, access, old) & (
                    old_cluster == (cluster + 1)[:, None]
                )
                found = first_of("proxy", hidden, old, "wrote")
        self._note_read(clocks, access, granules, cluster)
        return found

    def write(
        self,
        clocks: Clocks,
        access: Access,
        offset: Array,
        cluster: Array,
        *,
        atomic: bool = False,
        group: Array | None = None,
    ) -> tuple[list[Conflict], Conflict | None]:
        """Check a write, and remember it; also gives the conflict within the instruction.

        A `group` (L,) of bulk copies makes it one that goes on until the group is done.
        """
        granules = self._locate(offset, access.size)
        found: list[Conflict] = []
        if self._was_written:
            old, old_cluster = self._writer[granules], self._writer_cluster[granules]
            if atomic:
                old_cluster = np.where(old & ATOMIC, 0, old_cluster)
            found = self._conflicts(clocks, access, cluster, old, old_cluster, "wrote")
        if self._was_read:
            for slot in range(2):
                old = self._reader[slot][granules]
                old_cluster = self._reader_cluster[slot][granules]
                found += self._conflicts(clocks, access, cluster, old, old_cluster, "read")
        entry = entries(clocks, access) | (ATOMIC if atomic else 0)
        if group is not None and self._writes is not None:
            entry |= ASYNC | INFLIGHT
            none = np.full(group.shape, NO_BARRIER)
            self._writes.add(Writes(granules, entry, access.row, access.lane, group, none))
        self._was_written = True
        self._writer[granules] = entry[:, None]
        self._writer_cluster[granules] = (cluster + 1)[:, None]
        if atomic:
            return found, None
        return found, self._within(granules, entry, cluster)

    def _within(self, granules: Array, entry: Array, cluster: Array) -> Conflict | None:
        kept = self._writer[granules]
        kept_cluster = self._writer_cluster[granules]
        lost = (kept != entry[:, None]) | (kept_cluster != (cluster + 1)[:, None])
        if not lost.any():
            return None
        at = np.nonzero(lost.any(axis=1))[0]
        column = lost[at].argmax(axis=1)
        others = kept_cluster[at, column] - 1
        return Conflict("race", at, kept[at, column], "wrote", others, column, kept.shape[1])

    def _locate(self, offset: Array, size: int) -> Array:
        factor = self._granules.refinement(offset, size)
        if factor > 1 and self._writes is not None:
            self._writes.refine(factor)
        if factor > 1:
            self._writer = np.repeat(self._writer, factor)
            self._writer_cluster = np.repeat(self._writer_cluster, factor)
        if factor > 1 and self._was_read:
            self._reader = np.repeat(self._reader, factor, axis=1)
            self._reader_cluster = np.repeat(self._reader_cluster, factor, axis=1)
        return self._granules.of(offset, size)

    def _conflicts(
        self,
        clocks: Clocks,
        access: Access,
        cluster: Array,
        old: Array,
        old_cluster: Array,
        other: str,
    ) -> list[Conflict]:
        if not old_cluster.any():
            return []
        foreign = (old_cluster != 0) & (old_cluster != (cluster + 1)[:, None])
        late = (old_cluster != 0) & ~foreign
        if late.any():
            late &= unordered(clocks, access, old)
        if foreign.any():
            late |= self._still_unordered(foreign, cluster, old, old_cluster)
        at = np.nonzero(late.any(axis=1))[0]
        if not at.size:
            return []
        column = late[at].argmax(axis=1)
        entry, other_cluster = old[at, column], old_cluster[at, column] - 1
        flying = (entry >= INFLIGHT) & (other_cluster == cluster[at])
        return [
            Conflict(
                code,
                at[which],
                entry[which],
                did,
                other_cluster[which],
                column[which],
                old.shape[1],
            )
            for code, which, did in (
                ("race", ~flying, other),
                ("inflight", flying, "transfers"),
            )
            if which.any()
        ]

    def _still_unordered(
        self, foreign: Array, cluster: Array, old: Array, old_cluster: Array
    ) -> Array:
        late = foreign.copy()
        thread, granule = np.nonzero(foreign)
        keys = np.stack(
            [old_cluster[thread, granule] - 1, old[thread, granule], cluster[thread]], axis=1
        )
        unique, inverse = np.unique(keys, axis=0, return_inverse=True)
        ordered = np.array([self._releases.ordered(*key) for key in unique.tolist()], bool)
        late[thread, granule] = ~ordered[inverse.reshape(-1)]
        return late

    def _note_read(self, clocks: Clocks, access: Access, granules: Array, cluster: Array) -> None:
        entry = np.broadcast_to(entries(clocks, access)[:, None], granules.shape)
        mine = np.broadcast_to((cluster + 1)[:, None].astype(np.int32), granules.shape)
        if self._was_read:
            old, old_cluster = self._reader[0][granules], self._reader_cluster[0][granules]
            other = (old_cluster != 0) & (
                (old_cluster != mine) | ((old & THREAD) != (entry & THREAD))
            )
            self._reader[1][granules[other]] = old[other]
            self._reader_cluster[1][granules[other]] = old_cluster[other]
        if not self._was_read:
            self._was_read = True
            self._reader = np.zeros((2, self._writer.size), np.int64)
            self._reader_cluster = np.zeros((2, self._writer.size), np.int32)
        self._reader[0][granules] = entry
        self._reader_cluster[0][granules] = mine
        lost = (self._reader[0][granules] != entry) | (self._reader_cluster[0][granules] != mine)
        if lost.any():
            self._reader[1][granules[lost]] = entry[lost]
            self._reader_cluster[1][granules[lost]] = mine[lost]
