"""The space of the Hopper GEMM: `kdsl tune gemm_sm90 --shapes m=4096,n=4096,k=4096,dtype=bf16`.

Beside the model's choices it has a grid of designs, so that the model can be wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.lang.spec import ArraySpec
from kdsl_fuse import arrays
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_config import ROOM, Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import (
    NARROW,
    Sm90Plan,
    candidates,
    problem_of,
    streaming,
)
from kdsl_fuse.kernels.gemm_sm90_table import KERNEL, Key, chosen_by, options_of
from kdsl_fuse.kernels.sum_parts import THREADS, SumShares, along_of, sum_parts
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Call, Space

RANKED = 32  # of the model's choices
TYPES = ("bf16", "f16")
BOUND = 5e-3  # of the largest element: bf16 rounds it by 2e-3
_BIG = (  # tile, options
    ((128, 256), {}), ((128, 256), {"group": 4}), ((128, 256), {"group": 16}),
    ((128, 256), {"cluster": (2, 1)}), ((128, 256), {"registers": ROOM}),
    ((256, 128), {}), ((256, 128), {"cluster": (1, 2)}),
    *(((128, width), {}) for width in (240, 224, 208, 192, 176, 160, 144, 128, 96, 64)),
    *(((64, width), {"schedule": "pingpong"}) for width in (256, 192, 128)),
    ((128, 128), {"schedule": "pingpong"}),
    ((128, 128), {"schedule": "pingpong", "cluster": (2, 1)}),
    *(((64, width), {"consumers": 1}) for width in (192, 160, 128, 96, 64, 32)),
    *(((64, width), {"consumers": 1, "cluster": (2, 1)}) for width in (128, 64)),
)  # fmt: skip
_PARTS = (  # peers, splits
    *((peers, 1) for peers in (1, 2, 4, 8)),
    *((1, splits) for splits in (2, 3, 4, 8, 16, 32, 64, 128)),
    *((2, splits) for splits in (2, 4, 8, 16, 32, 64)),
)


# -- what may be chosen ----------------------------------------------------------------------------
def designs(m: int, n: int, k: int, dtype: DType) -> Iterator[Sm90Plan]:
    """Plans that fit the chip, from a grid of tiles, depths and splits of K."""
    problem = problem_of(m, n, k, dtype)
    for (tile, options), (peers, splits), swap in itertools.product(
        _tiles(m, n), _PARTS, (False, True)
    ):
        rows, columns = (n, m) if swap else (m, n)
        blocks = -(-rows // tile[0]) * -(-columns // tile[1]) * peers * splits
        split = peers * splits > 1
        if tile[1] >= columns + 64 or (split and (blocks > 264 or len(options) > 1)):
            continue
        for depth, room in itertools.product((64, 128), (1, 2)):
            try:
                config = Sm90Config((*tile, depth), 2, peers=peers, splits=splits, **options)
            except kd.KdslError:
                continue
            side = problem.swapped if swap else problem
            fitted = model.fit(config, side, room) if room == 1 or config.consumers == 1 else None
            if fitted is not None and k >= 2 * depth * peers * splits:
                plan = Sm90Plan(problem, fitted, swap)
                yield plan
                if min(m, n) <= NARROW and not split:
                    yield streaming(plan)


def _tiles(m: int, n: int) -> Iterator[tuple[tuple[int, int], dict[str, object]]]:
    narrow = -(-min(m, n) // 8) * 8
    if narrow <= 256:
        for rows in (64, 128):
            yield (rows, narrow), {"consumers": rows // 64}
            yield (rows, narrow), {"consumers": rows // 64, "cluster": (2, 1)}
        for waves in (1, 2):
            width = -(-max(m, n) // (132 * waves * 8)) * 8
            if 16 <= width <= 256:
                yield (64 if narrow <= 64 else 128, width), {"consumers": 1 + (narrow > 64)}
    if narrow > 64:
        yield from _BIG


def types_of(problem: Problem) -> tuple[DType, DType]:
    """The types of the operands and of the result, which is theirs where none is named."""
    dtype = dtype_of(problem["dtype"])
    return dtype, dtype_of(problem.values.get("result", dtype))


def _sizes(problem: Problem) -> tuple[int, int, int]:
    return problem.size("m"), problem.size("n"), problem.size("k")


def plans(problem: Problem) -> Iterator[Config]:
    """The options of the model's first choices and of the designs, each once."""
    dtype, result = types_of(problem)
    first = candidates(*_sizes(problem), dtype, result, limit=RANKED)
    seen = set()
    for plan in itertools.chain(first, designs(*_sizes(problem), dtype)):
        if str(plan) not in seen:
            seen.add(str(plan))
            yield options_of(plan.config, plan.swap)


