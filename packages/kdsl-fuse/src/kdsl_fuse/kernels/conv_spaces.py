"""The spaces of convolutions in groups: `kdsl tune conv_grouped --shapes batch=64,height=56,…`.

`conv_depthwise` is the one where each channel is a group. Both are of the kernels for Hopper; those
for other targets choose by sizes alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import kdsl_core as kd
from kdsl_core.ir.target import target_of
from kdsl_core.lang.spec import ArraySpec
from kdsl_fuse.kernels import conv_depthwise_model, conv_depthwise_plan, conv_grouped_plan
from kdsl_fuse.kernels import conv_depthwise_space as depthwise
from kdsl_fuse.kernels import conv_depthwise_table as depthwise_table
from kdsl_fuse.kernels import conv_grouped_table as grouped_table
from kdsl_fuse.kernels.conv_depthwise_plan import DepthwisePlan
from kdsl_fuse.kernels.conv_grouped_plan import GroupedPlan
from kdsl_fuse.kernels.conv_sm90_space import convolved
from kdsl_fuse.kernels.conv_tables import ConvTable, conv_of
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_space import BOUND, types_of
from kdsl_runtime.dispatch import Config
from kdsl_runtime.problem import Problem
from kdsl_runtime.tune import Call, Space

TARGET = target_of("sm_90a")
VECTOR = 8  # channels of 16 bytes, which TMA wants strides to be multiples of


# -- what both have in common ----------------------------------------------------------------------
def tensors(problem: Problem) -> Mapping[str, ArraySpec]:
    """Images x (n, h, w, c), filters w (k, r, s, c / groups) and the result (n, p, q, k)."""
    p, (dtype, result) = conv_of(problem), types_of(problem)
    shapes = {
        "x": (p.batch, p.height, p.width, p.channels),
        "w": (p.filters, *p.kernel, p.channels // p.groups),
    }
    given = {name: kd.spec(dtype, shape) for name, shape in shapes.items()}
    return given | {"out": kd.spec(result, (p.batch, *p.output, p.filters))}


def same_type(problem: Problem, config: Config) -> str | None:
    """Results have the type of the images."""
    dtype, result = types_of(problem)
    return None if dtype is result else f"images are {dtype}, and so are results, not {result}"


def reference(problem: Problem, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The convolution in f32 by NumPy."""
    return {"out": convolved(conv_of(problem), given["x"], given["w"])}


def calls(
    plan_of: Callable[[Problem, Config], GroupedPlan | DepthwisePlan],
    problem: Problem,
    config: Config,
    given: Mapping[str, Any],
) -> Sequence[Call]:
    """One launch."""
    plan, operands = plan_of(problem, config), (given["x"], given["w"], given["out"])
    return [Call(plan.launch, operands, {"epilogue": identity, "config": plan.config})]


def shape_class(table: ConvTable[Any], problem: Problem) -> Problem:
    """Convolutions of f16 and of bf16 share their entries."""
    return table.key(conv_of(problem))


# -- groups of several channels --------------------------------------------------------------------
def grouped_configs(problem: Problem) -> Iterator[Config]:
    """Every way to share a step and its filters among warps, with the most stages that fit.

    Raises: ArgumentError K994 … K996 for a problem that the kernel does not take.
    """
    p, given = conv_of(problem), tensors(problem)
    conv_grouped_plan.problem_of(given["x"], given["w"], p.groups, p.stride, p.padding, p.dilation)
    found = dict.fromkeys(conv_grouped_plan.configs(p, TARGET))
    if not found:
        raise conv_grouped_plan.unfit_groups(p)
    return map(grouped_table.TABLE.options_of, found)


def grouped_plan(problem: Problem, config: Config) -> GroupedPlan:
    """The plan of a configuration."""
    p = conv_of(problem)
    return GroupedPlan(p, grouped_table.configured(p, **config))


def whole_vectors(problem: Problem, config: Config) -> str | None:
    """Pixels are whole vectors of 16 bytes, before and behind."""
    p = conv_of(problem)
    odd = [n for n in (p.channels, p.filters) if n % VECTOR]
    return f"pixels of {odd[0]} channels are no multiple of {VECTOR}" if odd else None


def room_for_groups(problem: Problem, config: Config) -> str | None:
    """A multiprocessor has the shared memory and the registers."""
    found = grouped_plan(problem, config).config
    return found.overfull(TARGET) or found.spilling


def grouped_cycles(problem: Problem, config: Config) -> float:
    """The model's cycles of a configuration."""
    return conv_grouped_plan.cycles(grouped_plan(problem, config))


GROUPED = Space(
    grouped_table.TABLE.kernel,
    options=grouped_configs,
    constraints=(same_type, whole_vectors, room_for_groups),
    tensors=tensors,
    calls=partial(calls, grouped_plan),
    reference=reference,
    bound=BOUND,
    model=grouped_cycles,
    shape_class=partial(shape_class, grouped_table.TABLE),
)


# -- each channel by itself ------------------------------------------------------------------------
def depthwise_configs(problem: Problem) -> Iterator[Config]:
    """What is chosen without tuning, and others with the largest tile that fits.

    Raises: ArgumentError K977 and K978 for a problem that no kernel takes.
    """
    p = conv_of(problem)
    conv_depthwise_plan.check(p, types_of(problem)[0])
    chosen = depthwise.first(p)
    first = [] if chosen is None else [chosen]
    found = dict.fromkeys(itertools.chain(first, depthwise.configs(p)))
    return map(depthwise_table.TABLE.options_of, found)


def depthwise_plan(problem: Problem, config: Config) -> DepthwisePlan:
    """The plan of a configuration."""
    p = conv_of(problem)
    return DepthwisePlan(p, depthwise_table.configured(p, **config))


def taken_by_hopper(problem: Problem, config: Config) -> str | None:
    """The Hopper kernel takes it; the portable one has nothing to tune."""
    return conv_depthwise_plan.refusal(conv_of(problem), types_of(problem)[0])


def room_for_channels(problem: Problem, config: Config) -> str | None:
    """A multiprocessor has the shared memory and the registers."""
    found = depthwise_plan(problem, config).config
    return depthwise.overfull(found) or depthwise.spilling(found)


def depthwise_tensors(problem: Problem) -> Mapping[str, ArraySpec]:
    """As of other convolutions, with the taps of a filter along one mode."""
    given, p = tensors(problem), conv_of(problem)
    taps = p.kernel[0] * p.kernel[1]
    return {**given, "w": kd.spec(given["w"].dtype, (p.filters, taps))}


def depthwise_cycles(problem: Problem, config: Config) -> float:
    """The model's cycles of a configuration; 0 for the one that is chosen without tuning."""
    plan = depthwise_plan(problem, config)
    if plan.config == depthwise.first(plan.problem):
        return 0.0
    return conv_depthwise_model.cycles(plan.problem, plan.config, plan.grid, plan.multiprocessors)


DEPTHWISE = Space(
    depthwise_table.TABLE.kernel,
    options=depthwise_configs,
    constraints=(same_type, taken_by_hopper, room_for_channels),
    tensors=depthwise_tensors,
    calls=partial(calls, depthwise_plan),
    reference=reference,
    bound=BOUND,
    model=depthwise_cycles,
    shape_class=partial(shape_class, depthwise_table.TABLE),
)
