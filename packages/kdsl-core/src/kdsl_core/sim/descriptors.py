"""Matrix descriptors of wgmma: where the elements of an operand lie in shared memory.

A matrix is made of cores, 8 lines of 16 bytes each. A K-major core has 8 rows along M or N whose 16
bytes are neighbours along K; an MN-major one has 8 steps along K whose 16 bytes are neighbours
along M or N. A swizzle puts 2, 4 or 8 cores side by side in lines of 32, 64 or 128 bytes.

Source: PTX ISA, Matrix descriptor and canonical layouts of wgmma.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.tensor_boxes import CHUNK, PERIOD, swizzled

_LINES = np.array([16, 128, 64, 32])  # bytes of a line, by layout code
_CORE = 8  # lines of a core
_START = (1 << 14) - 1  # the field of a matrix's first address, in chunks
_PERIODS = _START & -(PERIOD // CHUNK)  # its part by which no swizzle differs
_REMEMBERED = 256  # patterns


@dataclass(frozen=True, eq=False)
class Descriptor:
    """Fields of matrix descriptors.

    Shapes: int64 (W,), one per warp.
    Units: bytes, but `base` counts 128-byte rows by which the swizzle's pattern is shifted.
    """

    start: Array
    leading: Array
    stride: Array
    base: Array
    line: Array


def decode(descriptor: Array) -> Descriptor:
    """The fields of 64-bit descriptors (W,)."""
    bits = descriptor.astype(np.uint64)

    def field(low: int, width: int) -> Array:
        return (bits >> np.uint64(low) & np.uint64((1 << width) - 1)).astype(np.int64)

    return Descriptor(
        start=field(0, 14) * CHUNK,
        leading=field(16, 14) * CHUNK,
        stride=field(32, 14) * CHUNK,
        base=field(49, 3),
        line=_LINES[field(62, 2)],
    )


def element_addresses(
    descriptor: Array, first: int, rows: int, depth: int, size: int, major: str
) -> Array:
    """Shared addresses [W, rows, depth] of a matrix's elements of `size` bytes.

    Rows count along M or N from `first`; `major` "K" or "MN" says which way bytes are neighbours.
    `depth` elements are those of one instruction: 32 bytes where K-major.
    """
    row, k = np.arange(first, first + rows)[:, None], np.arange(depth)
    along, across = (k * size, row) if major == "K" else (row * size, k)
    return _addresses(decode(descriptor), along, across, major)


def chunk_addresses(
    descriptor: Array, first: int, rows: int, depth: int, size: int, major: str
) -> Array:
    """Shared addresses of the 16-byte chunks that hold a matrix.

    Shapes: `descriptor` uint64 (W,); [W, rows, bytes of depth / 16] where K-major, [W, bytes of
    rows / 16, depth] where MN-major; `from_chunks` makes elements of their bytes. `first` and
    `rows` are whole chunks.
    """
    return np.stack(
        [
            _chunk_pattern(value & ~_PERIODS, first, rows, depth, size, major)
            + (value & _PERIODS) * CHUNK
            for value in descriptor.tolist()
        ]
    )


@lru_cache(_REMEMBERED)
def _chunk_pattern(
    descriptor: int, first: int, rows: int, depth: int, size: int, major: str
) -> Array:
    """`chunk_addresses` of one descriptor; stages and launches differ by whole periods."""
    if major == "K":
        along = np.arange(0, depth * size, CHUNK)
        across = np.arange(first, first + rows)[:, None]
    else:
        along = np.arange(first * size, (first + rows) * size, CHUNK)[:, None]
        across = np.arange(depth)
    fields = decode(np.array([descriptor], np.uint64))
    return np.asarray(_addresses(fields, along, across, major)[0])


def from_chunks(data: Array, dtype: np.dtype[np.generic], major: str) -> Array:
    """Elements [W, rows, depth] of the bytes, uint8 (W, …, 16), at `chunk_addresses`."""
    values = np.ascontiguousarray(data).view(dtype)
    if major == "K":
        return values.reshape(*values.shape[:2], -1)
    warps, _, depth, _ = values.shape
    return values.swapaxes(2, 3).reshape(warps, -1, depth)


def _addresses(fields: Descriptor, along: Array, across: Array, major: str) -> Array:
    """Addresses of the bytes `along` a line, in lines `across`, which broadcast."""
    start, leading, stride, base, line = (
        field[:, None, None]
        for field in (fields.start, fields.leading, fields.stride, fields.base, fields.line)
    )
    plain = line == CHUNK
    if major == "K":
        panel = np.where(plain, along // CHUNK * leading + along % CHUNK, along)
        block = stride
    else:
        step, block = np.where(plain, stride, leading), np.where(plain, leading, stride)
        panel = along // line * step + along % line
    address = start + panel + across % _CORE * line + across // _CORE * block
    return swizzled(address, line, base)
