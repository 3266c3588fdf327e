"""The memory of a launch, as a driver written in C reads it."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import DType
from kdsl_runtime.submission import Attribute, Submission

C_FILES = Path(__file__).with_name("c")
PARAMS = [("x", dt.u64), ("n", dt.i32), ("by", dt.f32), ("y", dt.u64), ("last", dt.i8)]
LAUNCH = """
import ctypes, sys
from runtime.test_submission import PARAMS
from kdsl_runtime.submission import Attribute, Submission

call = ctypes.CDLL(sys.argv[1]).cuLaunchKernelEx
function = ctypes.c_void_p(2)
attributes = [Attribute.of(4, 2, 1, 1), Attribute.of(6, 1)]
sizes = ((3, 2, 1), (64, 1, 1), 1 << 16)
launch = call, function, print, lambda: None
made = Submission(PARAMS, sizes, attributes, {1: -3, 4: -1}, launch)
for stream in (9, 0):
    made.submit(stream, 0x1122334455667788, 0.5, 2**64 - 1)
"""


def test_a_driver_in_c_reads_it(tmp_path: Path) -> None:
    """Sizes, stream, attributes and each parameter, those that vary and those that do not."""
    library = tmp_path / "libcuda.so.1"
    words = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", f"-I{C_FILES / 'stub'}"]
    subprocess.run([*words, "-o", library, C_FILES / "fake_driver.c"], check=True, timeout=60)
    places = [str(C_FILES.parents[1]), *sys.path]
    env = {**os.environ, "KDSL_SIZES": "8,4,4,8,1", "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, str(library)],
        env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    params = "params 8877665544332211 fdffffff 0000003f ffffffffffffffff ff"
    head = "launch 2 grid 3 2 1 block 64 1 1 shared 65536 stream {} attribute 4 2 1 1 attribute 6 1"
    assert done.stdout.splitlines() == [
        line for stream in (9, 0) for line in (f"{head.format(stream)} 0 0", params)
    ]


def test_maps_follow_from_what_varies() -> None:
    """They are made once for the same values, and are the last parameters."""
    made: list[tuple[int, ...]] = []

    def encode(*values: int) -> list[bytes]:
        made.append(values)
        return [bytes([values[0]]) * 128, bytes([values[1]]) * 128]

    def launch(config: object, function: object, pointers: Any, extra: object) -> int:
        seen.append([ctypes.string_at(pointer, 1)[0] for pointer in pointers._obj])
        return 0

    seen: list[list[int]] = []
    params = [("a", dt.u8), ("b", dt.u8), ("m", dt.tensor_map), ("k", dt.tensor_map)]
    sizes = ((1, 1, 1), (32, 1, 1), 0)
    launched = (launch, None, None, lambda: None)
    submit = Submission(params, sizes, [], {}, launched, (2, encode)).submit
    for values in ((1, 2), (3, 4), (1, 2)):
        submit(0, *values)
    assert seen == [[1, 2, 1, 2], [3, 4, 3, 4], [1, 2, 1, 2]] and made == [(1, 2), (3, 4)]


class Read:
    """A driver that reads the first byte of each parameter, and launches `within` a launch once."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.within: Callable[[], None] | None = None

    def __call__(self, config: Any, function: object, pointers: Any, extra: object) -> int:
        each = [ctypes.string_at(pointer, 4) for pointer in pointers._obj if pointer]
        within, self.within = self.within, None
        if within is not None:
            within()
            assert each == [ctypes.string_at(pointer, 4) for pointer in pointers._obj if pointer]
        self.seen.append(b"".join(each))
        return 0


def typed(read: Read, *params: DType) -> Submission:
    """A submission whose values have their parameters' types."""
    named = [(f"p{i}", dtype) for i, dtype in enumerate(params)]
    launched = (read, None, None, lambda: None)
    return Submission(named, ((1, 1, 1), (32, 1, 1), 0), [], {}, launched, typed=True)


def test_equal_values_are_written_once() -> None:
    """What another launch needs is written over them, also while they are in use."""
    read = Read()
    submission = typed(read, dt.u32, dt.i32)
    first, second = (1, -1), (2, -1)
    for values in (first, first, second, first):
        submission.submit(0, *values)
    read.within = lambda: submission.submit(0, *second)
    submission.submit(0, *first)
    for values in (second, first):
        submission.submit(0, *values)
    one, two = b"\1\0\0\0" + b"\xff" * 4, b"\2\0\0\0" + b"\xff" * 4
    assert read.seen == [one, one, two, one, two, one, two, one]
    assert "latest" in submission.text(["a", "b"])


def test_equal_numbers_of_other_bits() -> None:
    """Zeros of either sign are two values."""
    read = Read()
    submission = typed(read, dt.f32)
    for value in (0.0, -0.0, 0.0):
        submission.submit(0, value)
    assert read.seen == [b"\0\0\0\0", b"\0\0\0\x80", b"\0\0\0\0"]


def test_equal_numbers_of_another_type() -> None:
    """Where types are not known, each value is looked at."""
    params = [("n", dt.i32)]
    launched = (Read(), None, None, lambda: None)
    submission = Submission(params, ((1, 1, 1), (32, 1, 1), 0), [], {}, launched)
    submission.submit(0, 1)
    with pytest.raises(struct.error):
        submission.submit(0, 1.0)


@pytest.mark.parametrize("count", [0, 1, 40])
def test_any_number_of_parameters(count: int) -> None:
    """None, one and many, all of which vary or none of which does."""
    seen: list[int] = []

    def launch(config: object, function: object, pointers: Any, extra: object) -> int:
        seen.append(len([pointer for pointer in pointers._obj if pointer]))
        return 0

    params = [(f"p{i}", dt.u64) for i in range(count)]
    launched = (launch, None, None, lambda: None)
    for constants in ({}, dict.fromkeys(range(count), 7)):
        submission = Submission(params, ((1, 1, 1), (32, 1, 1), 0), [], constants, launched)
        submission.submit(0, *([5] * (count - len(constants))))
    assert seen == [count, count]


def test_attributes_are_as_large_as_the_drivers() -> None:
    """The number, padding, and 64 bytes of value."""
    assert bytes(Attribute.of(4, 2, 1)) == b"\4" + bytes(7) + b"\2\0\0\0\1" + bytes(59)
