"""What two machines gave for the same inputs, counted: lanes, differences, payloads of NaN."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

import numpy as np
import pytest

from kdsl_core.dtypes import DType

Array: TypeAlias = np.ndarray[Any, Any]
MOST_SHOWN = 8
SHOWN = ("shown", "payloads_shown")
PROPERTY = "agreement"  # of a test's report, where its outcomes are


@dataclass(frozen=True)
class Outcome:
    """One line of the table of agreement, or the sum of several of one family.

    `differ` counts results with other bits, but for NaN against NaN of another payload, which
    `payloads` counts; `shown` is some of what differs, `payloads_shown` some of those NaN.
    """

    family: str
    cases: int = 1
    lanes: int = 0
    differ: int = 0
    payloads: int = 0
    shown: tuple[str, ...] = ()
    payloads_shown: tuple[str, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.family,
            self.cases + other.cases,
            self.lanes + other.lanes,
            self.differ + other.differ,
            self.payloads + other.payloads,
            (*self.shown, *other.shown)[:MOST_SHOWN],
            (*self.payloads_shown, *other.payloads_shown)[:MOST_SHOWN],
        )

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {name: list(getattr(self, name)) for name in SHOWN}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Outcome:
        """From JSON."""
        known = {field.name: record[field.name] for field in fields(cls)}
        return cls(**known | {name: tuple(known[name]) for name in SHOWN})


def summed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """One outcome a family, by name."""
    table: dict[str, Outcome] = {}
    for outcome in outcomes:
        held = table.get(outcome.family)
        table[outcome.family] = outcome if held is None else held + outcome
    return [table[family] for family in sorted(table)]


def note(request: pytest.FixtureRequest, outcomes: Iterable[Outcome]) -> None:
    """Put outcomes into the report of the running test."""
    records = [outcome.record() for outcome in outcomes]
    request.node.user_properties.append((PROPERTY, records))


def compared(family: str, case: str, expected: Array, got: Array, dtype: DType) -> Outcome:
    """The bits of two arrays of a type; any NaN equals any other, and is counted apart."""
    differ = bits(expected) != bits(got)
    payloads = differ & is_nan(expected, dtype) & is_nan(got, dtype)
    wrong = differ & ~payloads
    shown, payloads_shown = (
        (_example(case, expected, got, where),) if where.any() else ()
        for where in (wrong, payloads)
    )
    counts = wrong.size, int(wrong.sum()), int(payloads.sum())
    return Outcome(family, 1, *counts, shown, payloads_shown)


def _example(case: str, expected: Array, got: Array, where: Array) -> str:
    """How many lanes it concerns, and what both machines gave in the first of them."""
    at = int(np.flatnonzero(where)[0])
    pair = f"{bits(expected)[at]:#x}, got {bits(got)[at]:#x}"
    return f"{case}: {where.sum()} of {where.size}, at {at} expected {pair}"


def bits(values: Array) -> Array:
    """The bits of each element, in one dimension."""
    dense = np.ascontiguousarray(values).reshape(-1)
    return dense.view(f"u{dense.dtype.itemsize}")


def is_nan(values: Array, dtype: DType) -> Array:
    """Which elements are NaN, in one dimension."""
    if not dtype.is_float:
        return np.zeros(values.size, bool)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.isnan(np.ascontiguousarray(values).reshape(-1))
