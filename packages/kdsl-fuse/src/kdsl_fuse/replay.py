"""A plan's launches once more, for torch tensors on a GPU like those that it ran on before.

A run finds views of all values, looks at each argument of each launch, and asks whether any name
that a kernel's trace read was bound anew: a third of a millisecond for each launch. Of all that
only addresses differ in the next run. They are sums of the address of an input, of a result or of
the memory between launches, and of a distance that stays; so a replay is a function of
straight-line Python that adds them up and calls the driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import indent
from typing import TYPE_CHECKING, Any, NamedTuple

from kdsl_core.lang import watch
from kdsl_fuse import arrays
from kdsl_fuse.calls import operand
from kdsl_fuse.memory import ALIGNMENT
from kdsl_fuse.work import Work

if TYPE_CHECKING:
    from kdsl_fuse.plan import Plan

Replay = Callable[[Sequence[Any]], Any]
"""Gives the plan's result, or None for tensors that are not like the first ones."""

_ALIGNED = 16  # bytes that addresses of inputs must be multiples of
_SOURCE = """
def make(same, empties, empty_bytes, current, device, watch, told, result, {submits}):
    def replay(inputs):
        if not same(*inputs):
            return None
        {inputs} = [x.data_ptr() for x in inputs]
        if ({either}) % {aligned}:
            return None
        memory = empty_bytes({size})
        m = memory.data_ptr()
        fresh = [empty() for empty in empties]
        {fresh} = [x.data_ptr() for x in fresh]
        stream = current(device)
        {launches}
        if watch.watchers:
            for kernel, needed in told:
                watch.launched(kernel, needed)
        return result(inputs, fresh)

    return replay
"""


def replay_of(
    plan: Plan, inputs: Sequence[Any], values: Mapping[str, Any], done: Sequence[Sequence[Work]]
) -> Replay | None:
    """What makes the launches `done` of a run on `inputs` again; None where more than that varies.

    `done` are those of each call, `values` are those of the run by name. The launches are bound:
    they run what their kernels' code is now. Inputs whose memory overlaps, is not aligned to 16
    bytes or is not torch's have none, nor has a plan with a kernel that is launched otherwise.
    """
    from kdsl_runtime.array_readers import TORCH, guard_of, stream_reader

    like = inputs[0]
    device = arrays.device_index(like)
    if arrays.library(like) != "torch" or device is None:
        return None
    same = guard_of(inputs)
    if same is None or not _seen(plan, done):
        return None
    memory = _Memory(plan, inputs, values)
    if not memory.discerned:
        return None
    works = [work for each in done for work in each]
    bound = [work.launch.bind_addresses(*work.arrays, **work.statics) for work in works]
    launches = [
        f"s{i}(stream, {', '.join(addresses)})"
        for i, addresses in enumerate(memory.addresses(done))
    ]
    torch = sys.modules["torch"]
    source = _SOURCE.format(
        submits=_each("s", len(works)) or "*none",
        inputs=_each("p", len(inputs)),
        either=" | ".join(f"p{i}" for i in range(len(inputs))),
        aligned=_ALIGNED,
        size=memory.bytes,
        fresh=_each("r", len(memory.fresh)) or "[]",
        launches=indent("\n".join(launches), " " * 8).lstrip() or "pass",
    )
    space: dict[str, Any] = {}
    exec(source, space)
    made: Replay = space["make"](
        same,
        [_empty_like(torch, values[name]) for name in memory.fresh],
        _empty_bytes(torch, like.device),
        stream_reader([TORCH]),
        device,
        watch,
        [(work.launch.kernel, needed) for work, (_, needed) in zip(works, bound, strict=True)],
        _result_of(plan, memory.fresh, values),
        *(submit for submit, _ in bound),
    )
    return made


def _seen(plan: Plan, done: Sequence[Sequence[Work]]) -> bool:
    """Whether every call's kernel was among its launches."""
    kernels = ([work.launch.kernel for work in each] for each in done)
    return all(call.kernel in each for call, each in zip(plan.calls, kernels, strict=True))


