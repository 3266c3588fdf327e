"""Depthwise convolution with layer normalisation in one kernel: clusters, edges, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from fuse.test_conv_depthwise import array, exact, operands, problem
from fuse.test_conv_depthwise_builds import assert_clean
from kdsl_fuse.kernels.conv_depthwise_norm import Normalised
from kdsl_fuse.kernels.conv_depthwise_norm_plan import (
    affine,
    biased,
    choose,
    conv_depthwise_norm,
    refusal,
)
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_runtime.assemble import assemble

BF16 = ml_dtypes.bfloat16


@pytest.mark.parametrize("channels, blocks", ((32, 1), (96, 1), (128, 2), (192, 2), (256, 4)))
@pytest.mark.parametrize("with_bias", (False, True))
def test_normalised(channels: int, blocks: int, with_bias: bool) -> None:
    """One block or several share a pixel's channels; a large common offset costs nothing."""
    p = problem((7, 7), channels=channels, batch=1)
    plan = choose(p)
    assert plan is not None and plan.cluster == blocks
    x, w, bias = operands(p)
    bias = (bias + 20).astype(BF16)
    rng = np.random.default_rng(1)
    scale, shift = (rng.standard_normal(channels).astype(BF16) for _ in range(2))
    out = conv_depthwise_norm(x, w, bias if with_bias else None, scale, shift, padding=3)
    value = exact(p, x, w)[0] + (bias.astype(np.float64) if with_bias else 0)
    mean, variance = value.mean(3, keepdims=True), value.var(3, keepdims=True)
    normal = (value - mean) / np.sqrt(variance + 1e-6)
    want = normal * scale.astype(np.float64) + shift.astype(np.float64)
    error = np.abs(out.astype(np.float64) - want)
    assert (error <= 2.0**-8 * np.abs(want) + 1e-4).all()


def test_no_hazards_in_any_order() -> None:
    """Blocks of a cluster at their own pace, over several tiles, give the same bits."""
    p = problem((3, 3), channels=64, batch=3)
    plan = choose(p)
    assert plan is not None
    config = replace(plan.config, slabs=1, rows=4, tile=(1, 1, 1))
    x, w, bias = operands(p)
    results = []
    for options in ({}, *({"order": "shuffle", "seed": seed} for seed in range(2))):
        out = np.full((p.batch, *p.output, p.filters), np.nan, BF16)
        extras = [np.broadcast_to(bias, out.shape)] * 3
        kd.simulate(
            KERNELS[1],
            grid=(2, 2),
            block=config.threads,
            cluster=(2, 1, 1),
            args=(x, w.reshape(64, 9), out, *extras),
            kwargs={"epilogue": Normalised(biased, 1, affine, 1e-6), "config": config},
            checks=("all", "unwritten"),
            overlap=True,
            **options,
        )
        results.append(out.tobytes())
    assert len(set(results)) == 1


CONVNEXT = {96: 56, 192: 28, 384: 14, 768: 7, 128: 56, 512: 14}


@pytest.mark.parametrize("channels", CONVNEXT)
def test_builds(channels: int) -> None:
    """The layers of ConvNeXt: no spill, no warning."""
    size = CONVNEXT[channels]
    p = ConvProblem(64, size, size, channels, channels, (7, 7), padding=(3, 3), groups=channels)
    plan = choose(p)
    assert plan is not None
    image, c = (p.batch, size, size, channels), plan.config
    given = [kd.spec("bf16", shape) for shape in (image, (channels, 49), image)]
    given += [kd.spec("bf16", image, strides=(0, 0, 0, 1))] * 3
    module = KERNELS[c.blocks_per_sm].module(
        *given, target="sm_90a", block=c.threads, config=c,
        cluster=(plan.cluster, 1, 1) if plan.cluster > 1 else None,
        epilogue=Normalised(biased, 1, affine, 1e-6),
    )  # fmt: skip
    assert_clean(assemble(module, "sm_90a").report)
    assert plan.grid[0] * plan.grid[1] <= 132 and str(plan).endswith(f"c{plan.cluster}")


REFUSED: dict[str, Any] = {
    "sm_89": (problem((7, 7), channels=32), kd.bf16, "sm_89"),
    "f32": (problem((7, 7), channels=32), kd.f32, "sm_90a"),
    "do not share 160": (problem((7, 7), channels=160), kd.bf16, "sm_90a"),
}


@pytest.mark.parametrize("word", REFUSED)
def test_refusals(word: str) -> None:
    """What no cluster holds."""
    assert word in str(refusal(*REFUSED[word]))


BAD: dict[str, Any] = {
    "too many channels for a cluster": array(1, 8, 8, 160),
    "no whole 16 bytes": array(1, 8, 8, 33)[..., 1:],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    """Refused with the reason before anything runs."""
    channels = BAD[name].shape[3]
    one = array(channels)
    with pytest.raises(kd.ArgumentError) as caught:
        conv_depthwise_norm(BAD[name], array(channels, 3, 3, 1), one, one, one)
    assert caught.value.code == "K999"
