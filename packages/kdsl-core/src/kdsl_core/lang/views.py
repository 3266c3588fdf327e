"""Views of tensors and measures of tensors and layouts, as functions."""

from __future__ import annotations

from typing import Any

from kdsl_core.ir import Operand
from kdsl_core.lang.memory import as_layout
from kdsl_core.lang.tensor import Tensor
from kdsl_core.layout import AnyLayout
from kdsl_core.layout import local_partition as layout_partition
from kdsl_core.layout import local_tile as layout_tile
from kdsl_core.layout import size as layout_size


def tensor(
    address: Operand, dtype: Any, layout: Any, *, space: str = "global", align: int = 1
) -> Tensor:
    """A tensor over memory at an address of the kernel.

    Units: `align` in bytes, what the author knows of the address.
    """
    return Tensor.from_pointer(address, as_layout(layout), dtype, space=space, align=align)


def local_tile(x: Any, tiler: Any, coord: Any, proj: Any = None) -> Any:
    """The tile at `coord` of a tensor (a view) or of a layout (with its offset)."""
    if isinstance(x, Tensor):
        return x.tile(tiler, coord, proj)
    return layout_tile(x, tiler, coord, proj)


def local_partition(x: Any, threads: Any, thread: Any, proj: Any = None) -> Any:
    """One thread's elements of a tensor (a view) or of a layout (with its offset)."""
    if isinstance(x, Tensor):
        return x.partition(threads, thread)
    return layout_partition(x, threads, thread, proj)


def size(x: Tensor | AnyLayout | Any, mode: int | None = None) -> Any:
    """How many elements a tensor, layout or shape has, in all or along one mode."""
    if isinstance(x, Tensor):
        x = x.layout
    return layout_size(x if mode is None else x[mode])
