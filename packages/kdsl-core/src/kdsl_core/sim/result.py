"""What a run found and counted, for people and for tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

from kdsl_core.records import dataclass
from kdsl_core.sim.allowances import Allowance
from kdsl_core.sim.hazards import Hazard
from kdsl_core.sim.profile import Profile
from kdsl_core.sim.writers import Writers


@dataclass(frozen=True, eq=False)
class Result:
    """The hazards of a run, those that the author allows apart, and its counters.

    `launch` says what ran, `written` names the tensors that the kernel may write, `writers` knows
    who wrote their elements, where that was asked for.
    """

    launch: str
    written: tuple[str, ...]
    hazards: tuple[Hazard, ...]
    allowed: tuple[Hazard, ...]
    profile: Profile
    writers: Writers | None
    _unused: Callable[[], Sequence[Allowance]]

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Comments that allow a hazard which this run did not find. Reads the kernel's source."""
        return tuple(map(str, self._unused()))

    def followed_by(self, later: Self) -> Self:
        """The results of this launch and a later one as one result."""
        return replace(
            self,
            launch=f"{self.launch}; {later.launch}",
            written=tuple(dict.fromkeys((*self.written, *later.written))),
            hazards=(*self.hazards, *later.hazards),
            allowed=(*self.allowed, *later.allowed),
            profile=self.profile + later.profile,
            writers=None,
            _unused=lambda: (*self._unused(), *later._unused()),
        )

    def report(self, *, profile: bool = False) -> str:
        """All of it as text; with `profile` the table of counters, too."""
        count, allowed = len(self.hazards), len(self.allowed)
        head = f"{self.launch}: {count or 'no'} hazard{'' if count == 1 else 's'}"
        parts = [f"{head}, {allowed} allowed" if allowed else head]
        parts += [str(hazard) for hazard in self.hazards]
        parts += [f"allowed ({hazard.reason}): {_brief(hazard)}" for hazard in self.allowed]
        parts += [f"warning: {text}" for text in self.warnings]
        if profile:
            parts.append(str(self.profile))
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it, without the counters."""
        return {
            "launch": self.launch,
            "hazards": [hazard.to_dict() for hazard in self.hazards],
            "allowed": [hazard.to_dict() for hazard in self.allowed],
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        found = ", ".join(hazard.code for hazard in self.hazards) or "no hazards"
        return f"<{type(self).__name__} of {self.launch}: {found}>"


def _brief(hazard: Hazard) -> str:
    """A hazard in one line."""
    places = [loc.short() for loc in (hazard.loc, hazard.other_loc) if loc]
    count = f" ({hazard.count:,} times)" if hazard.count > 1 else ""
    return f"{hazard.code} at {' and '.join(dict.fromkeys(places))}: {hazard.message}{count}"
