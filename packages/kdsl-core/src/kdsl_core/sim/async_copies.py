"""Groups of asynchronous copies (`cp.async`), counted per thread."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.groups import LANES, Group


class AsyncCopies:
    """How many groups each thread has committed, and how many of them are finished.

    A copy finishes only when its thread waits for it, the latest moment that the program allows.
    """

    def __init__(self, batch: Batch) -> None:
        self._committed = np.zeros((batch.rows, LANES), np.int64)
        self.finished = np.zeros((batch.rows, LANES), np.int64)

    def group_of(self, access: Access) -> Array:
        """The number of the open group of each thread of an access (L,)."""
        return self._committed[access.row, access.lane]

    def commit(self, group: Group) -> None:
        """Close the open group of each active thread."""
        self._committed[group.rows] += group.lanes()

    def wait(self, group: Group, pending: int) -> None:
        """All but the last `pending` groups of each active thread are finished."""
        done = np.maximum(self._committed[group.rows] - pending, self.finished[group.rows])
        self.finished[group.rows] = np.where(group.lanes(), done, self.finished[group.rows])
