"""What changed between two pins of a variant, by how much it matters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kdsl_runtime.manifest import Variant
from kdsl_runtime.pins.limits import Severity, compared
from kdsl_runtime.pins.pinning import Pin


class Change(NamedTuple):
    """One fact of a variant that is not what it was; a `regression` is worse beyond its limit."""

    severity: Severity
    variant: Variant
    fact: str
    before: Any
    after: Any
    regression: bool = False

    def __str__(self) -> str:
        return f"{self.fact}: {_short(self.before)} → {_short(self.after)}"


_HASHES = (
    (Severity.NUMERICS, "numerics"),
    (Severity.BINARY, "instructions"),
    (Severity.CONTAINER, "cubin"),
    (Severity.CONTAINER, "ptx"),
)


def changes(before: Pin, after: Pin) -> Iterator[Change]:
    """Every change, the one that matters most first; a digest that one of them lacks is none."""
    yield from sorted(_all(before, after), key=lambda change: -change.severity)


def _all(before: Pin, after: Pin) -> Iterator[Change]:
    for severity, fact in _HASHES:
        old, new = getattr(before, fact), getattr(after, fact)
        unknown = fact == "numerics" and not (old and new)
        if old != new and not unknown:
            yield Change(severity, before.variant, fact, old, new)
    for found in compared(before.numbers, after.numbers):
        facts = found.name, _whole(found.before), _whole(found.after)
        yield Change(found.limit.severity, before.variant, *facts, found.regression)
    for device in sorted(before.measured.keys() & after.measured.keys()):
        old, new = before.measured[device], after.measured[device]
        if new.differs(old):
            facts = f"µs on {device}", old.us, new.us
            worse = new.slower_than(old)
            yield Change(Severity.PERFORMANCE, before.variant, *facts, worse)


_HASH_DIGITS, _SHOWN_DIGITS = 64, 12


def _whole(number: float) -> float:
    """A number as an integer where it is one."""
    return int(number) if number == int(number) else number


def _short(value: Any) -> str:
    """A value for people; of a hash the first digits."""
    text = str(value)
    is_hash = len(text) == _HASH_DIGITS and text.isalnum()
    return f"{text[:_SHOWN_DIGITS]}…" if is_hash else text
