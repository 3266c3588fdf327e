"""The layout algebra against results of the CuTe C++ headers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from core.layout import definitions as defined
from core.layout.golden import CALLS, COPIED, SHARED, decode, encode, records, run_record
from kdsl_core.errors import LayoutError
from kdsl_core.layout import ComposedLayout, Layout, inner_of, product

FILES = [
    "coords",
    "int_tuple",
    "structure",
    "construct",
    "slice",
    "composition",
    "complement",
    "measures",
    "divide",
    "product",
    "inverse",
    "recast",
    "swizzle_eval",
]

DIFFERENCES = {
    "same function": 14,
    "refused: decided at run time": 58,
    "deliberate: slices keep their offset inside": 18,
    "deliberate: tied orders": 14,
    "deliberate: cosize counts the offset": 3,
    "deliberate: C++ is no inverse": 1,
    "deliberate: C++ overruns the elements": 3,
    "refused: C++ falls short of the target": 4,
    "refused: inverse of a swizzle with offset": 4,
    "refused: the copies are not a layout of the free space": 3,
    "refused: C++ breaks the definition": 2,
    "refused: C++ misses a group of elements": 1,
}
"""Every difference from C++'s form among the 5 925 records, by its reason; docs/concepts.md says
why each is chosen. All others have C++'s form."""

TIED_ORDERS = {"make_ordered_layout", "make_layout_like", "make_fragment_like"}
"""C++ lets modes of equal order overlap; kdsl's stay apart."""


def _values(x: Any) -> Any:
    """What a result does: its values, plus an offset returned beside it."""
    if isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], (Layout, ComposedLayout)):
        return [v + x[1] for v in _values(x[0])]
    if isinstance(x, (Layout, ComposedLayout)):
        return [encode(x(i)) for i in range(encode(product(x.shape)))]
    return encode(x)


def outcome(record: dict[str, Any]) -> str:
    """How kdsl's answer stands to C++'s: same, same function, deliberate, or wrong."""
    dynamic = '"dyn"' in json.dumps(record)
    expected = decode(record["result"])
    try:
        got = run_record(record)
    except LayoutError as error:
        if dynamic and error.code == "K102":
            return "refused: decided at run time"
        return _refusal(record, expected, error)
    if encode(got) == encode(expected):
        return "same"
    if not isinstance(got, int) and _values(got) == _values(expected):
        return "same function"
    if record["op"] in TIED_ORDERS and _is_tied(record, expected):
        return "deliberate: tied orders"
    if record["op"] == "cosize" and got == 1 + max(_values(decode(record["args"][0]))):
        return "deliberate: cosize counts the offset"
    return _exact_where_cute_is_not(record, got, expected)


def _exact_where_cute_is_not(record: dict[str, Any], got: Any, expected: Any) -> str:
    layout = decode(record["args"][-1 if record["op"] == "slice" else 0])
    if (
        record["op"] == "slice"
        and isinstance(layout, ComposedLayout)
        and _values(got) == _sliced_values(layout, decode(record["args"][0]))
    ):
        return "deliberate: slices keep their offset inside"
    if record["op"] == "right_inverse":
        steps = range(encode(product(got.shape)))
        if all(layout(got(i)) == i for i in steps):
            return "deliberate: C++ is no inverse"
    if record["op"] in ("downcast", "recast_layout"):
        old, new = (
            encode(tuple(map(decode, record["args"][1:])))
            if record["op"][0] == "r"
            else (
                encode(decode(record["args"][1])),
                1,
            )
        )
        if _bits(got, new) >= _bits(decode(record["args"][0]), old) < _bits(expected, new):
            return "deliberate: C++ overruns the elements"
    return "wrong"


def _bits(layout: Any, width: int) -> set[int]:
    """The bits under the elements of a layout, without its swizzle."""
    offsets = _values(inner_of(layout))
    return {v * width + bit for v in offsets for bit in range(width)}


def _reaches(layout: Layout, count: int, wide: Layout) -> bool:
    return defined.is_wider(layout, encode(count), wide)


def _sliced_values(layout: ComposedLayout, coord: tuple[Any, ...]) -> list[Any]:
    """The values at the coordinates that a slice by top-level modes keeps, first mode fastest."""
    ranges = [
        range(product(s)) if c is None else [c]
        for c, s in zip(reversed(coord), reversed(layout.shape), strict=True)
    ]
    return [layout(tuple(reversed(crd))) for crd in itertools.product(*ranges)]


