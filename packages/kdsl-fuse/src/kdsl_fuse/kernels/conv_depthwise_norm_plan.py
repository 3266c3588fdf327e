"""Depthwise convolution and layer normalisation in one kernel, ready to launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import kdsl_core as kd
from kdsl_core.dtypes import DType
from kdsl_core.lang.arguments import facts_of
from kdsl_fuse import arrays
from kdsl_fuse.kernels import conv_depthwise_plan as plain
from kdsl_fuse.kernels import conv_depthwise_space as space
from kdsl_fuse.kernels.conv_depthwise_config import CLUSTERS, STRIP, DepthwiseConfig
from kdsl_fuse.kernels.conv_depthwise_norm import Normalised
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity

_MOMENTS = 24  # registers, about
# channels of a slab, slabs, blocks of a multiprocessor, stages; what is chosen first comes first
_WAYS = (
    (32, 3, 1, 2), (32, 2, 1, 2), (32, 1, 2, 2), (32, 1, 1, 2), (16, 3, 2, 2), (16, 3, 2, 1),
    (32, 1, 3, 1), (32, 1, 3, 2), (32, 2, 2, 1), (32, 3, 1, 1), (32, 2, 1, 1), (32, 1, 1, 1),
)  # fmt: skip


@dataclass(frozen=True)
class NormalisedPlan:
    """One way to normalise a convolution's results over all channels: a cluster for each tile."""

    problem: ConvProblem
    config: DepthwiseConfig

    def __str__(self) -> str:
        return f"{plain.DepthwisePlan(self.problem, self.config)} c{self.cluster}"

    @property
    def cluster(self) -> int:
        """Blocks that share the channels."""
        return self.problem.channels // self.config.tile_channels

    @property
    def grid(self) -> tuple[int, int]:
        """Parts of the channels, and clusters."""
        whole = plain.DepthwisePlan(self.problem, self.config, 1 << 20).grid[1]
        return self.cluster, min(whole, CLUSTERS[self.cluster] * self.config.blocks_per_sm)

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        kernel, c = KERNELS[self.config.blocks_per_sm], self.config
        cluster = (self.cluster, 1, 1) if self.cluster > 1 else None
        return kernel.configure(grid=self.grid, block=c.threads, cluster=cluster, overlap=True)

    def run(self, x: Any, w: Any, out: Any, *extras: Any, epilogue: Normalised) -> None:
        """out = epilogue(convolution, extras…), on the arrays' current stream.

        Filters are contiguous. Extras have out's shape, perhaps by strides of 0.
        """
        taps = plain.reshaped(w, (self.problem.filters, self.config.taps))
        self.launch(x, taps, out, *extras, epilogue=epilogue, config=self.config)


def refusal(problem: ConvProblem, dtype: DType, target: str = "sm_90a") -> str | None:
    """Why the convolution and its normalisation cannot share a kernel, None where they can."""
    reason = plain.refusal(problem, dtype, target)
    if reason is None and choose(problem) is None:
        reason = f"up to 8 blocks with 32, 64 or 96 channels each do not share {problem.channels}"
    return reason


@lru_cache(maxsize=1024)
def choose(problem: ConvProblem) -> NormalisedPlan | None:
    """The plan for these sizes; None where no cluster of blocks holds all channels."""
    return next(iter(candidates(problem)), None)


def candidates(problem: ConvProblem) -> list[NormalisedPlan]:
    """Plans that have room, the chosen one first."""
    p, base, found = problem, space.first(problem), []
    for channels, slabs, blocks, stages in _WAYS if base else ():
        parts, rest = divmod(p.channels, channels * slabs)
        if rest or parts not in CLUSTERS:
            continue
        config = replace(
            base, channels=channels, slabs=slabs, teams=1, stages=stages, blocks_per_sm=blocks,
            tile=(1, 1, 1),
        )  # fmt: skip
        fitting = space.fitted(p, config, _moment_bytes(config, parts))
        if fitting and space.registers(fitting) + _MOMENTS <= space.allowed(fitting):
            found.append(NormalisedPlan(p, fitting))
    return found


def _moment_bytes(config: DepthwiseConfig, parts: int) -> int:
    """Shared memory for means and squared deviations of warps and of blocks."""
    return 8 * 2 * config.rows * STRIP * (config.groups + 2 * parts) + 256


def affine(value: Any, scale: Any, shift: Any) -> Any:
    """value · scale + shift."""
    return kd.fma(value, scale.to(kd.f32), shift.to(kd.f32))


def biased(acc: Any, bias: Any) -> Any:
    """acc + bias."""
    return acc + bias.to(kd.f32)


def conv_depthwise_norm(
    x: Any,
    w: Any,
    bias: Any,
    scale: Any,
    shift: Any,
    out: Any = None,
    *,
    eps: float = 1e-6,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
) -> Any:
    """Layer normalisation over the channels of a depthwise convolution; returns `out`.

    Results of the convolution never go through memory, and are normalised before they are rounded:
    (v − mean) / √(variance + eps) · scale + shift, with v the convolution plus `bias`, if not None.

    Shapes: x (batch, height, width, channels), w (channels, R, S, 1), out like the convolution's
    result; bias, scale and shift (channels). f16 or bf16, on Hopper and newer.
    Memory: `out` is new where none is given. Starts and strides are multiples of 16 bytes.
    Raises: ArgumentError K999 where `refusal` has a reason, K977 and K978 as `conv_depthwise`.
    """
    problem = plain.problem_of(x, w, *(plain.pair(n) for n in (stride, padding, dilation)))
    dtype = facts_of(x, "x").dtype
    shape = (problem.batch, *problem.output, problem.filters)
    out = plain.result(out, shape, x)
    gpu = arrays.gpu_of(x)
    reason = refusal(problem, dtype, "sm_90a" if gpu is None else gpu.target)
    if reason is None and plain.access_width(x, w, out, ()) is not None:
        reason = "its arrays start at multiples of 16 bytes and have such strides"
    if reason is not None:
        raise kd.ArgumentError(
            f"a convolution and its normalisation do not share a kernel: {reason}",
            code="K999",
            fix="call conv_depthwise, and normalise its result",
        )
    extras = [plain.broadcast(e, shape) for e in (bias, scale, shift) if e is not None]
    before: Callable[..., Any] = identity if bias is None else biased
    plan = choose(problem)
    assert plan is not None
    epilogue = Normalised(before, len(extras) - 2, affine, eps)
    plan.run(x, w, out, *extras, epilogue=epilogue)
    return out
