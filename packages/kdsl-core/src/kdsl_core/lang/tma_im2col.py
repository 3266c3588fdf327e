"""im2col: TMA loads of the pixels that a convolution's windows start at."""

from __future__ import annotations

from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.errors import LayoutError
from kdsl_core.ir import Im2col, MapShape
from kdsl_core.isa import tma
from kdsl_core.lang.mbarriers import Mbarrier
from kdsl_core.lang.scalar import as_scalar
from kdsl_core.lang.tensor import Tensor, operand_of
from kdsl_core.lang.tma import (
    TmaTile,
    check_global,
    coordinate,
    load_options,
    map_of,
    shared_layout,
)
from kdsl_core.lang.tma_boxes import boxes_of
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import size
from kdsl_core.loc import here

_LIMITS = (1024, 256)  # pixels and channels of one copy


class TmaIm2col(TmaTile):
    """Loads pixels of a convolution's windows: ``load(destination, coord, filter, barrier)``."""

    def __call__(
        self,
        destination: Tensor,
        coord: Any,
        position: Any,
        barrier: Mbarrier,
        *,
        multicast: Any = None,
        cache: str | None = None,
        pred: Any = None,
    ) -> None:
        """Start copying pixels from `coord` (image, …, row, column, channel) on.

        `position` (…, row, column) is the filter's element, added to every pixel.
        """
        address, offset = self.address(destination)
        mask, policy = load_options(multicast, cache)
        guard = operand_of(pred)
        *pixel, channel = coord
        moved = position if isinstance(position, tuple) else (position,)
        offsets = tuple(as_scalar(p, dt.u16).to(dt.u16).operand for p in reversed(moved))
        for start, place in self.boxes.starts:
            tma.load(
                builder(),
                self.map,
                (self._whole_line(channel + start[1]), *map(coordinate, reversed(pixel))),
                address,
                barrier.address,
                destination_offset=offset + place * self.dtype.bytes,
                barrier_offset=barrier.offset,
                offsets=offsets,
                multicast=mask,
                policy=policy,
                pred=guard,
            )


def tma_im2col(
    tensor: Tensor,
    layout: Any,
    *,
    lower: tuple[int, ...],
    upper: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    promotion: int = 256,
) -> TmaIm2col:
    """Loads of a convolution's pixels × channels from an image tensor into shared tiles.

    Shapes: `tensor` (image, [depth,] row, column, channel) or fewer spatial modes; `layout`
    (pixels, channels). `lower` and `upper` are the corners of the box of starting pixels relative
    to the image's corners (−padding and padding − dilation · (filter − 1)), `strides` the
    convolution's, all with one number per spatial mode, columns last.
    """
    rank = len(tensor.layout)
    plain, swizzle = shared_layout(layout)
    pixels, channels = (int(size(plain[mode])) for mode in (0, 1))
    boxes = boxes_of(plain, swizzle, tensor.dtype, (pixels, channels), 1, _LIMITS)
    if boxes.box[0] != pixels:
        raise LayoutError(
            f"im2col fills all {pixels} pixels of a tile at once, the layout {plain} allows "
            f"{boxes.box[0]}",
            code="K455",
            loc=here(),
            fix="use at most 1024 pixels, in a layout whose rows follow one another",
        )
    walk = Im2col(tuple(reversed(lower)), tuple(reversed(upper)), boxes.box[1], pixels)
    steps = tuple(reversed(strides)) if strides else (1,) * (rank - 2)
    box = (boxes.box[1], *(1,) * (rank - 1))
    shape = MapShape(
        tensor.dtype, box, boxes.swizzle, (1, *steps, 1), promotion=promotion, im2col=walk
    )
    check_global(tensor, rank - 1)
    value = map_of(tensor, shape, tuple(range(rank - 1, -1, -1)))
    return TmaIm2col(value, boxes, plain, tensor.dtype, (pixels, channels))
