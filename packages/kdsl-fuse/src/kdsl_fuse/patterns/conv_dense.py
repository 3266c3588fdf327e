"""Dense convolutions as products of matrices that are never written, with any pointwise tail."""

from __future__ import annotations

from typing import Any

from kdsl_fuse.calls import Operand, Preparation
from kdsl_fuse.patterns.base import Chip, Example, Options
from kdsl_fuse.patterns.conv_fast import ConvForm, FastConv, Packed
from kdsl_fuse.patterns.conv_grouped import WIDE
from kdsl_fuse.patterns.folds import as_rows
from kdsl_fuse.patterns.gemm_families import TMA_BYTES, has_wgmma
from kdsl_fuse.strided import row_major


class ConvDense(FastConv):
    """act(conv(x, w) * s + b …) + residual … as implicit GEMM: `conv_sm90`, else `conv_sm80`.

    Any stride, dilation and padding, from three channels up; wide groups one after the other. On
    Hopper, images that TMA cannot walk over (odd channels, NCHW) are copied first.
    """

    name = "conv_dense"
    fold = staticmethod(as_rows)
    same_type = False
    examples: tuple[Example, ...] = (
        Example(
            "bias, activation and a residual",
            lambda kf, x, w, b, r: kf.relu(kf.conv2d(x, w, b, padding=1)) + r,
            (("f16", (1, 6, 7, 16)), ("f16", (24, 3, 3, 16)), ("f16", (24,)),
             ("f16", (1, 6, 7, 24))),
        ),
        Example(
            "a stem in NCHW",
            lambda kf, x, w, b: kf.silu(kf.conv2d(x, w, b, 2, 2, layout="NCHW")),
            (("f32", (2, 3, 9, 9)), ("f32", (8, 3, 5, 5)), ("f32", (8,))),
        ),
        Example(
            "wide groups",
            lambda kf, x, w: kf.conv2d(x, w, padding=1, groups=2),
            (("bf16", (1, 4, 5, 144)), ("bf16", (16, 3, 3, 72))),
        ),
        Example(
            "BatchNorm, activation and a residual on Hopper",
            lambda kf, x, w, s, t, r: kf.relu(kf.conv2d(x, w, padding=1) * s + t + r),
            (("bf16", (1, 8, 8, 64)), ("bf16", (64, 3, 3, 64)), ("bf16", (64,)), ("bf16", (64,)),
             ("bf16", (1, 8, 8, 64))),
            target="sm_90a",
        ),
        Example(
            "a stem of four channels on Hopper",
            lambda kf, x, w, b: kf.relu(kf.conv2d(x, w, b, 2, 3)),
            (("f16", (1, 12, 16, 4)), ("f16", (16, 7, 7, 4)), ("f16", (16,))),
            target="sm_90a",
        ),
        Example(
            "a stem with a stride on Hopper, in NCHW",
            lambda kf, x, w, b: kf.gelu(kf.conv2d(x, w, b, 2, 3, layout="NCHW")),
            (("f16", (1, 3, 12, 11)), ("f16", (16, 3, 7, 7)), ("f16", (16,))),
            target="sm_90a",
        ),
    )  # fmt: skip

    def concerns(self, form: ConvForm) -> bool:
        """Whether there is one group, or groups are wide."""
        p = form.problem
        return p.groups == 1 or p.channels // p.groups > WIDE

    def plan(self, form: ConvForm, options: Options) -> tuple[Any, Preparation]:
        """The plan of the fastest kernel that takes the sizes; filters packed."""
        from kdsl_fuse.kernels import conv_sm80_plan, conv_sm90_plan
        from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, MULTIPROCESSORS

        apart = form.filters.strides != row_major(form.filters.shape)
        packing = Packed((False, apart))
        hopper = has_wgmma(form.dtype, options.target)
        if not hopper or conv_sm90_plan.refusal(form.problem, form.dtype) is not None:
            plan: Any = conv_sm80_plan.choose(
                form.problem, form.dtype, target=options.target,
                f32_precision=options.f32_precision,
            )  # fmt: skip
            return plan, packing
        chip = options.chip or Chip(DEVICE, MULTIPROCESSORS)
        plan = conv_sm90_plan.choose(
            form.problem, form.dtype, form.output.dtype, tail=bool(form.tail.steps),
            reads=form.matrices > 0, lines=_lies_in_lines(form.images),
            multiprocessors=chip.multiprocessors, device=chip.name,
        )  # fmt: skip
        return plan, packing


def _lies_in_lines(images: Operand) -> bool:
    """Whether images are contiguous, as those of few channels are to be."""
    return images.strides == row_major(images.shape) and images.align % TMA_BYTES == 0
