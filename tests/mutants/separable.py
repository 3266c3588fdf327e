"""Separable convolutions of the campaign: a depthwise and a pointwise one in one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_separable_config import SeparableConfig, Tails
from kdsl_fuse.kernels.conv_separable_sm90 import KERNELS
from kdsl_fuse.kernels.gemm_sm90 import identity
from mutants.convolutions import operands
from mutants.launch import F32, Launch, biased, matrix, nothing


def shifted(acc: Any, bias: Any) -> Any:
    """ReLU of a biased sum."""
    return kd.maximum(acc + bias, 0.0)


def separable(
    window: DepthwiseConfig,
    images: tuple[int, int, int, int],
    filters: int,
    *,
    of_a_tile: int = 0,
    clusters: int = 1,
    tail: bool = False,
    **shares: int,
) -> Launch:
    """Both convolutions of images (n, h, w, c), by few `clusters`.

    `shares` are groups, parts and peers; a tile has all filters, or so many.
    """
    channels, of_a_tile = images[3], of_a_tile or filters
    problem = ConvProblem(
        *images[:3], channels, channels, window.kernel, window.stride, window.padding,
        window.dilation, channels,
    )  # fmt: skip
    sizes = zip((*problem.output, filters), (*window.output_tile[1:3], of_a_tile), strict=True)
    tiles = tuple(-(-size // extent) for size, extent in sizes)
    config = SeparableConfig(window, channels, of_a_tile, (tiles[0], tiles[1], tiles[2]), **shares)

    def args() -> tuple[Any, ...]:
        x, w, middle = operands(problem)
        y = nothing((*middle.shape[:3], filters))
        extras = [
            np.broadcast_to(matrix(7, (channels,), F32), middle.shape),
            np.broadcast_to(matrix(8, (filters,), F32), y.shape), matrix(9, y.shape),
        ]  # fmt: skip
        pointwise = matrix(2, (filters, channels))
        return x, w.reshape(channels, -1), pointwise, y, *(extras if tail else ())

    tails = Tails(shifted, 1, biased) if tail else Tails(identity, 0, identity)
    cluster = (config.peers, 1, 1) if config.peers > 1 else None
    statics = {"epilogue": tails, "config": config}
    return Launch(
        KERNELS[1], clusters * config.peers, config.threads, args, statics, cluster, overlap=True
    )


def separables() -> dict[str, Launch]:
    """The kernels of this file."""

    def window(size: int, **fields: Any) -> DepthwiseConfig:
        around = size // 2, size // 2
        chosen = {"channels": 16, "rows": 1, "tile": (1, 2, 2), "stages": 2, **fields}
        return DepthwiseConfig((size, size), padding=around, **chosen)

    return {
        "separable/tail": separable(window(3), (1, 3, 18, 40), 24, tail=True),
        "separable/strides, tiles of filters": separable(
            window(2, stride=(2, 1), rows=2, channels=32, tile=(1, 2, 1)), (2, 6, 9, 40), 48,
            of_a_tile=32,
        ),
        "separable/two groups": separable(
            window(3, rows=2, channels=32, tile=(1, 4, 3)), (1, 9, 22, 40), 16, groups=2
        ),
        "separable/parts": separable(window(3, stages=4), (1, 3, 18, 72), 32, parts=2, tail=True),
        "separable/peers": separable(window(3), (1, 3, 18, 104), 32, peers=2),
        "separable/parts of two groups": replace(
            separable(window(3, tile=(1, 3, 3), stages=4), (1, 3, 18, 40), 16, groups=2, parts=2),
            operators=("barrier_id",),
        ),
        "separable/a stage too many": replace(
            separable(window(3), (1, 2, 16, 16), 16), operators=("predicate",)
        ),
    }  # fmt: skip
