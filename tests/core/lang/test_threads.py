"""Kernels traced and run by several threads at once do not disturb each other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd

THREADS, TURNS = 6, 8


@kd.kernel
def counts(x: kd.Tensor["i32", "n"], y: kd.Tensor["i32", "n"], start: kd.Static):
    """Every construct that keeps something between two parts of an expression."""
    t = kd.thread_idx()[0]
    total = start
    for j in kd.range(t % 5 + 1):
        if (j % 2 == 0) and (0 <= j < 4):
            total += x[t] if j < 3 else 1
        else:
            continue
    assert total >= 0, "negative"
    y[t] = total


def expected(x: np.ndarray[Any, Any], start: int) -> list[int]:
    """The same, in Python."""
    out = []
    for t in range(len(x)):
        total = start
        for j in range(t % 5 + 1):
            if j % 2 == 0 and 0 <= j < 4:
                total += int(x[t]) if j < 3 else 1
        out.append(total)
    return out


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Let Python change threads every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy_switching")
def test_threads_trace_at_once() -> None:
    """Each thread gets its own numbers, while others clear and trace the same kernel again."""
    problems: list[str] = []

    def work(number: int) -> None:
        x = np.arange(32, dtype=np.int32)
        for turn in range(TURNS):
            start = (number * 31 + turn) % 7
            y = np.zeros_like(x)
            if turn % 3 == 0:
                counts.clear()
            try:
                counts[1, 32](x, y, start)
            except (kd.KdslError, KeyError, IndexError) as error:
                problems.append(repr(error))
            else:
                if y.tolist() != expected(x, start):
                    problems.append(f"thread {number}, turn {turn}: {y.tolist()}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
