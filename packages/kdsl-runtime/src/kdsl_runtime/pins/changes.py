"""What changed between two pins of a variant, by how much it matters."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, NamedTuple

from kdsl_runtime.manifest import Variant
from kdsl_runtime.pins.pinning import Pin


class Severity(enum.IntEnum):
    """How much a change matters; the number is the exit code of `kdsl check`."""

    CONTAINER = 3
    BINARY = 4
    RESOURCES = 5
    PERFORMANCE = 6
    SPILLS = 7
    NUMERICS = 8
    BROKEN = 9

    def __str__(self) -> str:
        return self.name.lower()


class Change(NamedTuple):
    """One fact of a variant that is not what it was."""

    severity: Severity
    variant: Variant
    fact: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.fact}: {_short(self.before)} → {_short(self.after)}"


_BY_SEVERITY = (
    (Severity.NUMERICS, ("numerics",)),
    (Severity.SPILLS, ("spill_bytes",)),
    (Severity.RESOURCES, ("registers", "stack_bytes", "shared_bytes")),
    (Severity.BINARY, ("instructions",)),
    (Severity.CONTAINER, ("cubin", "ptx")),
)


def changes(before: Pin, after: Pin) -> Iterator[Change]:
    """Every change, the one that matters most first; a digest that one of them lacks is none."""
    for severity, facts in _BY_SEVERITY:
        for fact in facts:
            old, new = getattr(before, fact), getattr(after, fact)
            unknown = fact == "numerics" and not (old and new)
            if old != new and not unknown:
                yield Change(severity, before.variant, fact, old, new)
        if severity is Severity.SPILLS:
            yield from _slower(before, after)


def _slower(before: Pin, after: Pin) -> Iterator[Change]:
    """Devices on which both were measured and differ by more than both spreads."""
    for device in sorted(before.measured.keys() & after.measured.keys()):
        old, new = before.measured[device], after.measured[device]
        if abs(new.us - old.us) > old.spread_us + new.spread_us:
            fact = f"µs on {device}"
            yield Change(Severity.PERFORMANCE, before.variant, fact, old.us, new.us)


_HASH_DIGITS, _SHOWN_DIGITS = 64, 12


def _short(value: Any) -> str:
    """A value for people; of a hash the first digits."""
    text = str(value)
    is_hash = len(text) == _HASH_DIGITS and text.isalnum()
    return f"{text[:_SHOWN_DIGITS]}…" if is_hash else text
