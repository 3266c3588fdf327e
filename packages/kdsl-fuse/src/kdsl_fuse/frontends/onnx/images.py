"""What ONNX's convolutions, poolings and resizings mean in the words of `@kf.fuse`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kdsl_fuse.frontends import functions_of_images as images
from kdsl_fuse.frontends import functions_of_rows as rows
from kdsl_fuse.frontends.onnx.forms import Attributes, Inputs, Meaning, get, only, whole

_SAME = ("SAME_UPPER", "SAME_LOWER")
# (coordinate_transformation_mode, nearest_mode) that repeat pixels where scales are whole
_REPEATING = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"),
              ("pytorch_half_pixel", "round_prefer_floor"))  # fmt: skip


def _word(a: Attributes, name: str, default: str) -> str:
    found = a.get(name, default)
    return found.decode() if isinstance(found, bytes) else str(found)


def _pads(a: Attributes, x: Any, kernel: Sequence[int]) -> tuple[int, ...]:
    """Before each axis, then behind each."""
    axes = range(len(kernel))
    mode = _word(a, "auto_pad", "NOTSET")
    if mode not in _SAME:
        return (
            tuple(a.get("pads", (0,) * 2 * len(kernel)))
            if mode == "NOTSET"
            else (0,) * 2 * len(kernel)
        )
    strides, dilations = (a.get(name, (1,) * len(kernel)) for name in ("strides", "dilations"))
    missing = []
    for i in axes:
        size, span = x.shape[2 + i], (kernel[i] - 1) * dilations[i] + 1
        missing.append(max((-(-size // strides[i]) - 1) * strides[i] + span - size, 0))
    less, more = [n // 2 for n in missing], [n - n // 2 for n in missing]
    return (*less, *more) if mode == "SAME_UPPER" else (*more, *less)


def _conv(inputs: Inputs, a: Attributes) -> Any:
    x, w, bias = inputs[0], inputs[1], get(inputs, 2)
    only(x.ndim in (3, 4), "convolutions of sequences and of images")
    one = (1,) * (x.ndim - 2)
    pads, stride, dilation = (
        _pads(a, x, w.shape[2:]), tuple(a.get("strides", one)), tuple(a.get("dilations", one)),
    )  # fmt: skip
    groups = a.get("group", 1)
    if x.ndim == 3:
        return images.conv1d(x, w, bias, stride[0], pads, dilation[0], groups, "NCHW")
    return images.conv2d(x, w, bias, stride, pads, dilation, groups, "NCHW")


def _conv_transpose(inputs: Inputs, a: Attributes) -> Any:
    x, w, bias = inputs[0], inputs[1], get(inputs, 2)
    plain = x.ndim == 4 and "output_shape" not in a and _word(a, "auto_pad", "NOTSET") not in _SAME
    only(plain, "ConvTranspose of images with stated pads")
    return images.conv_transpose2d(
        x, w, bias, tuple(a.get("strides", (1, 1))), _pads(a, x, w.shape[2:]),
        tuple(a.get("output_padding", (0, 0))), tuple(a.get("dilations", (1, 1))),
        a.get("group", 1), "NCHW",
    )  # fmt: skip


def _max_pool(inputs: Inputs, a: Attributes) -> Any:
    (x,) = inputs
    only(x.ndim == 4 and not a.get("storage_order", 0), "MaxPool of images")
    kernel = tuple(a["kernel_shape"])
    pooled = images.max_pool2d(
        x, kernel, tuple(a.get("strides", (1, 1))), _pads(a, x, kernel),
        tuple(a.get("dilations", (1, 1))), bool(a.get("ceil_mode", 0)), "NCHW",
    )  # fmt: skip
    return pooled, None


def _average_pool(inputs: Inputs, a: Attributes) -> Any:
    (x,) = inputs
    plain = not a.get("ceil_mode", 0) and set(a.get("dilations", (1,))) == {1}
    only(x.ndim == 4 and plain, "AveragePool of images, without ceil_mode and dilations")
    kernel = tuple(a["kernel_shape"])
    return images.avg_pool2d(
        x, kernel, tuple(a.get("strides", (1, 1))), _pads(a, x, kernel),
        bool(a.get("count_include_pad", 0)), "NCHW",
    )  # fmt: skip


def _global(function: Any) -> Meaning:
    return lambda inputs, _: function(inputs[0], tuple(range(2, inputs[0].ndim)), True)


def _resize(inputs: Inputs, a: Attributes) -> Any:
    x, scales, sizes = inputs[0], get(inputs, 2), get(inputs, 3)
    modes = (
        _word(a, "coordinate_transformation_mode", "half_pixel"),
        _word(a, "nearest_mode", "round_prefer_floor"),
    )
    only(_word(a, "mode", "nearest") == "nearest" and modes in _REPEATING and x.ndim == 4,
         "Resize of images that repeats pixels: nearest, asymmetric and floor")  # fmt: skip
    if scales is not None and np.size(scales):
        found = [float(s) for s in np.ravel(scales)]
    else:
        found = [n / m for n, m in zip(whole(sizes, "sizes of Resize"), x.shape, strict=True)]
    fits = len(found) == 4 and found[:2] == [1, 1] and all(s >= 1 and s % 1 == 0 for s in found)
    only(fits, "Resize of height and width by whole factors")
    return images.upsample2d(x, (int(found[2]), int(found[3])), "NCHW")


IMAGES: dict[str, Meaning] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global(rows.mean),
    "GlobalMaxPool": _global(rows.max),
    "Resize": _resize,
}
