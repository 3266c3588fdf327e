"""Input rows of a grouped convolution on their way to shared memory: a ring of slabs.

A slab holds some rows of a tile's columns, with those around it that its windows reach; what lies
outside of the image is zero. Pixels are lines of `config.line` channels, swizzled so that the same
octet of eight neighbours lies in eight different places of the banks.
"""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
from kdsl_core.atoms.sm90.shared_layouts import swizzle_of
from kdsl_core.collective.pipeline import RingPosition
from kdsl_fuse.kernels.conv_grouped_config import OCTET, WARP
from kdsl_fuse.kernels.conv_grouped_work import Walk, Work


class Halo:
    """The ring of slabs, as those see it who read windows of it."""

    def __init__(self, config: Any, x: Any, work: Work) -> None:
        self.config, self.x, self.work = config, x, work
        line, width, planes = config.line, config.width, len(config.planes)
        images, image = config.images, config.plane
        self.size = planes * images * image
        shape = (images, config.slab, width, line, planes, config.stages)
        layout = kd.Layout(shape, (image, width * line, line, 1, images * image, self.size))
        swizzle = swizzle_of(line * x.dtype.bytes, x.dtype)
        self.slabs = kd.smem(x.dtype, kd.ComposedLayout(swizzle, 0, layout), name="slabs")
        self.raw = kd.recast(self.slabs, x.dtype, kd.Layout(self.size * config.stages))
        first = (config.stages - config.window + 1) % config.stages
        self.oldest = RingPosition(config.stages, first, 0)

    def corner(self, tile: Walk) -> tuple[Any, Any]:
        """Input row and column of a slab's first pixel."""
        c = self.config
        row = tile.row * c.stride[0] + tile.slab * c.slab - (c.padding[0] + c.unread)
        return row, tile.column * c.stride[1] - c.padding[1]

    def lacks_rows(self, tile: Walk) -> Any:
        """Whether nobody reads the first rows of a slab: the item's first, if slabs overlap."""
        if self.config.unread == 0 or self.config.window == 1:
            return self.config.unread > 0
        return tile.slab == 0

    def starts(self) -> list[Any]:
        """For each slab of the window, its start less that of a window in one piece."""
        stages, rows, found = self.config.stages, self.config.plane, []
        for i in range(self.config.window):
            stage = self.oldest.index + i
            stage = kd.where(stage >= stages, stage - stages, stage) if i else stage
            found.append((stage * self.size - i * rows).assume_divisible(OCTET))
        return found


class TmaHalo(Halo):
    """Filled by one thread of a warp of its own."""

    def __init__(self, config: Any, x: Any, work: Work) -> None:
        super().__init__(config, x, work)
        planes = len(config.planes)
        self.copies = [self._copy(config.unread), self._copy(0)]
        self.bytes = [copy.bytes * planes for copy, _ in self.copies]
        self.ring = kd.collective.TmaPipeline(config.stages, self.bytes[1], config.warps)
        self.at = RingPosition(config.stages, 0, 0)

    def _copy(self, unread: int) -> tuple[Any, Any]:
        """Loads of slabs without some rows at their start, and the places of the others."""
        c, x, whole = self.config, self.x, self.slabs.layout
        rows = kd.Layout(c.slab - unread, whole.stride[1])
        layout = kd.make_layout(whole[0], rows, *(whole[i] for i in range(2, 6)))
        slabs = self.slabs.with_layout(layout, unread * c.width * c.line)
        tile = (c.images, c.slab - unread, c.width, c.line)
        steps = (1, 1, c.stride[1], 1)
        copy = kd.tma_load(x, slabs[..., 0, 0], tile, steps=steps)
        return copy, slabs

    def init(self) -> None:
        """Make the barriers. Threads: one, then a barrier of all."""
        for copy, _ in self.copies:
            copy.prefetch()
        self.ring.init()

    def begin(self) -> None:
        """Nothing: the copying warp has begun by itself."""

    def wait(self, number: Any) -> None:
        """Wait for the next slab."""
        self.ring.full[self.at.stage].wait(self.at.parity)
        self.at.advance()

    def release(self, number: Any) -> None:
        """Give the oldest slab of the window back. Threads: a warp, each for itself."""
        kd.sync_warp()
        held = number >= self.config.window - 1
        self.ring.empty[self.oldest.stage].arrive(pred=(kd.lane_idx() == 0) & held)
        self.oldest.advance()


