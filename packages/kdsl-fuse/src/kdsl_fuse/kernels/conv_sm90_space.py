"""Configurations of the Hopper convolution that are worth measuring beside the model's choices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90_plan import ConvPlan, candidates, plan_of
from kdsl_fuse.kernels.gemm_sm90_config import ROOM, Sm90Config

_TILES: tuple[tuple[tuple[int, int], dict[str, Any]], ...] = (  # tile, options
    ((128, 256), {}), ((128, 256), {"cluster": (2, 1)}), ((128, 256), {"registers": ROOM}),
    ((256, 128), {}), ((256, 128), {"cluster": (1, 2)}), ((256, 64), {}), ((256, 96), {}),
    *(((128, width), {}) for width in (224, 208, 192, 176, 160, 128, 64)),
    *(((64, width), {"schedule": "pingpong"}) for width in (256, 224, 192, 128)),
    *(((128, width), {"schedule": "pingpong"}) for width in (128, 64)),
    ((128, 192), {"schedule": "pingpong", "registers": ROOM}),
    ((192, 128), {"schedule": "pingpong", "registers": ROOM}),
    ((192, 128), {"consumers": 3}), ((192, 64), {"consumers": 3}),
    *(((64, width), {"consumers": 1}) for width in (256, 128, 64)),
)  # fmt: skip
_DEPTHS = (64, 128, 192, 224)
_MOST_STEPS = 4  # of a filter that a whole stage may hold


def designs(problem: ConvProblem, dtype: DType) -> Iterator[ConvPlan]:
    """The model's first choices, and plans from a grid of tiles, depths and orders of operands."""
    yield from candidates(problem, dtype, limit=6)
    for (tile, options), depth, swap in itertools.product(_TILES, _DEPTHS, (False, True)):
        plan = plan_of(problem, dtype, swap=swap)
        side = plan.product.problem.swapped if swap else plan.product.problem
        wide = tile[0] >= 2 * max(side.m, 64) or tile[1] >= side.n + 64
        whole = depth <= 64 or depth == side.k or side.k > _MOST_STEPS * depth
        if wide or not whole or (plan.panel and depth % plan.panel):
            continue
        config = Sm90Config((*tile, depth), 2, **options)
        for blocks in (1, 2):
            fitted = model.fit(config, side, blocks)
            if fitted is not None:
                yield replace(plan, product=replace(plan.product, config=fitted))
