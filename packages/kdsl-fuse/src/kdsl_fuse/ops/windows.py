"""Operators whose results look through a window at images (n, height, width, channels)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.graph import Node, Op
from kdsl_fuse.ops.declare import OpDef, ValueType, promote, require

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]
"""Rows above, columns to the left, rows below, columns to the right."""


def _spans(kernel: Pair, dilation: Pair) -> Pair:
    """Rows and columns from a window's first element to behind its last."""
    return (kernel[0] - 1) * dilation[0] + 1, (kernel[1] - 1) * dilation[1] + 1


def _taps(kernel: Pair) -> product[tuple[int, int]]:
    return product(range(kernel[0]), range(kernel[1]))


def _seen(x: Any, tap: Pair, stride: Pair, dilation: Pair, sizes: Pair) -> Any:
    """What each window of padded images has at one of its elements."""
    first = tap[0] * dilation[0], tap[1] * dilation[1]
    rows, columns = (
        slice(a, a + (size - 1) * step + 1, step)
        for a, size, step in zip(first, sizes, stride, strict=True)
    )
    return x[:, rows, columns]


def _padded(x: Any, pads: Pads, fill: Any) -> Any:
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)


def conv(x: Any, w: Any, stride: Pair, pads: Pads, dilation: Pair, groups: int) -> Any:
    """y[n, p, q, k] = Σ x[n, p·stride + r·dilation − pad, …, c] · w[k, r, s, c] in each group."""
    kernel, filters = w.shape[1:3], w.shape[0]
    sizes = output_sizes(x.shape[1:3], kernel, stride, pads, dilation)
    images, pixels = _padded(x, pads, 0), x.shape[0] * sizes[0] * sizes[1]
    total = np.zeros((groups, pixels, filters // groups), np.result_type(x, w))
    for tap in _taps(kernel):
        seen = _seen(images, tap, stride, dilation, sizes).reshape(pixels, groups, -1)
        each = w[:, tap[0], tap[1]].reshape(groups, filters // groups, -1)
        total += seen.swapaxes(0, 1) @ each.swapaxes(1, 2)
    return total.swapaxes(0, 1).reshape(x.shape[0], *sizes, filters)


def conv_transpose(
    x: Any, w: Any, stride: Pair, pads: Pads, dilation: Pair, groups: int, extra: Pair
) -> Any:
    """The convolution by the same filters of images with stride − 1 zeros between pixels."""
    n, height, width, channels = x.shape
    apart = np.zeros(
        (n, (height - 1) * stride[0] + 1, (width - 1) * stride[1] + 1, channels), x.dtype
    )
    apart[:, :: stride[0], :: stride[1]] = x
    spans = _spans(w.shape[1:3], dilation)
    around = [span - 1 - pad for span, pad in zip((*spans, *spans), pads, strict=True)]
    top, left, bottom, right = around[0], around[1], around[2] + extra[0], around[3] + extra[1]
    cut = apart[:, max(-top, 0) :, max(-left, 0) :]
    cut = cut[:, : cut.shape[1] - max(-bottom, 0), : cut.shape[2] - max(-right, 0)]
    outer = max(top, 0), max(left, 0), max(bottom, 0), max(right, 0)
    return conv(cut, w[:, ::-1, ::-1], (1, 1), outer, dilation, groups)


def max_pool(x: Any, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> Any:
    """The largest in each window; what lies outside of the image does not count."""
    sizes = output_sizes(x.shape[1:3], kernel, stride, pads, dilation)
    images = _padded(x, pads, -np.inf)
    return np.max([_seen(images, tap, stride, dilation, sizes) for tap in _taps(kernel)], axis=0)


def average_pool(x: Any, kernel: Pair, stride: Pair, pads: Pads, inside: bool) -> Any:
    """The mean of each window: with zeros outside of the image, or of what is `inside` of it."""
    sizes = output_sizes(x.shape[1:3], kernel, stride, pads, (1, 1))

    def summed(images: Any) -> Any:
        padded = _padded(images, pads, 0)
        return sum(_seen(padded, tap, stride, (1, 1), sizes) for tap in _taps(kernel))

    counts = summed(np.ones_like(x)) if inside else kernel[0] * kernel[1]
    return summed(x) / counts


def resize(x: Any, scale: Pair) -> Any:
    """Each pixel repeated so many times along height and width."""
    return np.repeat(np.repeat(x, scale[0], axis=1), scale[1], axis=2)


# -- types ----------------------------------------------------------------------------------


def output_sizes(sizes: Pair, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> Pair:
    """Rows and columns of windows that fit padded images."""
    spans = _spans(kernel, dilation)
    rows, columns = (
        (sizes[i] + pads[i] + pads[i + 2] - spans[i]) // stride[i] + 1 for i in range(2)
    )
    return rows, columns


def _images(op: Op, x: Node, loc: Loc | None) -> None:
    require("float", op, [x], loc)
    if x.rank == 4:
        return
    raise FusionError(
        f"{op.name} takes images [n, height, width, channels], got x: {list(x.shape)}",
        code="K970",
        loc=loc,
        notes=[x.note()],
        fix="kf.conv1d and kf.conv2d give sequences and layouts that form",
    )


def _at_least(op: Op, name: str, values: Sequence[int], least: int, loc: Loc | None) -> None:
    if min(values) >= least:
        return
    raise FusionError(
        f"{op.name} takes {name} of at least {least}, got {name}={list(values)}",
        code="K971",
        loc=loc,
        fix="slice images to cut off their edges: x[:, 1:-1]" if name == "pads" else None,
    )


def _windows(op: Op, x: Node, kernel: Pair, loc: Loc | None) -> Pair:
    """Rows and columns of a result; K972 where a window is larger than the padded image."""
    dilation = dict(op.attrs).get("dilation", (1, 1))
    _images(op, x, loc)
    for name, values, least in (
        ("kernel", kernel, 1), ("stride", op["stride"], 1), ("dilation", dilation, 1),
        ("pads", op["pads"], 0),
    ):  # fmt: skip
        _at_least(op, name, values, least, loc)
    height, width = x.shape[1:3]
    sizes = output_sizes((height, width), kernel, op["stride"], op["pads"], dilation)
    if min(sizes) >= 1:
        return sizes
    top, left, bottom, right = op["pads"]
    raise FusionError(
        f"{op.name}: the window spans {list(_spans(kernel, dilation))} pixels (kernel "
        f"{list(kernel)}, dilation {list(dilation)}), and the padded image has only "
        f"{[height + top + bottom, width + left + right]}",
        code="K972",
        loc=loc,
        notes=[x.note()],
        fix="pad more, or use a smaller kernel or dilation",
    )


def _filters(op: Op, x: Node, w: Node, loc: Loc | None) -> Pair:
    """Rows and columns of filters that fit the images; K973 where they do not."""
    _images(op, x, loc)
    require("float", op, [w], loc)
    groups = op["groups"]
    if w.rank == 4 and groups >= 1 and (w.shape[3] * groups, w.shape[0] % groups) == (
        x.shape[3], 0,
    ):  # fmt: skip
        return w.shape[1], w.shape[2]
    raise FusionError(
        f"{op.name} takes filters w: [filters, height, width, channels / groups] with filters and "
        f"channels in groups of one size, got x: {list(x.shape)}, w: {list(w.shape)} and "
        f"groups={groups}",
        code="K973",
        loc=loc,
        notes=[x.note(), w.note()],
        fix='w of torch and ONNX has its channels first: pass layout="NCHW" for both',
    )


def _infer_conv(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    x, w = operands
    sizes = _windows(op, x, _filters(op, x, w, loc), loc)
    return (x.shape[0], *sizes, w.shape[0]), promote(op, operands, loc)


def _infer_conv_transpose(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    x, w = operands
    kernel = _filters(op, x, w, loc)
    for name, values, least in (
        ("stride", op["stride"], 1), ("dilation", op["dilation"], 1), ("pads", op["pads"], 0),
        ("extra", op["extra"], 0),
    ):  # fmt: skip
        _at_least(op, name, values, least, loc)
    spans, pads = _spans(kernel, op["dilation"]), op["pads"]
    sizes = tuple(
        (x.shape[1 + i] - 1) * op["stride"][i] + spans[i] - pads[i] - pads[i + 2] + op["extra"][i]
        for i in range(2)
    )
    if min(sizes) < 1:
        raise FusionError(
            f"{op.name} cuts pads={list(pads)} off, and leaves {list(sizes)} pixels",
            code="K972",
            loc=loc,
            notes=[x.note()],
            fix="cut less off",
        )
    return (x.shape[0], *sizes, w.shape[0]), promote(op, operands, loc)


def _infer_pool(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    sizes = _windows(op, x, op["kernel"], loc)
    kernel, pads = op["kernel"], op["pads"]
    dilation = dict(op.attrs).get("dilation", (1, 1))
    spans = _spans(kernel, dilation)
    if any(pads[i] >= spans[i % 2] for i in range(4)):
        raise FusionError(
            f"{op.name} has windows without any pixel: pads={list(pads)} for a window of "
            f"{list(spans)} pixels",
            code="K974",
            loc=loc,
            notes=[x.note()],
            fix="pad by less than the window spans",
        )
    return (x.shape[0], *sizes, x.shape[3]), x.dtype


def _infer_resize(op: Op, operands: Sequence[Node], loc: Loc | None) -> ValueType:
    (x,) = operands
    _images(op, x, loc)
    _at_least(op, "scale", op["scale"], 1, loc)
    rows, columns = op["scale"]
    return (x.shape[0], x.shape[1] * rows, x.shape[2] * columns, x.shape[3]), x.dtype


WINDOWS = (
    OpDef("Conv", _infer_conv, conv),
    OpDef("ConvTranspose", _infer_conv_transpose, conv_transpose),
    OpDef("MaxPool", _infer_pool, max_pool),
    OpDef("AveragePool", _infer_pool, average_pool),
    OpDef("Resize", _infer_resize, resize),
)
