"""Tiles of a matrix on their way from global to shared memory."""

from __future__ import annotations

import math
from typing import Any

from kdsl_core import atoms
from kdsl_core.dtypes import DType
from kdsl_core.errors import LayoutError, TypeMismatch
from kdsl_core.lang.copy import copy
from kdsl_core.lang.memory import smem
from kdsl_core.lang.numbers import maximum, minimum, where
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import Tensor, identity_tensor
from kdsl_core.lang.tiled import TiledCopy, tiled_copy
from kdsl_core.layout import ComposedLayout, Layout, Swizzle
from kdsl_core.loc import here

_BANK_ROW_BYTES = 128  # 32 banks of 4 bytes


def shared_tile(
    dtype: DType, rows: int, depth: int, contiguous: int, stages: int = 1
) -> ComposedLayout:
    """The swizzled layout (rows, depth, stages) of a tile that matrix loads read without conflicts.

    `contiguous` is the mode whose elements are neighbours: 1 for K-major, 0 for M- or N-major.
    The 16-byte chunks of eight lines that one matrix load reads together fall into eight different
    bank groups: chunk c of line r goes to place c XOR r. Lines of 32-bit elements along M or N are
    read element by element instead, eight neighbours of four lines, and move by eight elements.
    """
    line, lines = (depth, rows) if contiguous else (rows, depth)
    if line & (line - 1):
        raise LayoutError(
            f"a swizzled tile has lines of a power of two elements, got {line}",
            code="K155",
            loc=here(),
            fix="choose a tile of 16, 32, 64, 128 or 256 along the contiguous mode",
        )
    chunk = 16 // dtype.bytes
    transposed_words = not contiguous and dtype.bytes == 4
    unit = 8 if transposed_words else chunk
    bits = min(2 if transposed_words else 3, (line // unit).bit_length() - 1)
    base = unit.bit_length() - 1
    lines_per_bank_row = max(_BANK_ROW_BYTES // (line * dtype.bytes), 1)
    shift = (line * lines_per_bank_row).bit_length() - 1 - base
    strides = (line, 1) if contiguous else (1, line)
    inner = Layout((rows, depth, stages), (*strides, line * lines))
    return ComposedLayout(Swizzle(bits, base, max(shift, bits)), 0, inner)


def contiguous_mode(tensor: Tensor) -> int:
    """The mode (0 or 1) of a matrix whose stride is 1.

    Raises: TypeMismatch when neither is.
    """
    for mode in (1, 0):
        if isinstance(tensor.stride[mode], int) and tensor.stride[mode] == 1:
            return mode
    raise TypeMismatch(
        f"a matrix needs one stride of 1, got {tensor!r}",
        code="K226",
        loc=here(),
        fix="make the operand contiguous along one of its modes",
    )


def access_elements(tensor: Tensor, mode: int, limit_bytes: int = 16) -> int:
    """Elements along `mode` that one access may move: what alignment and extents prove.

    Accesses of this width that start at a multiple of it neither break alignment nor cross the
    end of the tensor.
    """
    align = math.gcd(tensor.place((0,) * len(tensor.layout)).align, limit_bytes)
    for other, stride in enumerate(tensor.stride):
        if other != mode:
            align = math.gcd(align, divisor(stride) * tensor.dtype.bytes)
    return math.gcd(max(align // tensor.dtype.bytes, 1), divisor(tensor.shape[mode]))


def divisor(x: Any) -> int:
    """A number that is known to divide a size or stride."""
    return x.divisor if isinstance(x, Scalar) else int(x) or (1 << 30)


def line_copy(
    dtype: DType, tile: tuple[int, int], contiguous: int, vector: int, threads: int
) -> TiledCopy:
    """The copy of a tile in which neighbouring threads take neighbouring vectors of a line.

    At most `vector` elements along mode `contiguous` go at a time, fewer where the tile would not
    keep all threads busy: through `cp.async` where they are 4 … 16 bytes, else through a register.

    Raises: LayoutError when the threads do not share the tile's lines evenly.
    """
    vector = math.gcd(vector, max(tile[0] * tile[1] // threads, 1))
    across = min(tile[contiguous] // vector, threads)
    down = threads // across
    if tile[0] * tile[1] % threads or threads % across or tile[1 - contiguous] % down:
        raise LayoutError(
            f"{threads} threads cannot share a tile of {tile} elements evenly",
            code="K154",
            loc=here(),
            fix="use a larger tile or fewer threads, powers of two both",
        )
    width = vector * dtype.bytes
    atom = atoms.cp_async(width, zfill=True) if width >= 4 else atoms.universal_copy(width * 8)
    if contiguous:
        order, values = Layout((down, across), (across, 1)), Layout((1, vector))
    else:
        order, values = Layout((across, down)), Layout((vector, 1))
    return tiled_copy(atom, dtype, order, values)


class TileLoader:
    """Copies one operand's tiles (rows × depth) into a ring of shared-memory stages.

    Threads: all `threads` of the block, each with its own `thread`.
    Memory: the stages are its own, or the tiles `into`. 4 … 16 bytes at a time through `cp.async`
    where alignment allows, to be committed and waited for by the caller; else element by element
    through registers. What hangs over the edge of the matrix is zero.
    """

    def __init__(
        self,
        source: Tensor,
        tile: tuple[int, int],
        row_tile: Any,
        stages: int,
        threads: int,
        thread: Any,
        into: Tensor | None = None,
    ) -> None:
        rows, depth = tile
        self.extent = source.shape
        self.origin = (row_tile * rows, depth)
        self.contiguous = contiguous_mode(source)
        self.dtype = source.dtype
        if into is None:
            layout = shared_tile(self.dtype, rows, depth, self.contiguous, stages)
            into = smem(self.dtype, layout, name="stages")
        self.shared = into
        widest = access_elements(source, self.contiguous)
        plan = line_copy(self.dtype, tile, self.contiguous, widest, threads)
        self.atom = plan.atom
        self.vector = plan.atom.bytes // self.dtype.bytes
        part = plan.get_slice(thread)
        self.source = part.partition_S(source.tile(tile, (row_tile, None)))
        self.destination = part.partition_D(self.shared)
        self.coordinates = part.partition_S(identity_tensor(tile))

    def load(self, k_tile: Any, stage: Any) -> None:
        """Start copying tile `k_tile` into stage `stage`; tiles beyond the last are zeros."""
        source, destination = self.source[..., k_tile], self.destination[..., stage]
        if self.atom.kind == "cp.async":
            copy(source, destination, atom=self.atom, valid=lambda i: self._valid(i, k_tile))
        else:
            copy(source, destination, pred=lambda i: self._inside(i, k_tile))

    def _place(self, index: int, k_tile: Any) -> tuple[Any, Any]:
        """The matrix coordinate of an element of this thread's part."""
        row, k = self.coordinates[index]
        return row + self.origin[0], k + k_tile * self.origin[1]

    def _inside(self, index: int, k_tile: Any) -> Scalar:
        row, k = self._place(index, k_tile)
        inside: Scalar = as_scalar(row < self.extent[0]) & (k < self.extent[1])
        return inside

    def _valid(self, index: int, k_tile: Any) -> Scalar:
        """How many elements of the vector at `index` lie inside the matrix."""
        place, extent = self._place(index, k_tile), self.extent
        along, across = self.contiguous, 1 - self.contiguous
        if divisor(extent[along]) % self.vector == 0:
            left: Any = where(place[along] < extent[along], self.vector, 0)
        else:
            left = minimum(maximum(extent[along] - place[along], 0), self.vector)
        return as_scalar(where(place[across] < extent[across], left, 0))


class PairLoader:
    """Copies tiles of two operands into the halves of each stage, rows of the first one first.

    Threads and memory: as `TileLoader`.
    Raises: TypeMismatch K476 for operands that do not lie alike.
    """

    def __init__(
        self,
        sources: tuple[Tensor, Tensor],
        tile: tuple[int, int],
        row_tile: Any,
        stages: int,
        threads: int,
        thread: Any,
    ) -> None:
        rows, depth = tile
        first, second = sources
        self.contiguous = contiguous_mode(first)
        if contiguous_mode(second) != self.contiguous or first.dtype is not second.dtype:
            raise unlike(first, second)
        layout = shared_tile(first.dtype, rows, depth, self.contiguous, stages)
        self.shared = smem(first.dtype, layout, name="stages")
        half = rows // 2, depth
        self.halves = [
            TileLoader(
                source, half, row_tile, stages, threads, thread, self.shared.tile(half, (i, 0))
            )
            for i, source in enumerate(sources)
        ]

    def load(self, k_tile: Any, stage: Any) -> None:
        """Start copying tile `k_tile` of both operands into stage `stage`."""
        for half in self.halves:
            half.load(k_tile, stage)


def unlike(first: Tensor, second: Tensor) -> TypeMismatch:
    """Two operands cannot share a stage."""
    return TypeMismatch(
        f"two operands in one stage have one type and one major order, got {first!r} and "
        f"{second!r}",
        code="K476",
        loc=here(),
        fix="pass both as they lie in memory alike, or copy one of them",
    )
