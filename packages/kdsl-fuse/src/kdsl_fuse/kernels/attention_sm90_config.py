"""How blocks of the Hopper attention kernel compute their tiles."""

from __future__ import annotations

from dataclasses import dataclass

import kdsl_core as kd
from kdsl_fuse.kernels.attention_problem import MOST_DIM, check_names
from kdsl_fuse.kernels.gemm_sm90_config import GROUP, WARP

ROWS = 64  # of queries, for each warp group


@dataclass(frozen=True)
class Sm90AttentionConfig:
    """How a block computes its tiles.

    `dim` elements of each head are multiplied, zeros behind those that there are. `consumers` warp
    groups take 64 queries each; `columns` keys come at a time, and their values, through as many
    `stages` of shared memory each. `mask` is one of `MASKS`, `layout` of `LAYOUTS`. With `turns`
    two warp groups multiply alternately. `registers` are those of a thread of the producing and of
    the consuming warp groups; None gives the producer one warp.
    """

    dim: int
    columns: int
    stages: tuple[int, int] = (2, 2)
    consumers: int = 2
    mask: str | None = None
    layout: str = "bshd"
    turns: bool = True
    registers: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        shape = self.dim % 16 == 0 and 16 <= self.dim <= MOST_DIM
        shape = shape and self.columns % 16 == 0 and 16 <= self.columns <= MOST_DIM
        if not shape or not 1 <= self.consumers <= 3 or min(self.stages) < 1:
            raise kd.ArgumentError(
                f"heads have a multiple of 16 elements, keys come by a multiple of 16, both up to "
                f"{MOST_DIM}, for 1 to 3 warp groups in 1 stage or more, got {self}",
                code="K950",
                fix="take what `choose` gives as an example",
            )
        check_names(self.mask, self.layout)
        if self.turns and self.consumers != 2:
            raise kd.ArgumentError(
                f"two warp groups take turns, got {self.consumers}",
                code="K952",
                fix="pass turns=False",
            )

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return ROWS * self.consumers

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return GROUP * self.consumers + (WARP if self.registers is None else GROUP)
