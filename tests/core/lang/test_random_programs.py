"""Random programs mean the same to Python and to the kernel."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from core.lang.programs import Program
from execution import Executor

LANES = 32
PROGRAMS = 60


@kd.kernel
def per_lane(
    x: kd.Tensor["i32", "n"],
    y: kd.Tensor["i32", "n"],
    out: kd.Tensor["i32", "n"],
    program: kd.Static,
) -> None:
    """Run one program per lane."""
    i = kd.thread_idx()[0]
    out[i] = kd.as_scalar(program(kd.range, x[i], y[i]))


def _function(seed: int) -> Any:
    text, file = Program(seed).text, f"<program {seed}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {}
    exec(compile(text, file, "exec"), space)
    return space["f"]


def _loop(*bounds: Any) -> Iterator[np.int32]:
    return (np.int32(k) for k in range(*map(int, bounds)))


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_kernel_and_python_agree(execute: Executor, seed: int) -> None:
    """Each lane computes what Python computes with 32-bit integers."""
    function = _function(seed)
    x = np.arange(LANES, dtype=np.int32)
    y = x * 7 % 11
    out = np.zeros(LANES, np.int32)
    try:
        out = execute(per_lane, 1, LANES, x, y, out, program=kd.func(function))[2]
    except kd.StagingError as refusal:
        # A jump out of an unrolled loop under a condition of the kernel is refused, not guessed.
        assert refusal.code == "K327"
        return
    with np.errstate(over="ignore"):
        expected = [int(function(_loop, a, b)) for a, b in zip(x, y, strict=True)]
    assert out.tolist() == [(v + 2**31) % 2**32 - 2**31 for v in expected]
