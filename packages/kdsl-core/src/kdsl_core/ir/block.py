"""Blocks of operations, shared-memory allocations, and the kernel that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from kdsl_core.dtypes import DType, tensor_map
from kdsl_core.ir.op import Op
from kdsl_core.ir.tensor_map import TensorMapSpec
from kdsl_core.ir.value import Value
from kdsl_core.loc import Loc
from kdsl_core.records import dataclass

if TYPE_CHECKING:
    from kdsl_core.layout import AnyLayout

REGISTERS = 65536  # of a multiprocessor, shared out when a kernel starts


@dataclass(eq=False)
class Block:
    """A sequence of operations; control flow nests blocks in operations."""

    ops: list[Op] = field(default_factory=list)

    def walk(self) -> Iterator[Op]:
        """Every operation, nested ones after the operation that holds them."""
        for op in self.ops:
            yield op
            for region in op.regions():
                yield from region.walk()


@dataclass(frozen=True, eq=False)
class SharedAlloc:
    """A piece of a block's shared memory at a fixed offset.

    Where it holds a tensor, `dtype` and `layout` say which element lies where.
    """

    name: str
    offset: int
    bytes: int
    align: int
    loc: Loc | None = None
    dtype: DType | None = None
    layout: AnyLayout | None = None


@dataclass(frozen=True, eq=False)
class Param:
    """A kernel parameter and the value that holds it in the body.

    `tensor` is set on pointer parameters: the name of the tensor argument and its element type.
    `map` is set on tensor maps, whose value is the generic address of the parameter itself.
    """

    name: str
    value: Value
    tensor: tuple[str, DType] | None = None
    map: TensorMapSpec | None = None

    @property
    def dtype(self) -> DType:
        """The parameter's type; pointers are u64."""
        return self.value.dtype if self.map is None else tensor_map


@dataclass(eq=False)
class Kernel:
    """A traced kernel: parameters, shared memory, the required block shape, and the body."""

    name: str
    block_dim: tuple[int, int, int]
    params: list[Param] = field(default_factory=list)
    body: Block = field(default_factory=Block)
    shared: list[SharedAlloc] = field(default_factory=list)
    cluster_dim: tuple[int, int, int] | None = None
    min_blocks_per_sm: int | None = None
    loc: Loc | None = None

    @property
    def threads(self) -> int:
        """Threads of one block."""
        x, y, z = self.block_dim
        return x * y * z

    @property
    def registers_at_entry(self) -> int:
        """Registers of a thread at the start, where all that fit on a multiprocessor are taken."""
        return REGISTERS // (self.threads * (self.min_blocks_per_sm or 1)) // 8 * 8

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block, in bytes."""
        return max((alloc.offset + alloc.bytes for alloc in self.shared), default=0)

    def allocate_shared(
        self,
        name: str,
        size: int,
        align: int,
        loc: Loc | None = None,
        dtype: DType | None = None,
        layout: AnyLayout | None = None,
    ) -> SharedAlloc:
        """A new piece of shared memory of `size` bytes behind those that exist."""
        offset = -(-self.shared_bytes // align) * align
        alloc = SharedAlloc(name, offset, size, align, loc, dtype, layout)
        self.shared.append(alloc)
        return alloc
