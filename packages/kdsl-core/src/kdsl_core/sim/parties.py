"""Who took part in a hazard: threads with their warp, role, block and place in the cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kdsl_core.loc import Loc
from kdsl_core.records import dataclass
from kdsl_core.sim.batch import Batch
from kdsl_core.sim.clocks import GROUP_WARPS
from kdsl_core.sim.groups import LANES

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Party:
    """A thread. `warp_group` is set in kernels with `wgmma`, `rank` in a cluster of blocks.

    `role` is what the author called the warps that execute its line (`kd.role`).
    """

    thread: Dim3
    lane: int
    warp: int
    block: Dim3
    warp_group: int | None = None
    role: str = ""
    rank: int | None = None

    @property
    def name(self) -> str:
        """The thread, without its block."""
        text = f"thread {tuple_text(self.thread)} in warp {self.warp}"
        group = [] if self.warp_group is None else [f"warp group {self.warp_group}"]
        more = [*group, *([self.role] if self.role else [])]
        return f"{text} ({', '.join(more)})" if more else text

    @property
    def home(self) -> str:
        """The block, with its place in the cluster."""
        text = f"block {tuple_text(self.block)}"
        return text if self.rank is None else f"{text} (rank {self.rank} of its cluster)"

    def __str__(self) -> str:
        return f"{self.name} of {self.home}"


def party(batch: Batch, first_block: int, warp: int, lane: int, loc: Loc | None) -> Party:
    """Lane `lane` of a warp of the cluster that starts at the linear block `first_block`.

    `warp` counts through the blocks of the cluster, `loc` is what the thread executed.
    """
    rank, local = divmod(warp, batch.warps_per_block)
    multiplies = batch.clocks.readers > batch.clocks.warps
    return Party(
        thread=batch.thread_at(local * LANES + lane),
        lane=lane,
        warp=local,
        block=batch.coordinate_in_cluster(first_block, rank),
        warp_group=local // GROUP_WARPS if multiplies else None,
        role=loc.role if loc else "",
        rank=rank if batch.blocks_per_cluster > 1 else None,
    )


def party_of(batch: Batch, row: int, lane: int, loc: Loc | None) -> Party:
    """Lane `lane` of the warp in a row of the batch."""
    return party(batch, int(batch.first_block[row]), int(batch.clocks.local[row]), lane, loc)


def party_dict(who: Party | None, loc: Loc | None) -> dict[str, Any]:
    """A thread and the lines that it executed, the author's first, as JSON has them."""
    at = {} if loc is None else {
        "file": loc.author.file, "line": loc.author.line, "column": loc.author.column,
        "calls": [{"file": file, "line": line} for file, line in loc.lines],
    }  # fmt: skip
    return {**at, **(asdict(who) if who else {})}


def tuple_text(values: tuple[int, ...]) -> str:
    """Numbers in brackets."""
    return f"({', '.join(map(str, values))})"


def span_text(numbers: list[int]) -> str:
    """Ascending numbers, runs of three and more as their ends: "0, 1, 4–7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return ", ".join(parts)
