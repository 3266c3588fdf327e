"""Copies by the TMA unit: boxes of tensor maps, and runs of bytes.

Every active lane issues a copy of its own. The bytes move at once; that they arrive late is for
the shadow of shared memory to know, which keeps them in flight until the mbarrier's phase, or the
thread's bulk group, has been waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir import TensorMap
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access, access_of
from kdsl_core.sim.batch import in_block
from kdsl_core.sim.copy_pieces import Pieces, columns, flat, run_pieces
from kdsl_core.sim.counters import Counters
from kdsl_core.sim.reductions import REDUCTIONS
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.tensor_boxes import (
    CHUNK,
    SHARED_ALIGNMENT,
    box_bytes,
    boxes,
    fill_piece,
    shared_addresses,
    walk_starts,
)
from kdsl_core.sim.traffic import SECTOR
from kdsl_core.sim.transfers import Here, Transfers

_MAX_CLUSTER = 16


class TensorCopies:
    """The TMA unit of one batch; `maps` are tensor maps by the address that kernels hold."""

    def __init__(
        self,
        here: Here,
        maps: Mapping[int, TensorMap],
        transfers: Transfers,
        reporter: Reporter,
        counters: Counters,
    ) -> None:
        self._here = here
        self._maps = maps
        self._transfers = transfers
        self._reporter = reporter
        self._counters = counters

    # -- boxes -----------------------------------------------------------------------------
    def tensor_load(
        self,
        tensor_map: Array,
        coordinates: list[Array],
        destination: Array,
        barrier: Array,
        *,
        multicast: Array | None = None,
        offsets: tuple[Array, ...] = (),
        where: Array | None = None,
    ) -> None:
        """Copy a box to shared memory and complete its bytes at `barrier`."""
        issue = self._issue(destination, SHARED_ALIGNMENT, where)
        starts, moved = columns(issue, coordinates), columns(issue, list(offsets))
        barriers = flat(issue, barrier)
        masks = None if multicast is None else flat(issue, multicast)
        for known, at in self._by_map(issue, tensor_map):
            self.load_boxes(
                known, issue.take(at), starts[at], moved[at] if offsets else None, barriers[at],
                None if masks is None else masks[at],
            )  # fmt: skip

    def load_boxes(
        self,
        known: TensorMap,
        issue: Access,
        starts: Array,
        moved: Array | None,
        barrier: Array,
        mask: Array | None,
    ) -> None:
        """Load a box of one map for each issuing thread.

        Shapes: `starts` (L, rank), `moved` (L, rank − 2) of im2col, `barrier` and `mask` (L,).
        """
        pieces = self._box_pieces(known, issue, starts, moved)
        amount = np.full(issue.address.size, box_bytes(known.shape))
        self._count("tma_load", pieces, amount, issue.pc)
        data = self._fetch(issue, pieces, fill_piece(known.shape, pieces.size))
        self._deliver(issue, pieces, data, barrier, amount, mask)

    def tensor_store(
        self, tensor_map: Array, coordinates: list[Array], source: Array, *, reduce: str | None
    ) -> None:
        """Copy the part of a box that lies in the tensor to global memory, or combine it."""
        issue = self._issue(source, SHARED_ALIGNMENT, None)
        starts = columns(issue, coordinates)
        for known, at in self._by_map(issue, tensor_map):
            self.store_boxes(known, issue.take(at), starts[at], reduce)

    def store_boxes(
        self, known: TensorMap, issue: Access, starts: Array, reduce: str | None
    ) -> None:
        """Store or combine a box of one map for each issuing thread; `starts` are (L, rank).

        Nothing says that the unit leaves the source of the part outside of the tensor alone: it is
        kept as well.
        """
        self._check_corners(known, issue, starts)
        pieces = self._box_pieces(known, issue, starts, None)
        amount = np.full(issue.address.size, box_bytes(known.shape))
        self._count(f"tma_{'reduce' if reduce else 'store'}", pieces, amount, issue.pc)
        how = None if reduce is None else (reduce, known.shape.dtype)
        self._write(issue, pieces.take(pieces.inside), how)
        clipped = pieces.take(~pieces.inside)
        if clipped.owner.size:
            self._transfers.keep(clipped.access(issue, clipped.shared))

    def tensor_prefetch(self, tensor_map: Array, coordinates: list[Array]) -> None:
        """Count a box brought into L2, and report bytes of it that no memory has."""
        issue = self._issue(np.zeros((1, 1), np.int64), SHARED_ALIGNMENT, None)
        starts = columns(issue, coordinates)
        for known, at in self._by_map(issue, tensor_map):
            part = issue.take(at)
            pieces = self._box_pieces(known, part, starts[at], None)
            amount = np.full(part.address.size, box_bytes(known.shape))
            self._count("tma_prefetch", pieces, amount, issue.pc)
            real = pieces.take(pieces.inside)
            if real.owner.size:
                self._transfers.expect(real.access(part, real.outside))

    # -- runs of bytes ---------------------------------------------------------------------
    def bulk_load(
        self,
        destination: Array,
        source: Array,
        size: Array,
        barrier: Array,
        *,
        multicast: Array | None = None,
    ) -> None:
        """Copy `size` bytes to shared memory and complete them at `barrier`."""
        issue = self._issue(destination, CHUNK, None)
        amount = self._whole_chunks(issue, size)
        pieces = run_pieces(amount, flat(issue, source), issue.address)
        self._count("bulk_load", pieces, amount, issue.pc)
        data = self._fetch(issue, pieces, np.zeros(CHUNK, np.uint8))
        mask = None if multicast is None else flat(issue, multicast)
        self._deliver(issue, pieces, data, flat(issue, barrier), amount, mask)

    def bulk_store(
        self, destination: Array, source: Array, size: Array, *, reduce: tuple[str, DType] | None
    ) -> None:
        """Copy `size` bytes to global memory, or combine them with what is there."""
        issue = self._issue(source, CHUNK, None)
        amount = self._whole_chunks(issue, size)
        pieces = run_pieces(amount, flat(issue, destination), issue.address)
        self._count(f"bulk_{'reduce' if reduce else 'store'}", pieces, amount, issue.pc)
        self._write(issue, pieces, reduce)

    def bulk_send(self, destination: Array, source: Array, size: Array, barrier: Array) -> None:
        """Copy `size` bytes to shared memory of a block of the cluster."""
        issue = self._issue(destination, CHUNK, None)
        amount, barriers = self._whole_chunks(issue, size), flat(issue, barrier)
        pieces = run_pieces(amount, flat(issue, source), issue.address)
        reads = pieces.access(issue, pieces.outside)
        if reads.address.size:
            self._count("cluster_send", pieces, amount, issue.pc)
            data = self._transfers.send_until(reads, barriers[pieces.owner])
            self._deliver(issue, pieces, data, barriers, amount, None)

    # -- parts -----------------------------------------------------------------------------
    def _issue(self, shared: Array, alignment: int, where: Array | None) -> Access:
        """The issuing threads, with their shared addresses, which `alignment` must divide."""
        here = self._here
        issue = access_of(here.group, shared, alignment, where, "tma", here.pc)
        crooked = issue.address % alignment != 0
        if crooked.any():
            at = int(crooked.argmax())
            address = int(issue.address[at])
            self._report(
                "misaligned", issue, at,
                f"copies between global memory and {self._reporter.place('shared', address)}, whose"
                f" address {address:#x} is no multiple of {alignment}",
                f"allocate the memory with a multiple of {alignment} as its alignment",
            )  # fmt: skip
        return replace(issue, address=issue.address // alignment * alignment)

    def _by_map(self, issue: Access, tensor_map: Array) -> Iterator[tuple[TensorMap, Array]]:
        """Each tensor map with the threads, bool (L,), that use it; reports what is none."""
        handles = flat(issue, tensor_map)
        for handle in np.unique(handles).tolist():
            chosen = handles == handle
            known = self._maps.get(handle)
            if known is not None:
                yield known, chosen
            else:
                self._report(
                    "oob", issue, int(chosen.argmax()),
                    f"uses a tensor map at {handle:#x}, where none of the kernel's parameters is",
                    "pass the tensor map that the kernel received",
                )  # fmt: skip

    def _box_pieces(
        self, known: TensorMap, issue: Access, starts: Array, offsets: Array | None
    ) -> Pieces:
        starts = self._whole_lines(known, issue, starts)
        strange = ~walk_starts(known, starts)
        if strange.any():
            at = int(strange.argmax())
            place = ", ".join(map(str, starts[at].tolist()))
            self._report(
                "value", issue, at,
                f"starts an im2col copy of {known.tensor} at ({place}), a pixel that the walk "
                "through the bounding box does not visit",
                "start at a corner of the box plus whole steps along each spatial dimension",
            )  # fmt: skip
        cut = boxes(known, starts, offsets)
        shared = shared_addresses(known.shape, issue.address, cut.size)
        owner = np.repeat(np.arange(len(starts)), shared.shape[1])
        parts = (part.reshape(-1) for part in (cut.source, shared, cut.inside))
        return Pieces(cut.size, owner, *parts)

    def _check_corners(self, known: TensorMap, issue: Access, starts: Array) -> None:
        """Report boxes to be written, starts (L, rank), that begin before the tensor."""
        before = (starts < 0).any(axis=1)
        if before.any():
            at = int(before.argmax())
            place = ", ".join(map(str, starts[at].tolist()))
            self._report(
                "oob", issue, at,
                f"stores a box of {known.tensor} that starts at ({place}), innermost first; only "
                "loads may start before the tensor",
                "start the box at coordinates of 0 or more, or write its elements by kd.copy",
            )  # fmt: skip

    def _whole_lines(self, known: TensorMap, issue: Access, starts: Array) -> Array:
        """Starts (L, rank) of boxes, the innermost rounded down to whole chunks; reports others."""
        step = CHUNK // known.shape.dtype.bytes
        crooked = starts[:, 0] % step != 0
        if not crooked.any():
            return starts
        at = int(crooked.argmax())
        self._report(
            "misaligned", issue, at,
            f"copies a box of {known.tensor} that starts at element {starts[at, 0]} of a line; the "
            f"innermost coordinate must be a multiple of {CHUNK} bytes = {step} elements",
            "start boxes at whole 16 bytes along the contiguous mode; other modes are free",
        )  # fmt: skip
        return np.concatenate([starts[:, :1] // step * step, starts[:, 1:]], axis=1)

    def _whole_chunks(self, issue: Access, size: Array) -> Array:
        """Bytes (L,) of runs; reports sizes that are no multiple of a chunk, and rounds down."""
        amount = flat(issue, size)
        crooked = amount % CHUNK != 0
        if crooked.any():
            at = int(crooked.argmax())
            text = f"copies {amount[at]} bytes in bulk, which is no multiple of {CHUNK}"
            self._report("misaligned", issue, at, text, "pad the data to whole 16 bytes")
        return amount // CHUNK * CHUNK

    def _fetch(self, issue: Access, pieces: Pieces, fill: Array) -> Array:
        """The bytes (P, size) of pieces in global memory, filled where outside of the tensor."""
        if pieces.inside.all():
            return self._transfers.fetch(pieces.access(issue, pieces.outside))
        data = np.broadcast_to(fill, (pieces.owner.size, pieces.size)).copy()
        real = pieces.take(pieces.inside)
        if real.owner.size:
            data[pieces.inside] = self._transfers.fetch(real.access(issue, real.outside))
        return data

    def _deliver(
        self,
        issue: Access,
        pieces: Pieces,
        data: Array,
        barrier: Array,
        amount: Array,
        mask: Array | None,
    ) -> None:
        """Write to shared memory of each block that receives it, and complete at its barrier."""
        for rank, which in receivers(mask, amount.size):
            part, bytes_there, there = pieces, data, barrier
            if not which.all():
                chosen = which[pieces.owner]
                if not chosen.any():
                    continue
                part, bytes_there = pieces.take(chosen), data[chosen]
            to = part.access(issue, part.shared)
            if rank is not None:
                there, to = in_block(there, rank), replace(to, address=in_block(to.address, rank))
            self._transfers.receive(to, bytes_there, there[part.owner])
            at = replace(issue, address=there, size=8).take(which)
            self._transfers.complete(at, amount[which])

    def _write(self, issue: Access, pieces: Pieces, reduce: tuple[str, DType] | None) -> None:
        """Write pieces of shared memory to global memory, or combine them element by element."""
        if not pieces.owner.size:
            return
        data = self._transfers.send(pieces.access(issue, pieces.shared))
        if reduce is None:
            self._transfers.put(pieces.access(issue, pieces.outside), data)
            return
        name, dtype = reduce
        count = pieces.size // dtype.bytes
        address = pieces.outside[:, None] + np.arange(count) * dtype.bytes
        each = replace(pieces, size=dtype.bytes, owner=np.repeat(pieces.owner, count))
        new = np.ascontiguousarray(data).view(dtype.numpy).reshape(-1)
        combine = REDUCTIONS[name]
        self._transfers.combine(
            each.access(issue, address.reshape(-1)),
            dtype,
            lambda at, old: combine(old, new[at]).astype(old.dtype),
        )

    def _count(self, traffic: str, pieces: Pieces, amount: Array, pc: int) -> None:
        """Count copies of `amount` bytes (L,): what they move outside of the block, and boxes."""
        counters = self._counters
        if not counters.enabled:
            return
        real = pieces.take(pieces.inside)
        moved = np.bincount(real.owner, minlength=amount.size) * pieces.size
        sectors = np.unique(real.outside // SECTOR + (real.owner << 44))
        counters.add(pc, (traffic, "copies"), amount.size)
        counters.add(pc, (traffic, "bytes"), int(moved.sum()))
        counters.add(pc, (traffic, "sectors"), sectors.size)
        counters.add(pc, (traffic, "ideal_sectors"), int((-(-moved // SECTOR)).sum()))
        if traffic.startswith("tma"):
            counters.add(pc, "tma_boxes", amount.size)
            counters.add(pc, "tma_bytes", int(amount.sum()))
        if counters.footprint is not None:
            counters.footprint.access(traffic, real.outside, None, pieces.size)

    def _report(self, code: str, issue: Access, at: int, text: str, fix: str) -> None:
        if self._reporter.findings.new(code, self._reporter.loc(issue.pc)):
            row, lane = int(issue.row[at]), int(issue.lane[at])
            self._reporter.at_thread(code, issue.pc, row, lane, text, fix=fix)


def receivers(mask: Array | None, count: int) -> Iterator[tuple[int | None, Array]]:
    """Each block that receives copies, with the issuing threads, bool (count,), that send to it.

    Rank None stands for the block that the destination itself names.
    """
    if mask is None:
        yield None, np.ones(count, bool)
        return
    for rank in range(_MAX_CLUSTER):
        yield rank, np.not_equal(mask >> rank & 1, 0)
