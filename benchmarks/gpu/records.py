"""Records of a GPU as `run.py` writes them: reading, and what they say of a shape."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
OURS = "kdsl"
Shape = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What was measured of one commit on one device."""

    path: Path
    content: dict[str, Any]

    @property
    def commit(self) -> str:
        """The commit's hash."""
        return str(self.content["commit"])

    @property
    def device(self) -> str:
        """The device's name."""
        return str(self.content["device"])

    @property
    def shapes(self) -> list[Shape]:
        """The shapes, each with its kernel and the programs that were timed by turns."""
        return list(self.content["shapes"])


def records(folder: Path) -> Iterator[Record]:
    """The records in a folder; other JSON files are left alone."""
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.get("format") == FORMAT and "shapes" in content:
            yield Record(path, content)


def known_at(kept: Iterable[Record], commits: Sequence[str]) -> list[Record]:
    """The records of these commits, oldest first; `commits` are newest first."""
    places = {commit: -i for i, commit in enumerate(commits)}
    return sorted((r for r in kept if r.commit in places), key=lambda r: places[r.commit])


def last_of_each(kept: Iterable[Record]) -> list[Shape]:
    """Each shape as it was measured last, of records that come oldest first.

    A record need not have every shape: GPUs are there for minutes.
    """
    found = {(s["kernel"], s["shape"]): s for record in kept for s in record.shapes}
    return list(found.values())


def best_peer(shape: Shape) -> tuple[str, float] | None:
    """The fastest other program and its µs."""
    peers = {name: side["us"] for name, side in shape["sides"].items() if name != OURS}
    name = min(peers, key=peers.__getitem__, default=None)
    return None if name is None else (name, peers[name])


def ratio(shape: Shape) -> float | None:
    """How many times faster kdsl is than the best peer; None where one of them is missing."""
    peer, ours = best_peer(shape), shape["sides"].get(OURS)
    return peer[1] / ours["us"] if peer and ours else None


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def summary(shapes: list[Shape]) -> str:
    """How many shapes have which programs, and the ratios to the best peer."""
    ratios = [r for r in map(ratio, shapes) if r]
    programs = sorted({name for shape in shapes for name in shape["sides"]})
    found = f", ratio {min(ratios):.2f} … {max(ratios):.2f}" if ratios else ""
    return f"{len(shapes)} shapes ({', '.join(programs)}){found}"
