"""The layout algebra against results of the CuTe C++ headers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import pytest

from core.layout.golden import CALLS, COPIED, SHARED, decode, encode, records, run_record
from kdsl_core.errors import LayoutError
from kdsl_core.layout import ComposedLayout, Layout, product, wrap

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
    layout = decode(record["args"][-1])
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
    return "wrong"


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
    if error.code == "K141":
        return "refused: C++ falls short of the target"
    if record["op"].endswith("product") and error.code == "K142":
        return "refused: the copies are not a layout of the free space"
    return "refused: inverse of a swizzle with offset" if error.code == "K150" else "wrong"


@pytest.mark.parametrize("name", FILES)
def test_agrees_with_cute(name: str) -> None:
    """Every record gives C++'s form, the same function, or a refusal with a reason."""
    folder = SHARED if SHARED.is_dir() else COPIED
    counts: Counter[str] = Counter()
    for record in records(name, folder):
        if record["op"] not in CALLS:
            continue
        result = outcome(record)
        counts[result] += 1
        assert result != "wrong", record
    assert counts["same"] >= 0.8 * counts.total(), counts


@pytest.mark.parametrize("name", FILES)
def test_copied_sample_agrees(name: str) -> None:
    """The sample in this repo agrees as well, so no checkout goes unchecked."""
    results = [outcome(r) for r in records(name, COPIED)]
    assert results and "wrong" not in results


def test_wrong_results_are_not_reproduced() -> None:
    """Where the C++ composition breaks its definition, kdsl is right or refuses."""
    for a, b in (
        (Layout((4, (2, 3)), (32, (12, 4))), Layout((8, (1, 1)), (3, (24, 24)))),
        (Layout((32, (8, 4)), (8, (1, 256))), Layout((((1, 7),), 5), (((1, 1),), 7))),
    ):
        with pytest.raises(LayoutError, match="coordinate") as caught:
            CALLS["composition"](a, b)
        assert caught.value.code == "K142"
        assert wrap(a.shape)
