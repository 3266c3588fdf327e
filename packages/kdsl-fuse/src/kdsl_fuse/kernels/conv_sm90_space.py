"""The space of the Hopper convolution: `kdsl tune conv_sm90 --shapes batch=64,height=56,…`.

Beside the model's choices it has a grid of designs, so that the model can be wrong.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.lang.spec import ArraySpec
from kdsl_fuse import arrays
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90_plan import ConvPlan, candidates, plan_of, refusal
from kdsl_fuse.kernels.conv_sm90_table import KERNEL
from kdsl_fuse.kernels.conv_tables import conv_of, key_of
from kdsl_fuse.kernels.gemm_sm90_config import ROOM, Sm90Config
from kdsl_fuse.kernels.gemm_sm90_space import BOUND, launched, split_sums, types_of
from kdsl_fuse.kernels.gemm_sm90_table import chosen_by, options_of
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Call, Space

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
_LINE = 64  # channels of narrow groups that the reference multiplies together
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


# -- the tuner's space -----------------------------------------------------------------------------
def shape_class(problem: Problem) -> Problem:
    """Convolutions of f16 and of bf16 share their entries, for results without a matrix."""
    return key_of(conv_of(problem), *types_of(problem), reads=False)


def plans(problem: Problem) -> Iterator[Config]:
    """The options of the model's first choices and of the designs, each once."""
    seen = set()
    for plan in designs(conv_of(problem), types_of(problem)[0]):
        if str(plan) not in seen:
            seen.add(str(plan))
            yield options_of(plan.config, plan.product.swap)


def _plan(problem: Problem, config: Config) -> ConvPlan:
    return plan_of(conv_of(problem), *types_of(problem), *chosen_by(config))


def predicted(problem: Problem, config: Config) -> float:
    """The model's cycles of a configuration."""
    product = _plan(problem, config).product
    side = product.problem.swapped if product.swap else product.problem
    return model.cycles(side, product.config, product.multiprocessors)


def windows_as_they_are(problem: Problem, config: Config) -> str | None:
    """One group of windows that TMA walks over without a copy; others are tuned as products."""
    conv, (dtype, _) = conv_of(problem), types_of(problem)
    plan, reason = plan_of(conv, dtype), refusal(conv, dtype)
    if reason is None and (plan.panel is None or plan.packing is not None or conv.groups > 1):
        return "it is a matrix product, several groups, or packed first"
    return reason


def tensors(problem: Problem) -> Mapping[str, ArraySpec]:
    """Images x, filters w and the result."""
    p, (dtype, result) = conv_of(problem), types_of(problem)
    taps = p.kernel[0] * p.kernel[1]
    pixels = p.batch * p.output[0] * p.output[1]
    return {
        "x": kd.spec(dtype, (p.batch, p.height, p.width, p.channels)),
        "w": kd.spec(dtype, (p.filters, taps, p.channels)),
        "out": kd.spec(result, (pixels, p.filters)),
    }


def parts(problem: Problem, config: Config) -> Mapping[str, ArraySpec]:
    """The parts of the sums, each laid out like the result, where K is split."""
    plan = _plan(problem, config)
    m, n = tensors(problem)["out"].shape
    return split_sums(m, n, plan.config.splits, plan.product.swap, kd.f32)


def calls(problem: Problem, config: Config, given: Mapping[str, Any]) -> Sequence[Call]:
    """The convolution, and where K is split, the sum of its parts."""
    plan = _plan(problem, config)
    operands = given["x"], _permuted(given["w"], (0, 2, 1))
    out = _permuted(given["out"], (1, 0)) if plan.product.swap else given["out"]
    return launched(plan.launch, operands, out, given.get("parts"), plan.statics)


def _permuted(x: Any, axes: tuple[int, ...]) -> Any:
    if isinstance(x, ArraySpec):
        return kd.spec(x.dtype, [x.shape[i] for i in axes], strides=[x.strides[i] for i in axes])
    return arrays.permuted(x, axes)


def reference(problem: Problem, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The convolution in f32 by NumPy, with the pixels of the result as rows."""
    p = conv_of(problem)
    return {"out": convolved(p, given["x"], given["w"]).reshape(-1, p.filters)}


def convolved(p: ConvProblem, x: Any, w: Any) -> Any:
    """The convolution in f32 by NumPy, one element of the filters after the other.

    Shapes: x (batch, height, width, channels), w filters of taps, each with the channels of a
    group; the result is (batch, rows, columns, filters).
    """
    rows, columns = p.output
    x = np.pad(x.astype(np.float32), [(0, 0), *((pad, pad) for pad in p.padding), (0, 0)])
    factors = _factors(p, w.astype(np.float32))
    _, lines, line, filters = factors.shape
    y = np.zeros((lines, p.batch * rows * columns, filters), np.float32)
    for (r, s), factor in zip(np.ndindex(*p.kernel), factors, strict=True):
        top, left = r * p.dilation[0], s * p.dilation[1]
        seen = x[:, top :: p.stride[0], left :: p.stride[1]][:, :rows, :columns]
        y += seen.reshape(-1, lines, line).swapaxes(0, 1) @ factor
    return y.swapaxes(0, 1).reshape(p.batch, rows, columns, p.filters)


def _factors(p: ConvProblem, w: Any) -> Any:
    """Filters as matrices (taps, lines, channels, filters) that NumPy multiplies fast.

    Several narrow groups make up a line, as blocks of its diagonal.
    """
    depth, filters = p.channels // p.groups, p.filters // p.groups
    together = math.gcd(p.groups, max(_LINE // depth, 1))
    lines, taps = p.groups // together, p.kernel[0] * p.kernel[1]
    blocks = w.reshape(lines, together, filters, taps, depth).transpose(3, 0, 1, 4, 2)
    found = np.zeros((taps, lines, together, depth, together, filters), np.float32)
    for i in range(together):
        found[:, :, i, :, i] = blocks[:, :, i]
    return found.reshape(taps, lines, together * depth, together * filters)


SPACE = Space(
    KERNEL,
    options=plans,
    constraints=(windows_as_they_are,),
    tensors=tensors,
    scratch=parts,
    calls=calls,
    reference=reference,
    bound=BOUND,
    model=predicted,
    shape_class=shape_class,
)
