"""Products whose rows are reduced, on Hopper, ready to launch: which configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_rows_sm90 import gemm_rows_sm90
from kdsl_fuse.kernels.gemm_sm90_config import WIDEST, Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import (
    MULTIPROCESSORS,
    Sm90Plan,
    deepest_rings,
    problem_of,
)
from kdsl_fuse.kernels.repitch import addressable
from kdsl_fuse.kernels.row_programs import RowProgram

_COLUMNS = 16  # that the width of a tile is a multiple of
_ROOM = (24, 240)  # registers of a producing and of a consuming thread, where some change hands
_CLOSE_US = 0.5  # 16384 × 128 × 768 on an H200: turns 0.3 µs behind in the model, 1 µs ahead there
_CROWDED = 96  # accumulators of a thread that leave too few of 168 registers


@dataclass(frozen=True)
class RowsOfProducts:
    """One way to compute a row program of A[m, k] · W[n, k]ᵀ, by tiles of whole rows.

    Units: `behind_us` is how much slower the model finds it than the fastest plan for the product.
    """

    plan: Sm90Plan
    columns: int
    behind_us: float

    def __str__(self) -> str:
        return str(self.plan)

    @property
    def config(self) -> Sm90Config:
        """How blocks compute their tiles."""
        return self.plan.config

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        return self.plan.configured(gemm_rows_sm90)

    def run(self, a: Any, w: Any, *arrays: Any, program: RowProgram) -> None:
        """Outputs, row outputs = program(A · Wᵀ, …), on the arrays' current stream.

        `arrays` are outputs, row outputs, inputs but the first, extras and row inputs. Operands
        that TMA cannot address are copied first.
        """
        operands: Sequence[Any] = addressable((a, w))
        self.launch(*operands, *arrays, program=program, config=self.config, columns=self.columns)


@lru_cache(maxsize=1024)
def choose(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    result: DType | None = None,
    *,
    multiprocessors: int = MULTIPROCESSORS,
) -> RowsOfProducts:
    """The plan that the model finds fastest for rows of up to 256 results.

    One with warp groups that take turns is preferred where it is close: the model knows products,
    and what is done with rows takes longer than their stores.
    """
    found = candidates(m, n, k, dtype, result, multiprocessors=multiprocessors)
    nearest = found[0].behind_us + _CLOSE_US
    turns = (x for x in found if x.behind_us <= nearest and _takes_turns(x.plan))
    return next(turns, found[0])


def candidates(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    result: DType | None = None,
    *,
    multiprocessors: int = MULTIPROCESSORS,
    limit: int = 8,
) -> list[RowsOfProducts]:
    """The plans that the model finds fastest, fastest first, each with its deepest ring."""
    assert n <= WIDEST, f"{n} columns are more than a tile holds"
    width = -(-n // _COLUMNS) * _COLUMNS
    problem = replace(problem_of(m, n, k, dtype, result), n=width)
    return deepest_rings(_ranked(problem, n, multiprocessors), limit)


def _ranked(problem: model.Problem, columns: int, multiprocessors: int) -> Iterator[RowsOfProducts]:
    """Every plan whose tiles hold whole rows, in the model's order."""
    ranked = model.rank(problem, multiprocessors)
    for cycles, swap, config in ranked:
        if not swap and _holds_rows(config, problem.n):
            plan = Sm90Plan(problem, _with_room(config), False, multiprocessors)
            behind_us = (cycles - ranked[0][0]) / model.CYCLES_PER_US
            yield RowsOfProducts(plan, columns, behind_us)


def _takes_turns(plan: Sm90Plan) -> bool:
    """Whether most blocks have two tiles, one of which is multiplied while the other is reduced."""
    return plan.config.pingpong and plan.tiles >= 1.5 * plan.multiprocessors


def _with_room(config: Sm90Config) -> Sm90Config:
    """Registers of the producing warps for those that hold half of theirs in accumulators.

    What is known of a row, and what its results read, is live beside all of its values.
    """
    if config.consumers == 1 or config.accumulators < _CROWDED:
        return config
    return replace(config, cluster=(1, 1), registers=_ROOM)


def _holds_rows(config: Sm90Config, width: int) -> bool:
    whole = config.peers * config.splits == 1
    return whole and config.tile[1] == width and config.cluster[1] == 1
