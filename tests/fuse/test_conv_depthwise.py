"""Depthwise convolutions in the simulator, with all checks: windows, edges, tails, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels import conv_depthwise_space as space
from kdsl_fuse.kernels.conv_depthwise import conv_depthwise as direct
from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig, DirectConfig
from kdsl_fuse.kernels.conv_depthwise_plan import (
    DepthwisePlan,
    DirectPlan,
    choose,
    conv_depthwise,
    portable,
    problem_of,
    refusal,
)
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16


def problem(
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] | None = None,
    dilation: tuple[int, int] = (1, 1),
    *,
    image: tuple[int, int] = (9, 13),
    batch: int = 2,
    channels: int = 24,
    multiplier: int = 1,
) -> ConvProblem:
    """A small convolution, by default of as many rows and columns as the image has."""
    if padding is None:
        padding = tuple((n - 1) * d // 2 for n, d in zip(kernel, dilation, strict=True))
    return ConvProblem(
        batch, *image, channels, channels * multiplier, kernel, stride, padding, dilation, channels
    )


def operands(p: ConvProblem, dtype: Any = BF16) -> tuple[Array, Array, Array]:
    """Image, filters and bias of normal numbers."""
    rng = np.random.default_rng(0)
    shapes = (p.batch, p.height, p.width, p.channels), (p.filters, *p.kernel, 1), (p.filters,)
    x, w, bias = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return x, w, bias


def exact(p: ConvProblem, x: Array, w: Array) -> tuple[Array, Array]:
    """The convolution in f64, and the sums of its products' sizes."""
    found = []
    for image, filters in ((x, w), (np.abs(x), np.abs(w))):
        repeated = np.repeat(image.astype(np.float64), p.filters // p.channels, axis=3)
        (top, left), (rows, columns) = p.padding, p.output
        padded = np.pad(repeated, ((0, 0), (top, top), (left, left), (0, 0)))
        total = np.zeros((p.batch, rows, columns, p.filters))
        for r in range(p.kernel[0]):
            for s in range(p.kernel[1]):
                across = slice(r * p.dilation[0], None, p.stride[0])
                along = slice(s * p.dilation[1], None, p.stride[1])
                part = padded[:, across, along][:, :rows, :columns]
                total += part * filters[:, r, s, 0].astype(np.float64)
        found.append(total)
    return found[0], found[1]


def assert_close(got: Array, want: Array, scale: Array) -> None:
    """Within one rounding of the result and what f32 sums of such products may lose."""
    epsilon = float(ml_dtypes.finfo(got.dtype).eps)
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= epsilon * np.abs(want) + 2.0**-18 * scale + 1e-6).all()


def simulated(
    plan: DepthwisePlan | DirectPlan, dtype: Any = BF16, blocks: int | None = None, **options: Any
) -> tuple[Array, kd.Simulated]:
    """Run a plan on a few blocks with all checks, from NaN, and compare with f64."""
    p, c = plan.problem, plan.config
    x, w, _ = operands(p, dtype)
    out = np.full((p.batch, *p.output, p.filters), np.nan, dtype)
    taps = w.reshape(p.filters, *((-1,) if isinstance(c, DepthwiseConfig) else p.kernel))
    kernel = KERNELS[c.blocks_per_sm] if isinstance(c, DepthwiseConfig) else direct
    result = kd.simulate(
        kernel,
        grid=plan.grid if blocks is None else (plan.grid[0], blocks),
        block=c.threads,
        args=(x, taps, out),
        kwargs={"epilogue": identity, "config": c},
        checks=("all", "unwritten"),
        overlap=getattr(c, "overlap", True),  # the launch ahead may still use all arrays
        **options,
    )
    assert_close(out, *exact(p, x, w))
    return out, result


def tiled(p: ConvProblem, **fields: Any) -> DepthwisePlan:
    """A plan of the Hopper kernel with small tiles."""
    config = DepthwiseConfig(p.kernel, p.stride, p.padding, p.dilation, **fields)
    return DepthwisePlan(p, config)


