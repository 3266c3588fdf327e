"""Compare a lock with what its kernels are now, or would be with another assembler."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from kdsl_runtime.outcomes import Outcome, work_on
from kdsl_runtime.pins.changes import Change, changes
from kdsl_runtime.pins.limits import Severity
from kdsl_runtime.pins.lockfile import Lock
from kdsl_runtime.pins.pinning import pin
from kdsl_runtime.toolchain import Toolchain


@dataclass(frozen=True)
class Report:
    """Every change that was found, the worst first, among `checked` variants."""

    checked: int
    changes: tuple[Change, ...]

    @property
    def worst(self) -> Severity | None:
        """How much the worst change matters; None when nothing changed."""
        return self.changes[0].severity if self.changes else None

    @property
    def regressions(self) -> Report:
        """Those changes alone that are worse beyond their limits, and kernels that are gone."""
        kept = (c for c in self.changes if c.regression or c.severity is Severity.BROKEN)
        return Report(self.checked, tuple(kept))

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        found = [
            {
                "severity": str(change.severity),
                "kernel": change.variant.kernel,
                "variant": str(change.variant),
                "fact": change.fact,
                "before": change.before,
                "after": change.after,
                "regression": change.regression,
            }
            for change in self.changes
        ]
        return {"checked": self.checked, "worst": str(self.worst or "none"), "changes": found}

    def __str__(self) -> str:
        lines: list[str] = []
        for severity, of_it in groupby(self.changes, lambda change: change.severity):
            lines.append(str(severity))
            for variant, facts in groupby(of_it, lambda change: change.variant):
                lines += [f"  {variant}", *(f"    {fact}" for fact in facts)]
        changed = len({change.variant for change in self.changes})
        return "\n".join([*lines, f"{changed} of {self.checked} kernels changed"])


def rebuilt(
    lock: Lock, toolchain: Toolchain | None = None, *, numerics: bool = True, jobs: int = 1
) -> Iterator[Outcome]:
    """Every pinned variant built again, here or with another assembler, as they end."""
    work = functools.partial(pin, toolchain=toolchain, numerics=numerics)
    return work_on([old.variant for old in lock], work, jobs)


def report_of(lock: Lock, outcomes: Sequence[Outcome]) -> Report:
    """What changed, given the outcomes of `rebuilt`."""
    broken = [
        Change(Severity.BROKEN, outcome.variant, "build", "built", outcome.problem)
        for outcome in outcomes
        if outcome.problem
    ]
    return _report(lock, Lock(o.result for o in outcomes if not o.problem), broken)


def compare(before: Lock, after: Lock) -> Report:
    """What differs between two locks; a variant that `after` lacks is broken."""
    gone = [
        Change(Severity.BROKEN, old.variant, "pin", "pinned", "absent")
        for old in before
        if after.get(old.variant) is None
    ]
    return _report(before, after, gone)


def _report(before: Lock, after: Lock, broken: Iterable[Change]) -> Report:
    found = list(broken)
    for old in before:
        new = after.get(old.variant)
        found += changes(old, new) if new else ()
    return Report(len(before), tuple(sorted(found, key=lambda c: (-c.severity, c.variant))))
