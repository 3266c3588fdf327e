"""What the TMA unit can describe: the limits of tensor maps, checked before any driver is asked.

The simulator asks the same questions of NumPy arrays, so that what it accepts runs on the GPU.
"""

from __future__ import annotations

from typing import NoReturn

from kdsl_core.errors import ArgumentError
from kdsl_core.ir.tensor_map import MAX_BOX, MAX_RANK, SWIZZLES, MapShape, TensorMap

ALIGNMENT = 16  # bytes, of the address and of every stride
_LARGEST_SIZE = 1 << 32
_STRIDES_END = 1 << 40
LARGEST_ELEMENT_STRIDE = 8
_MOST_PIXELS = 1024
# rank of an im2col map → the corners' range
_CORNERS = {3: (-32768, 32767), 4: (-128, 127), 5: (-16, 15)}
_COPY = "pass a copy whose rows are padded to a multiple of 16 bytes"


def check_map(described: TensorMap) -> None:
    """Raise ArgumentError K630 … K635 unless the TMA unit can describe the tensor.

    Source: CUDA driver API, `cuTensorMapEncodeTiled` and `cuTensorMapEncodeIm2col`.
    """
    shape = described.shape
    if not 1 <= shape.rank <= MAX_RANK or len(described.sizes) != shape.rank:
        _refuse(
            described,
            f"a tensor map has 1 to {MAX_RANK} dimensions, got sizes {described.sizes} for the box "
            f"{shape.box}",
            "K630",
            "join modes of the view, or loop over the outer ones",
        )
    _check_memory(described)
    if shape.im2col is None:
        _check_box(described, shape)
    else:
        _check_im2col(described, shape)


def _check_memory(described: TensorMap) -> None:
    if described.address % ALIGNMENT:
        _refuse(
            described,
            f"its first element is at {described.address:#x}, which is no multiple of {ALIGNMENT} "
            "bytes",
            "K631",
            "pass an aligned copy, or start the view at a multiple of 16 bytes",
        )
    for dim, size in enumerate(described.sizes):
        if not 1 <= size <= _LARGEST_SIZE:
            _refuse(
                described,
                f"the size of dimension {dim} (innermost first) is {size}, allowed are 1 to 2^32",
                "K632",
                "launch nothing for an empty array, split a larger one",
            )
    for dim, stride in enumerate(described.strides, 1):
        if stride % ALIGNMENT or not 0 <= stride < _STRIDES_END:
            _refuse(
                described,
                f"the stride of dimension {dim} (innermost first) is {stride} bytes, it must be a "
                f"multiple of {ALIGNMENT} from 0 to 2^40",
                "K633",
                _COPY,
            )


def _check_box(described: TensorMap, shape: MapShape) -> None:
    for dim, extent in enumerate(shape.box):
        if not 1 <= extent <= MAX_BOX:
            _refuse(
                described,
                f"the box {shape.box} has {extent} elements in dimension {dim}, allowed are 1 to "
                f"{MAX_BOX}",
                "K634",
                "copy several smaller boxes",
            )
    _check_line(described, shape, shape.box[0])


def _check_line(described: TensorMap, shape: MapShape, elements: int) -> None:
    """The innermost extent of a box: whole 16-byte units, within one swizzled line."""
    line = elements * shape.dtype.bytes
    most = shape.swizzle or MAX_BOX * shape.dtype.bytes
    if shape.swizzle not in SWIZZLES or line % ALIGNMENT or line > most:
        _refuse(
            described,
            f"a line of the box is {elements} × {shape.dtype} = {line} bytes, it must be a "
            f"multiple of {ALIGNMENT} up to {most} with a swizzle of {shape.swizzle} bytes",
            "K634",
            "choose the box's innermost extent or another swizzle (0, 32, 64 or 128 bytes)",
        )
    strides = shape.element_strides
    if any(not 1 <= step <= LARGEST_ELEMENT_STRIDE for step in strides):
        _refuse(
            described,
            f"element strides are 1 to {LARGEST_ELEMENT_STRIDE}, got {strides}",
            "K634",
            "take every n-th element of a view with larger strides instead",
        )


def _check_im2col(described: TensorMap, shape: MapShape) -> None:
    walk = shape.im2col
    assert walk is not None
    least, most = _CORNERS.get(shape.rank, (0, -1))
    corners = (*walk.lower, *walk.upper)
    counts = {len(walk.lower), len(walk.upper)} == {shape.rank - 2}
    if not counts or any(not least <= corner <= most for corner in corners):
        _refuse(
            described,
            f"an im2col map of {shape.rank} dimensions has {max(shape.rank - 2, 1)} lower and upper"
            f" corners from {least} to {most}, got {walk.lower} and {walk.upper}",
            "K635",
            "use 3 to 5 dimensions, and smaller paddings and filters",
        )
    if not 1 <= walk.channels <= MAX_BOX or not 1 <= walk.pixels <= _MOST_PIXELS:
        _refuse(
            described,
            f"an im2col copy moves 1 to {MAX_BOX} channels of 1 to {_MOST_PIXELS} pixels, got "
            f"{walk.channels} of {walk.pixels}",
            "K635",
            "copy several smaller tiles",
        )
    _check_line(described, shape, walk.channels)


def _refuse(described: TensorMap, what: str, code: str, fix: str) -> NoReturn:
    raise ArgumentError(f"{described.tensor} cannot be copied by TMA: {what}", code=code, fix=fix)
