"""Where the matrices are that warps of a batch multiply from shared memory."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass
from kdsl_core.sim.descriptors import chunk_addresses
from kdsl_core.sim.plain_access import PlainAccess
from kdsl_core.sim.tensor_boxes import CHUNK


@dataclass(frozen=True, eq=False)
class MatrixOperands:
    """The distinct matrices that a group of warps reads, each from its own block.

    Shapes: `first` (n,) a warp of the group that reads it, `which` (W,) → 0 … n − 1; `kind` (n,)
    → 0 … v − 1 says whose chunks are at `address` (v, …) of its block. `chunk` (v, …) are these in
    numbers, where the short way to memory takes them.
    """

    first: Array
    which: Array
    kind: Array
    address: Array
    chunk: Array | None


def matrix_operands(
    descriptor: Array,
    block: Array,
    operand: tuple[int, int, int, int, str],
    plain: PlainAccess | None,
) -> MatrixOperands:
    """What warps of blocks (W,) read by descriptors (W,); `operand` as `chunk_addresses` takes."""
    values, number = np.unique(descriptor.astype(np.uint64), return_inverse=True)
    _, first, which = np.unique(
        block * number.size + number, return_index=True, return_inverse=True
    )
    address = chunk_addresses(values, *operand)
    chunk = None if plain is None else plain.chunks_of_block(address, CHUNK)
    return MatrixOperands(first, which, number[first], address, chunk)