WINDOWS = {
    "1x1": problem((1, 1)),
    "3x3": problem((3, 3)),
    "3x3 s2": problem((3, 3), (2, 2)),
    "3x3 s(1, 2)": problem((3, 3), (1, 2)),
    "3x3 d2": problem((3, 3), dilation=(2, 3)),
    "3x3 valid": problem((3, 3), padding=(0, 0)),
    "3x3 wide padding": problem((3, 3), padding=(4, 5)),
    "5x5 s2": problem((5, 5), (2, 2)),
    "5x3 s3": problem((5, 3), (3, 3)),
    "7x7": problem((7, 7)),
    "11x11": problem((11, 11), image=(12, 12), batch=1, channels=8),
    "1x31": problem((1, 31), image=(1, 40)),
    "31x1": problem((31, 1), image=(40, 1)),
    "2x4": problem((2, 4), padding=(1, 2)),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str) -> None:
    """Windows, strides, paddings and dilations on the Hopper kernel, as they are chosen."""
    plan = choose(WINDOWS[name], kd.bf16)
    assert isinstance(plan, DepthwisePlan)
    simulated(plan, blocks=2)


@pytest.mark.parametrize(
    "name, dtype", combined([*WINDOWS], {"bf16": BF16, "f32": np.float32}, together=1)
)
def test_portable_windows(name: str, dtype: Any) -> None:
    """The same on the portable kernel."""
    plan = choose(WINDOWS[name], dtype_of(np.dtype(dtype)), target="sm_80")
    assert isinstance(plan, DirectPlan)
    simulated(plan, dtype, blocks=2)


TILES = {
    "one strip": {"tile": (1, 1, 1), "rows": 3, "teams": 1},
    "rows of two strips": {"tile": (1, 3, 1), "rows": 3},
    "odd strips": {"tile": (1, 1, 3), "rows": 2},
    "images": {"tile": (2, 3, 2), "rows": 4},
    "more images than there are": {"tile": (4, 1, 2), "rows": 9},
    "16 channels": {"channels": 16},
    "64 channels": {"channels": 64},
    "three teams": {"teams": 3, "tile": (1, 3, 3), "rows": 2},
    "three stages": {"stages": 3, "tile": (1, 1, 1), "teams": 1},
    "two buffers": {"buffers": 2, "tile": (1, 3, 3), "rows": 2},
    "two buffers, three teams": {"buffers": 2, "teams": 3, "tile": (1, 3, 3), "rows": 2},
}


@pytest.mark.parametrize("name, products", combined([*TILES], (0, 2, 4), together=1))
def test_tiles(name: str, products: int) -> None:
    """Every way to share tiles, where they hang over the image, and three shares of the taps."""
    fields = {"rows": 4, "tile": (1, 2, 2), "products": products, **TILES[name]}
    simulated(tiled(problem((3, 3), channels=40, batch=3), **fields), blocks=2)


@pytest.mark.parametrize("products", (0, 2, 4, 6, 8))
def test_shares(products: int) -> None:
    """Any number of columns of taps for tensor cores gives the same sums, but for their order."""
    simulated(tiled(problem((7, 7)), products=products, rows=4, tile=(1, 3, 2)))


def test_any_order() -> None:
    """Blocks and warps in any order give the same bits."""
    plan = tiled(problem((5, 5), channels=40), products=4, rows=3, stages=2, buffers=2)
    first, _ = simulated(plan, blocks=2)
    for seed in range(3):
        again, _ = simulated(plan, blocks=2, order="shuffle", seed=seed)
        assert first.tobytes() == again.tobytes()


@pytest.mark.parametrize("multiplier", (2, 3))
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_multiplier(multiplier: int, target: str) -> None:
    """Several filters for each channel."""
    p = problem((3, 3), (1, 2), multiplier=multiplier)
    plan = choose(p, kd.f16, target=target)
    assert isinstance(plan, DirectPlan)
    assert plan.config.overlap == (target == "sm_90a")
    simulated(plan, np.float16, blocks=2)


