"""The kernels whose figures are kept: one `Row` each, in typical configurations.

Registers, instructions and counters of these are what the gate compares and the dashboard shows. A
row is one launch on small arrays: the kernel is built for what the launch needs, for each of the
`targets`, and run in the simulator, where sizes of whole tiles count what the bulk of a large
launch costs; `launch_of` takes it from a plan. A name stands for one configuration: another
configuration is another row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from launches import Launch, launch_of, operands

import kdsl_core as kd
from kdsl_fuse.kernels import (
    attention_sm80_plan,
    attention_sm90_plan,
    conv_sm80_plan,
    conv_views,
    row_programs,
    rows_plan,
)
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.attention_plan import AttentionPlan
from kdsl_fuse.kernels.attention_problem import AttentionProblem
from kdsl_fuse.kernels.columns import ColumnsConfig, columns
from kdsl_fuse.kernels.conv_depthwise_norm_plan import conv_depthwise_norm
from kdsl_fuse.kernels.conv_depthwise_plan import conv_depthwise
from kdsl_fuse.kernels.conv_grouped_plan import conv_grouped
from kdsl_fuse.kernels.conv_sm90_plan import conv2d_sm90
from kdsl_fuse.kernels.elementwise import choose as choose_elementwise
from kdsl_fuse.kernels.elementwise import elementwise
from kdsl_fuse.kernels.gated_sm80 import gated_sm80
from kdsl_fuse.kernels.gated_sm90 import gated_sm90
from kdsl_fuse.kernels.gated_sm90_plan import gated, silu
from kdsl_fuse.kernels.gemm_rows_sm80 import gemm_rows_sm80
from kdsl_fuse.kernels.gemm_rows_sm90 import gemm_rows_sm90
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, batch_gemm_sm80, gemm_sm80
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan
from kdsl_fuse.kernels.repitch import repitch, repitch_grid
from kdsl_fuse.kernels.row_programs import REDUCTIONS
from kdsl_fuse.kernels.sum_parts import THREADS as SUM_THREADS
from kdsl_fuse.kernels.sum_parts import SumShares, sum_parts

BF16, F32 = ml_dtypes.bfloat16, np.float32
AMPERE, HOPPER = ("sm_80", "sm_89", "sm_90a"), ("sm_90a",)
FEW_BLOCKS = 2  # of a persistent kernel, so that each has several tiles
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """A kernel in one configuration."""

    name: str
    targets: tuple[str, ...]
    launch: Callable[[], Launch]


def normal(seed: int, shape: tuple[int, ...], dtype: Any = BF16) -> Array:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# -- products --------------------------------------------------------------------------------------
def biased_gelu(acc: Any, bias: Any) -> Any:
    """tanh-GELU of a biased product."""
    x = acc + bias.to(kd.f32)
    return 0.5 * x * (1.0 + kd.tanh(0.7978845608 * (x + 0.044715 * x * x * x), approx=True))


def ampere(tile: tuple[int, int, int], warps: tuple[int, int], stages: int) -> Launch:
    """A product by `gemm_sm80`."""
    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", tile, warps, stages)
    statics = {"epilogue": identity, "config": config}
    return Launch(gemm_sm80, (256 // tile[0]) * (256 // tile[1]), config.threads,
                  operands(256, 256, 256), statics)  # fmt: skip


def batch() -> Launch:
    """Products of a batch by `batch_gemm_sm80`."""
    launch = ampere((128, 128, 32), (2, 2), 3)
    pairs = tuple(np.stack([x, x]).transpose(1, 2, 0) for x in launch.args)
    return replace(launch, kernel=batch_gemm_sm80, grid=(launch.grid, 1, 2), args=pairs)


def hopper(config: Sm90Config, *, tail: bool = False, dtype: Any = BF16) -> Launch:
    """A product by `gemm_sm90`, with a bias and GELU where it has a `tail`."""
    m, n = (2 * size * along for size, along in zip(config.tile, config.cluster, strict=False))
    k = config.tile[2] * max(config.stages, config.peers * config.splits)
    a, b = normal(0, (m, k), dtype), normal(1, (n, k), dtype)
    c = np.empty((m, n), BF16)
    few = FEW_BLOCKS * config.blocks_together
    plan = Sm90Plan(model.Problem(m, n, k), config, multiprocessors=few)
    parts = plan.parts(a, c)
    extras = (np.broadcast_to(normal(2, (n,)), (m, n)),) if tail else ()
    statics = {"epilogue": biased_gelu if tail else identity, "config": config}
    args = a, b, c if parts is None else parts, *extras
    return Launch(gemm_sm90, plan.grid, config.threads, args, statics, plan.cluster)


def pairs(kernel: Any, config: Any, grid: int, sizes: tuple[int, int, int]) -> Launch:
    """A gated pair of products."""
    m, n, k = sizes
    args = normal(0, (m, k)), normal(1, (n, k)), normal(2, (n, k)), np.empty((m, n), BF16)
    return Launch(kernel, grid, config.threads, args, {"epilogue": gated(silu), "config": config})


def gated_ampere() -> Launch:
    """By `gated_sm80`."""
    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (128, 128, 32), (2, 2), 3)
    return pairs(gated_sm80, config, 4, (256, 128, 256))


def gated_hopper() -> Launch:
    """By `gated_sm90`."""
    config = Sm90Config((128, 128, 64), 6, "pingpong", registers=(40, 232))
    return pairs(gated_sm90, config, FEW_BLOCKS, (512, 128, 384))


def layer_norm(kernel: Any, config: Any, grid: int, sizes: tuple[int, int, int]) -> Launch:
    """LayerNorm of a product and a residual, with its parameters."""
    m, n, k = sizes
    parameters = (np.broadcast_to(normal(seed, (n,)), (m, n)) for seed in (3, 4))
    args = normal(0, (m, k)), normal(1, (n, k)), np.empty((m, n), BF16), normal(2, (m, n))
    program = row_programs.norm(1e-5, centred=True, bias=True, residual=True)
    statics = {"program": program, "config": config, "columns": n}
    return Launch(kernel, grid, config.threads, (*args, *parameters), statics)


def layer_norm_ampere() -> Launch:
    """By `gemm_rows_sm80`."""
    config = GemmConfig("SM80_16x8x16_F32BF16BF16F32_TN", (64, 128, 64), (2, 2), 3)
    made = layer_norm(gemm_rows_sm80, config, 4, (256, 128, 256))
    return replace(made, kwargs={**made.kwargs, "width": 4})


def layer_norm_hopper() -> Launch:
    """By `gemm_rows_sm90`."""
    config = Sm90Config((64, 256, 64), 4, "pingpong", registers=(24, 240))
    return layer_norm(gemm_rows_sm90, config, FEW_BLOCKS, (512, 256, 256))


# -- convolutions ----------------------------------------------------------------------------------
def convolution(run: Callable[..., Any], channels: int, filters: int, taps: int, *,
                groups: int = 1, kernel: str = "", **options: Any) -> Launch:  # fmt: skip
    """What a function launches for two images of 16 × 16 pixels, as it chooses."""
    x = normal(0, (2, 16, 16, channels))
    w = normal(1, (filters, taps, taps, channels // groups))
    return launch_of(lambda: run(x, w, padding=taps // 2, **options), kernel)


def portable_convolution(x: Array, w: Array, **window: Any) -> None:
    """By `conv_sm80`."""
    problem = conv_views.problem_of(x, w, **window)
    out = np.empty((problem.batch, *problem.output, problem.filters), BF16)
    conv_sm80_plan.choose(problem, kd.bf16).run(x, w, out)


def normalised(x: Array, w: Array, **window: Any) -> None:
    """A depthwise convolution and the LayerNorm behind it."""
    channels = [normal(i, (len(w),)) for i in (2, 3, 4)]
    conv_depthwise_norm(x, w, *channels, **window)


def grouped(x: Array, w: Array, target: str = "sm_90a", **window: Any) -> None:
    """A convolution of eight groups."""
    conv_grouped(x, w, groups=8, target=target, **window)


def direct(x: Array, w: Array, **window: Any) -> None:
    """A depthwise convolution without tensor cores."""
    conv_depthwise(x, w, tensor_cores=False, target="sm_80", **window)


# -- attention -------------------------------------------------------------------------------------
def attention(dim: int, mask: str | None, heads: int = 2, key_heads: int = 2) -> Launch:
    """By `attention_sm90`, several tiles of keys."""
    problem = AttentionProblem(1, heads, key_heads, 256, 512, dim)
    return attending(attention_sm90_plan.choose(problem, mask, multiprocessors=FEW_BLOCKS))


def portable_attention(dim: int, mask: str | None) -> Launch:
    """By `attention_sm80`, several tiles of keys."""
    return attending(attention_sm80_plan.choose(AttentionProblem(1, 2, 2, 256, 512, dim), mask))


def attending(plan: AttentionPlan) -> Launch:
    """A plan's launch on normal numbers."""
    p = plan.problem
    sizes = (p.queries, p.heads), (p.keys, p.key_heads), (p.keys, p.key_heads)
    q, k, v = (normal(i, (1, *size, p.dim)) for i, size in enumerate(sizes))
    statics = {"scale": p.dim**-0.5, "together": plan.together, "config": plan.config}
    return Launch(plan.kernel, plan.grid, plan.config.threads,
                  (q, k, v, np.empty_like(q)), statics)  # fmt: skip


