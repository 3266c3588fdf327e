"""The short way of the TMA unit, of runs that look for no hazard and count nothing.

It takes boxes that lie whole in their tensor and begin, in shared memory, where the pattern of each
swizzle does, and combines none with what is there. All others go the long way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kdsl_core.ir import TensorMap
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import in_block
from kdsl_core.sim.memory import WORDS, Allocation
from kdsl_core.sim.plain_access import PlainAccess
from kdsl_core.sim.tensor_boxes import CHUNK, PERIOD, Image, box_bytes, image_of
from kdsl_core.sim.tensor_copies import TensorCopies, receivers


class PlainCopies(TensorCopies):
    """A TMA unit that sees boxes as images of one pattern, and memory as chunks of 16 bytes."""

    def __init__(self, plain: PlainAccess, *parts: Any) -> None:
        super().__init__(*parts)
        self._plain = plain

    def load_boxes(
        self,
        known: TensorMap,
        issue: Access,
        starts: Array,
        moved: Array | None,
        barrier: Array,
        mask: Array | None,
    ) -> None:
        found = self._places(known, issue, starts)
        if found is None:
            super().load_boxes(known, issue, starts, moved, barrier, mask)
            return
        image, memory, source = found
        data = memory.data.view(WORDS[CHUNK]).take(source)
        if mask is None:
            self._arrive(known, image, issue, data, barrier)
            return
        for rank, which in receivers(mask, len(data)):
            if rank is not None and which.any():
                to, part = issue.take(which), data if which.all() else data[which]
                to = replace(to, address=in_block(to.address, rank))
                self._arrive(known, image, to, part, in_block(barrier[which], rank))

    def _arrive(
        self, known: TensorMap, image: Image, to: Access, data: Array, barrier: Array
    ) -> None:
        """Write boxes (L, n) to shared memory, and complete them at mbarriers (L,)."""
        self._plain.shared_words()[self._chunks(to, image)] = data
        amount = np.full(len(data), box_bytes(known.shape))
        self._transfers.complete(replace(to, address=barrier, size=8), amount)

    def store_boxes(
        self, known: TensorMap, issue: Access, starts: Array, reduce: str | None
    ) -> None:
        found = None if reduce else self._places(known, issue, starts)
        if found is None or not found[1].writeable:
            super().store_boxes(known, issue, starts, reduce)
            return
        image, memory, destination = found
        memory.written = True
        data = self._plain.shared_words().take(self._chunks(issue, image))
        memory.data.view(WORDS[CHUNK])[destination] = data

    def _chunks(self, issue: Access, image: Image) -> Array:
        """Which chunks of shared memory boxes (L, n) are, that lie whole in it."""
        first = self._plain.shared_chunks(issue.address, issue.row, CHUNK)
        assert first is not None
        return first[:, None] + image.shared

    def _places(
        self, known: TensorMap, issue: Access, starts: Array
    ) -> tuple[Image, Allocation, Array] | None:
        """Boxes as images in global memory, and which chunks (L, n); None for the long way."""
        image = image_of(known)
        if image is None or (issue.address % PERIOD).any():
            return None
        if (starts < 0).any() or (starts + image.reach >= known.sizes).any():
            return None
        if self._plain.shared_chunks(issue.address, issue.row, box_bytes(known.shape)) is None:
            return None
        first = known.address + starts @ np.array((known.shape.dtype.bytes, *known.strides))
        found = self._plain.global_chunks(first, image.source)
        return None if found is None else (image, *found)
