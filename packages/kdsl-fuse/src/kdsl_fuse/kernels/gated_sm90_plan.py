"""Gated products on Hopper ready to launch: which configuration, and the function of the pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gated_sm90 import gated_sm90
from kdsl_fuse.kernels.gemm_sm90_config import ROOM, Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import (
    MULTIPROCESSORS,
    NARROW,
    Sm90Plan,
    by_turns,
    deepest_rings,
    problem_of,
    ranked,
    streaming,
)
from kdsl_fuse.kernels.repitch import addressable

CROWDED = 128  # accumulators of a thread that leave too few of 168 registers for extras


@dataclass(frozen=True)
class GatedPlan:
    """One way to compute C[m, n] = f(A[m, k] · Wg[n, k]ᵀ, A · Wuᵀ).

    `both` plans the tiles of the two products side by side, as one of 2 n columns, with `swap`
    transposed.
    """

    both: Sm90Plan

    def __str__(self) -> str:
        return str(self.both)

    @property
    def statics(self) -> dict[str, Any]:
        """What the kernel is specialised for, beside the epilogue."""
        return {"config": self.both.config, "swap": self.both.swap}

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        return self.both.configured(gated_sm90)

    def with_room(self) -> GatedPlan:
        """The plan, its threads with registers for extras beside 128 accumulators."""
        config = self.both.config
        if config.accumulators < CROWDED or config.registers:
            return self
        # Blocks of a cluster whose threads trade registers were seen to err (docs/facts.md).
        roomy = replace(config, cluster=(1, 1), registers=ROOM)
        return GatedPlan(replace(self.both, config=roomy))

    def run(
        self, a: Any, gate: Any, up: Any, c: Any, *extras: Any, epilogue: Callable[..., Any]
    ) -> None:
        """C = epilogue(A · gateᵀ, A · upᵀ, extras…), on the arrays' current stream.

        Extras have C's shape, perhaps by broadcasting. Operands that TMA cannot address are copied.
        """
        operands = addressable((a, gate, up))
        self.launch(*operands, c, *extras, epilogue=epilogue, **self.statics)


@cache
def gated(act: Callable[[Any], Any]) -> Callable[..., Any]:
    """The epilogue act(gate + its bias) * (up + its bias); two biases or none follow the products.

    `act` is a pointwise function of an f32. Equal functions give one epilogue, hence one kernel.
    """

    def epilogue(gate: Any, up: Any, *biases: Any) -> Any:
        for bias in biases[:1]:
            gate = gate + bias.to(kd.f32)
        for bias in biases[1:]:
            up = up + bias.to(kd.f32)
        return act(gate) * up

    return epilogue


def silu(x: Any) -> Any:
    """x · sigmoid(x), by the hardware's exponential and reciprocal: within 4 ulp of f32."""
    return x * kd.sigmoid(x, approx=True)


def gelu(x: Any) -> Any:
    """x · Φ(x) by the tanh formula, as 1 − 2 / (e²ʸ + 1) through the hardware's exponential."""
    inner = x * kd.fma(2 * 0.044715 * _SQRT_2_OVER_PI, x * x, 2 * _SQRT_2_OVER_PI)
    return x * kd.sigmoid(inner, approx=True)


_SQRT_2_OVER_PI = 0.7978845608028654
_LARGE = (  # worth measuring beside what the model finds
    Sm90Config((128, 256, 64), 2),
    Sm90Config((128, 256, 64), 2, registers=ROOM),
    Sm90Config((128, 256, 64), 2, registers=ROOM, group=16),
    Sm90Config((128, 256, 64), 2, cluster=(2, 1)),
    Sm90Config((256, 128, 64), 2, registers=ROOM),
    Sm90Config((128, 128, 64), 2, "pingpong"),
    Sm90Config((128, 128, 64), 2, "pingpong", cluster=(2, 1)),
    Sm90Config((64, 256, 64), 2, "pingpong", registers=ROOM),
)
_SWAPPED = (  # rows of both weights in a tile, warp groups, schedule
    (128, 1, "cooperative"),
    (128, 2, "pingpong"),
    (256, 2, "cooperative"),
)
_CLUSTERS = ((1, 2), (1, 1), (2, 1))
_ALIKE = 1.03  # times the least cycles, of plans that the model cannot rank
_FEW = 32  # rows of A, beyond which the weights are no longer all that counts


