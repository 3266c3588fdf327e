"""Global memory: arguments at virtual addresses with guard gaps, and the bytes behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir.protocols import Array
from kdsl_core.records import dataclass

FIRST_ADDRESS = 0x7000_0000_0000
_ALIGNMENT = 256  # what a CUDA allocation has
_GUARD = 1 << 21  # so that a stray address between two allocations hits nothing
# Types whose elements are moved in one piece; that of 16 bytes stands for bits, too.
WORDS: dict[int, Any] = {
    1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Buffer:
    """A tensor argument: its array and the virtual address of its element 0."""

    name: str
    array: np.ndarray[Any, Any]
    dtype: DType
    address: int

    @property
    def span(self) -> tuple[int, int]:
        """The virtual addresses [low, high) between its first and last byte."""
        low, high = reach(self.array)
        return self.address + low, self.address + high

    def coordinate(self, address: int, *, beyond: bool = False) -> tuple[int, ...] | None:
        """The element that holds the byte at `address`; None when no element does.

        With `beyond`, the one that would if the mode of the largest stride had no ends.
        """
        rest = address - self.address
        found = [0] * self.array.ndim
        for mode in sorted(range(self.array.ndim), key=lambda i: -abs(self.array.strides[i])):
            stride, extent = self.array.strides[mode], self.array.shape[mode]
            if stride and (extent > 1 or beyond):
                index = int(rest // stride)
                found[mode] = index if beyond else min(max(index, 0), extent - 1)
                rest -= found[mode] * stride
                beyond = False
        return tuple(found) if 0 <= rest < self.array.itemsize else None


def reach(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Bytes from element 0 to the first byte and behind the last byte of an array."""
    if array.size == 0:
        return 0, 0
    ends = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends) + array.itemsize


def _data(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


class GlobalMemory:
    """Gives arrays virtual addresses; views of one array lie in one allocation, as on a GPU."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self._next = FIRST_ADDRESS
        self._bases: dict[int, tuple[np.ndarray[Any, Any], int]] = {}

    def add(self, name: str, array: np.ndarray[Any, Any], dtype: DType) -> int:
        """The virtual address of the array's element 0."""
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        low, high = reach(base)
        if id(base) not in self._bases:
            self._bases[id(base)] = (base, self._next)
            end = self._next + (high - low) + 2 * _GUARD
            self._next = end // _GUARD * _GUARD
        address = self._bases[id(base)][1] + _data(array) - (_data(base) + low)
        self.buffers.append(Buffer(name, array, dtype, address))
        return address


@dataclass(eq=False)
class Allocation:
    """Bytes of global memory at [low, high), copied from the host and written back at the end.

    `origin` is the aligned virtual address of `data[0]`.
    """

    low: int
    high: int
    buffers: list[Buffer]
    origin: int = 0
    data: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    written: bool = False

    def fetch(self) -> None:
        """Copy the host's bytes."""
        self.origin = self.low // _ALIGNMENT * _ALIGNMENT
        size = -(-(self.high - self.origin) // _ALIGNMENT) * _ALIGNMENT
        self.data = np.zeros(size, np.uint8)
        self.data[self.low - self.origin : self.high - self.origin] = self._host()

    def write_back(self) -> None:
        """Copy the bytes to the host when the kernel wrote any."""
        if self.written:
            self._host()[:] = self.data[self.low - self.origin : self.high - self.origin]

    @property
    def writeable(self) -> bool:
        """Whether the host lets somebody write to it."""
        return any(buffer.array.flags.writeable for buffer in self.buffers)

    def _host(self) -> Array:
        first = self.buffers[0]
        pointer = _data(first.array) + self.low - first.address
        size = self.high - self.low
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer))

    def buffer_at(self, address: int) -> Buffer:
        """The argument that has an element at `address`, or the first one."""
        for buffer in self.buffers:
            if buffer.coordinate(address) is not None:
                return buffer
        return self.buffers[0]


class GlobalStore:
    """The allocations of one launch, found by address."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.allocations: list[Allocation] = []
        for buffer in sorted(buffers, key=lambda b: b.span):
            low, high = buffer.span
            last = self.allocations[-1] if self.allocations else None
            if low == high:
                continue
            if last and low < last.high:
                last.high = max(last.high, high)
                last.buffers.append(buffer)
            else:
                self.allocations.append(Allocation(low, high, [buffer]))
        for allocation in self.allocations:
            allocation.fetch()
        self.buffers = list(buffers)
        self._lows = np.array([a.low for a in self.allocations], np.int64)
        self._highs = np.array([a.high for a in self.allocations], np.int64)

    def find(self, low: int, high: int) -> Allocation | None:
        """The allocation that holds all of [low, high)."""
        at = int(self._lows.searchsorted(low, "right")) - 1
        if at >= 0 and high <= self.allocations[at].high:
            return self.allocations[at]
        return None

    def locate(self, address: Array, size: int) -> Array:
        """Per address, the number of the allocation that holds its `size` bytes, or −1."""
        if not self.allocations:
            return np.full(address.shape, -1)
        at = self._lows.searchsorted(address, "right") - 1
        inside = (at >= 0) & (address + size <= self._highs[at])
        return np.where(inside, at, -1)

    def nearest(self, address: int) -> Buffer | None:
        """The argument whose bytes are closest to an address that hits none."""
        if not self.buffers:
            return None
        return min(self.buffers, key=lambda b: max(b.span[0] - address, address - b.span[1]))

    def write_back(self) -> None:
        """Copy what the kernel wrote to the host."""
        for allocation in self.allocations:
            allocation.write_back()


def gather(data: Array, offset: Array, size: int) -> Array:
    """uint8 (L, size): the bytes at each offset (L,) of a flat array of bytes."""
    aligned = size & (size - 1) == 0 and not (offset & (size - 1)).any()
    if not aligned or data.size % size:
        return data[offset[:, None] + np.arange(size)]
    if size in WORDS:
        words = data.view(WORDS[size])[offset >> size.bit_length() - 1]
        return np.asarray(words.view(np.uint8).reshape(-1, size))
    return data.reshape(-1, size).take(offset >> size.bit_length() - 1, axis=0)


def update_in_turn(words: Array, place: Array, update: Callable[[Array, Array], Array]) -> Array:
    """Read-modify-write of `words` at `place` (L,), equal places one after the other.

    `update(at, now)` gives the new values for positions `at` of `place`. Gives the old values.
    """
    by_place = np.argsort(place, kind="stable")
    ordered = place[by_place]
    starts = np.nonzero(np.diff(ordered, prepend=ordered[0] - 1))[0]
    lengths = np.diff(starts, append=place.size)
    turn = np.arange(place.size) - np.repeat(starts, lengths)
    by_turn = by_place[np.argsort(turn, kind="stable")]
    old = np.zeros(place.size, words.dtype)
    for at in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
        now = words[place[at]]
        old[at] = now
        words[place[at]] = update(at, now)
    return old


def scatter(data: Array, offset: Array, values: Array) -> None:
    """Put uint8 (L, size) at each offset (L,); of equal offsets the last one stays."""
    size = values.shape[1]
    aligned = size & (size - 1) == 0 and not (offset & (size - 1)).any()
    if not aligned or data.size % size:
        data[offset[:, None] + np.arange(size)] = values
    elif size in WORDS:
        words = np.ascontiguousarray(values).view(WORDS[size])[:, 0]
        data.view(WORDS[size])[offset >> size.bit_length() - 1] = words
    else:
        data.reshape(-1, size)[offset >> size.bit_length() - 1] = values
