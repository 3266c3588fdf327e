"""The barrier of a cluster: arrive, do something else, wait."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.batch import Batch


class ClusterBarriers:
    """One barrier per cluster of a batch.

    `arrivals` counts those of each warp, `phase` (clusters,) the complete phases.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        clusters = batch.blocks.size // batch.blocks_per_cluster
        self.arrivals = np.zeros(batch.rows, np.int64)
        self.phase = np.zeros(clusters, np.int64)
        self.waiting = np.zeros(batch.rows, bool)
        self._waits = np.zeros(batch.rows, np.int64)
        self._arriving = batch.clocks.table(clusters)
        self._released = batch.clocks.table(clusters)

    def twice(self, index: Array) -> Array:
        """Which of the warps have arrived without having waited since, bool (W,)."""
        return np.asarray(self.arrivals[index] > self._waits[index])

    def early(self, index: Array) -> Array:
        """Which of the warps would wait without having arrived, bool (W,)."""
        return np.asarray(self.arrivals[index] <= self._waits[index])

    def arrive(self, index: Array, release: bool) -> Array:
        """Warps arrive; gives the warps that this sets free."""
        self.arrivals[index] += 1
        if release:
            self._batch.clocks.tick(index)
            clusters = self._batch.clocks.cluster[index]
            self._arriving.add(clusters, self._batch.clocks.past[index])
        return self.complete()

    def complete(self) -> Array:
        """Complete the phases at which all living warps have arrived; gives the warps set free."""
        batch = self._batch
        alive = batch.alive.any(axis=1).reshape(self.phase.size, -1)
        arrived = self.arrivals.reshape(self.phase.size, -1) > self.phase[:, None]
        done = np.nonzero((arrived | ~alive).all(axis=1) & arrived.any(axis=1))[0]
        if not done.size:
            return done
        released = self._released.rows
        released[done] = np.maximum(released[done], self._arriving.rows[done])
        self._arriving.rows[done] = 0
        self.phase[done] += 1
        free = np.nonzero(self.waiting & np.isin(batch.clocks.cluster, done))[0]
        self.waiting[free] = False
        return np.asarray(free)

    def wait(self, index: Array, acquire: bool) -> Array:
        """Warps wait for the phase at which they arrived; gives those that go on, bool (W,)."""
        clusters = self._batch.clocks.cluster[index]
        go_on = self.phase[clusters] >= self.arrivals[index]
        free = index[go_on]
        self._waits[free] = self.arrivals[free]
        self.waiting[index[~go_on]] = True
        if acquire and free.size:
            self._batch.clocks.join(free, self._released.rows[clusters[go_on]])
        return np.asarray(go_on)
