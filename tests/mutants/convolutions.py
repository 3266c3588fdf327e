"""Convolutions of the campaign, dense ones and what goes with them, on images of a few pixels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_fuse.kernels import conv_direct as direct
from kdsl_fuse.kernels.concat import choose as choose_concat
from kdsl_fuse.kernels.concat import concat
from kdsl_fuse.kernels.conv_pack import THREADS, Packing, pack_pixels
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm80 import conv_sm80
from kdsl_fuse.kernels.conv_sm90 import conv_sm90
from kdsl_fuse.kernels.conv_sm90_operands import Window
from kdsl_fuse.kernels.conv_sm90_plan import plan_of
from kdsl_fuse.kernels.conv_views import filter_view
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.stem_sm90 import StemConfig, stem_sm90
from kdsl_fuse.kernels.stem_sm90_plan import StemPlan
from kdsl_fuse.kernels.windows import choose as choose_windows
from kdsl_fuse.kernels.windows import windows
from mutants.launch import BF16, F32, Launch, Matrix, biased, matrix, nothing, with_infinity


def operands(problem: ConvProblem, dtype: Any = BF16) -> tuple[Matrix, Matrix, Matrix]:
    """Images (n, h, w, c), filters (k, r, s, c / groups), and a result that is not written."""
    p = problem
    x = matrix(0, (p.batch, p.height, p.width, p.channels), dtype)
    w = matrix(1, (p.filters, *p.kernel, p.channels // p.groups), dtype)
    return x, w, nothing((p.batch, *p.output, p.filters), dtype)


def conv90(
    config: Sm90Config, problem: ConvProblem, *, clusters: int = 1, swap: bool = False
) -> Launch:
    """A convolution by `conv_sm90`; few `clusters`, so that each has several tiles."""
    plan = plan_of(problem, kd.bf16, None, config, swap)

    def args() -> tuple[Any, ...]:
        x, w, y = operands(problem)
        return x, filter_view(w), plan.product.oriented(y.reshape(-1, problem.filters))

    together = config.blocks_together
    cluster = (together, 1, 1) if together > 1 else None
    statics = {"epilogue": identity, **plan.statics}
    return Launch(conv_sm90, clusters * together, config.threads, args, statics, cluster, True)


def conv80(
    config: GemmConfig, problem: ConvProblem, *, dtype: Any = BF16, tail: bool = False
) -> Launch:
    """A convolution by `conv_sm80`."""
    pixels = problem.batch * math.prod(problem.output)
    grid = -(-pixels // config.tile[0]) * -(-problem.filters // config.tile[1])

    def args() -> tuple[Any, ...]:
        x, w, y = operands(problem, dtype)
        x[0, 0, 0, 0] = np.inf  # what is read in place of nothing
        rest = y.shape[-1]
        extras = np.broadcast_to(matrix(7, (rest,), F32), (pixels, rest)), matrix(8, (pixels, rest))
        return x, with_infinity(w.reshape(rest, -1)), y.reshape(-1, rest), *(extras if tail else ())

    statics = {
        "epilogue": biased if tail else identity, "config": config,
        "window": Window.of(problem, config.tile[2]),
    }  # fmt: skip
    return Launch(conv_sm80, grid, config.threads, args, statics)


def stem(problem: ConvProblem, shape: tuple[int, int, int], *, blocks: int = 1) -> Launch:
    """A convolution of few channels by `stem_sm90`; `shape` are blocks, consumers and stages."""
    plan = StemPlan(problem, StemConfig.of(problem, *shape), blocks)

    def args() -> tuple[Any, ...]:
        x, w, y = operands(problem)
        row = problem.height // 2
        for image, column in zip(x, range(4, problem.width - 3, 8), strict=False):
            image[row - 1 : row + 1, column : column + 3] = np.inf  # beside some windows
        lines, filters = x.reshape(*x.shape[:2], -1), w.reshape(w.shape[0], -1)
        return lines, filters, plan.oriented(y.reshape(-1, problem.filters))

    statics = {"epilogue": identity, **plan.statics}
    return Launch(stem_sm90, blocks, plan.block, args, statics, overlap=True)


def packed(problem: ConvProblem, *, planes: bool = False) -> Launch:
    """Images and filters laid out anew by `pack_pixels`, perhaps from NCHW."""
    packing = Packing.of(problem)

    def args() -> tuple[Any, ...]:
        given = list(operands(problem)[:2])
        if planes:
            given = [np.ascontiguousarray(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
                     for x in given]  # fmt: skip
        x, w = given
        copies = [nothing(shape, x.dtype) for shape in packing.shapes]
        return x, copies[0], w, copies[1]

    x, _, w, _ = args()
    statics = {"places": packing.places(x, w)}
    return Launch(pack_pixels, packing.grid, THREADS, args, statics, overlap=True)


# -- element by element ----------------------------------------------------------------------------
def shifted(value: Any, extra: Any) -> Any:
    """The sum of two."""
    return value + extra.to(kd.f32)


def _planned(kernel: Any, plan: Any, args: Callable[[], tuple[Any, ...]]) -> Launch:
    """A launch as the kernel's own planner wants it, with a tail of one operand."""
    statics = {"epilogue": shifted, "config": plan.config}
    return Launch(kernel, plan.grid, plan.config.threads, args, statics, overlap=True)