@pytest.mark.parametrize("dtype", (np.float16, BF16, np.float32))
@pytest.mark.parametrize("channels", (1, 6, 8, 40))
def test_channels(dtype: Any, channels: int) -> None:
    """Channels that fill neither tiles nor vectors."""
    simulated(choose(problem((3, 3), channels=channels), dtype_of(np.dtype(dtype))), dtype)


def silu(x: Any) -> Any:
    """x · sigmoid(x)."""
    return x * kd.sigmoid(x)


def shifted(acc: Any, scale: Any, residual: Any) -> Any:
    """A folded normalisation's scale, and a residual."""
    return kd.maximum(acc * scale.to(kd.f32), 0.0) + residual.to(kd.f32)


@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
@pytest.mark.parametrize("dtype", (BF16, np.float32))
def test_tails(target: str, dtype: Any) -> None:
    """Bias, scale, activation and residual in the same kernel."""
    p = problem((3, 3), (2, 1))
    x, w, bias = operands(p, dtype)
    want, scale = exact(p, x, w)
    biased = want + bias.astype(np.float64)
    options = {"stride": (2, 1), "padding": 1, "target": target}
    got = conv_depthwise(x, w, bias, epilogue=silu, **options)
    assert_close(got, biased / (1 + np.exp(-biased)), scale + np.abs(biased))
    residual = np.random.default_rng(1).standard_normal(want.shape).astype(dtype)
    got = conv_depthwise(x, w, bias, extras=(bias, residual), epilogue=shifted, **options)
    tail = np.maximum(biased * bias.astype(np.float64), 0) + residual.astype(np.float64)
    assert_close(got, tail, 4 * (scale + np.abs(biased)))


VIEWS: dict[str, Callable[[Array], Array]] = {
    "channels first": lambda x: np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1),
    "part of the channels": lambda x: np.concatenate([x, x[..., :1]], axis=3)[..., :-1],
    "part of the columns": lambda x: np.concatenate([x, x], axis=2)[:, :, : x.shape[2]],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    """Images of any strides give the same result."""
    p = problem((3, 3))
    x, w, bias = operands(p)
    out = conv_depthwise(VIEWS[name](x), w, bias, padding=1)
    want, scale = exact(p, x, w)
    assert_close(out, want + bias.astype(np.float64), scale + 4)


def test_given_result() -> None:
    """The result goes where it is wanted, also beside other channels."""
    p = problem((3, 3))
    x, w, _ = operands(p)
    wide = np.zeros((p.batch, *p.output, 32), BF16)
    found = conv_depthwise(x, w, out=wide[..., 8:], padding=1)
    assert np.shares_memory(found, wide) and (wide[..., :8] == 0).all()
    assert_close(wide[..., 8:], *exact(p, x, w))


