"""Results of a grouped convolution on their way out: pointwise tail, shared memory, whole lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import kdsl_core as kd
from kdsl_core.atoms.sm90.shared_layouts import swizzle_of
from kdsl_core.collective.pipeline import RingPosition
from kdsl_fuse.kernels.conv_grouped_config import OCTET, PAIRED, PANEL, WARP
from kdsl_fuse.kernels.conv_grouped_work import Walk

BARRIER = 1


@dataclass(frozen=True)
class Matrix:
    """Eight neighbouring pixels by eight filters: unit and half of 16 pixels, octet of filters."""

    unit: int
    half: int
    octet: int


class Results:
    """What a block's warps have computed of a step, on the way to memory.

    Pixels are lines of up to 64 filters in shared memory, swizzled as the input's. `part` is the
    warp's part of the filters.
    """

    def __init__(
        self,
        config: Any,
        y: Any,
        chunk: Any,
        part: Any,
        epilogue: Callable[..., Any],
        extras: Sequence[Any],
    ) -> None:
        self.config, self.y, self.epilogue, self.extras = config, y, epilogue, extras
        self.line = min(config.filters, PANEL)
        self.image = config.rows * config.columns * self.line
        self.panel = config.images * self.image
        self.first = chunk * config.filters
        self.octet = part * config.octets
        panels = config.filters // self.line
        self.size = panels * self.panel
        images, rows, columns = config.images, config.rows, config.columns
        shape = (images, rows, columns, (self.line, panels), config.buffers)
        steps = (self.image, columns * self.line, self.line, (1, self.panel), self.size)
        swizzle = swizzle_of(self.line * y.dtype.bytes, y.dtype)
        layout = kd.ComposedLayout(swizzle, 0, kd.Layout(shape, steps))
        self.stage = kd.smem(y.dtype, layout, name="results")
        self.raw = kd.recast(self.stage, y.dtype, kd.Layout(self.size * config.buffers))
        self.barrier = kd.named_barrier(BARRIER, config.warps * WARP)
        self.by_tma = config.copies == "tma"
        self.lane, self.column = kd.lane_idx(), 2 * (kd.lane_idx() % 4)
        # Lane l names row l mod 8 of a matrix for `stmatrix`, and holds a pair of its row l div 4.
        self.rows = [self._place(j, self.lane % 8) for j in range(config.octets)]
        self.pairs = [self._place(j, self.lane // 4) + self.column for j in range(config.octets)]
        self.at = RingPosition(config.buffers, 0, 0)
        if self.by_tma:
            tile = (images, rows, columns, config.filters)
            self.send = kd.tma_store(y, self.stage[..., 0], tile)
            self.written = kd.mbarrier(config.parts, config.buffers, name="written")
            staged = None if config.staged is None else extras[config.staged]
            self.staged = None if staged is None else kd.tma_load(staged, self.stage[..., 0], tile)
            size = 0 if self.staged is None else self.staged.bytes
            self.ring = kd.collective.TmaPipeline(config.buffers, size, 1)

    def init(self) -> None:
        """Make the barriers. Threads: one, then a barrier of all."""
        self.send.prefetch()
        self.written.init()
        self.ring.init()
        if self.staged is not None:
            self.staged.prefetch()

    def _place(self, octet: int, row: Any) -> Any:
        """Where a row of a matrix of these filters starts, in the strip's first pixels."""
        bits = self.config.swizzle_bits[1]
        key = row // (1 << (3 - bits)) % (1 << bits)
        filters = self.octet + octet
        eights = self.line // OCTET
        across = (filters % eights ^ key) * OCTET
        place = filters // eights * self.panel + row * self.line + across
        return place.assume_divisible(OCTET)

    # -- the pointwise tail ------------------------------------------------------------------
    def fixed(self) -> dict[int, list[list[Any]]]:
        """Extras that depend on the filter alone, for each octet the lane's two."""
        found = {}
        for index, extra in enumerate(self.extras):
            if index != self.config.staged and all(
                isinstance(step, int) and step == 0 for step in extra.stride[:3]
            ):
                octets = range(self.config.octets)
                found[index] = [self._pair(extra, (0, 0, 0), j, None) for j in octets]
        return found

    def fetch(self, tile: Walk, strip: Any, fixed: Any) -> dict[Matrix, list[Any]]:
        """The extras of a strip, to be called some time before they are needed."""
        found = {}
        for matrix in self.matrices() if self.extras else ():
            image, row, column = self.pixel(matrix, strip)
            at = tile.image + image, tile.step_row + row, tile.column + column
            inside = (at[1] < self.y.shape[1]) & (at[2] < self.y.shape[2])
            inside = inside & (at[0] < self.y.shape[0]) if image else inside
            found[matrix] = []
            for i, extra in enumerate(self.extras):
                if i == self.config.staged:
                    pair = self._kept_pair(matrix, self._start(strip))
                    found[matrix].append(list(pair.load_vector(0, 2)))
                elif i in fixed:
                    found[matrix].append(fixed[i][matrix.octet])
                else:
                    found[matrix].append(self._pair(extra, at, matrix.octet, inside))
        return found

    def matrices(self) -> list[Matrix]:
        """Those of a strip; stored two or four at a time, in this order."""
        c, halves = self.config, range(2)
        if c.octets % 2 == 0:
            return [
                Matrix(u, h, j) for u in range(c.units) for j in range(c.octets) for h in halves
            ]
        return [Matrix(u, h, j) for j in range(c.octets) for u in range(c.units) for h in halves]

    def pixel(self, matrix: Matrix, strip: Any) -> tuple[int, int, Any]:
        """Image of the item, row of the step and column of the tile, of the lane's pixel."""
        paired, lane_row = self.config.paired, self.lane // 4
        if paired == "rows":
            return 0, matrix.unit + matrix.half * self.config.units, strip * OCTET + lane_row
        if paired == "images":
            return matrix.half, matrix.unit, strip * OCTET + lane_row
        return 0, matrix.unit, strip * (2 * OCTET) + matrix.half * OCTET + lane_row

    def _pair(self, extra: Any, at: Any, octet: int, inside: Any) -> list[Any]:
        """Two neighbouring filters' elements of an extra."""
        first = self.first + (self.octet + octet) * OCTET + self.column
        within = first < self.y.shape[3]
        within = within if inside is None else within & inside
        step = extra.stride[3]
        if isinstance(step, int) and step == 0:
            return [extra.load((*at, first), within)] * 2
        if isinstance(step, int) and step == 1:
            return list(extra.load_vector((*at, first), 2, within))
        return [extra.load((*at, first + i), within) for i in range(2)]

    # -- to shared memory --------------------------------------------------------------------
    def keep(self, acc: list[Any], parts: dict[Matrix, list[Any]], strip: Any) -> None:
        """Put the results of a strip into the step's buffer."""
        matrices = self.matrices()
        start = self._start(strip)
        if self.config.staged is not None:  # what other lanes have read is overwritten
            kd.sync_warp()
        for some in _groups(matrices):
            wide = kd.rmem(kd.f32, kd.Layout(2 * len(some)))
            for i, matrix in enumerate(some):
                for e in range(2):
                    value = acc[matrix.unit][2 * matrix.half + e, 0, matrix.octet]
                    operands = [pair[e] for pair in parts.get(matrix, ())]
                    wide[2 * i + e] = kd.as_scalar(self.epilogue(value, *operands)).to(kd.f32)
            held = kd.rmem(self.y.dtype, kd.Layout(2 * len(some)))
            kd.convert_fragment(wide, held)
            self._store(some, held, start)

    def _start(self, strip: Any) -> Any:
        """Where a strip starts in the step's buffer."""
        across = PAIRED[self.config.paired][1]
        return strip * (self.line * across) + self.at.stage * self.size

    def _kept_pair(self, matrix: Matrix, start: Any) -> Any:
        """The lane's two elements of a matrix in shared memory."""
        at = start + self.pairs[matrix.octet] + self._apart(matrix)
        return self.raw.with_layout(kd.Layout(2), at)

    def _store(self, some: list[Matrix], held: Any, start: Any) -> None:
        if not self.by_tma:
            for i, matrix in enumerate(some):
                kd.copy(held.with_layout(kd.Layout(2), 2 * i), self._kept_pair(matrix, start))
            return
        first, last = some[0], some[-1]
        second, half = self.lane // 16, self.lane // 8 % 2
        at = self.rows[first.octet]
        if last.octet != first.octet:
            at = kd.where(second == 0, at, self.rows[last.octet])
        at = at + half * (self._apart(some[1]) - self._apart(first))
        if last.unit != first.unit:
            at = at + second * (self._apart(last) - self._apart(some[1]))
        at = at.assume_divisible(OCTET) + start + self._apart(first)
        target = self.raw.with_layout(kd.Layout(OCTET), at)
        kd.copy(held, target, atom=kd.atoms.stmatrix(len(some)))

    def _apart(self, matrix: Matrix) -> int:
        """Elements from the first matrix's pixels in a buffer to this one's."""
        c = self.config
        half = {
            "rows": c.units * c.columns * self.line, "images": self.image,
            "columns": OCTET * self.line,
        }[c.paired]  # fmt: skip
        return matrix.unit * c.columns * self.line + matrix.half * half


