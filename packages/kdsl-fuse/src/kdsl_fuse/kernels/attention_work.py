"""Which tiles of queries a block of an attention kernel takes, and what keys they see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kdsl_core as kd


@dataclass(frozen=True)
class Tile:
    """`rows` of queries from `row` on, of one head; `blocks` of keys that they see.

    The first `whole` blocks are seen by all of the queries. `shift` more keys than its own number
    are seen by each query of a causal mask.
    """

    row: Any
    head: Any
    key_head: Any
    batch: Any
    blocks: Any
    whole: Any
    shift: Any
    keys: Any


class Work:
    """Which tiles a block takes: the longest first, and back and forth, so that all end together.

    Blocks that run at the same time take the same `together` heads, whose keys and values then stay
    in the L2 cache.
    """

    def __init__(self, config: Any, q: Any, k: Any, together: Any) -> None:
        self.config, self.together = config, together
        self.queries, _, self.heads, self.batches = q.shape
        self.keys = k.shape[0]
        self.sharers = self.heads // k.shape[2]
        self.tiles = kd.ceil_div(self.queries, config.rows)
        self.total = self.tiles * self.heads * self.batches
        self.blocks = kd.grid_dim()[0]
        self.turns = kd.ceil_div(self.total, self.blocks)

    def number(self, turn: Any) -> Any:
        """The number of the block's tile in a turn, perhaps behind the last one."""
        block = kd.block_idx()[0]
        return turn * self.blocks + kd.where(turn % 2 == 0, block, self.blocks - 1 - block)

    def at(self, number: Any) -> Tile:
        """The tile of a number below `total`."""
        columns, rows = self.config.columns, self.config.rows
        place, index = kd.collective.grouped_raster(
            number, self.heads * self.batches, self.tiles, self.together
        )
        head, row = place % self.heads, (self.tiles - 1 - index) * rows
        shift, seen, whole = 0, self.keys, self.keys
        if self.config.mask is not None:
            shift = self.keys - self.queries if self.config.mask == "bottom-right" else 0
            seen = kd.maximum(kd.minimum(seen, row + rows + shift), 1)
            whole = kd.maximum(kd.minimum(whole, row + shift + 1), 0)
        return Tile(
            row, head, head // self.sharers, place // self.heads,
            kd.ceil_div(seen, columns), whole // columns, shift, self.keys,
        )  # fmt: skip