# -- rows, columns, elements -----------------------------------------------------------------------
def row_wise(program: Any, shape: tuple[int, int]) -> Launch:
    """By `rows`, in the configuration that is chosen."""
    height, length = shape
    outputs = [np.empty(shape, BF16) for _ in range(program.outputs)]
    outputs += [np.empty(height, F32) for _ in range(program.row_outputs)]
    inputs = [normal(i, shape) for i in range(program.inputs)]
    extras = [normal(5 + i, (length,)) for i in range(program.extras)]
    labels = [np.arange(height) * 7 % length for _ in range(program.row_inputs)]
    given = [*outputs, *inputs, *extras, *labels]
    plan = rows_plan.choose(program, *given)
    return Launch(plan.launch.kernel, plan.grid, plan.config.threads, tuple(plan.views(given)),
                  plan.statics, plan.cluster)  # fmt: skip


def column_sum() -> Launch:
    """By `columns`."""
    config, shape = ColumnsConfig(8, 4), (256, 1024)
    statics = {"count": shape[0], "reduction": REDUCTIONS["sum"], "config": config}
    args = normal(6, shape), np.empty((1, shape[1]), F32)
    return Launch(columns, shape[1] // (config.lanes * config.width), config.threads, args, statics)


def scaled_sum(x: Any, y: Any) -> Any:
    """A pointwise function."""
    return kd.maximum(0.5 * x + y, 0.0)


def pointwise() -> Launch:
    """By `elementwise`, in the configuration that is chosen."""
    out, x, y = np.empty((512, 1024), BF16), normal(0, (512, 1024)), normal(1, (512, 1024))
    plan = choose_elementwise([out], [x, y])
    statics = {"function": scaled_sum, "config": plan.config, "outputs": 1}
    args = tuple(plan.modes.views([out, x, y]))
    return Launch(elementwise, plan.grid, plan.config.threads, args, statics)


def copies() -> Launch:
    """By `repitch`: a matrix whose rows TMA cannot address."""
    a = normal(0, (128, 1001))
    into = np.empty((128, 1008), BF16)
    return Launch(repitch, repitch_grid([a.shape], 2), 128, (a, into))


def sums() -> Launch:
    """By `sum_parts`: what a split product leaves."""
    parts = normal(0, (4, 256, 256), F32).transpose(1, 2, 0)
    shares = SumShares.of((256, 256), 1, 4)
    statics = {"epilogue": identity, "outputs": 1, **shares.statics}
    return Launch(sum_parts, shares.grid, SUM_THREADS, (parts, np.empty((256, 256), BF16)), statics)


# -- the list --------------------------------------------------------------------------------------
ROOM = (40, 232)
SMALL = Sm90Config((64, 64, 128), 4, consumers=1)

ROWS = (
    Row("gemm_sm80 128x128x32", AMPERE, lambda: ampere((128, 128, 32), (2, 2), 3)),
    Row("gemm_sm80 128x256x64", ("sm_80",), lambda: ampere((128, 256, 64), (2, 4), 3)),
    Row("batch_gemm_sm80 128x128x32", ("sm_80",), batch),
    Row("gemm_sm90 128x256x64", HOPPER, lambda: hopper(Sm90Config((128, 256, 64), 4))),
    Row("gemm_sm90 128x256x64 gelu", HOPPER,
        lambda: hopper(Sm90Config((128, 256, 64), 4, registers=ROOM), tail=True)),
    Row("gemm_sm90 256x128x64 cluster 2x1", HOPPER,
        lambda: hopper(Sm90Config((256, 128, 64), 4, cluster=(2, 1), registers=ROOM))),
    Row("gemm_sm90 64x256x64 pingpong", HOPPER,
        lambda: hopper(Sm90Config((64, 256, 64), 4, "pingpong", registers=ROOM))),
    Row("gemm_sm90 64x64x128", HOPPER, lambda: hopper(SMALL)),
    Row("gemm_sm90 64x16x128 peers 4", HOPPER,
        lambda: hopper(Sm90Config((64, 16, 128), 8, consumers=1, peers=4))),
    Row("gemm_sm90 128x64x64 splits 3", HOPPER,
        lambda: hopper(Sm90Config((128, 64, 64), 5, splits=3))),
    Row("gemm_sm90 128x256x128 e4m3", HOPPER,
        lambda: hopper(Sm90Config((128, 256, 128), 4, registers=ROOM),
                       dtype=ml_dtypes.float8_e4m3fn)),
    Row("gated_sm80 128x128x32", AMPERE, gated_ampere),
    Row("gated_sm90 128x128x64 pingpong", HOPPER, gated_hopper),
    Row("gemm_rows_sm80 64x128x64 layer_norm", AMPERE, layer_norm_ampere),
    Row("gemm_rows_sm90 64x256x64 layer_norm", HOPPER, layer_norm_hopper),
    Row("conv_sm80 3x3", AMPERE, lambda: convolution(portable_convolution, 64, 128, 3)),
    Row("conv_sm90 3x3", HOPPER, lambda: convolution(conv2d_sm90, 64, 128, 3)),
    Row("stem_sm90 7x7", HOPPER, lambda: convolution(conv2d_sm90, 3, 64, 7, stride=2)),
    Row("pack_pixels", HOPPER, lambda: convolution(conv2d_sm90, 100, 64, 3, kernel="pack_pixels")),
    Row("conv_grouped 3x3", HOPPER, lambda: convolution(grouped, 128, 128, 3, groups=8)),
    Row("conv_grouped 3x3 portable", AMPERE[:2],
        lambda: convolution(grouped, 128, 128, 3, groups=8, target="sm_80")),
    Row("conv_depthwise 3x3", AMPERE, lambda: convolution(direct, 128, 128, 3, groups=128)),
    Row("conv_depthwise_sm90 3x3", HOPPER,
        lambda: convolution(conv_depthwise, 128, 128, 3, groups=128)),
    Row("conv_depthwise_sm90 7x7, layer_norm", HOPPER,
        lambda: convolution(normalised, 128, 128, 7, groups=128)),
    Row("attention_sm80 128", AMPERE, lambda: portable_attention(128, None)),
    Row("attention_sm80 64 causal", AMPERE, lambda: portable_attention(64, "top-left")),
    Row("attention_sm90 128", HOPPER, lambda: attention(128, None)),
    Row("attention_sm90 128 causal, shared keys", HOPPER,
        lambda: attention(128, "top-left", key_heads=1)),
    Row("attention_sm90 64 causal", HOPPER, lambda: attention(64, "top-left")),
    Row("rows softmax 1024", HOPPER, lambda: row_wise(row_programs.softmax(fast=True), (64, 1024))),
    Row("rows softmax 16384", HOPPER,
        lambda: row_wise(row_programs.softmax(fast=True, online=True), (8, 16384))),
    Row("rows rms_norm 4096", HOPPER,
        lambda: row_wise(row_programs.norm(1e-6, centred=False), (32, 4096))),
    Row("rows layer_norm 4096, residual", HOPPER,
        lambda: row_wise(row_programs.norm(1e-5, centred=True, bias=True, residual=True,
                                           total=True), (32, 4096))),
    Row("rows cross_entropy 32768", HOPPER,
        lambda: row_wise(row_programs.cross_entropy(fast=True, online=True), (4, 32768))),
    Row("columns sum", HOPPER, column_sum),
    Row("elementwise", HOPPER, pointwise),
    Row("repitch", HOPPER, copies),
    Row("sum_parts", HOPPER, sums),
)  # fmt: skip
"""One row for each kernel and way to run it; a new kernel needs a row here and nothing else."""
