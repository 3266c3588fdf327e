"""Grouped convolutions of small images: in NumPy, and in the simulator with all checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd
from kdsl_fuse.kernels.conv_grouped import ENTRIES
from kdsl_fuse.kernels.conv_grouped_config import GroupedConfig
from kdsl_fuse.kernels.gemm_sm90 import identity

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Images:
    """Sizes that a configuration leaves open."""

    batch: int
    height: int
    width: int
    groups: int


def operands(config: GroupedConfig, images: Images, dtype: Any = BF16) -> tuple[Array, Array]:
    """Images and weights of normal numbers."""
    rng = np.random.default_rng(0)
    channels, filters = config.group
    g = images.groups
    x = rng.standard_normal((images.batch, images.height, images.width, g * channels))
    w = rng.standard_normal((g * filters, *config.kernel, channels))
    return x.astype(dtype), w.astype(dtype)


def exact(config: GroupedConfig, x: Array, w: Array) -> Array:
    """The convolution in f64."""
    (sh, sw), (ph, pw), (dh, dw) = config.stride, config.padding, config.dilation
    channels, filters = config.group
    x, w = x.astype(np.float64), w.astype(np.float64)
    x = np.pad(x, ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    rows = (x.shape[1] - (w.shape[1] - 1) * dh - 1) // sh + 1
    columns = (x.shape[2] - (w.shape[2] - 1) * dw - 1) // sw + 1
    y = np.zeros((len(x), rows, columns, len(w)))
    for r, s in np.ndindex(*config.kernel):
        some = x[:, r * dh :, s * dw :][
            :, : (rows - 1) * sh + 1 : sh, : (columns - 1) * sw + 1 : sw
        ]
        for g in range(len(w) // filters):
            mine = slice(g * filters, (g + 1) * filters)
            y[..., mine] += some[..., g * channels : (g + 1) * channels] @ w[mine, r, s].T
    return y


def assert_close(got: Array, want: Array, scale: float) -> None:
    """Within a rounding of the result, and of sums in f32 (tensor cores truncate them)."""
    epsilon = float(ml_dtypes.finfo(got.dtype).eps)
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= epsilon / 2 * np.abs(want) + 1e-5 * scale).all()


def simulated(
    config: GroupedConfig,
    images: Images,
    *extras: Array,
    epilogue: Callable[..., Any] = identity,
    tail: Callable[[Array], Array] = lambda y: y,
    dtype: Any = BF16,
    blocks: int = 3,
    **options: Any,
) -> kd.simulate:
    """Run from NaN with all checks, and compare with f64."""
    x, w = operands(config, images, dtype)
    want = exact(config, x, w)
    scale = float(np.abs(want).max())
    y = np.full(want.shape, np.nan, dtype)
    chunks = -(-x.shape[3] // config.line)
    run = kd.simulate(
        ENTRIES[config.blocks_per_sm],
        grid=chunks * blocks,
        block=config.threads,
        args=(x, w, y, *(np.broadcast_to(e, want.shape) for e in extras)),
        kwargs={"epilogue": epilogue, "config": config},
        checks=("all", "unwritten"),
        overlap=config.copies == "tma",  # the launch ahead may still use all arrays
        **options,
    )
    assert_close(y, tail(want), scale)
    return run
