"""Global memory traffic of an access, counted from its layout."""

from __future__ import annotations

from typing import Any

from kdsl_core.inspect.accesses import (
    Access,
    Op,
    Requests,
    as_access,
    requests_of,
    sort_arguments,
)
from kdsl_core.inspect.elements import Subject
from kdsl_core.layout import AnyLayout
from kdsl_core.records import dataclass
from kdsl_core.sim.traffic import SECTOR, count_sectors


@dataclass(frozen=True)
class Coalescing:
    """The sectors that an access moves, as the simulator counts them.

    `requests` are warp-wide instructions, `sectors` what they touch, `ideal_sectors` the least for
    the distinct bytes asked for, `per_warp` the sectors of each warp. The worst request is issued
    by `worst_warp` for its values from `worst_value` on.

    Units: sectors of 32 bytes; `width`, what one thread moves at once, and `bytes` in bytes.
    """

    width: int
    requests: int
    sectors: int
    ideal_sectors: int
    bytes: int
    per_warp: tuple[int, ...]
    worst_warp: int
    worst_value: int
    worst_sectors: int

    @property
    def sectors_per_request(self) -> float:
        """Sectors that one warp-wide instruction moves on average."""
        return self.sectors / self.requests

    @property
    def efficiency(self) -> float:
        """Least sectors for the distinct bytes asked for ÷ sectors moved; 1 is best."""
        return self.ideal_sectors / self.sectors

    def __str__(self) -> str:
        return (
            f"requests: {self.requests} of {self.width} bytes a thread; sectors: {self.sectors},"
            f" {self.sectors_per_request:.4g} a request (efficiency {self.efficiency:.1%});"
            f" worst: warp {self.worst_warp}, value {self.worst_value},"
            f" {self.worst_sectors} sectors"
        )


def coalescing(
    access: Subject | Access,
    memory: AnyLayout | Any = None,
    dtype: Any = None,
    *,
    op: Op | None = None,
    width: int | None = None,
    start: int = 0,
) -> Coalescing:
    """How many sectors of global memory an access moves, and which warp is worst.

    `access` maps (thread, value) to the index in the layout `memory`, or, where that is left out,
    to the offset in elements; or it is a tiled copy, of which loads see the source side and
    ``op="st"`` the destination. Each thread moves `width` bytes at once: the widest that the
    addresses allow, unless given.

    Units: `width` in bytes; `start` in bytes, where element 0 lies beyond a multiple of 32.

    >>> from kdsl_core.dtypes import f32
    >>> from kdsl_core.layout import Layout
    >>> rows, columns = Layout((32, 1)), Layout((32, 1), (64, 1))
    >>> coalescing(rows, f32).sectors_per_request, coalescing(columns, f32).sectors_per_request
    (4.0, 32.0)

    Raises: LayoutError when the access and the memory do not fit together.
    """
    layout, element = sort_arguments(memory, dtype)
    found = requests_of(as_access(access, op, width, "A"), layout, element, start, "global")
    each = [_sectors(found, i) for i in range(found.address.shape[0])]
    worst = max(range(len(each)), key=lambda i: each[i][1])
    per_warp = [0] * (int(found.warp.max()) + 1)
    for warp, (_, sectors, _, _) in zip(found.warp.tolist(), each, strict=True):
        per_warp[warp] += sectors
    requests, sectors, ideal, asked = (sum(column) for column in zip(*each, strict=True))
    return Coalescing(
        found.width,
        requests,
        sectors,
        ideal,
        asked,
        tuple(per_warp),
        int(found.warp[worst]),
        int(found.value[worst]),
        each[worst][1],
    )


def _sectors(found: Requests, i: int) -> tuple[int, int, int, int]:
    """(requests, sectors, least sectors, bytes) of one instruction."""
    address = found.address[i : i + 1]
    base = int(address.min()) // SECTOR * SECTOR  # the count marks unused lanes by negatives
    active = None if found.active is None else found.active[i : i + 1]
    return count_sectors(address - base, active, found.width)
