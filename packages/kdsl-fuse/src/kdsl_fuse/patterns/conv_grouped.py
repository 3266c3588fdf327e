"""Grouped convolutions on tensor cores, with any pointwise tail."""

from __future__ import annotations

from typing import Any

from kdsl_core.dtypes import f32
from kdsl_core.errors import ArgumentError
from kdsl_fuse.calls import Operand, Preparation
from kdsl_fuse.patterns.base import Example, Options
from kdsl_fuse.patterns.conv_fast import ConvForm, FastConv, Packed, multiprocessors
from kdsl_fuse.strided import row_major

WIDE = 64  # channels of a group above which each group is a dense convolution of its own
ADDRESSABLE = 16  # bytes that starts and strides of images are multiples of


class ConvGrouped(FastConv):
    """act(conv(x, w) * s + b …) + residual … in groups of 2 to 64 channels: `conv_grouped`.

    f16 and bf16. Images and filters that lie otherwise than NHWC are copied first.
    """

    name = "conv_grouped"
    examples: tuple[Example, ...] = (
        Example(
            "groups of four, a bias and an activation",
            lambda kf, x, w, b: kf.relu(kf.conv2d(x, w, b, padding=1, groups=8)),
            (("f16", (1, 8, 9, 32)), ("f16", (32, 3, 3, 4)), ("f16", (32,))),
        ),
        Example(
            "in NCHW",
            lambda kf, x, w: kf.conv2d(x, w, stride=2, padding=1, groups=4, layout="NCHW") * 0.5,
            (("bf16", (1, 64, 6, 8)), ("bf16", (64, 16, 3, 3))),
        ),
        Example(
            "BatchNorm and a residual on Hopper",
            lambda kf, x, w, s, t, r: kf.relu(kf.conv2d(x, w, padding=1, groups=8) * s + t + r),
            (("bf16", (1, 8, 8, 64)), ("bf16", (64, 3, 3, 8)), ("bf16", (64,)), ("bf16", (64,)),
             ("bf16", (1, 8, 8, 64))),
            target="sm_90a",
        ),
    )  # fmt: skip

    def concerns(self, form: ConvForm) -> bool:
        """Whether there are groups of several channels, but not of many."""
        p = form.problem
        return p.groups > 1 and not p.depthwise and p.channels // p.groups <= WIDE

    def refusal(self, form: ConvForm, options: Options) -> str | None:
        """Why the grouped kernel does not compute it."""
        from kdsl_fuse.kernels.conv_grouped_plan import choose

        p = form.problem
        if form.dtype is f32:
            return "the grouped kernel multiplies f16 and bf16"
        if any(n * form.dtype.bytes % ADDRESSABLE for n in (p.channels, p.filters)):
            return f"pixels of {p.channels} and {p.filters} channels are no whole 16 bytes"
        try:
            choose(p, target=options.target, multiprocessors=multiprocessors(options))
        except ArgumentError as problem:
            return problem.message
        return None

    def plan(self, form: ConvForm, options: Options) -> tuple[Any, Preparation]:
        """The plan for the sizes; operands in NHWC."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.conv_grouped_plan import choose, stageable

        result = kd.spec(form.output.dtype, form.output.shape)
        staged = stageable(result, [Preparation().spec(extra) for extra in form.extras])
        plan = choose(
            form.problem, staged=staged, target=options.target,
            multiprocessors=multiprocessors(options),
        )  # fmt: skip
        filters = form.filters.strides != row_major(form.filters.shape)
        return plan, Packed((not _is_addressable(form.images), filters))


def _is_addressable(images: Operand) -> bool:
    """Whether images lie as the kernel's copies want them."""
    pairs = zip(images.strides[:3], images.shape, strict=False)
    pitches = [step * images.dtype.bytes for step, size in pairs if size > 1]
    return images.strides[3] == 1 and not any(n % ADDRESSABLE for n in (images.align, *pitches))
