"""Recorded results of a function of f32, stored as distances from the correctly rounded result.

A distance counts f32 numbers between the two (ulps). Its stream is small where an approximation is
good, and it is the exact result plus it that gives the recorded bits back. Where the exact result
lies so near to a rounding boundary that two mathematical libraries may round it differently, where
one of the two is NaN and where the distance is long, the bits themselves are stored.
"""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import numpy as np

from kdsl_core.isa import rounding

Array: TypeAlias = np.ndarray[Any, Any]
LIBRARY_ERROR = 2.0**-50  # relative, of a function in double precision
LONGEST = 127  # distance that takes one byte
FEW = 1 / 64  # of the results may be stored as bits before distances take four bytes


class DamagedRecording(ValueError):
    """A recording does not give back the bits that its checksum is of."""


def rounded(wide: Array) -> Array:
    """The f32 nearest to each f64."""
    return rounding.to_nearest(wide, np.float32)


def ordered(values: Array) -> Array:
    """The place of each f32 among all of them as i64; both zeros are at 0."""
    raw = values.view(np.int32).astype(np.int64)
    return np.where(raw < 0, -(raw & 0x7FFFFFFF), raw)


def distances(wide: Array, got: Array) -> Array:
    """How many f32 the results are above the correctly rounded ones; 0 for NaN."""
    exact = rounded(wide)
    return np.where(np.isnan(exact) | np.isnan(got), 0, ordered(got) - ordered(exact))


def encode(wide: Array, got: Array) -> dict[str, Array]:
    """What `decode` needs to give `got` (n,) of f32 back; `wide` are the exact results in f64."""
    far = distances(wide, got)
    by_bits = _doubtful(wide) | (_restored(rounded(wide), far) != got.view(np.uint32))
    too_long = np.abs(far) > LONGEST
    kind: Any = np.int32 if too_long.mean() > FEW else np.int8
    by_bits |= np.abs(far) > np.iinfo(kind).max
    stream = np.where(by_bits, 0, far).astype(kind)
    steps = np.diff(stream, prepend=kind(0))  # wraps; the sum wraps back
    smooth = len(zlib.compress(steps[: 1 << 20], 1)) < len(zlib.compress(stream[: 1 << 20], 1))
    at = np.flatnonzero(by_bits).astype(np.uint32)
    return {
        "far": steps if smooth else stream,
        "smooth": np.array(smooth),
        "at": at,
        "bits": got.view(np.uint32)[at],
        "checksum": np.array(zlib.crc32(got.tobytes()), np.uint32),
    }


def decode(wide: Array, stored: dict[str, Array]) -> Array:
    """The recorded results.

    Raises: DamagedRecording where the exact results are not those of the recording.
    """
    far = stored["far"]
    if stored["smooth"]:
        far = np.cumsum(far, dtype=far.dtype)
    raw = _restored(rounded(wide), far)
    raw[stored["at"]] = stored["bits"]
    if zlib.crc32(raw.tobytes()) != int(stored["checksum"]):
        raise DamagedRecording("the results are not those that were recorded: other exact results?")
    return raw.view(np.float32)


def _restored(exact: Array, far: Array) -> Array:
    """The bits at distances from f32 results; a zero keeps its sign where the distance is 0."""
    place = ordered(exact) + far
    raw = np.where(place < 0, -place | 0x80000000, place).astype(np.uint32)
    return np.where(far == 0, exact.view(np.uint32), raw)


def _doubtful(wide: Array) -> Array:
    """Where an error of a mathematical library changes the rounded result."""
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (rounded(wide * (1 + sign * LIBRARY_ERROR)) for sign in (-1, 1))
    return low.view(np.uint32) != high.view(np.uint32)