def conv_simple(
    images: tuple[int, ...], filters: tuple[int, ...], result: tuple[int, ...], **options: Any
) -> Launch:
    """A convolution by `conv_direct`."""

    def args() -> tuple[Any, ...]:
        bias = np.broadcast_to(matrix(2, result[3:], BF16), result)
        return matrix(0, images), matrix(1, filters), nothing(result), bias

    return _planned(direct.conv_direct, direct.choose(*args(), overlap=True, **options), args)


def pool(images: tuple[int, ...], result: tuple[int, ...], **options: Any) -> Launch:
    """A pool, or an image made larger, by `windows`."""

    def args() -> tuple[Any, ...]:
        return matrix(0, images), nothing(result), matrix(2, result)

    return _planned(windows, choose_windows(*args(), overlap=True, **options), args)


def joined(axis: int, *shapes: tuple[int, ...]) -> Launch:
    """Arrays one behind the other by `concat`."""

    def args() -> tuple[Any, ...]:
        parts = [matrix(i, shape) for i, shape in enumerate(shapes)]
        return nothing(np.concatenate(parts, axis).shape), *parts

    plan = choose_concat(*args(), axis=axis, overlap=True)
    statics = {"config": plan.config}
    return Launch(concat, plan.grid, plan.config.threads, args, statics, overlap=True)


def convolutions() -> dict[str, Launch]:
    """The kernels of this file."""
    atom = "SM80_16x8x16_F32BF16BF16F32_TN"
    small, one = (64, 16, 32), {"consumers": 1}
    return {
        "conv90/window": conv90(
            Sm90Config(small, 2, **one),
            ConvProblem(2, 7, 6, 24, 24, (3, 3), (1, 1), (1, 0), (2, 1)),
        ),
        "conv90/panels, filters beside": conv90(
            Sm90Config((64, 16, 64), 2, **one),
            ConvProblem(2, 4, 5, 24, 40, (1, 5), (1, 2), (0, 2)), swap=True,
        ),
        "conv90/cluster of rows": conv90(
            Sm90Config(small, 2, cluster=(2, 1), **one),
            ConvProblem(2, 8, 9, 32, 24, (3, 1), padding=(1, 0)),
        ),
        "conv90/cluster of columns": conv90(
            Sm90Config(small, 2, cluster=(1, 2), **one),
            ConvProblem(1, 8, 9, 32, 40, (1, 3), padding=(0, 1)),
        ),
        "conv80/vectors": conv80(
            GemmConfig(atom, (32, 32, 32), (2, 2), 3),
            ConvProblem(1, 7, 5, 16, 24, (3, 3), (2, 1), (1, 2), (1, 2)),
        ),
        "conv80/odd channels, tail": conv80(
            GemmConfig(atom, (32, 32, 32), (2, 1), 2), ConvProblem(2, 6, 7, 9, 27, (3, 3)),
            tail=True,
        ),
        "stem/three channels": stem(
            ConvProblem(5, 10, 40, 3, 16, (3, 3), (2, 2), (1, 1)), (1, 2, 2)
        ),
        "stem/two blocks of pixels": stem(
            ConvProblem(4, 5, 24, 2, 13, (2, 3), (1, 1), (0, 1)), (2, 1, 2)
        ),
        "pack/joined": packed(ConvProblem(1, 5, 9, 3, 5, (3, 3), (1, 1), (1, 1))),
        "pack/planes": packed(ConvProblem(1, 5, 6, 9, 5, (2, 2)), planes=True),
        "direct/groups": conv_simple(
            (1, 5, 6, 12), (6, 3, 2, 4), (1, 3, 6, 6), groups=3, stride=(2, 1), padding=(1, 1),
            dilation=(1, 2),
        ),
        "direct/transposed": conv_simple(
            (2, 3, 4, 8), (12, 2, 3, 8), (2, 6, 6, 12), transposed=True, stride=(2, 2),
            padding=(0, 1),
        ),
        "windows/max": pool(
            (1, 5, 6, 16), (1, 3, 6, 16), kernel=(3, 2), stride=(2, 1), padding=(1, 1),
            dilation=(1, 2),
        ),
        "windows/mean of inside": pool(
            (2, 5, 4, 3), (2, 3, 2, 3), kernel=(3, 3), stride=(2, 2), padding=(1, 1),
            take="mean of inside",
        ),
        "concat/rows": joined(1, (3, 4, 24), (3, 5, 24), (3, 1, 24)),
        "concat/odd columns": joined(1, (5, 7), (5, 60)),
    }  # fmt: skip
