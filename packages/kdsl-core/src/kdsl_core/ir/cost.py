"""What executing an instruction costs, in the words of the counters."""

from __future__ import annotations

from collections.abc import Mapping

from kdsl_core.records import dataclass


@dataclass(frozen=True)
class Cost:
    """What one execution adds to counters, for a warp and for each of its active lanes."""

    warp: Mapping[str, float]
    lane: Mapping[str, float]
