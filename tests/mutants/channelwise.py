"""Convolutions of the campaign whose filters see few channels: depthwise and grouped ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kdsl_fuse.kernels.conv_depthwise import conv_depthwise
from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig, DirectConfig
from kdsl_fuse.kernels.conv_depthwise_norm import Normalised
from kdsl_fuse.kernels.conv_depthwise_norm_plan import affine
from kdsl_fuse.kernels.conv_depthwise_norm_plan import biased as biased16
from kdsl_fuse.kernels.conv_depthwise_sm90 import KERNELS
from kdsl_fuse.kernels.conv_grouped import ENTRIES
from kdsl_fuse.kernels.conv_grouped_config import GroupedConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90 import identity
from mutants.convolutions import operands
from mutants.launch import F32, Launch, Matrix, biased, matrix


def _depthwise(
    config: DepthwiseConfig | DirectConfig, images: tuple[int, ...], multiplier: int = 1
) -> ConvProblem:
    """The problem of images (n, h, w, c)."""
    c, channels = config, images[3]
    return ConvProblem(
        *images[:3], channels, channels * multiplier, c.kernel, c.stride, c.padding, c.dilation,
        channels,
    )  # fmt: skip


def _for_each_filter(count: int, y: Matrix, dtype: Any) -> list[Matrix]:
    """Operands of a tail with a number for each filter."""
    return [np.broadcast_to(matrix(7 + i, y.shape[3:], dtype), y.shape) for i in range(count)]


def depthwise90(
    config: DepthwiseConfig,
    images: tuple[int, int, int, int],
    *,
    blocks: int = 1,
    tail: bool = False,
    normalised: bool = False,
) -> Launch:
    """A depthwise convolution on Hopper; `normalised`, over the channels of a cluster's blocks."""
    problem, parts = _depthwise(config, images), -(-images[3] // config.tile_channels)

    def args() -> tuple[Any, ...]:
        x, w, y = operands(problem)
        extras = _for_each_filter(3, y, y.dtype) if normalised else []
        if tail:
            extras = [*_for_each_filter(1, y, F32), matrix(8, y.shape)]
        return x, w.reshape(problem.filters, config.taps), y, *extras

    norm = Normalised(biased16, 1, affine, 1e-6)
    epilogue = norm if normalised else biased if tail else identity
    cluster = (parts, 1, 1) if normalised and parts > 1 else None
    statics = {"epilogue": epilogue, "config": config}
    kernel = KERNELS[config.blocks_per_sm]
    return Launch(kernel, (parts, blocks), config.threads, args, statics, cluster, True)


def depthwise(
    config: DirectConfig, images: tuple[int, int, int, int], *, blocks: int = 2, tail: bool = False
) -> Launch:
    """A depthwise convolution for every target."""
    problem = _depthwise(config, images, config.multiplier)

    def args() -> tuple[Any, ...]:
        x, w, y = operands(problem)
        extras = [*_for_each_filter(1, y, F32), matrix(8, y.shape)] if tail else []
        return x, w.reshape(problem.filters, *config.kernel), y, *extras

    statics = {"epilogue": biased if tail else identity, "config": config}
    grid = -(-problem.filters // config.channels), blocks
    return Launch(conv_depthwise, grid, config.threads, args, statics, overlap=config.overlap)


def grouped(
    config: GroupedConfig,
    images: tuple[int, int, int],
    groups: int,
    *,
    blocks: int = 1,
    tail: bool = False,
) -> Launch:
    """A grouped convolution; few `blocks` for each line of channels."""
    c, (channels, filters) = config, config.group
    problem = ConvProblem(
        *images, channels * groups, filters * groups, c.kernel, c.stride, c.padding, c.dilation,
        groups,
    )  # fmt: skip

    def args() -> tuple[Any, ...]:
        x, w, y = operands(problem)
        extras = [*_for_each_filter(1, y, F32), matrix(8, y.shape)] if tail else []
        return x, w, y, *extras

    statics = {"epilogue": biased if tail else identity, "config": config}
    grid, kernel = blocks * -(-problem.channels // c.line), ENTRIES[c.blocks_per_sm]
    return Launch(kernel, grid, c.threads, args, statics, overlap=c.copies == "tma")


def channelwise() -> dict[str, Launch]:
    """The kernels of this file."""
    narrow = DepthwiseConfig((3, 3), padding=(1, 1), channels=16, rows=2, tile=(1, 1, 2))
    window = GroupedConfig(
        (3, 3), (4, 4), padding=(1, 1), line=16, rows=2, columns=24, steps=2, stages=3, warps=2,
        together=2,
    )  # fmt: skip
    return {
        "depthwise90/stages": depthwise90(narrow, (2, 5, 13, 24)),
        "depthwise90/teams, buffers, tail": depthwise90(
            replace(narrow, teams=2, buffers=2, products=2, tile=(1, 3, 1)), (4, 5, 7, 8),
            tail=True,
        ),
        "depthwise90/strides, odd strips": depthwise90(
            DepthwiseConfig(
                (2, 3), (2, 1), (1, 2), (1, 2), channels=16, rows=2, tile=(1, 3, 1), stages=1,
                slabs=2, together=2,
            ),
            (3, 8, 8, 24),
        ),
        "depthwise90/normalised": depthwise90(narrow, (2, 3, 12, 16), normalised=True),
        "depthwise90/normalised by a cluster": depthwise90(
            narrow, (2, 3, 12, 32), normalised=True
        ),
        "depthwise90/a stage too many": replace(
            depthwise90(narrow, (1, 2, 13, 16)), operators=("predicate",)
        ),
        "depthwise/tail": depthwise(
            DirectConfig((3, 2), padding=(1, 1), width=4, outputs=(2, 2), lanes=4, threads=32),
            (2, 5, 6, 24), tail=True,
        ),
        "depthwise/multiplier": depthwise(
            DirectConfig(
                (3, 3), (2, 2), (1, 1), (1, 2), multiplier=3, outputs=(1, 2), lanes=8, threads=32
            ),
            (1, 6, 9, 5),
        ),
        "grouped/slabs": grouped(window, (1, 7, 22), 6),
        "grouped/staged, teams": grouped(
            replace(window, warps=4, stages=4, buffers=3, staged=1), (1, 11, 22), 2, tail=True
        ),
        "grouped/one buffer, images by two": grouped(
            replace(window, paired="images", rows=2, steps=1, stages=2, buffers=1), (3, 3, 22), 4
        ),
        "grouped/stride, shared weights": grouped(
            replace(window, stride=(2, 2), weights="shared", paired="columns", columns=48, rows=1,
                    warps=4),
            (1, 7, 83), 4,
        ),
        "grouped/cp.async, tail": grouped(
            replace(window, copies="cp.async", warps=4, together=1), (1, 7, 22), 6, tail=True
        ),
        "grouped/cp.async, one buffer": grouped(
            replace(window, copies="cp.async", buffers=1, steps=1, stages=2, dilation=(1, 2),
                    padding=(1, 2)),
            (2, 5, 22), 4,
        ),
    }  # fmt: skip
