"""Clocks of runs that look for no hazard of order."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.clocks import Clocks, ClockTable


class NoClocks(Clocks):
    """Clocks of no agent: nobody learns anything, and nobody may ask."""

    kept = False

    def table(self, count: int) -> ClockTable:
        return ClockTable(count, 0)

    def new_agents(self, clusters: Array) -> Array:
        return np.full(clusters.size, -1)

    def tick(self, index: Array) -> None:
        pass

    def join(self, index: Array, clock: Array) -> None:
        pass

    def join_blocks(self, blocks: Array) -> None:
        pass

    def fence(self, index: Array) -> None:
        pass

    def fence_proxy(self, index: Array, space: str) -> None:
        pass

    def publish(self, index: Array, *, relaxed: bool = False) -> Array:
        return self.past[index]

    def finish_wgmma(self, index: Array, groups: Array) -> None:
        pass

    def finish_launch_ahead(self, index: Array) -> None:
        pass

    def after_launch_ahead(self, index: Array) -> Array:
        return np.ones(index.size, bool)

    def has_reached(self, index: Array, warps: Array, epochs: Array) -> Array:
        return np.ones(warps.shape, bool)

    def atomic(self, index: Array) -> None:
        pass