def _groups(matrices: list[Matrix]) -> list[list[Matrix]]:
    """Matrices by four, or two, that differ in their half and one thing more."""
    found, rest = [], list(matrices)
    while rest:
        some = rest[:4]
        alike = len({m.unit for m in some}) == 1 or len({m.octet for m in some}) == 1
        some = some if len(some) == 4 and alike else some[:2]
        found.append(some)
        rest = rest[len(some) :]
    return found


@kd.func
def fill_buffers(results, work):
    """Copy an operand of the tail to the buffers, each as soon as it is free. Threads: a warp."""
    writer, tile = results.ring.writer(), work.walk()
    if kd.elect_one():
        for _ in kd.range(work.total):
            if tile.ends_step:
                buffer, full = writer.acquire()
                at = tile.image, tile.step_row, tile.column, results.first
                results.staged(results.stage[..., buffer], at, full)
                writer.advance()
            tile.advance()


@kd.func
def send_buffers(results, work):
    """Send buffers that a team has written, and free those that were read. Threads: a warp."""
    buffers, tile = results.config.buffers, work.walk()
    at, sent = RingPosition(buffers, 0, 0), RingPosition(buffers, 0, 0)
    first = True
    if kd.elect_one():
        for _ in kd.range(work.total):
            if tile.ends_step:
                results.written[at.stage].wait(at.parity)
                place = tile.image, tile.step_row, tile.column, results.first
                results.send(results.stage[..., at.stage], place)
                kd.tma_store_commit()
                at.advance()
                if buffers == 1:
                    kd.tma_store_wait(0)
                    results.ring.empty[sent.stage].arrive()
                    sent.advance()
                else:
                    kd.tma_store_wait(1)
                    if not first:
                        results.ring.empty[sent.stage].arrive()
                        sent.advance()
                    first = False
            tile.advance()
        kd.tma_store_wait(0)


