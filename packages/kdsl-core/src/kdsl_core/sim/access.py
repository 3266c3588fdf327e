"""One memory access of a group, as flat arrays over the threads that take part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.groups import LANES, Group


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """Addresses (L,) with the row and lane of the thread behind each.

    `whole_warp` says that the data go to all lanes of the warp (matrix loads). `shape` (W, n) and
    `active` say how results are laid out for the operation.
    """

    address: Array
    row: Array
    lane: Array
    size: int
    pc: int
    shape: tuple[int, int]
    active: Array | None
    whole_warp: bool = False

    def spread(self, data: Array) -> Array:
        """Data (L, size) in the shape (W, n, size) of the operation, zeros where masked off."""
        if self.active is None:
            return data.reshape(*self.shape, -1)
        full = np.zeros((*self.shape, data.shape[1]), data.dtype)
        full[self.active] = data
        return full

    def squeeze(self, data: Array) -> Array:
        """Data (W, n, …) of the operation as (L, …)."""
        if self.active is None:
            return data.reshape(-1, *data.shape[2:])
        return data[self.active]

    def take(self, chosen: Array) -> Access:
        """The part with the chosen threads, bool (L,)."""
        return replace(
            self, address=self.address[chosen], row=self.row[chosen], lane=self.lane[chosen]
        )


def access_of(
    group: Group, address: Array, size: int, where: Array | None, kind: str, pc: int
) -> Access:
    """The access of a group's active lanes at addresses that broadcast to (W, n)."""
    count = address.shape[1] if kind.endswith("matrix") else LANES
    shape = (group.size, count)
    wide = address.view(np.int64) if address.dtype == np.uint64 else address.astype(np.int64)
    if wide.shape != shape:
        wide = np.broadcast_to(wide, shape)
    active = None if group.mask is None else group.mask[:, :count]
    if where is not None:
        active = np.broadcast_to(where, shape) if active is None else active & where
        if active.all():
            active = None
    if active is not None:
        rows, lanes = np.nonzero(active)
        return Access(
            wide[active], group.index[rows], lanes, size, pc, shape, active, kind == "ldmatrix"
        )
    if count == LANES:
        rows, lanes = group.flat_rows, group.flat_lanes
    else:
        rows = np.repeat(group.index, count)
        lanes = np.tile(np.arange(count), group.size)
    return Access(wide.reshape(-1), rows, lanes, size, pc, shape, None, kind == "ldmatrix")
