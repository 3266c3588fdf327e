"""Tiled mma and tiled copy against results of the CuTe C++ headers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from core.atoms.cute import (
    copy_atom,
    records,
    tiled_copy_of,
    tiled_copy_results,
    tiled_mma_results,
    values,
)
from core.layout.golden import encode
from kdsl_core.errors import LayoutError
from kdsl_core.layout import ComposedLayout, Layout


def outcome(got: Any, expected: Any) -> str:
    """How kdsl's answer stands to C++'s: the same, the same function, or wrong."""
    if encode(got) == encode(expected):
        return "same"
    pair = isinstance(got, tuple) and isinstance(got[0], (Layout, ComposedLayout))
    if pair and values(*got) == values(*expected):
        return "same function"
    return "wrong"


def is_quad_pair(record: dict[str, Any]) -> bool:
    """Whether threads are Volta's, with gaps between lanes: C++ repeats them to fill a warp in
    thread-value layouts, kdsl, which has no such atom, does not."""
    return record["op"] == "tiled_mma" and record["args"][0].startswith("SM70")


def test_tiled_mma_is_cutes() -> None:
    """Every tiling, partition and shape has C++'s form."""
    counts: Counter[str] = Counter()
    for record in records("tiled_mma"):
        for got, expected in tiled_mma_results(record):
            kind = outcome(got, expected)
            assert kind == "same" or is_quad_pair(record), (record, got)
            counts[kind] += 1
    assert counts["same"] > 700
    assert counts["wrong"] <= 3


def test_tiled_copy_is_cutes() -> None:
    """Every tiling has C++'s form; slices under a swizzle, and at rank 1, its function."""
    counts: Counter[str] = Counter()
    for record in records("tiled_copy"):
        if copy_atom(record["args"][1]) is None:
            continue
        for got, expected in tiled_copy_results(record):
            kind = outcome(got, expected)
            assert kind != "wrong", (record, got)
            counts[kind] += 1
    assert counts["same"] > 400
    assert counts["same function"] < 70


def test_what_cute_rejects_is_refused() -> None:
    """Threads or values that are no whole number of atoms."""
    for record in records("rejected"):
        if record["op"].startswith("tiled_copy"):
            args = record["args"]
            count = 5 if args[0] == "make_tiled_copy" else 6
            with pytest.raises(LayoutError, match="no whole number of") as caught:
                tiled_copy_of(*args[:count])
            assert caught.value.code == "K182"