def plan_of(problem: Problem, config: Config) -> Sm90Plan:
    """The plan of a configuration."""
    return Sm90Plan(problem_of(*_sizes(problem), *types_of(problem)), *chosen_by(config))


def predicted(problem: Problem, config: Config) -> float:
    """The model's cycles of a configuration."""
    return plan_of(problem, config).cycles


def known_types(problem: Problem, config: Config) -> str | None:
    """Operands are f16 or bf16: others need scales, which this space has none for."""
    dtype, _ = types_of(problem)
    return None if dtype.name in TYPES else f"{dtype} is not one of {', '.join(TYPES)}"


def whole_pitches(problem: Problem, config: Config) -> str | None:
    """TMA takes rows of A and W as they are."""
    pitch = problem.size("k") * types_of(problem)[0].bytes
    return None if pitch % 16 == 0 else f"rows of {pitch} bytes are no multiple of 16"


# -- what it launches, and what is right -----------------------------------------------------------
def tensors(problem: Problem) -> Mapping[str, ArraySpec]:
    """A (m, k), W (n, k) and C = A · Wᵀ (m, n)."""
    (m, n, k), (dtype, result) = _sizes(problem), types_of(problem)
    return {"a": kd.spec(dtype, (m, k)), "w": kd.spec(dtype, (n, k)), "c": kd.spec(result, (m, n))}


def parts(problem: Problem, config: Config) -> Mapping[str, ArraySpec]:
    """The parts of the sums, each laid out like C, where K is split."""
    plan, (m, n, _), (dtype, _) = plan_of(problem, config), _sizes(problem), types_of(problem)
    return split_sums(m, n, plan.config.splits, plan.swap, model.accumulator(dtype))


def calls(problem: Problem, config: Config, given: Mapping[str, Any]) -> Sequence[Call]:
    """The product, and where K is split, the sum of its parts."""
    plan = plan_of(problem, config)
    operands = (given["w"], given["a"]) if plan.swap else (given["a"], given["w"])
    c = _transposed(given["c"]) if plan.swap else given["c"]
    return launched(plan.launch, operands, c, given.get("parts"), {"config": plan.config})


def launched(
    launch: Any, operands: Sequence[Any], c: Any, parts: Any, statics: Mapping[str, Any]
) -> Sequence[Call]:
    """The launch that computes C, or its `parts`, and the one that adds these up."""
    statics = {"epilogue": identity, **statics}
    splits = statics["config"].splits
    if splits == 1:
        return [Call(launch, (*operands, c), statics)]
    shares = SumShares.of(c.shape, along_of(c), splits)
    summing = sum_parts.configure(grid=shares.grid, block=THREADS, overlap=True)
    return [
        Call(launch, (*operands, parts), statics),
        Call(summing, (parts, c), {"epilogue": identity, **shares.statics}),
    ]


def split_sums(m: int, n: int, splits: int, swap: bool, dtype: Any) -> Mapping[str, ArraySpec]:
    """The parts of the sums of a result (m, n), each laid out like it; none where K is whole."""
    if splits == 1:
        return {}
    shape, strides = ((n, m), (1, n)) if swap else ((m, n), (n, 1))
    return {"parts": kd.spec(dtype, (*shape, splits), strides=(*strides, m * n))}


def _transposed(c: Any) -> Any:
    if isinstance(c, ArraySpec):
        return kd.spec(c.dtype, c.shape[::-1], strides=c.strides[::-1])
    return arrays.transposed(c)


def reference(problem: Problem, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The product in f32 by NumPy."""
    a, w = (given[name].astype(np.float32) for name in ("a", "w"))
    return {"c": a @ w.T}


def shape_class(problem: Problem) -> Problem:
    """Products of f16 and of bf16 share their entries."""
    return Key.of(*_sizes(problem), *types_of(problem)).problem


SPACE = Space(
    KERNEL,
    options=plans,
    constraints=(known_types, whole_pitches),
    tensors=tensors,
    scratch=parts,
    calls=calls,
    reference=reference,
    bound=BOUND,
    model=predicted,
    shape_class=shape_class,
)
