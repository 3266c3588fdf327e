"""Kernels that the tests of manifests, freezing and pins name by their import path."""

from __future__ import annotations

from dataclasses import dataclass

import kdsl_core as kd
from kdsl_core.atoms import shared_operand

FACTOR = 2
OPTIONS = {"shift": 1}


@dataclass(frozen=True)
class Tiles:
    """A kernel's configuration."""

    tile: tuple[int, int] = (16, 8)
    stages: int = 2


class Settings:
    """What a kernel reads from an object."""

    bias = 3


SETTINGS = Settings()


def helper(v):
    """What `scaled` calls."""
    return v * FACTOR


def twice(v):
    """An epilogue."""
    return v + v


def thrice(v):
    """Another epilogue."""
    return v + v + v


@kd.kernel
def scaled(
    x: kd.Tensor["f32|f16|bf16"],
    *more: kd.Tensor["=x"],
    by: kd.f32,
    tiles: kd.Static = Tiles(),
    epilogue: kd.Static = twice,
):
    """Every thread of the first block scales one element, by everything above."""
    i = kd.thread_idx()[0]
    if i < x.shape[0]:
        at = (i, *(0 for _ in range(1, len(x.shape))))
        value = helper(epilogue(x[at])) + SETTINGS.bias + OPTIONS["shift"]
        x[at] = value * by.to(x.dtype)


@kd.kernel
def copied(x: kd.Tensor["i32", "n"], y: kd.Tensor["i32", "n"]):
    """y = x, by whole blocks and without a bound: n must be a multiple of the block."""
    i = kd.block_idx()[0] * kd.block_dim()[0] + kd.thread_idx()[0]
    y[i] = x[i]


@kd.kernel
def broken(x: kd.Tensor["i32", "n"]):
    """A kernel whose trace fails."""
    raise RuntimeError("the author's meta code failed")


@kd.kernel
def walked(x: kd.Tensor["bf16", "n h w c"]):
    """One TMA load of a convolution's pixels."""
    shared = kd.smem(kd.bf16, shared_operand("bf16", (128, 128)))
    load = kd.tma_im2col(x, shared[..., 0], lower=(-1, -1), upper=(-1, -1), strides=(2, 1))
    load(shared[..., 0], (0, 4, 5, 64), (1, 2), kd.mbarrier())
