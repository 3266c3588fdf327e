"""What a comparison found: the facts of one output, for people and for tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kdsl_core.sim import Hazard
from kdsl_core.sim.writers import Writer


class Kind(IntEnum):
    """What a difference looks like; the number is the exit code of `kdsl compare`."""

    EQUAL = 0
    ORDER = 3
    PREDICATE = 4
    TILE = 5
    RACE = 6
    UNKNOWN = 7

    @property
    def words(self) -> str:
        """As a sentence names it."""
        return _WORDS[self]


_HAZARDS = 3  # that are shown in full
_WORDS = {
    Kind.EQUAL: "no difference",
    Kind.ORDER: "another accumulation order",
    Kind.PREDICATE: "a wrong predicate",
    Kind.TILE: "a missing tile",
    Kind.RACE: "a race",
    Kind.UNKNOWN: "nothing known",
}


@dataclass(frozen=True)
class Tile:
    """The elements of an output that one block writes: where they begin, and how many per mode."""

    block: tuple[int, int, int]
    origin: tuple[int, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        at, size = ", ".join(map(str, self.origin)), " × ".join(map(str, self.shape))
        return f"of block {self.block}: {size} elements from [{at}]"


@dataclass(frozen=True)
class Element:
    """An element that differs, and what is known of its making."""

    coordinate: tuple[int, ...]
    got: str
    want: str
    tile: Tile | None = None
    writer: Writer | None = None
    k: tuple[int, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        who, loc = (self.writer.who, self.writer.loc) if self.writer else (None, None)
        return {
            "coordinate": list(self.coordinate), "got": self.got, "recorded": self.want,
            "tile": self.tile and {
                "block": list(self.tile.block), "origin": list(self.tile.origin),
                "shape": list(self.tile.shape),
            },
            "warp": who and who.warp, "lane": who and who.lane,
            "register": (self.writer and self.writer.register) or None,
            "line": loc and loc.short(), "k": self.k and list(self.k),
        }  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One output of one run against what was recorded.

    `count` of `size` elements are not equal "bit by bit", or within what `allowed` says.
    """

    name: str
    dtype: str
    run: str
    count: int
    size: int
    allowed: str
    kind: Kind
    first: Element | None = None
    reasons: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "output": self.name, "dtype": self.dtype, "run": self.run, "differ": self.count,
            "elements": self.size, "allowed": self.allowed, "looks_like": self.kind.words,
            "first": self.first and self.first.as_json(), "reasons": list(self.reasons),
        }  # fmt: skip

    def __str__(self) -> str:
        head = f"{self.name} ({self.dtype}), {self.run}: "
        if not self.count:
            lines = [f"{head}all {self.size:,} elements are equal ({self.allowed})"]
        else:
            lines = [f"{head}{self.count:,} of {self.size:,} elements differ ({self.allowed})"]
        lines += self._first()
        if self.kind is not Kind.EQUAL:
            lines.append(f"  looks like {self.kind.words}")
        return "\n".join([*lines, *(f"    {reason}" for reason in self.reasons)])

    def _first(self) -> list[str]:
        """The rows about the first element."""
        if self.first is None:
            return []
        first, at = self.first, ", ".join(map(str, self.first.coordinate))
        rows = [("first", f"{self.name}[{at}]: got {first.got}, recorded {first.want}")]
        rows.append(("tile", str(first.tile or "not known: nobody wrote this element")))
        if first.writer is not None:
            who, loc = first.writer.who, first.writer.loc
            register = first.writer.register or "none: it came from memory"
            rows += [("warp", f"{who.warp}, lane {who.lane}"), ("register", register)]
            rows += [("stored at", loc.short())] if loc else []
        step = f"k = {first.k[0]} … {first.k[1] - 1}" if first.k else "not known"
        rows.append(("k-step", step))
        return [f"  {name:<10}{text}" for name, text in rows]


@dataclass(frozen=True)
class Comparison:
    """All outputs of a kernel, and what the simulator found besides."""

    kernel: str
    findings: Sequence[Finding]
    hazards: Sequence[Hazard] = ()

    @property
    def kind(self) -> Kind:
        """The worst of all."""
        return max([finding.kind for finding in self.findings], default=Kind.UNKNOWN)

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "kernel": self.kernel, "looks_like": self.kind.words, "exit_code": int(self.kind),
            "outputs": [finding.as_json() for finding in self.findings],
            "hazards": [hazard.to_dict() for hazard in self.hazards],
        }  # fmt: skip

    def __str__(self) -> str:
        shown, more = self.hazards[:_HAZARDS], len(self.hazards) - _HAZARDS
        found = [f"the simulator found a hazard:\n{hazard}" for hazard in shown]
        found += [f"… and {more} more, which --format json lists"] if more > 0 else []
        head = f"{self.kernel} against the recording"
        return "\n\n".join([head, *map(str, self.findings), *found])
