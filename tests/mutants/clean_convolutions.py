"""Convolutions drawn at random: configurations, windows, images and channels."""

from __future__ import annotations

import random
from typing import Any

from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig, DirectConfig
from kdsl_fuse.kernels.conv_grouped_config import PAIRED, GroupedConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90_operands import Window
from kdsl_fuse.kernels.conv_sm90_plan import panel_of
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig
from mutants.channelwise import depthwise, depthwise90, grouped
from mutants.convolutions import conv80, conv90, conv_simple, stem

Draw = dict[str, Any]


def drawn_conv90(rng: random.Random, config: Draw) -> Draw:
    """A dense one on Hopper, by a product's configuration."""
    channels = 8 * rng.randint(1, 9)
    panel, panels = panel_of(channels), rng.choice((1, 1, 2))
    problem = _problem(rng, channels, rng.randint(1, 80))
    steps = Window.of(problem, panel).steps(channels, panel * panels)
    config |= {"splits": 1, "tile": (*config["tile"][:2], panel * panels)}
    config |= {"peers": config["peers"] if config["peers"] <= steps else 1}
    return {
        "make": conv90, "config": config, "problem": problem,
        "clusters": rng.randint(1, 3), "swap": rng.random() < 0.5,
    }  # fmt: skip


def drawn_conv80(rng: random.Random) -> Draw:
    """A dense one for every target, also of channels that take registers on their way."""
    config = GemmConfig(
        "SM80_16x8x16_F32BF16BF16F32_TN", (32, 16 * rng.choice((2, 4)), 32),
        rng.choice(((1, 2), (2, 1), (2, 2))), rng.randint(2, 4),
    )  # fmt: skip
    problem = _problem(rng, rng.choice((3, 5, 8, 16, 24)), rng.randint(1, 40))
    return {"make": conv80, "config": config, "problem": problem, "tail": rng.random() < 0.5}


def drawn_stem(rng: random.Random) -> Draw:
    """One of few channels on Hopper."""
    problem = _problem(rng, rng.choice((1, 2, 3, 4)), rng.randint(1, 40))
    shape = rng.randint(1, 2), rng.randint(1, 2), rng.randint(2, 3)
    return {"make": stem, "problem": problem, "shape": shape, "blocks": rng.randint(1, 3)}


def drawn_simple(rng: random.Random) -> Draw:
    """One by multiply-adds, in groups or transposed."""
    groups, channels, filters = (rng.randint(1, n) for n in (3, 9, 9))
    p = _problem(rng, groups * channels, groups * filters)
    images = p.batch, p.height, p.width, p.channels
    return {
        "make": conv_simple, "images": images, "filters": (p.filters, *p.kernel, channels),
        "result": (p.batch, *p.output, p.filters), "groups": groups, "stride": p.stride,
        "padding": p.padding, "dilation": p.dilation, "transposed": rng.random() < 0.3,
    }  # fmt: skip


def drawn_depthwise90(rng: random.Random) -> Draw:
    """A depthwise one on Hopper, perhaps normalised."""
    p = _problem(rng, 8 * rng.randint(1, 10), 1)
    config = DepthwiseConfig(
        p.kernel, p.stride, p.padding, p.dilation, rng.choice((16, 32)), rng.randint(1, 4),
        (rng.randint(1, 2), rng.randint(1, 2), rng.randint(1, 2)), rng.randint(1, 3),
        rng.randint(1, 3), rng.randint(1, 2), rng.choice((0, 2)), rng.randint(1, 2),
        rng.randint(1, 2),
    )  # fmt: skip
    images, blocks = (p.batch, p.height, p.width, p.channels), rng.randint(1, 2)
    whole = p.channels % config.tile_channels == 0 and config.teams == 1
    extra = {"normalised": True} if whole else {"tail": rng.random() < 0.5}
    return {"make": depthwise90, "config": config, "images": images, "blocks": blocks, **extra}


def drawn_depthwise(rng: random.Random) -> Draw:
    """A depthwise one for every target."""
    width = rng.choice((1, 2, 4))
    p, multiplier = _problem(rng, width * rng.randint(1, 12), 1), rng.randint(1, 2)
    config = DirectConfig(
        p.kernel, p.stride, p.padding, p.dilation, multiplier, width,
        (rng.randint(1, 3), rng.randint(1, 4)), rng.choice((2, 8)), 32,
    )  # fmt: skip
    images = p.batch, p.height, p.width, p.channels
    return {"make": depthwise, "config": config, "images": images, "tail": rng.random() < 0.5}


def drawn_grouped(rng: random.Random) -> Draw:
    """A grouped one, by TMA or `cp.async`."""
    width = rng.choice((4, 8, 16))
    p = _problem(rng, 1, 1)
    down, across = PAIRED[paired := rng.choice(list(PAIRED))]
    copies, tail = rng.choice(("tma", "tma", "cp.async")), rng.random() < 0.5
    buffers = rng.randint(1, 3)
    config = GroupedConfig(
        p.kernel, (width, width), p.stride, p.padding, p.dilation, rng.choice((16, 32)),
        down * rng.randint(1, 2), across * rng.randint(1, 3), rng.randint(1, 3), rng.randint(2, 6),
        1, rng.choice((2, 4, 8)), paired, buffers, copies, rng.choice(("registers", "shared")),
        rng.choice((None, 1)) if tail and copies == "tma" and buffers > 1 else None,
        rng.randint(1, 2),
    )  # fmt: skip
    groups = 8 // min(width, 8) * rng.randint(1, 5)
    return {
        "make": grouped, "config": config, "images": (p.batch, p.height, p.width),
        "groups": groups, "blocks": rng.randint(1, 2), "tail": tail,
    }  # fmt: skip


def _problem(rng: random.Random, channels: int, filters: int) -> ConvProblem:
    """A window of a few taps that fits an image of a few pixels."""
    while True:
        kernel, stride, padding, dilation = (
            (rng.randint(least, most), rng.randint(least, most))
            for least, most in ((1, 3), (1, 2), (0, 2), (1, 2))
        )
        sizes = rng.randint(1, 3), rng.randint(1, 9), rng.randint(1, 12)
        p = ConvProblem(*sizes, channels, filters, kernel, stride, padding, dilation)
        if min(p.output) > 0:
            return p