@kd.func
def claim(results):
    """Wait until the step's buffer may be written, or holds the operand that is staged."""
    if results.by_tma:
        if results.staged is None:
            results.ring.empty[results.at.stage].wait(results.at.parity ^ 1)
        else:
            results.ring.full[results.at.stage].wait(results.at.parity)
    elif results.config.buffers == 1:
        results.barrier.sync()


@kd.func
def hand_over(results, tile):
    """Have a buffer sent that this team has written. Threads: those that compute."""
    buffer = results.at.stage
    if results.by_tma:
        kd.fence_proxy_async()
        kd.sync_warp()
        results.written[buffer].arrive(pred=results.lane == 0)
    else:
        results.barrier.sync()
        store_lines(results, tile, tile.step_row, buffer)


@kd.func
def store_lines(results, tile, step_row, buffer):
    """Store a buffer, 16 bytes a thread at a time."""
    c, y = results.config, results.y
    octets = c.filters // OCTET
    eights = results.line // OCTET
    pixels = c.rows * c.columns
    for i in kd.range(kd.thread_rank(), c.images * pixels * octets, c.warps * WARP):
        octet, pixel = i % octets, i // octets
        image, pixel = pixel // pixels, pixel % pixels
        row, column = pixel // c.columns, pixel % c.columns
        n, f = tile.image + image, results.first + octet * OCTET
        p, q = step_row + row, tile.column + column
        inside = (n < y.shape[0]) & (p < y.shape[1]) & (q < y.shape[2]) & (f < y.shape[3])
        across = (octet % eights * OCTET, octet // eights)
        at = results.stage.layout((image, row, column, across, buffer))
        source = results.stage.with_layout(kd.Layout(OCTET), at)
        held = kd.rmem(y.dtype, kd.Layout(OCTET))
        kd.copy(source, held)
        target = y.with_layout(kd.Layout(OCTET), y.layout((n, p, q, f)))
        kd.copy(held, target, pred=inside, vector=16)
