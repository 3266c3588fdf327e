"""How generated code reads an array: few attributes, each of which costs a tenth of a launch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kdsl_runtime.arrays import current_stream, is_torch
from kdsl_runtime.device_array import DeviceArray


class Reader(NamedTuple):
    """Python expressions of an array `{0}`: its address, and all else that a launch depends on."""

    pointer: str
    facts: str


TORCH = Reader("{0}.data_ptr()", "{0}.dtype, {0}.shape, {0}.stride(), {0}.device")
OWN = Reader("{0}.pointer", "{0}.dtype.name, {0}.shape, {0}.index")


def reader_of(kind: type) -> Reader | None:
    """How arrays of a type are read; None where it takes more than attributes."""
    if kind is DeviceArray:
        return OWN
    return TORCH if is_torch(kind) else None


def stream_reader(readers: Iterable[Reader]) -> Callable[[int], int]:
    """What gives the stream for a launch on arrays that are read so, by the device's index.

    Where there is a CUDA tensor, torch has been initialised, and its own look-up is the shortest.
    """
    if TORCH in readers:
        raw = getattr(getattr(sys.modules.get("torch"), "_C", None), _TORCH_STREAM, None)
        if raw is not None:
            found: Callable[[int], int] = raw
            return found
    return current_stream


_TORCH_STREAM = "_cuda_getCurrentRawStream"