@kd.func
def fill_ring(halo):
    """Copy all slabs of the block's items, each as soon as its stage is free. Threads: a warp."""
    ring, at, tile = halo.ring, RingPosition(halo.config.stages, 0, 1), halo.work.walk()
    if kd.elect_one():
        for _ in kd.range(halo.work.total):
            ring.empty[at.stage].wait(at.parity)
            if halo.lacks_rows(tile):
                copy_planes(halo, tile, at.stage, whole=False)
            else:
                copy_planes(halo, tile, at.stage, whole=True)
            at.advance()
            tile.advance()


def copy_planes(halo, tile, stage, whole):
    """Start the copies of a slab, but perhaps for the rows that nobody reads."""
    c, full = halo.config, halo.ring.full[stage]
    unread, (copy, slabs) = 0 if whole else c.unread, halo.copies[whole]
    full.arrive_expect(halo.bytes[whole])
    row, column = halo.corner(tile)
    for plane, first in enumerate(c.planes):
        at = tile.image, row + unread, column + first, halo.work.chunk * c.line
        copy(slabs[..., plane, stage], at, full)


class AsyncHalo(Halo):
    """Filled by all threads, which copy 16 bytes each (`cp.async`), some slabs ahead."""

    def __init__(self, config: Any, x: Any, work: Work) -> None:
        super().__init__(config, x, work)
        self.ahead = config.stages - config.window
        self.filling, self.tile = RingPosition(config.stages, 0, 0), work.walk()

    def begin(self) -> None:
        """Start the first copies."""
        for number in range(self.ahead):
            self._fill(number)

    def wait(self, number: Any) -> None:
        """Wait for the next slab, and start to copy another one to the stage that got free."""
        kd.cp_async_wait(self.ahead - 1)
        kd.sync_threads()
        self._fill(number + self.ahead)

    def release(self, number: Any) -> None:
        """The next `wait` of all threads frees the oldest slab."""
        self.oldest.advance()

    def _fill(self, number: Any) -> None:
        copy_slab(self, number)
        kd.cp_async_commit()
        self.filling.advance()
        self.tile.advance()


@kd.func
def copy_slab(halo, number):
    """Start the copies of a slab. Threads: the block."""
    c, x, tile = halo.config, halo.x, halo.tile
    octets, pixels = c.line // OCTET, c.slab * c.width
    pieces = c.images * pixels * octets
    if number < halo.work.total:
        first_row, first_column = halo.corner(tile)
        stage = halo.filling.stage
        for plane, first in enumerate(c.planes):
            for i in kd.range(kd.thread_rank(), pieces, c.warps * WARP):
                octet, pixel = i % octets * OCTET, i // octets
                image, pixel = pixel // pixels, pixel % pixels
                row, column = pixel // c.width, pixel % c.width
                n, h = tile.image + image, first_row + row
                w = first_column + column * c.stride[1] + first
                channel = halo.work.chunk * c.line + octet
                inside = (h >= 0) & (h < x.shape[1]) & (w >= 0) & (w < x.shape[2])
                inside = inside & (channel < x.shape[3]) & (n < x.shape[0])
                if c.unread > 0 and halo.lacks_rows(tile):
                    inside = inside & (row >= c.unread)
                at = kd.where(inside, x.layout((n, h, w, channel)), 0)
                source = x.with_layout(kd.Layout(OCTET), at.assume_divisible(OCTET))
                to = halo.slabs.layout((image, row, column, octet, plane, stage))
                target = halo.slabs.with_layout(kd.Layout(OCTET), to)
                kd.copy(source, target, atom=kd.atoms.cp_async(16, zfill=True), pred=inside)
