"""Depthwise convolutions: each channel by itself, with any pointwise tail."""

from __future__ import annotations

import math
from typing import Any

from kdsl_fuse.calls import Preparation
from kdsl_fuse.patterns.base import Example, Options
from kdsl_fuse.patterns.conv_fast import ConvForm, FastConv, multiprocessors


class ConvDepthwise(FastConv):
    """act(conv(x, w) * s + b …) + residual … where each channel is a group: `conv_depthwise`.

    f16 and bf16 in tiles by TMA on Hopper; f32, other targets, several filters for each channel and
    arrays that TMA cannot address by a portable kernel.
    """

    name = "conv_depthwise"
    examples: tuple[Example, ...] = (
        Example(
            "3×3, a bias and an activation",
            lambda kf, x, w, b: kf.hard_swish(kf.conv2d(x, w, b, padding=1, groups=24)),
            (("f32", (1, 6, 7, 24)), ("f32", (24, 3, 3, 1)), ("f32", (24,))),
        ),
        Example(
            "two filters for each channel, in NCHW",
            lambda kf, x, w: kf.silu(kf.conv2d(x, w, stride=2, groups=6, layout="NCHW")),
            (("f16", (2, 6, 7, 8)), ("f16", (12, 1, 3, 3))),
        ),
        Example(
            "a sequence",
            lambda kf, x, w: kf.conv1d(x, w, padding=4, groups=16) + x,
            (("bf16", (2, 19, 16)), ("bf16", (16, 9, 1))),
        ),
        Example(
            "7×7 with a norm and a residual on Hopper",
            lambda kf, x, w, s, t, r: kf.gelu(kf.conv2d(x, w, padding=3, groups=32) * s + t) + r,
            (("bf16", (1, 9, 10, 32)), ("bf16", (32, 7, 7, 1)), ("bf16", (32,)), ("bf16", (32,)),
             ("bf16", (1, 9, 10, 32))),
            target="sm_90a",
        ),
    )  # fmt: skip

    def concerns(self, form: ConvForm) -> bool:
        """Whether each of several channels is a group."""
        return form.problem.depthwise and form.problem.channels > 1

    def refusal(self, form: ConvForm, options: Options) -> str | None:
        """Why no depthwise kernel computes it."""
        from kdsl_fuse.kernels.conv_depthwise_config import MOST_TAPS

        if math.prod(form.problem.kernel) > MOST_TAPS:
            return f"windows of depthwise kernels have up to {MOST_TAPS} elements"
        return None

    def plan(self, form: ConvForm, options: Options) -> tuple[Any, Preparation]:
        """The plan for the sizes, as far as strides allow it."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.conv_depthwise_plan import access_width, choose

        x, w, *extras = map(Preparation().spec, (form.images, form.filters, *form.extras))
        result = kd.spec(form.output.dtype, form.output.shape)
        plan = choose(
            form.problem, form.dtype, target=options.target, extras=form.matrices,
            width=access_width(x, w, result, extras), multiprocessors=multiprocessors(options),
        )  # fmt: skip
        return plan, Preparation()