def choose(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    result: DType | None = None,
    *,
    multiprocessors: int = MULTIPROCESSORS,
    extras: bool = False,
) -> GatedPlan:
    """The plan for C (m, n), f16 or bf16 operands; results are of `dtype` unless `result` differs.

    What was fastest for few rows, or the model's first choice; of many rows, where each
    multiprocessor gets several tiles, warp groups take turns, so that the activations of one tile
    hide behind the products of the next. `extras` says whether the epilogue reads any, for which
    threads need registers.
    """
    first = _first(m, n, k, dtype, result, multiprocessors)
    plan = first if m <= NARROW else GatedPlan(by_turns(first.both))
    return plan.with_room() if extras else plan


@lru_cache(maxsize=1024)
def _first(
    m: int, n: int, k: int, dtype: DType, result: DType | None, multiprocessors: int
) -> GatedPlan:
    both = replace(problem_of(m, n, k, dtype, result), n=2 * n)
    return GatedPlan(next(_in_order(both, multiprocessors, limit=1)))


def _of_few_rows(both: model.Problem, multiprocessors: int) -> Iterator[Sm90Plan]:
    """What an H200 took least time for: weights as rows of tiles, streamed.

    None of many rows, or where most multiprocessors would get no tile. Two blocks share weights by
    multicast, with half of A's rows each as columns; eight columns go to one block whose warp
    groups take turns. Where some multiprocessors get no tile, rings are so small that blocks of the
    next launch find room beside them.
    """
    rows, columns, blocks = 128, _columns(both), 1
    if both.m > _FEW or 2 * both.n < rows * multiprocessors:
        return
    if both.n <= rows * multiprocessors and columns <= 16:
        config, blocks = Sm90Config((rows, columns, 64), 2, consumers=1), 2
    elif columns == 8:
        config = Sm90Config((rows, columns, 128), 2, "pingpong")
    else:
        config = Sm90Config((rows, columns // 2, 128), 2, consumers=1, cluster=(1, 2))
    fitted = model.fit(config, both.swapped, blocks)
    if fitted is not None:
        yield streaming(Sm90Plan(both, fitted, True, multiprocessors))


def _columns(both: model.Problem) -> int:
    """Columns of a tile with all rows of A: eight, or so many that two blocks can share them."""
    return 8 if both.m <= 8 else -(-both.m // 16) * 16


def candidates(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    result: DType | None = None,
    *,
    multiprocessors: int = MULTIPROCESSORS,
    limit: int = 8,
) -> list[GatedPlan]:
    """The `limit` plans that the model finds fastest, then others that some products may prefer.

    Plans that differ only in the depth of their rings count once, with the deepest. Those of few
    rows come again streaming their weights, and then as many that give the weights the side of the
    rows; first of all comes what was fastest for them.
    """
    both = replace(problem_of(m, n, k, dtype, result), n=2 * n)
    return [GatedPlan(plan) for plan in dict.fromkeys(_in_order(both, multiprocessors, limit))]


def _in_order(both: model.Problem, multiprocessors: int, limit: int) -> Iterator[Sm90Plan]:
    """The plans of `candidates`, some of them twice."""
    narrow = both.m <= NARROW
    if narrow:
        yield from _of_few_rows(both, multiprocessors)
    first = deepest_rings(filter(_takes_pairs, ranked(both, multiprocessors)), limit)
    if narrow:
        yield from first
        yield from map(streaming, first)
        yield from _swapped(both, multiprocessors)[:limit]
    else:
        large = (model.fit(config, both, 1) for config in _LARGE)
        others = (Sm90Plan(both, config, False, multiprocessors) for config in large if config)
        yield from deepest_rings([*first, *others])


def _takes_pairs(plan: Sm90Plan) -> bool:
    c = plan.config
    whole = c.peers * c.splits == 1 and not plan.swap
    return whole and c.tile[1] % (16 * c.cluster[0]) == 0


def _swapped(both: model.Problem, multiprocessors: int) -> list[Sm90Plan]:
    """Plans whose tiles have rows of weights, and all rows of A as columns; they stream weights.

    The model tells few of them apart: those that it finds as fast as its first stay in the order of
    what was fastest on an H200.
    """
    side, columns = both.swapped, _columns(both)
    clusters = _CLUSTERS if columns % 16 == 0 else ((1, 1),)
    cycles = {}
    for blocks, cluster, depth, (rows, consumers, schedule) in itertools.product(
        (1, 2), clusters, (128, 64), _SWAPPED
    ):
        tile = rows, columns // cluster[1], depth
        config = Sm90Config(tile, 2, schedule, consumers, cluster=cluster)
        fitted = model.fit(config, side, blocks)
        if fitted is not None:
            cycles[fitted] = model.cycles(side, fitted, multiprocessors)
    alike = _ALIKE * min(cycles.values())
    order = sorted(cycles, key=lambda config: max(cycles[config], alike))
    return [streaming(Sm90Plan(both, config, True, multiprocessors)) for config in order]
