"""What warps wait for, in words and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kdsl_core.loc import Loc
from kdsl_core.records import dataclass
from kdsl_core.sim.parties import Dim3, party_dict, span_text


@dataclass(frozen=True)
class Awaited:
    """A barrier that did not complete: `name`, and for an mbarrier its number in a ring as `stage`.

    `pending` of `count` arrivals are missing (warps at a barrier of the block or the cluster), and
    `missing_bytes` of transfers, negative when too many came; None where nothing is counted.
    `parity` is that of the phase waited for.
    """

    name: str
    stage: int | None = None
    phase: int | None = None
    parity: int | None = None
    pending: int | None = None
    count: int | None = None
    missing_bytes: int = 0

    def __str__(self) -> str:
        if self.count is None or self.pending is None:
            return self.name
        if self.phase is None:
            return f"{self.name} ({self.count - self.pending} of {self.count} warps arrived)"
        text = f"phase {self.phase}: {self.pending} of {self.count} arrivals pending"
        if self.missing_bytes:
            state = "missing" if self.missing_bytes > 0 else "too many"
            text += f", {abs(self.missing_bytes)} bytes {state}"
        return f"{self.name} ({text})"


@dataclass(frozen=True)
class Wait:
    """Warps of one block that wait at one line for one barrier.

    `arrivers` say who of those that still run could arrive there, and at which line.
    """

    warps: tuple[int, ...]
    block: Dim3
    rank: int | None
    loc: Loc | None
    awaited: Awaited
    arrivers: tuple[str, ...] = ()

    @property
    def who(self) -> str:
        """The warps, with their role and, in a cluster, their block."""
        some = [*([self.loc.role] if self.loc and self.loc.role else [])]
        some += [] if self.rank is None else [f"rank {self.rank} of the cluster"]
        text = f"warp{'s' if len(self.warps) > 1 else ''} {span_text(list(self.warps))}"
        return f"{text} ({', '.join(some)})" if some else text

    def __str__(self) -> str:
        text = f"{self.who} wait{'' if len(self.warps) > 1 else 's'}"
        text += f" at {self.loc.short()}" if self.loc else ""
        parity = self.awaited.parity
        text += f" for {'' if parity is None else f'parity {parity} of '}{self.awaited}"
        if self.awaited.count is None:
            return text
        return f"{text}; could still arrive: {', '.join(self.arrivers) or 'nobody'}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "warps": list(self.warps),
            "block": list(self.block),
            "rank": self.rank,
            "role": self.loc.role if self.loc else "",
            **party_dict(None, self.loc),
            "awaited": asdict(self.awaited),
            "could_still_arrive": list(self.arrivers),
        }
