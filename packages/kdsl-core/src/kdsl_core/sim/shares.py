"""Values of registers that some warps or lanes wrote, as long as nobody else wants them.

Groups that go separate ways, as warps with roles and their elected lanes do, mostly read what they
wrote themselves. So a value stays as it was written, one number where all agree, and no array of
all warps is made.
"""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.sim.groups import Group


class Shares:
    """What groups of warps wrote to registers; those of one register have no warp in common.

    `of` has the registers with shares, by `Group.lane_key`.
    """

    def __init__(self) -> None:
        self.of: dict[object, dict[bytes, tuple[Group, Array]]] = {}
        self._apart: set[tuple[bytes, bytes]] = set()

    def get(self, register: object, group: Group) -> Array | None:
        """What a group of the very same lanes wrote; None where that is not all there is."""
        known = self.of[register].get(group.lane_key)
        return None if known is None else known[1]

    def put(self, register: object, group: Group, value: Array) -> bool:
        """Keep what a group wrote; False where warps of it have a share together with others."""
        parts = self.of.setdefault(register, {})
        key = group.lane_key
        if key not in parts and any(self._meet(group, other) for other, _ in parts.values()):
            return False
        parts[key] = group, value
        return True

    def take(self, register: object) -> list[tuple[Group, Array]]:
        """All shares of a register, which are kept no longer."""
        return list(self.of.pop(register, {}).values())

    def _meet(self, one: Group, other: Group) -> bool:
        pair = one.key, other.key
        if pair in self._apart:
            return False
        if np.isin(one.index, other.index, assume_unique=True).any():
            return True
        self._apart.add(pair)
        return False
