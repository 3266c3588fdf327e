"""The short way of the TMA unit, of runs that look for no hazard and count nothing.

It takes loads of boxes that lie whole in their tensor and begin, in shared memory, where the
pattern of each swizzle does. All others go the long way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kdsl_core.ir import TensorMap
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.batch import in_block
from kdsl_core.sim.plain_access import PlainAccess
from kdsl_core.sim.tensor_boxes import PERIOD, Image, box_bytes, image_of
from kdsl_core.sim.tensor_copies import TensorCopies, receivers


class PlainCopies(TensorCopies):
    """A TMA unit that sees boxes as images of one pattern, and memory as chunks of 16 bytes."""

    def __init__(self, plain: PlainAccess, *parts: Any) -> None:
        super().__init__(*parts)
        self._plain = plain
        self._images: dict[TensorMap, Image | None] = {}

    def load_boxes(
        self,
        known: TensorMap,
        issue: Access,
        starts: Array,
        moved: Array | None,
        barrier: Array,
        mask: Array | None,
    ) -> None:
        image = self._image(known)
        data = None if image is None else self._read(known, image, issue, starts)
        if image is None or data is None:
            super().load_boxes(known, issue, starts, moved, barrier, mask)
            return
        amount = np.full(len(data), box_bytes(known.shape))
        for rank, which in receivers(mask, len(data)):
            if not which.any():
                continue
            to, there = issue.take(which), barrier[which]
            if rank is not None:
                to, there = replace(to, address=in_block(to.address, rank)), in_block(there, rank)
            self._plain.put_chunks(to, image.shared, data if which.all() else data[which])
            self._transfers.complete(replace(to, address=there, size=8), amount[which])

    def _image(self, known: TensorMap) -> Image | None:
        if known not in self._images:
            self._images[known] = image_of(known)
        return self._images[known]

    def _read(self, known: TensorMap, image: Image, issue: Access, starts: Array) -> Array | None:
        """The chunks (L, n, 16) of boxes; None where that, or to write them, takes the long way."""
        if (starts < 0).any() or (starts + image.reach >= known.sizes).any():
            return None
        if (issue.address % PERIOD).any():
            return None
        if self._plain.shared_chunks(issue.address, issue.row, box_bytes(known.shape)) is None:
            return None
        first = known.address + starts @ np.array((known.shape.dtype.bytes, *known.strides))
        return self._plain.global_chunks(first, image.source)
