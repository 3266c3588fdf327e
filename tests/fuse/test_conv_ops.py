"""Convolutions, pooling and upsampling as operators: meanings by plain loops, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core.errors import KdslError
from kdsl_fuse.reference import evaluate

RNG = np.random.default_rng(21)


def draw(*shape: int) -> Any:
    """Normal numbers in f64."""
    return RNG.standard_normal(shape)


def loops(
    x: Any, w: Any, stride: Any, pads: Any, dilation: Any, groups: int, sizes: tuple[int, int]
) -> Any:
    """A convolution of NCHW images, one product after the other."""
    n, filters = x.shape[0], w.shape[0]
    y = np.zeros((n, filters, *sizes))
    for i, k, p, q in product(range(n), range(filters), *map(range, sizes)):
        first = k // (filters // groups) * w.shape[1]
        for c, r, s in product(*map(range, w.shape[1:])):
            row, column = p * stride[0] + r * dilation[0] - pads[0], q * stride[1] + s * dilation[1]
            column -= pads[1]
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                y[i, k, p, q] += x[i, first + c, row, column] * w[k, c, r, s]
    return y


def value(function: Callable[..., Any], *arrays: Any) -> Any:
    """What a function of arrays means, in f64."""
    return evaluate(kf.fuse(function).graph(*arrays), arrays)[0]


CASES = {
    "3x3": ((1, 1), (1, 1, 1, 1), (1, 1), 1),
    "stride and uneven padding": ((2, 3), (0, 2, 1, 1), (1, 1), 1),
    "dilation": ((1, 1), (2, 2, 2, 2), (2, 2), 2),
    "depthwise": ((1, 2), (1, 1, 1, 1), (1, 1), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_is_its_sum_of_products(name: str) -> None:
    """Every stride, padding, dilation and grouping, in both layouts."""
    stride, pads, dilation, groups = CASES[name]
    x, w, b = draw(2, 4, 6, 7), draw(8, 4 // groups, 3, 3), draw(8)
    options = {"stride": stride, "padding": pads, "dilation": dilation, "groups": groups}
    got = value(lambda x, w, b: kf.conv2d(x, w, b, layout="NCHW", **options), x, w, b)
    sizes = tuple(
        (x.shape[2 + i] + pads[i] + pads[2 + i] - 2 * dilation[i] - 1) // stride[i] + 1
        for i in range(2)
    )
    want = loops(x, w, stride, pads, dilation, groups, (sizes[0], sizes[1]))
    np.testing.assert_allclose(got, want + b[:, None, None], rtol=1e-12, atol=1e-12)
    last = value(
        lambda x, w, b: kf.conv2d(x, w, b, **options),
        x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), b,
    )  # fmt: skip
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), got)


def test_sequences_are_images_of_one_row() -> None:
    """conv1d in both layouts, with filters that the function holds."""
    x, w = draw(2, 4, 11), draw(6, 2, 5)
    want = loops(x[:, :, None], w[:, :, None], (1, 2), (0, 3), (1, 1), 2, (1, 6))[:, :, 0]
    first = value(lambda x: kf.conv1d(x, w, None, 2, (3, 2), 1, 2, "NCHW"), x)
    np.testing.assert_allclose(first, want, rtol=1e-12, atol=1e-12)
    held = np.ascontiguousarray(w.transpose(0, 2, 1))
    last = value(lambda x: kf.conv1d(x, held, None, 2, (3, 2), 1, 2), x.transpose(0, 2, 1))
    np.testing.assert_allclose(last.transpose(0, 2, 1), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("groups", "padding", "extra"), [(1, 0, 0), (2, 1, 1), (1, 3, 0)])
def test_a_transposed_convolution_is_the_adjoint(groups: int, padding: int, extra: int) -> None:
    """⟨conv(x), y⟩ = ⟨x, conv_transpose(y)⟩ for the same filters, where sizes fit."""
    y, w = draw(1, 4, 5, 6), draw(4, 6 // groups, 3, 3)
    big = value(lambda y: kf.conv_transpose2d(y, w, None, 2, padding, extra, 1, groups, "NCHW"), y)
    assert big.shape == (1, 6, *(2 * (n - 1) + 3 - 2 * padding + extra for n in (5, 6)))
    x = draw(*big.shape)
    pads = (padding,) * 2
    again = loops(x, w, (2, 2), pads, (1, 1), groups, (5, 6))
    np.testing.assert_allclose((again * y).sum(), (x * big).sum(), rtol=1e-10)


def test_pools_take_what_is_inside() -> None:
    """Windows that hang over the edge: extremes ignore it, means count it as asked."""
    x = -np.abs(draw(1, 5, 4, 2)) - 1
    top = value(lambda x: kf.max_pool2d(x, 3, 2, 1), x)
    want = np.array([[x[0, max(r, 0) : r + 3, max(c, 0) : c + 3].max((0, 1))
                      for c in (-1, 1)] for r in (-1, 1, 3)])  # fmt: skip
    np.testing.assert_array_equal(top[0], want)
    corner = x[0, :2, :2].sum((0, 1))
    np.testing.assert_allclose(value(lambda x: kf.avg_pool2d(x, 3, 2, 1), x)[0, 0, 0], corner / 9)
    inside = value(lambda x: kf.avg_pool2d(x, 3, 2, 1, count_padding=False), x)
    np.testing.assert_allclose(inside[0, 0, 0], corner / 4)
    assert value(lambda x: kf.max_pool2d(x, 2, 2, ceil=True), x).shape == (1, 3, 2, 2)
    assert value(lambda x: kf.max_pool2d(x, 2, 2), x).shape == (1, 2, 2, 2)


def test_larger_images_repeat_pixels() -> None:
    """upsample2d by factors of its own for height and width."""
    x = draw(2, 3, 4, 5)
    np.testing.assert_array_equal(
        value(lambda x: kf.upsample2d(x, (2, 3), "NCHW"), x), x.repeat(2, 2).repeat(3, 3)
    )


IMAGES, FILTERS = ("f32", (1, 5, 5, 4)), ("f32", (8, 3, 3, 4))
REFUSED: dict[str, tuple[str, str, Callable[..., Any], tuple[Any, ...]]] = {
    "rank": ("K970", "x: ", lambda x, w: kf.conv2d(x, w), (("f32", (5, 5, 4)), FILTERS)),
    "rank of a pool": ("K970", "x: ", lambda x: kf.max_pool2d(x, 2), (("f32", (5, 5, 4)),)),
    "padding": ("K971", "pads", lambda x, w: kf.conv2d(x, w, padding=-1), (IMAGES, FILTERS)),
    "stride": ("K971", "stride", lambda x, w: kf.conv2d(x, w, stride=0), (IMAGES, FILTERS)),
    "dilation": ("K971", "dilation", lambda x, w: kf.conv2d(x, w, dilation=0), (IMAGES, FILTERS)),
    "scale": ("K971", "scale", lambda x: kf.upsample2d(x, 0), (IMAGES,)),
    "output padding": (
        "K971", "extra", lambda x, w: kf.conv_transpose2d(x, w, output_padding=-1),
        (IMAGES, FILTERS),
    ),
    "window": ("K972", "spans", lambda x, w: kf.conv2d(x, w, dilation=3), (IMAGES, FILTERS)),
    "nothing left": (
        "K972", "leaves", lambda x, w: kf.conv_transpose2d(x, w, padding=4), (IMAGES, FILTERS),
    ),
    "channels": ("K973", "w: ", lambda x, w: kf.conv2d(x, w), (IMAGES, ("f32", (8, 3, 3, 3)))),
    "groups": ("K973", "groups=3", lambda x, w: kf.conv2d(x, w, groups=3), (IMAGES, FILTERS)),
    "filters in groups": (
        "K973", "groups=4", lambda x, w: kf.conv2d(x, w, groups=4),
        (IMAGES, ("f32", (6, 3, 3, 1))),
    ),
    "pool without pixels": ("K974", "pads", lambda x: kf.max_pool2d(x, 2, 1, 2), (IMAGES,)),
    "layout": ("K975", "layout", lambda x: kf.max_pool2d(x, 2, layout="CHWN"), (IMAGES,)),
    "numbers": (
        "K976", "stride", lambda x, w: kf.conv2d(x, w, stride=(1, 2, 3)), (IMAGES, FILTERS),
    ),
    "type": ("K904", "float", lambda x, w: kf.conv2d(x, w), (("i32", (1, 5, 5, 4)), FILTERS)),
    "types": ("K902", "f64", lambda x, w: kf.conv2d(x, w), (("f64", (1, 5, 5, 4)), FILTERS)),
    "held images": (
        "K920", "x must", lambda w: kf.conv2d(np.ones((1, 5, 5, 4)), w), (FILTERS,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_argument(name: str) -> None:
    """Each mistake has its code, and the message says which argument is meant."""
    code, word, function, types = REFUSED[name]
    with pytest.raises(KdslError, match=word) as caught:
        kf.fuse(function).plan(*(kd.spec(dtype, shape) for dtype, shape in types))
    assert caught.value.code == code
    assert "test_conv_ops.py" in str(caught.value)


def test_types_that_no_kernel_computes() -> None:
    """f64 images are KF-DTYPE, with the cast that mends it."""
    with pytest.raises(KdslError, match=r"KF-DTYPE[^$]*kf\.cast"):
        kf.fuse(kf.conv2d).plan(kd.spec("f64", (1, 5, 5, 4)), kd.spec("f64", (8, 3, 3, 4)))
