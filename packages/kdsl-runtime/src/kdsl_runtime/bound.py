"""A launch of which everything is fixed but where the arrays lie."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent
from typing import Any

from kdsl_core.errors import ArgumentError
from kdsl_core.lang import watch
from kdsl_core.lang.arguments import Bound, wrong_arrays
from kdsl_core.lang.launch import Launch, Place, Ready
from kdsl_runtime.array_readers import reader_of, stream_reader
from kdsl_runtime.arrays import describe
from kdsl_runtime.ready import submission

_SOURCE = """
def make(current, device, fixed, watched, tell, kernel, needed, wrong, misaligned, {means}):
    def bound(*arrays):
        try:
            {arrays} = arrays
            {reads}
        except (AttributeError, ValueError):
            raise wrong(arrays) from None
        stream = current(device) if fixed is None else fixed
        {launched}
        if watched:
            tell(kernel, needed)

    return bound
"""


def bound(launch: Launch, place: Place, call: Bound, ready: Ready) -> Callable[..., None]:
    """What `Launch.bind` gives for arrays on a GPU.

    Raises: ArgumentError K624, in the function, for arrays that it cannot read or another number
    of them, K628 for one that is aligned to less.
    """
    kernel, stream = launch.kernel, launch.stream
    aligned = {item.name: item.align for item in ready.needed.classes}
    readers = [reader_of(type(facts.owner)) for facts in call.arrays.values()]
    indices = range(len(readers))
    pointers = [f"p{i}" for i in indices]
    masks: dict[int, list[str]] = {}
    for pointer, align in zip(pointers, aligned.values(), strict=True):
        masks.setdefault(align - 1, []).append(pointer)
    launched = submission(place, call, ready, numbers=False)

    def wrong(arrays: tuple[Any, ...]) -> ArgumentError:
        return wrong_arrays(kernel.__name__, call.arrays, arrays)

    def misaligned(*pointers: int) -> ArgumentError:
        name, align, pointer = next(
            (n, a, p) for (n, a), p in zip(aligned.items(), pointers, strict=True) if p % a
        )
        return ArgumentError(
            f"{name}: the launch was bound to an array at a multiple of {align} bytes, got "
            f"{pointer:#x}",
            code="K628",
            fix="call the kernel itself, which has code for each alignment, or align the array",
        )

    unaligned = (f"({' | '.join(each)}) & {mask}" for mask, each in masks.items())
    check = f"if {' or '.join(unaligned) or False}:\n    raise misaligned({', '.join(pointers)})"
    source = _SOURCE.format(
        arrays="".join(f"a{i}, " for i in indices) or "()",
        reads="; ".join(
            f"p{i} = {reader.pointer.format(f'a{i}') if reader else f'describe(a{i}).pointer'}"
            for i, reader in enumerate(readers)
        )
        or "pass",
        means=", ".join(launched.means),
        launched=indent(launched.text(pointers, check), " " * 8).lstrip(),
    )
    space: dict[str, Any] = {"describe": describe}
    exec(source, space)
    current = stream_reader(reader for reader in readers if reader)
    made: Callable[..., None] = space["make"](
        current, ready.device, stream, watch.listed, watch.launched, kernel, ready.needed, wrong,
        misaligned, *launched.means.values(),
    )  # fmt: skip
    made.__name__ = made.__qualname__ = f"bound_{kernel.__name__}"
    return made
