"""What stays the same in launches of one kernel on arrays of the same facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kdsl_core.lang.arguments import Bound
from kdsl_core.lang.launch import Place, Ready
from kdsl_runtime.submission import Submission
from kdsl_runtime.tensor_maps import encoded


def submission(place: Place, bound: Bound, ready: Ready, *, numbers: bool = True) -> Submission:
    """A submission that takes the arrays' addresses, then the numbers, in order of the signature.

    Without `numbers`, those of `bound` are what it launches with.
    """
    lowered = ready.lowered
    varying = ("pointer", "scalar", "tensor_map") if numbers else ("pointer", "tensor_map")
    values = lowered.values(bound)
    places = [i for i, origin in enumerate(lowered.origins) if origin[0] in varying]
    constants = {i: value for i, value in enumerate(values) if i not in places}
    maps = len(lowered.maps)
    inputs = places[: len(places) - maps]

    def encode(*given: int | float) -> Sequence[bytes]:
        full = list(values)
        for i, value in zip(inputs, given, strict=True):
            full[i] = value
        return [encoded(evaluate(full)) for evaluate in lowered.maps]

    made: Submission = ready.loaded.submission(
        place.grid, place.block, place.cluster, place.overlap, constants, (maps, encode),
        typed=True,
    )  # fmt: skip
    return made


def bound_addresses(place: Place, bound: Bound, ready: Ready) -> Callable[..., None]:
    """What `Launch.bind_addresses` gives: a function of the stream and the arrays' addresses."""
    return submission(place, bound, ready, numbers=False).submit
