"""Addresses as people know them: which element of which tensor lies there."""

from __future__ import annotations

from math import prod

from kdsl_core.ir import Kernel, SharedAlloc
from kdsl_core.layout import AnyLayout, ComposedLayout, inner_of, leaves, wrap
from kdsl_core.records import dataclass
from kdsl_core.sim.batch import IN_BLOCK, RANK_SHIFT, SHARED_BASE
from kdsl_core.sim.memory import GlobalStore
from kdsl_core.sim.parties import tuple_text

_SHARED_END = 1 << 32  # generic addresses of global memory lie far above
_STAGED_RANK = 3
_NEAR = 1 << 20  # bytes from a tensor up to which a stray index is told from a stray pointer


@dataclass(frozen=True)
class Place:
    """A byte of memory: `text` is how a sentence names it, `detail` what else there is to say.

    `coordinate` is the element's, one index per mode of the tensor, None where no element is;
    `stage` repeats its last index when the tensor is a ring of stages. `rank` is the block of the
    cluster whose shared memory it is, where the address says so.
    """

    space: str
    address: int
    text: str
    tensor: str = ""
    coordinate: tuple[int, ...] | None = None
    stage: int | None = None
    rank: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        return self.text


class Places:
    """Finds places in a launch's tensors and in the shared memory of its blocks."""

    def __init__(self, kernel: Kernel, store: GlobalStore) -> None:
        self._kernel = kernel
        self._store = store

    def at(self, address: int, space: str = "") -> Place:
        """The place of an address of a space: "global", "shared", or "" for what its size says."""
        space = space or ("shared" if address < _SHARED_END else "global")
        return self._global(address) if space == "global" else self._shared(address)

    # -- global memory ---------------------------------------------------------------------------
    def _global(self, address: int) -> Place:
        allocation = self._store.find(address, address + 1)
        if allocation is None:
            return self._outside(address)
        buffer = allocation.buffer_at(address)
        element = buffer.coordinate(address)
        if element is None:
            text = f"global address {address:#x} between the elements of {buffer.name}"
            return Place("global", address, text, buffer.name)
        text = _element(buffer.name, element)
        shape = tuple_text(buffer.array.shape)
        held = f"{buffer.name} is {buffer.dtype} {shape} in global memory"
        detail = f"{held}; {text} is at {address:#x}"
        return Place("global", address, text, buffer.name, element, detail=detail)

    def _outside(self, address: int) -> Place:
        """An address that no tensor has, as seen from the nearest one."""
        near = self._store.nearest(address)
        if near is None:
            return Place("global", address, f"global address {address:#x}")
        low, high = near.span
        before = address < low
        distance = low - address if before else address - high
        name = f"{near.name}{tuple_text(near.array.shape)}"
        apart = f"{distance} bytes {'before' if before else 'behind'} {name}"
        element = near.coordinate(address, beyond=True) if distance < _NEAR else None
        if element is None:
            return Place("global", address, f"global address {address:#x}, {apart}", near.name)
        text = f"{_element(near.name, element)}, {apart}"
        return Place("global", address, text, near.name, detail=f"the address is {address:#x}")

    # -- shared memory ---------------------------------------------------------------------------
    def _shared(self, address: int) -> Place:
        rank, offset = _split(address)
        where = "" if rank is None else f" of block {rank} of the cluster"
        alloc = self.allocation(address)
        if alloc is None:
            return Place("shared", address, f"shared address {address:#x}{where}", rank=rank)
        byte = offset - alloc.offset
        text = f"byte {byte} of shared {alloc.name}"
        if alloc.dtype is None or alloc.layout is None:
            return Place("shared", address, text + where, alloc.name, rank=rank)
        held = f"{text}: {_described(alloc)}"
        crd = coordinate_at(alloc.layout, byte // alloc.dtype.bytes)
        if crd is None:
            text += f"{where}, where none of its elements lies"
            detail = f"{held}, at {address:#x}"
            return Place("shared", address, text, alloc.name, rank=rank, detail=detail)
        stages = stages_of(alloc.layout)
        stage = None if stages is None else crd[-1]
        name = _element(alloc.name, crd)
        lies = "" if stage is None else f"lies in stage {stage} of {stages}; it "
        detail = f"{name} {lies}is {held}, at {address:#x}"
        return Place("shared", address, name + where, alloc.name, crd, stage, rank, detail)

    def mbarrier(self, address: int) -> Place:
        """The place of an mbarrier: the name of its allocation and, in a ring, its number."""
        rank, offset = _split(address)
        where = "" if rank is None else f" of block {rank} of the cluster"
        alloc = self.allocation(address)
        if alloc is None:
            return Place("shared", address, f"mbarrier at shared address {address:#x}", rank=rank)
        number = (offset - alloc.offset) // 8
        index = f"[{number}]" if alloc.bytes > 8 else ""
        name = "" if alloc.name == "mbarrier" else f" {alloc.name}"
        made = f" made at {alloc.loc.short()}" if alloc.loc else ""
        return Place(
            "shared", address, f"mbarrier{name}{index}{where}", alloc.name,
            (number,) if index else (), number if index else None, rank,
            f"the mbarrier is {alloc.name}{index}{made}, at {address:#x}",
        )  # fmt: skip

    def allocation(self, address: int) -> SharedAlloc | None:
        """The piece of shared memory that an address lies in."""
        _, offset = _split(address)
        pieces = self._kernel.shared
        return next((a for a in pieces if a.offset <= offset < a.offset + a.bytes), None)


def _element(tensor: str, coordinate: tuple[int, ...]) -> str:
    return f"{tensor}[{', '.join(map(str, coordinate))}]"


def _split(address: int) -> tuple[int | None, int]:
    """The rank that a shared address names, if any, and the offset into the block's memory."""
    rank = address >> RANK_SHIFT
    offset = (address & IN_BLOCK) - SHARED_BASE
    return (rank - 1 if rank else None), offset


# -- elements of a layout ------------------------------------------------------------------------
def coordinate_at(layout: AnyLayout, place: int) -> tuple[int, ...] | None:
    """The coordinate, an index per mode, of the element at a place; None where there is none.

    Units: elements. Of several elements that share the place, one.
    """
    if isinstance(layout, ComposedLayout):
        before = int(layout.outer(place))  # a swizzle is its own inverse
        return coordinate_at(layout.inner, before - int(layout.offset))
    steps = sorted(_steps(layout), key=lambda step: -step[1])
    digits = _digits(tuple((extent, stride) for extent, stride, _, _ in steps), place)
    if digits is None:
        return None
    found = [0] * len(layout)
    for digit, (_, _, mode, weight) in zip(digits, steps, strict=True):
        found[mode] += digit * weight
    return tuple(found)


def _steps(layout: AnyLayout) -> list[tuple[int, int, int, int]]:
    """(extent, stride, mode, weight of its digit in the mode's index) of each leaf."""
    steps = []
    for mode, pairs in enumerate(_modes(layout)):
        weight = 1
        for extent, stride in pairs:
            steps.append((extent, stride, mode, weight))
            weight *= extent
    return steps


def _modes(layout: AnyLayout) -> list[list[tuple[int, int]]]:
    """(extent, stride) of the leaves of each mode of the affine part."""
    inner = inner_of(layout)
    return [
        [(int(n), int(step)) for n, step in zip(leaves(shape), leaves(stride), strict=True)]
        for shape, stride in zip(wrap(inner.shape), wrap(inner.stride), strict=True)
    ]


def _digits(modes: tuple[tuple[int, int], ...], rest: int) -> tuple[int, ...] | None:
    """Indices i < extent with Σ i · stride = rest, for (extent, stride) of falling strides."""
    if not modes:
        return () if rest == 0 else None
    (extent, stride), *others = modes
    reach = sum((n - 1) * step for n, step in others)
    most = min(extent - 1, rest // stride) if stride else 0
    for digit in range(most, -1, -1):
        if rest - digit * stride > reach:
            return None
        found = _digits(tuple(others), rest - digit * stride)
        if found is not None:
            return (digit, *found)
    return None


def stages_of(layout: AnyLayout) -> int | None:
    """How many stages a tile has: the extent of its third or later, last mode when that is a ring.

    It is one when each index of the mode has a piece of memory to itself.
    """
    *tile, last = _modes(layout)
    steps = [stride for extent, stride in last if extent > 1]
    span = 1 + sum((extent - 1) * stride for mode in tile for extent, stride in mode)
    if len(tile) + 1 < _STAGED_RANK or not steps or min(steps) < span:
        return None
    return prod(extent for extent, _ in last)


def _described(alloc: SharedAlloc) -> str:
    """The type, shape and origin of a tensor in shared memory."""
    assert alloc.layout is not None
    shape = tuple(prod(extent for extent, _ in mode) for mode in _modes(alloc.layout))
    swizzled = ", swizzled" if isinstance(alloc.layout, ComposedLayout) else ""
    made = f", made at {alloc.loc.short()}" if alloc.loc else ""
    return f"{alloc.dtype} {tuple_text(shape)}{swizzled}{made}"
