"""Tensor maps: what the TMA unit knows of a tensor in global memory and of the boxes it moves.

A kernel holds a `TensorMapSpec`, whose sizes and strides are registers of the kernel that only
its parameters decide; a launch turns it into a `TensorMap` of numbers. The runtime encodes that
for the hardware, the simulator reads it as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdsl_core.dtypes import DType
from kdsl_core.records import dataclass

if TYPE_CHECKING:
    from kdsl_core.ir.op import Op
    from kdsl_core.ir.value import Operand

SWIZZLES = (0, 32, 64, 128)
MAX_RANK = 5
MAX_BOX = 256
TENSOR_MAP_ALIGN = 64  # bytes


@dataclass(frozen=True)
class Im2col:
    """The window walk of a convolution over a (C, W[, H[, D]], N) tensor.

    `lower` and `upper` are the corners of the box of starting pixels, relative to the image's
    corners, innermost spatial mode first; a copy moves `pixels` pixels of `channels` channels.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True)
class MapShape:
    """What of a tensor map is known while tracing.

    Shapes: `box` and `element_strides` innermost dimension first.
    Units: `swizzle` in bytes of one swizzled line, 0 for none; `promotion` in bytes of an L2 fetch.
    """

    dtype: DType
    box: tuple[int, ...]
    swizzle: int = 0
    element_strides: tuple[int, ...] = ()
    fill: str = "zeros"
    promotion: int = 256
    im2col: Im2col | None = None

    @property
    def rank(self) -> int:
        """How many dimensions the map has."""
        return len(self.box)


@dataclass(frozen=True, eq=False)
class TensorMapSpec:
    """A tensor map as a kernel has it: registers that its parameters decide.

    Shapes: `sizes` innermost first; `strides` those of the dimensions after the innermost.
    Units: `sizes` in elements, `strides` in bytes. `program` are the operations, in order, that
    compute them from the kernel's parameters; `tensor` is the argument's name, for messages.
    """

    shape: MapShape
    tensor: str
    address: Operand
    sizes: tuple[Operand, ...]
    strides: tuple[Operand, ...]
    program: tuple[Op, ...] = ()


@dataclass(frozen=True)
class TensorMap:
    """A tensor map of numbers, for one launch; equal maps encode to equal bytes.

    Units: `address` in bytes, `sizes` in elements (innermost first), `strides` in bytes.
    """

    shape: MapShape
    tensor: str
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    def __hash__(self) -> int:
        return hash((self.address, self.sizes, self.strides))  # asked for at every launch
