"""A launch of which everything is fixed but where the arrays lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdsl_core.errors import ArgumentError
from kdsl_core.lang import watch
from kdsl_core.lang.arguments import Bound, wrong_arrays
from kdsl_core.lang.launch import Launch, Place, Ready
from kdsl_runtime.array_readers import reader_of, stream_reader
from kdsl_runtime.arrays import describe
from kdsl_runtime.ready import submission

_SOURCE = """
def make(submit, current, device, stream, watch, kernel, needed, wrong, misaligned):
    def bound(*arrays):
        try:
            {arrays} = arrays
            {pointers} = {reads}
        except (AttributeError, ValueError):
            raise wrong(arrays) from None
        if {masked}:
            raise misaligned({pointers})
        submit(current(device) if stream is None else stream, {pointers})
        for watcher in watch.watchers:
            watcher.launched(kernel, needed)

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
    masks = [f"p{i} & {align - 1}" for i, align in enumerate(aligned.values()) if align > 1]

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

    source = _SOURCE.format(
        arrays="".join(f"a{i}, " for i in indices) or "()",
        pointers="".join(f"p{i}, " for i in indices) or "()",
        reads="".join(
            f"{reader.pointer.format(f'a{i}') if reader else f'describe(a{i}).pointer'}, "
            for i, reader in enumerate(readers)
        )
        or "()",
        masked=" or ".join(masks) or "False",
    )
    space: dict[str, Any] = {"describe": describe}
    exec(source, space)
    current = stream_reader(reader for reader in readers if reader)
    submit = submission(place, call, ready, numbers=False).submit
    made: Callable[..., None] = space["make"](
        submit, current, ready.device, stream, watch, kernel, ready.needed, wrong, misaligned
    )
    made.__name__ = made.__qualname__ = f"bound_{kernel.__name__}"
    return made
