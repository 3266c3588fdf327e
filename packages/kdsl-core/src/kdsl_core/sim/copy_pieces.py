"""Pieces of asynchronous copies: what the copies of several threads move, as flat arrays."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.access import Access
from kdsl_core.sim.tensor_boxes import CHUNK


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of the copies of several threads.

    Shapes: all (P,); `owner` numbers the thread, `outside` (global) and `shared` are addresses, and
    `inside` says which pieces lie in the tensor.
    """

    size: int
    owner: Array
    outside: Array
    shared: Array
    inside: Array

    def take(self, chosen: Array) -> Pieces:
        """The part with the chosen pieces, bool (P,)."""
        parts = (self.owner, self.outside, self.shared, self.inside)
        return Pieces(self.size, *(part[chosen] for part in parts))

    def access(self, issue: Access, address: Array) -> Access:
        """An access of the issuing threads to `address` (P,)."""
        return Access(
            address, issue.row[self.owner], issue.lane[self.owner], self.size, issue.pc,
            (1, address.size), None,
        )  # fmt: skip


def flat(issue: Access, value: Array) -> Array:
    """An operand that broadcasts to the group's lanes as int64 (L,), one per issuing thread."""
    if value.shape != issue.shape:
        value = np.broadcast_to(value, issue.shape)
    return issue.squeeze(value).astype(np.int64)


def columns(issue: Access, values: list[Array]) -> Array:
    """Operands as columns, int64 (L, n)."""
    found = [flat(issue, value) for value in values]
    return np.stack(found, axis=1) if found else np.zeros((issue.address.size, 0), np.int64)


def run_pieces(amount: Array, outside: Array, shared: Array) -> Pieces:
    """The chunks of runs of `amount` bytes (L,) between two addresses (L,)."""
    chunks = amount // CHUNK
    owner = np.repeat(np.arange(amount.size), chunks)
    along = (np.arange(owner.size) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * CHUNK
    everywhere = np.ones(owner.size, bool)
    return Pieces(CHUNK, owner, outside[owner] + along, shared[owner] + along, everywhere)