class _Range(NamedTuple):
    """Addresses from `start` up to `end`; the first is `distance` behind what has a name."""

    start: int
    end: int
    name: str
    distance: int = 0


class _Memory:
    """Whose memory an address is in, as a name that a replay has for where that begins.

    `fresh` are the values that leave the plan and are new each time. What is neither one of them,
    nor an input, a constant or between launches was taken by a call for itself: `bytes` are those
    between launches, and those that any call takes, who does not keep them for the next one.
    """

    def __init__(self, plan: Plan, inputs: Sequence[Any], values: Mapping[str, Any]) -> None:
        given = {x.name for x in plan.graph.inputs} | {x.name for x in plan.held}
        self.fresh = [name for name in values if name not in given | plan.memory.values.keys()]
        ranges = [_range(x, f"p{i}") for i, x in enumerate(inputs)]
        ranges += [_range(values[name], f"r{i}") for i, name in enumerate(self.fresh)]
        ranges += [_range(values[x.name], "") for x in plan.held]
        ranges += [_range(values[name], "m", at) for name, at in plan.memory.values.items()]
        self._ranges = [each for each in ranges if each.start < each.end]
        self._end = self.bytes = self._between = _whole(plan.memory.peak_bytes)
        own = sorted(each for each in self._ranges if each.name.startswith("p"))
        apart = all(a.end <= b.start for a, b in pairwise(own))
        aligned = all(x.data_ptr() % _ALIGNED == 0 for x in inputs)
        self.discerned = apart and aligned

    def addresses(self, done: Sequence[Sequence[Work]]) -> Iterator[list[str]]:
        """For each launch the addresses of its arrays, as Python."""
        for call in done:
            self._end = self._between
            for work in call:
                yield list(map(self._address, work.arrays))

    def _address(self, array: Any) -> str:
        address = array.data_ptr()
        if array.numel() == 0:
            return str(address)
        for start, end, name, distance in self._ranges:
            if start <= address < end:
                return f"{name} + {address - start + distance}" if name else str(address)
        self._take(array.untyped_storage())
        return self._address(array)

    def _take(self, storage: Any) -> None:
        """A place for memory that a call took for itself."""
        start, size = storage.data_ptr(), storage.nbytes()
        self._ranges.append(_Range(start, start + size, "m", self._end))
        self._end += _whole(size)
        self.bytes = max(self.bytes, self._end)


def _range(tensor: Any, name: str, distance: int = 0) -> _Range:
    """Where a tensor lies, `distance` bytes behind what is named."""
    if tensor.numel() == 0:
        return _Range(0, 0, name)
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return _Range(start, start + (last + 1) * tensor.element_size(), name, distance)


def _whole(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _each(letter: str, count: int) -> str:
    return "".join(f"{letter}{i}, " for i in range(count))


def _empty_like(torch: Any, tensor: Any) -> Callable[[], Any]:
    shape, options = tuple(tensor.shape), {"dtype": tensor.dtype, "device": tensor.device}
    return lambda: torch.empty(shape, **options)


def _empty_bytes(torch: Any, device: Any) -> Callable[[int], Any]:
    return lambda size: torch.empty(size, dtype=torch.uint8, device=device)


def _result_of(
    plan: Plan, fresh: Sequence[str], values: Mapping[str, Any]
) -> Callable[[Sequence[Any], Sequence[Any]], Any]:
    """What leaves the plan: new values, inputs and constants, or views of them."""
    reads = [operand(plan.graph, x) for x in plan.graph.outputs]
    held = {x.name: values[x.name] for x in plan.held}
    names = [x.name for x in plan.graph.inputs]

    def result(inputs: Sequence[Any], made: Sequence[Any]) -> Any:
        found = {**held, **dict(_pairs(names, inputs)), **dict(_pairs(fresh, made))}
        return plan.pack([read.view(found) for read in reads])

    return result


def _pairs(names: Sequence[str], tensors: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return zip(names, tensors, strict=True)
