"""The kernels for windows of images: direct convolutions, pooling, upsampling, concatenation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_fuse.kernels import concat, conv_direct, windows
from kdsl_fuse.ops import windows as meaning

BF16 = ml_dtypes.bfloat16
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "three channels": ((2, 9, 8, 3), (6, 3, 3, 3), {"stride": (2, 1), "padding": (1, 0)}),
    "wide": ((1, 6, 6, 32), (16, 3, 3, 32), {"padding": (1, 1)}),
    "dilation": ((1, 9, 9, 8), (4, 3, 2, 8), {"dilation": (3, 2), "padding": (3, 1)}),
    "odd groups": ((1, 5, 6, 9), (6, 3, 3, 3), {"groups": 3}),
    "groups of four": ((2, 5, 5, 16), (32, 3, 3, 4), {"groups": 4, "padding": (1, 1)}),
    "depthwise": ((1, 8, 7, 40), (40, 5, 5, 1), {"groups": 40, "padding": (2, 2)}),
    "two filters a channel": ((1, 6, 6, 6), (12, 3, 3, 1), {"groups": 6}),
    "one row": ((2, 1, 19, 8), (8, 1, 5, 8), {"stride": (1, 3), "padding": (0, 4)}),
}


def draw(shape: Any, dtype: Any, seed: int = 0) -> Any:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def four(pair: tuple[int, int]) -> tuple[int, int, int, int]:
    """The same padding before and behind."""
    return (*pair, *pair)


def exact(x: Any, w: Any, options: dict[str, Any]) -> Any:
    """The convolution in f64."""
    one = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1} | options
    wide = (a.astype(np.float64) for a in (x, w))
    return meaning.conv(*wide, one["stride"], four(one["padding"]), one["dilation"], one["groups"])


def simulated(plan: Any, kernel: Any, *arrays: Any, **statics: Any) -> Any:
    """A launch with all checks; its findings."""
    return kd.simulate(
        kernel, grid=plan.grid, block=plan.config.threads, args=arrays,
        kwargs={"config": plan.config, **statics}, on_hazard="collect",
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16], ids=["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, dtype: Any) -> None:
    """All shapes and types against f64, a bias and a residual in the tail, without hazards."""
    images, filters, options = CASES[name]
    x, w = draw(images, dtype), draw(filters, dtype, 1)
    want = exact(x, w, options)
    bias, rest = draw(filters[0], dtype, 2), draw(want.shape, dtype, 3)
    y = np.full(want.shape, np.nan, dtype)
    extras = np.broadcast_to(bias, want.shape), rest
    plan = conv_direct.choose(x, w, y, *extras, **options)

    def tail(acc: Any, b: Any, r: Any) -> Any:
        return acc + b.to(kd.f32) + r.to(kd.f32)

    plan.run(x, w, y, *extras, epilogue=tail)
    want = want + bias.astype(np.float64) + rest.astype(np.float64)
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=eps + 1e-6, atol=2e-5)
    found = simulated(plan, conv_direct.conv_direct, x, w, y, *extras, epilogue=tail)
    assert found.hazards == ()


def test_several_pixels_a_thread() -> None:
    """Large images: threads take four pixels, the last ones of which are not there."""
    x, w = draw((3, 41, 43, 4), np.float32), draw((128, 1, 1, 4), np.float32, 1)
    want = exact(x, w, {})
    y = np.full(want.shape, np.nan, np.float32)
    plan = conv_direct.choose(x, w, y)
    assert plan.config.pixels == 1  # this small, all threads are used
    config = conv_direct.replace(plan.config, pixels=4)
    tile = config.tile
    plan = conv_direct.DirectPlan(config, (-(-3 * 41 * 43 // tile[0]), -(-128 // tile[1])))
    plan.run(x, w, y, epilogue=lambda acc: acc)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_f32_keeps_every_bit() -> None:
    """Sums of whole numbers are exact, as multiply-adds of f32 are."""
    rng = np.random.default_rng(5)
    x, w = (rng.integers(-99, 99, s).astype(np.float32) for s in ((1, 7, 7, 16), (8, 3, 3, 16)))
    y = np.empty((1, 5, 5, 8), np.float32)
    conv_direct.choose(x, w, y).run(x, w, y, epilogue=lambda acc: acc)
    np.testing.assert_array_equal(y, exact(x, w, {}))


def test_layouts_are_strides() -> None:
    """NCHW images, filters and residuals, and results with a pitch."""
    x, w = draw((2, 6, 5, 7), np.float32), draw((4, 6, 3, 3), np.float32, 1)
    rest, held = draw((2, 4, 3, 5), np.float32, 2), np.zeros((2, 3, 5, 6), np.float32)
    y = held[..., :4]
    images, filters, more = (a.transpose(0, 2, 3, 1) for a in (x, w, rest))
    plan = conv_direct.choose(images, filters, y, more)
    plan.run(images, filters, y, more, epilogue=lambda acc, r: acc * r)
    np.testing.assert_allclose(y, exact(images, filters, {}) * more, rtol=1e-5, atol=1e-5)
    assert not held[..., 4:].any()


@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions(groups: int) -> None:
    """A stride of 2 with rows cut off and added."""
    x, w = draw((1, 4, 5, 8), np.float32), draw((6, 3, 3, 8 // groups), np.float32, 1)
    want = meaning.conv_transpose(
        x.astype(float), w.astype(float), (2, 2), (1, 1, 1, 1), (1, 1), groups, (1, 1)
    )
    y = np.empty(want.shape, np.float32)
    options = {"stride": (2, 2), "padding": (1, 1), "groups": groups, "transposed": True}
    conv_direct.choose(x, w, y, **options).run(x, w, y, epilogue=lambda acc: acc)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


def test_filters_that_do_not_fit() -> None:
    """Channels, groups and results that do not go together are K973."""
    x, w, y = (np.zeros(s, np.float32) for s in ((1, 5, 5, 4), (8, 3, 3, 3), (1, 3, 3, 8)))
    with pytest.raises(ArgumentError, match="take images with 3 channels to 8") as caught:
        conv_direct.choose(x, w, y)
    assert caught.value.code == "K973"


POOLS: dict[str, tuple[Any, dict[str, Any]]] = {
    "max": (
        lambda x: meaning.max_pool(x, (3, 2), (2, 1), (1, 0, 0, 1), (1, 2)),
        {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "take": "max"},
    ),
    "mean": (
        lambda x: meaning.average_pool(x, (3, 3), (2, 2), four((1, 1)), False),
        {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "take": "mean"},
    ),
    "mean of inside": (
        lambda x: meaning.average_pool(x, (3, 3), (2, 2), four((1, 1)), True),
        {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "take": "mean of inside"},
    ),
    "only": (
        lambda x: meaning.resize(x, (2, 3)),
        {"kernel": (1, 1), "scale": (2, 3), "take": "only"},
    ),
}


@pytest.mark.parametrize("channels", [3, 16])
@pytest.mark.parametrize("name", POOLS)
def test_windows(name: str, channels: int) -> None:
    """Each pool with a tail, in vectors and one by one; NaN goes through."""
    means, config = POOLS[name]
    x = draw((2, 7, 9, channels), np.float16)
    x[0, 3, 4, 1] = np.nan
    want = means(x.astype(np.float64))
    y, bias = np.empty(want.shape, np.float16), np.broadcast_to(np.float16(0.5), want.shape)
    plan = windows.choose(x, y, bias, **config)
    assert plan.config.width == (8 if channels == 16 else 1)

    def tail(taken: Any, b: Any) -> Any:
        return taken * 2 + b.to(kd.f32)

    plan.run(x, y, bias, epilogue=tail)
    np.testing.assert_allclose(y.astype(float), want * 2 + 0.5, rtol=1e-3, atol=1e-3)
    assert simulated(plan, windows.windows, x, y, bias, epilogue=tail).hazards == ()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_arrays_one_behind_the_other(axis: int) -> None:
    """Any axis, parts of other sizes and strides."""
    shapes = [tuple(n + 8 * i * (at == axis) for at, n in enumerate((3, 4, 16))) for i in range(3)]
    parts = [draw(shape, np.float32, i) for i, shape in enumerate(shapes)]
    parts[1] = np.asfortranarray(parts[1])
    for given in (parts, [parts[0], parts[2]]):
        want = np.concatenate(given, axis)
        y = np.empty_like(want, order="C")
        plan = concat.choose(y, *given, axis=axis)
        assert plan.config.width == (1 if given is parts else 4)
        plan.run(y, *given)
        np.testing.assert_array_equal(y, want)
        assert simulated(plan, concat.concat, y, *given).hazards == ()