def _is_tied(record: dict[str, Any], expected: Layout) -> bool:
    order = record["args"][1] if len(record["args"]) > 1 else record["args"][0]["stride"]
    flat = [json.dumps(x) for x in _leaves(order)]
    return len(set(flat)) < len(flat)


def _leaves(x: Any) -> list[Any]:
    return [y for item in x for y in _leaves(item)] if isinstance(x, list) else [x]


def _refusal(record: dict[str, Any], expected: Any, error: LayoutError) -> str:
    """A refusal is right where C++'s result breaks the definition of its operation."""
    args = [decode(a) for a in record["args"]]
    if record["op"] == "composition":
        a, b = args[0], args[1]
        c = range(product(b.shape))
        if any(b(i) < 0 for i in c) or any(encode(expected(i)) != encode(a(b(i))) for i in c):
            return "refused: C++ breaks the definition"
    if record["op"] == "upcast" and not _reaches(inner_of(args[0]), args[1], inner_of(expected)):
        return "refused: C++ misses a group of elements"
    if error.code == "K141":
        return "refused: C++ falls short of the target"
    if record["op"].endswith("product") and error.code == "K142":
        return "refused: the copies are not a layout of the free space"
    return "refused: inverse of a swizzle with offset" if error.code == "K150" else "wrong"


FOLDERS = [COPIED, *[SHARED] * SHARED.is_dir()]


@pytest.mark.parametrize("folder", FOLDERS, ids=["copied", "shared"][: len(FOLDERS)])
def test_agrees_with_cute(folder: Path) -> None:
    """Every record gives C++'s form, or one of the listed differences, as often as listed."""
    counts: Counter[str] = Counter()
    for record in itertools.chain(*[records(name, folder) for name in FILES]):
        result = outcome(record)
        counts[result] += 1
        assert result != "wrong", record
    assert counts.total() == 5925
    del counts["same"]
    assert counts == DIFFERENCES


def test_the_copy_is_whole() -> None:
    """The copy in this repo holds what the shared records hold."""
    for folder in FOLDERS:
        for name in [*FILES, "cpp_wrong", "rejected"]:
            assert (folder / f"{name}.jsonl").read_text() == (COPIED / f"{name}.jsonl").read_text()


def test_wrong_results_are_not_reproduced() -> None:
    """Where C++ breaks a definition, kdsl refuses with a witness, or is right."""
    counts: Counter[str] = Counter()
    for record in records("cpp_wrong", COPIED):
        args = list(map(decode, record["args"]))
        try:
            got = run_record(record)
        except LayoutError as error:
            assert "coordinate" in error.message or "index" in error.message, record
            counts["refused"] += 1
            continue
        assert record["op"] == "downcast" and defined.is_narrower(*args, got), record
        assert not defined.is_narrower(*args, decode(record["result"]))
        counts["right"] += 1
    assert counts == {"refused": 18, "right": 1}


def test_refusals_are_shared_or_the_answer_is_exact() -> None:
    """What C++ rejects, kdsl refuses too, or answers by the definition."""
    answers: Counter[str] = Counter()
    for record in records("rejected", COPIED):
        if record["op"] not in CALLS:
            continue
        args = list(map(decode, record["args"]))
        try:
            got = run_record(record)
        except LayoutError:
            continue
        assert ANSWERS[record["op"]](got, *args), record
        answers[record["op"]] += 1
    assert answers == {
        "blocked_product": 1,
        "max_common_layout": 4,
        "raked_product": 2,
        "slice": 7,
        "slice_and_offset": 8,
        "zipped_divide": 1,
    }


ANSWERS: dict[str, Any] = {
    "slice": lambda got, crd, layout: got(()) == layout(crd),
    "slice_and_offset": lambda got, crd, layout: got[0](()) + got[1] == layout(crd),
    "max_common_layout": lambda got, a, b: [a(c) for c in _values(got)] == _values(Layout(1)),
    "zipped_divide": lambda got, a, t: defined.is_divide(a, t, got),
    "blocked_product": lambda got, block, tiler: _is_disjoint(got, block, tiler),
    "raked_product": lambda got, block, tiler: _is_disjoint(got, block, tiler),
}
"""For operations that C++ rejects in some case: whether an answer satisfies the definition."""


def _is_disjoint(got: Layout, block: Layout, tiler: Layout) -> bool:
    return len(set(_values(got))) == product(block.shape) * product(tiler.shape)
