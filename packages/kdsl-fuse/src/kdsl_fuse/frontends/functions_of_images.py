"""Convolutions and other functions of windows of images, for use inside `@kf.fuse`.

Images are [n, height, width, channels] ("NHWC"), and filters [filters, height, width,
channels / groups]; or both have their channels in the second place ("NCHW", "torch's"), which is
another way of looking at the same numbers: kernels read through the strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_fuse import arrays
from kdsl_fuse.frontends.traced import TracedArray, apply
from kdsl_fuse.ops.windows import Pads, Pair
from kdsl_fuse.origin import author_loc

Sizes = int | Sequence[int]
LAYOUTS = ("NHWC", "NCHW")
_LAST, _SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


def conv2d(
    x: Any, w: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1,
    groups: int = 1, layout: str = "NHWC",
) -> TracedArray:  # fmt: skip
    """Σ x[n, p·stride + r·dilation − padding, …, c] · w[k, r, s, c], + bias of each filter.

    `stride` and `dilation` are one number or one for each of (height, width); so is `padding`, or
    four of them: above, left, below, right. Filters and channels are split into `groups` alike.

    Raises: FusionError K970 … K973 for shapes and numbers that do not fit, K975 for a layout.
    """
    attrs = {"stride": _pair(stride, "stride"), "dilation": _pair(dilation, "dilation"),
             "pads": _pads(padding), "groups": int(groups)}  # fmt: skip
    turned = filters_last(w) if _is_second(layout) else w
    return _with_bias(apply("Conv", _images(x, layout), turned, **attrs), bias, layout)


def conv1d(
    x: Any, w: Any, bias: Any = None, stride: int = 1, padding: Sizes = 0, dilation: int = 1,
    groups: int = 1, layout: str = "NHWC",
) -> TracedArray:  # fmt: skip
    """The same for sequences [n, length, channels], filters [filters, length, channels / groups].

    In layout "NCHW" they are [n, channels, length] and [filters, channels / groups, length].
    """
    at = 2 if _is_second(layout) else 1
    before, behind = _ends(padding)
    rows = conv2d(
        apply("Unsqueeze", _traced(x, "x"), axes=(at,)), _with_row(w, at), bias, (1, stride),
        (0, before, 0, behind), (1, dilation), groups, layout,
    )  # fmt: skip
    return apply("Squeeze", rows, axes=(at,))


def conv_transpose2d(
    x: Any, w: Any, bias: Any = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1, layout: str = "NHWC",
) -> TracedArray:  # fmt: skip
    """What a convolution of this stride would give x back from: images larger by the stride.

    `padding` is cut off the result, `output_padding` added below and to the right. Filters are
    [filters, height, width, channels / groups] as in `conv2d`; in layout "NCHW" as torch and ONNX
    have them: [channels, filters / groups, height, width].
    """
    attrs = {"stride": _pair(stride, "stride"), "dilation": _pair(dilation, "dilation"),
             "pads": _pads(padding), "groups": int(groups),
             "extra": _pair(output_padding, "output_padding")}  # fmt: skip
    turned = _filters_first(w, int(groups)) if _is_second(layout) else w
    return _with_bias(apply("ConvTranspose", _images(x, layout), turned, **attrs), bias, layout)


def max_pool2d(
    x: Any, kernel: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
    ceil: bool = False, layout: str = "NHWC",
) -> TracedArray:  # fmt: skip
    """The largest of each window; what lies outside of the image does not count.

    `stride` is the kernel's size unless stated; `ceil` adds windows that hang over the edge.
    """
    images, size = _images(x, layout), _pair(kernel, "kernel")
    step, apart = _pair(stride or size, "stride"), _pair(dilation, "dilation")
    pads = _pads(padding)
    if ceil:
        pads = _hanging(images, size, step, pads, apart)
    pooled = apply("MaxPool", images, kernel=size, stride=step, pads=pads, dilation=apart)
    return _back(pooled, layout)


def avg_pool2d(
    x: Any, kernel: Sizes, stride: Sizes | None = None, padding: Sizes = 0,
    count_padding: bool = True, layout: str = "NHWC",
) -> TracedArray:  # fmt: skip
    """The mean of each window; padding counts as zeros, or not at all."""
    size = _pair(kernel, "kernel")
    attrs = {"kernel": size, "stride": _pair(stride or size, "stride"), "pads": _pads(padding)}
    inside = not count_padding and any(attrs["pads"])
    return _back(apply("AveragePool", _images(x, layout), inside=inside, **attrs), layout)


def upsample2d(x: Any, scale: Sizes, layout: str = "NHWC") -> TracedArray:
    """Each pixel repeated so many times along height and width."""
    return _back(apply("Resize", _images(x, layout), scale=_pair(scale, "scale")), layout)


def filters_last(w: Any) -> Any:
    """Filters [k, c, r, s] as [k, r, s, c]; those known now in memory of this order."""
    return _permuted(w, _LAST)


def _filters_first(w: Any, groups: int) -> Any:
    """Filters [c, k / groups, r, s] as [k, r, s, c / groups]."""
    if groups == 1:
        return _permuted(w, (1, 2, 3, 0))
    channels, filters, rows, columns = w.shape
    if groups < 1 or channels % groups:  # whose rule says it better
        return _permuted(w, (1, 2, 3, 0))
    split = (groups, channels // groups, filters, rows, columns)
    apart = _permuted(_reshaped(w, split), (0, 2, 3, 4, 1))
    return _reshaped(apart, (groups * filters, rows, columns, channels // groups))


def _permuted(w: Any, perm: tuple[int, ...]) -> Any:
    if isinstance(w, TracedArray):
        return apply("Transpose", w, perm=perm)
    if arrays.library(w) == "torch":
        return w.permute(perm).contiguous()
    return np.ascontiguousarray(np.transpose(w, perm))


def _reshaped(w: Any, shape: tuple[int, ...]) -> Any:
    return apply("Reshape", w, shape=shape) if isinstance(w, TracedArray) else w.reshape(shape)


def _with_row(w: Any, axis: int) -> Any:
    """Filters of sequences as filters of images of one row."""
    shape = (*w.shape[:axis], 1, *w.shape[axis:])
    return _reshaped(w, tuple(shape))


def _traced(x: Any, name: str) -> Any:
    if isinstance(x, TracedArray):
        return x
    raise FusionError(
        f"{name} must be computed from arguments of the fused function, got {type(x).__name__}",
        code="K920",
        loc=author_loc(),
        fix="pass the images as an argument",
    )


def _is_second(layout: str) -> bool:
    if layout not in LAYOUTS:
        raise FusionError(
            f"layout is one of {', '.join(LAYOUTS)}, got {layout!r}",
            code="K975",
            loc=author_loc(),
            fix='images are [n, height, width, channels] in "NHWC"',
        )
    return layout == "NCHW"


def _images(x: Any, layout: str) -> Any:
    """Images with their channels last."""
    traced = _traced(x, "x")
    second = _is_second(layout) and traced.ndim == 4  # of others the operator's own rule tells
    return apply("Transpose", traced, perm=_LAST) if second else traced


def _back(y: TracedArray, layout: str) -> TracedArray:
    return apply("Transpose", y, perm=_SECOND) if layout == "NCHW" else y


def _with_bias(y: TracedArray, bias: Any, layout: str) -> TracedArray:
    return _back(y if bias is None else apply("Add", y, bias), layout)


def _numbers(value: Sizes, name: str, counts: Sequence[int]) -> tuple[int, ...]:
    found = (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)
    if len(found) in counts:
        return found
    raise FusionError(
        f"{name} takes {' or '.join(map(str, counts))} numbers, got {name}={value!r}",
        code="K976",
        loc=author_loc(),
        fix="give one for both axes, or one for each of (height, width)",
    )


def _pair(value: Sizes, name: str) -> Pair:
    found = _numbers(value, name, (1, 2))
    return found[0], found[-1]


def _pads(value: Sizes) -> Pads:
    """Above, left, below, right."""
    found = _numbers(value, "padding", (1, 2, 4))
    top, left = found[0], found[min(1, len(found) - 1)]
    bottom, right = found[2:] or (top, left)
    return top, left, bottom, right


def _ends(value: Sizes) -> Pair:
    """Before and behind a sequence."""
    return _pair(value, "padding")


def _hanging(x: TracedArray, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> Pads:
    """Pads with which windows that begin inside, but hang over the edge, fit as well."""
    more = [0, 0]
    for i in range(2):
        size, span = x.shape[1 + i], (kernel[i] - 1) * dilation[i] + 1
        free = size + pads[i] + pads[i + 2] - span
        over = -free % stride[i]
        last = free + over  # where its window begins, from the padded edge
        if free >= 0 and last < size + pads[i]:
            more[i] = over
    return pads[0], pads[1], pads[2] + more[0], pads[3] + more[1]
