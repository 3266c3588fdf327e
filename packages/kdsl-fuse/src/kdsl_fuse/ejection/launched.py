"""What a call launches: kernels, and which part of which memory each of their arguments is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType, dtype_of
from kdsl_fuse import arrays
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.strided import Strided, row_major
from kdsl_fuse.work import Work, work_of

_ALIGNED = 256  # bytes that values start at multiples of, as in a plan


@dataclass(frozen=True)
class View:
    """A part of a value, or of memory between launches, by its name: sizes, strides and offset."""

    value: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def of(self, memory: Mapping[str, Any]) -> Any:
        """The view itself."""
        layout = Strided(self.shape, self.strides, self.offset)
        return arrays.view(memory[self.value], layout)


@dataclass(frozen=True)
class Launched:
    """The launches of a call in order, each with its arguments, and memory between them."""

    works: tuple[tuple[Work, tuple[View, ...]], ...]
    scratch: dict[str, tuple[DType, int]]


def launched_by(graph: Graph, call: KernelCall) -> Launched:
    """The launches that the call makes, for values at multiples of 256 bytes."""
    values = {name: _memory(graph[name]) for name in call.reads}
    outputs = [_memory(node) for node in call.outputs]
    works = work_of(partial(call.run, values, outputs))
    known = values | {node.name: x for node, x in zip(call.outputs, outputs, strict=True)}
    places = _Places(known)
    made = tuple((work, tuple(map(places.view, work.arrays))) for work in works)
    return Launched(made, places.scratch)


class _Places:
    """Memory by address: values that are known, and what launches use in between."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._owners = {name: _owner(array) for name, array in known.items()}
        self._starts = {name: _address(array) for name, array in known.items()}
        self.scratch: dict[str, tuple[DType, int]] = {}

    def view(self, array: Any) -> View:
        """An argument of a launch as a part of memory with a name."""
        owner = _owner(array)
        name = next((name for name, x in self._owners.items() if x is owner), None)
        if name is None:
            name = f"scratch{len(self.scratch)}"
            self._owners[name], self._starts[name] = owner, _address(owner)
            self.scratch[name] = (dtype_of(array.dtype), owner.nbytes // array.itemsize)
        strides = tuple(stride // array.itemsize for stride in array.strides)
        distance = _address(array) - self._starts[name]
        return View(name, array.shape, strides, distance // array.itemsize)


def _memory(node: Node) -> Any:
    """An array for a value, whose pages nobody touches."""
    layout = Strided(node.shape, node.strides or row_major(node.shape))
    count = extent(layout) * node.dtype.bytes
    memory = np.empty(count + _ALIGNED, np.uint8)
    start = -_address(memory) % _ALIGNED
    return arrays.view(memory[start : start + count].view(node.dtype.numpy), layout)


def extent(layout: Strided) -> int:
    """How many elements lie from a view's first to its last one in memory, both counted."""
    return 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.strides, strict=True))


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _owner(array: Any) -> Any:
    """The array whose memory a view looks at."""
    owner, base = array, array
    while (base := getattr(base, "base", None)) is not None:
        owner = base if isinstance(base, np.ndarray) else owner
    return owner
