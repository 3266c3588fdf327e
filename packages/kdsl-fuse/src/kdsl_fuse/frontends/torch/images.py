"""What torch's convolutions and poolings mean in the words of `@kf.fuse`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kdsl_fuse.frontends import functions_of_images as images
from kdsl_fuse.frontends import functions_of_rows as rows
from kdsl_fuse.frontends.torch.forms import only
from kdsl_fuse.frontends.traced import TracedArray


def _convolution(
    x: Any, w: Any, bias: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> TracedArray:  # fmt: skip
    only(x.ndim in (3, 4) and (x.ndim == 4 or not transposed),
         "a convolution of sequences or images with a batch")  # fmt: skip
    if x.ndim == 3:
        before = padding[0]
        pads = (before, before)
        return images.conv1d(x, w, bias, stride[0], pads, dilation[0], groups, "NCHW")
    if transposed:
        return images.conv_transpose2d(
            x, w, bias, stride, padding, output_padding, dilation, groups, "NCHW"
        )
    return images.conv2d(x, w, bias, stride, padding, dilation, groups, "NCHW")


def _max_pool(
    x: Any, kernel: Sequence[int], stride: Sequence[int] = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TracedArray, None]:  # fmt: skip
    only(x.ndim == 4, "max_pool2d with a batch")
    step = tuple(stride) or None
    pooled = images.max_pool2d(x, tuple(kernel), step, padding, dilation, ceil_mode, "NCHW")
    return pooled, None


def _avg_pool(
    x: Any, kernel: Sequence[int], stride: Sequence[int] = (), padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: Any = None,
) -> TracedArray:  # fmt: skip
    plain = x.ndim == 4 and not ceil_mode and divisor_override is None
    only(plain, "avg_pool2d with a batch, without ceil_mode and another divisor")
    step = tuple(stride) or None
    return images.avg_pool2d(x, tuple(kernel), step, padding, count_include_pad, "NCHW")


def _adaptive(x: Any, size: Sequence[int]) -> TracedArray:
    only(x.ndim == 4 and tuple(size) == (1, 1), "adaptive pooling to one pixel")
    return rows.mean(x, (2, 3), keepdims=True)


IMAGES: dict[str, Callable[..., Any]] = {
    "aten.convolution.default": _convolution,
    "aten.max_pool2d_with_indices.default": _max_pool,
    "aten.avg_pool2d.default": _avg_pool,
    "aten._adaptive_avg_pool2d.default": _adaptive,
}