@pytest.mark.parametrize("size", (3, 5, 7, 11))
def test_infinities_stay_where_they_are(size: int) -> None:
    """Without tensor cores an infinity or NaN of a channel reaches that channel alone."""
    p = problem((size, size))
    x, w, _ = operands(p)
    x[0, 4, 4, 3], x[1, 4, 4, 9] = np.inf, np.nan
    out = conv_depthwise(x, w, padding=size // 2, tensor_cores=False).astype(np.float64)
    strange = ~np.isfinite(out).all(axis=(0, 1, 2))
    assert np.flatnonzero(strange).tolist() == [3, 9]


def test_no_bank_conflicts() -> None:
    """Fragments and results pass through shared memory without conflicts."""
    for channels in (16, 32, 64):
        plan = tiled(
            problem((7, 7), channels=64, image=(8, 16), batch=1), channels=channels, products=4
        )
        _, result = simulated(plan)
        totals = result.profile.totals
        assert totals["ldmatrix_wavefronts"] == totals["ldmatrix_ideal_wavefronts"] > 0
        assert totals["stmatrix_wavefronts"] == totals["stmatrix_ideal_wavefronts"] > 0


def array(*shape: int, dtype: Any = BF16) -> Array:
    """Zeros."""
    return np.zeros(shape, dtype)


X, W = array(1, 8, 8, 8), array(8, 3, 3, 1)
BAD: dict[str, tuple[str, Any]] = {
    "three modes": ("K977", lambda: conv_depthwise(X[0], W)),
    "torch's order": ("K977", lambda: conv_depthwise(X, array(8, 1, 3, 3))),
    "channels": ("K977", lambda: conv_depthwise(X, array(12, 3, 3, 1))),
    "nothing": ("K977", lambda: conv_depthwise(X[:0], W)),
    "a large window": ("K977", lambda: conv_depthwise(X, array(8, 9, 3, 1))),
    "a spread window": ("K977", lambda: conv_depthwise(X, W, dilation=4)),
    "too many taps": ("K977", lambda: conv_depthwise(X, array(8, 13, 13, 1), padding=6)),
    "no stride": ("K977", lambda: conv_depthwise(X, W, stride=0)),
    "negative padding": ("K977", lambda: conv_depthwise(X, W, padding=(0, -1))),
    "out": ("K977", lambda: conv_depthwise(X, W, out=X)),
    "bias": ("K977", lambda: conv_depthwise(X, W, array(7))),
    "extras": ("K977", lambda: conv_depthwise(X, W, extras=(X,))),
    "scattered filters": (
        "K977",
        lambda: choose(problem((3, 3), channels=8), kd.bf16).run(X, W.transpose(0, 2, 1, 3), X),
    ),
    "types": ("K978", lambda: conv_depthwise(X, W.astype(np.float16))),
    "integers": ("K978", lambda: conv_depthwise(X.astype(np.int8), W.astype(np.int8))),
    "not depthwise": ("K977", lambda: choose(ConvProblem(1, 8, 8, 8, 8, (3, 3)), kd.bf16)),
    "24 channels": ("K979", lambda: DepthwiseConfig((3, 3), channels=24)),
    "no rows": ("K979", lambda: DepthwiseConfig((3, 3), rows=0)),
    "many teams": ("K979", lambda: DepthwiseConfig((3, 3), teams=16)),
    "odd products": ("K979", lambda: DepthwiseConfig((3, 3), products=1)),
    "many products": ("K979", lambda: DepthwiseConfig((3, 3), products=6)),
    "blocks": ("K979", lambda: DepthwiseConfig((3, 3), blocks_per_sm=7)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    """Each mistake has its code before anything runs."""
    code, call = BAD[name]
    with pytest.raises(kd.KdslError) as caught:
        call()
    assert caught.value.code == code


REFUSED = {
    "TMA": (problem((3, 3)), kd.bf16, "sm_89"),
    "f32": (problem((3, 3)), kd.f32, "sm_90a"),
    "2": (problem((3, 3), multiplier=2), kd.bf16, "sm_90a"),
    "8 channels": (problem((3, 3), channels=12), kd.bf16, "sm_90a"),
    "shared memory": (problem((3, 3), image=(3, 5000), dilation=(1, 2000)), kd.bf16, "sm_90a"),
}


@pytest.mark.parametrize("word", REFUSED)
def test_refusals(word: str) -> None:
    """What the Hopper kernel leaves to the portable one, and why."""
    p, dtype, target = REFUSED[word]
    reason = refusal(p, dtype, target)
    assert reason is not None and word in reason
    assert isinstance(choose(p, dtype, target=target), DirectPlan)


def test_plan() -> None:
    """The grid has the same number of blocks for each part of the channels, no more than run."""
    p = ConvProblem(128, 56, 56, 96, 96, (7, 7), padding=(3, 3), groups=96)
    plan = choose(p, kd.bf16)
    assert isinstance(plan, DepthwisePlan)
    parts = math.ceil(96 / plan.config.channels)
    assert plan.grid == (parts, 132 * plan.config.blocks_per_sm // parts)
    assert choose(replace(p, batch=1, height=8, width=8), kd.bf16).grid == (parts, 1)
    assert p.depthwise and space.fits(plan.config)
    x, w, _ = operands(problem((3, 3)))
    assert problem_of(x, w, (1, 1), (1, 1), (1, 1)) == problem((3, 3))
    assert portable(problem((1, 31)), 8, "sm_80") == DirectConfig(
        (1, 31), (1, 1), (0, 15), (1, 1), 1, 2, (1, 4), 16, overlap=False
    )
