"""Which slabs of which images a block of the grouped convolution takes, one after the other."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd


@kd.struct
class Walk:
    """Where somebody is in the block's slabs: images, rows and columns of the item, slab of it.

    Everybody walks alone; to the next item it takes additions only.
    """

    work: Any
    pack: kd.i32  # type: ignore[valid-type] # a register of the kernel
    down: kd.i32  # type: ignore[valid-type] # as above
    across: kd.i32  # type: ignore[valid-type] # as above
    slab: kd.i32  # type: ignore[valid-type] # as above

    @property
    def image(self) -> Any:
        """First image of the item."""
        return self.pack * self.work.config.images

    @property
    def row(self) -> Any:
        """First row of the item's results."""
        return self.down * (self.work.config.rows * self.work.config.steps)

    @property
    def column(self) -> Any:
        """First column of the item's results."""
        return self.across * self.work.config.columns

    @property
    def step_row(self) -> Any:
        """First row of the results of the step whose last slab this is."""
        config = self.work.config
        return self.row + (self.slab - (config.window - 1)) * config.rows

    @property
    def ends_step(self) -> Any:
        """Whether the slab is the last one of a step."""
        window = self.work.config.window
        return True if window == 1 else self.slab >= window - 1

    def advance(self) -> None:
        """Go on to the next slab."""
        work, slab = self.work, self.slab + 1
        next_item = slab == work.config.slabs
        self.slab = kd.where(next_item, 0, slab)
        pack, down, across = (kd.where(next_item, n, 0) for n in work.digits)
        across = self.across + across
        carry = across >= work.across
        self.across = kd.where(carry, across - work.across, across)
        down = self.down + down + kd.where(carry, 1, 0)
        carry = down >= work.down
        self.down = kd.where(carry, down - work.down, down)
        self.pack = self.pack + pack + kd.where(carry, 1, 0)


class Work:
    """The items of a block, each of them `config.slabs` slabs.

    A block stays with its channels, so that their weights stay in registers; the blocks of the same
    channels deal the tiles of all images among them.
    """

    def __init__(self, config: Any, x: Any, y: Any) -> None:
        self.config = config
        chunks = kd.ceil_div(x.shape[3], config.line)
        self.chunk = kd.block_idx()[0] % chunks
        self.across = kd.ceil_div(y.shape[2], config.columns)
        self.down = kd.ceil_div(y.shape[1], config.rows * config.steps)
        first, stride = kd.block_idx()[0] // chunks, kd.grid_dim()[0] // chunks
        items = kd.ceil_div(y.shape[0], config.images) * self.down * self.across
        self.total = (items - first + stride - 1) // stride * config.slabs
        self.first, self.digits = self._digits(first), self._digits(stride)

    def walk(self) -> Walk:
        """At the block's first slab."""
        return Walk(self, *self.first, 0)

    def _digits(self, item: Any) -> tuple[Any, Any, Any]:
        """Images, tile of rows and tile of columns of an item."""
        rest = item // self.across
        return rest // self.down, rest % self.down, item % self.across
