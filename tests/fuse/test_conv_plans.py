"""Convolutions in plans: which kernel a shape gets, all launches of a call, and the way down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_fuse.reference import evaluate

F16, BF16 = np.float16, ml_dtypes.bfloat16


def draw(shape: Any, dtype: Any, seed: int = 0) -> Any:
    """Uniform numbers."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)


def layer(**options: Any) -> Callable[..., Any]:
    """A convolution with an activation."""
    return lambda x, w: kf.relu(kf.conv2d(x, w, **options))


CHOSEN: dict[str, tuple[str, str, Any, Any, dict[str, Any], str]] = {
    "dense": ("conv_sm90", "f16", (1, 8, 8, 64), (32, 3, 3, 64), {"padding": 1}, ""),
    "dense f32": ("conv_sm80", "f32", (1, 8, 8, 64), (32, 3, 3, 64), {}, ""),
    "stem": ("stem_sm90", "f16", (1, 16, 16, 3), (16, 7, 7, 3), {"stride": 2}, ""),
    "large steps": ("conv_sm80", "f16", (1, 40, 40, 8), (8, 9, 9, 8), {"stride": 9}, ""),
    "wide groups": ("conv_sm90", "f16", (1, 5, 5, 256), (32, 3, 3, 128), {"groups": 2}, ""),
    "1x1": ("gemm_sm90", "bf16", (2, 4, 4, 64), (64, 1, 1, 64), {}, ""),
    "1x1 with a stride": ("conv_sm90", "bf16", (2, 4, 4, 64), (64, 1, 1, 64), {"stride": 2}, ""),
    "grouped": ("conv_grouped", "bf16", (1, 8, 8, 64), (64, 3, 3, 8), {"groups": 8}, ""),
    "grouped f32": (
        "conv_direct", "f32", (1, 8, 8, 64), (64, 3, 3, 8), {"groups": 8}, "multiplies f16",
    ),
    "odd groups": (
        "conv_direct", "f16", (1, 8, 8, 24), (24, 3, 3, 3), {"groups": 8}, "no grouped kernel",
    ),
    "narrow pixels": (
        "conv_direct", "f16", (1, 8, 8, 12), (12, 3, 3, 4), {"groups": 3}, "whole 16 bytes",
    ),
    "depthwise": ("conv_depthwise_sm90", "f16", (1, 8, 8, 64), (64, 3, 3, 1), {"groups": 64}, ""),
    "depthwise f32": ("conv_depthwise", "f32", (1, 8, 8, 6), (6, 3, 3, 1), {"groups": 6}, ""),
    "large windows": (
        "conv_direct", "f16", (1, 14, 14, 8), (8, 13, 13, 1), {"groups": 8}, "up to 121",
    ),
    "uneven padding": (
        "conv_direct", "f16", (1, 8, 8, 64), (8, 3, 3, 64), {"padding": (0, 0, 1, 1)}, "differs",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOSEN)
def test_sizes_decide(name: str) -> None:
    """Each kind has its kernel on Hopper; where it is the direct one, the plan says why."""
    kernel, dtype, images, filters, options, why = CHOSEN[name]
    plan = kf.fuse(target="sm_90a")(layer(**options)).plan(
        kd.spec(dtype, images), kd.spec(dtype, filters)
    )
    (call,) = plan.calls
    assert call.name == kernel
    assert ("apart by KF-SHAPE" in plan.explain()) == (kernel == "conv_direct")
    assert why in plan.explain()


def test_types_that_differ() -> None:
    """Filters of another type than the images' are for the direct kernel."""
    plan = kf.fuse(layer()).plan(kd.spec("f16", (1, 5, 5, 8)), kd.spec("f32", (8, 3, 3, 8)))
    assert plan.calls[0].name == "conv_direct"
    assert "apart by KF-DTYPE: images and filters differ in type" in plan.explain()


MANY: dict[str, tuple[Any, Any, Any, dict[str, Any], list[str]]] = {
    "filters of torch": (
        F16, (1, 6, 8, 16), (8, 16, 3, 3), {}, ["elementwise", "conv_sm90"],
    ),
    "odd channels": (F16, (1, 8, 6, 5), (8, 3, 3, 5), {"padding": 1}, ["pack_pixels", "conv_sm90"]),
    "wide groups": (
        BF16, (1, 4, 5, 256), (16, 3, 3, 128), {"groups": 2}, ["conv_sm90", "conv_sm90"],
    ),
    "one by one": (F16, (1, 6, 6, 32), (32, 3, 3, 4), {"groups": 8}, ["conv_grouped"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_calls_know_their_launches(name: str) -> None:
    """Copies and groups are counted in, keys are told, and all run without hazards."""
    dtype, images, filters, options, kernels = MANY[name]
    x, w = draw(images, dtype), draw(filters, dtype, 1)
    if name == "filters of torch":
        w = w.transpose(0, 2, 3, 1)
    function = kf.fuse(target="sm_90a")(layer(**options))
    plan = function.plan(x, w)
    (call,) = plan.calls
    names = [kernel.signature.name.rstrip("_0123456789") for kernel, _ in call.needs()]
    assert names == [kernel.rstrip("_0123456789") for kernel in kernels]
    assert len(plan.keys()) == len(set(kernels)) and len(plan.manifest().variants) >= 1
    result = call.simulate(plan.values(x, w), on_hazard="collect")
    assert result.hazards == ()
    (want,) = evaluate(function.graph(x, w), [x, w])
    for got in (result.outputs[0], function(x, w)):
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=2e-2, atol=2e-2
        )


def test_another_kernel_in_a_plans_place() -> None:
    """`replace` gives a kernel the arrays of the call, as they lie."""

    @kd.kernel
    def ones(X: kd.Tensor, W: kd.Tensor, Y: kd.Tensor["f16", "n p q k"]):
        i = kd.thread_rank()
        if i < Y.shape[3]:
            for p in kd.range(Y.shape[1]):
                for q in kd.range(Y.shape[2]):
                    Y.store((0, p, q, i), kd.as_scalar(1.0, kd.f16))

    x, w = draw((1, 6, 6, 32), F16), draw((32, 3, 3, 4), F16, 1)
    plan = kf.fuse(target="sm_90a")(layer(groups=8)).plan(x, w)
    plan.calls[0].replace(ones, grid=(1,), block=(32,), statics={})
    assert (plan.run(x, w) == 1).all()
    assert [kernel for kernel, _ in plan.calls[0].needs()] == [ones]
    assert "ones" in plan.calls[0].ptx("sm_90a")
    assert plan.calls[0].simulate(plan.values(x, w)).hazards == ()


def test_a_norm_joins_a_depthwise_convolution() -> None:
    """Only where the norm is over channels, alone reads the results, and nothing rounds them."""
    images, filters, row = kd.spec("bf16", (1, 8, 8, 64)), kd.spec("bf16", (64, 7, 7, 1)), (64,)

    def names(function: Callable[..., Any], target: str = "sm_90a") -> list[str]:
        specs = images, filters, kd.spec("bf16", row)
        return [call.name for call in kf.fuse(target=target)(function).plan(*specs).calls]

    def conv(x: Any, w: Any) -> Any:
        return kf.conv2d(x, w, padding=3, groups=64)

    def both(x: Any, w: Any, s: Any) -> Any:
        y = conv(x, w)
        return y, kf.layer_norm(y, s)

    apart = ["conv_depthwise_sm90", "rows"]
    assert names(lambda x, w, s: kf.layer_norm(conv(x, w) + s, s, s)) == ["conv_depthwise_norm"]
    assert names(both) == apart
    assert names(lambda x, w, s: kf.layer_norm(kf.cast(kf.exp(conv(x, w)), "bf16"))) == apart
    assert names(lambda x, w, s: kf.layer_norm(conv(x, w), axis=2)) == apart
    assert names(lambda x, w, s: kf.layer_norm(conv(x, w), s), "sm_80")[1:] == ["rows"]


def test_transposes_between_convolutions_vanish() -> None:
    """A block in NCHW is computed in NHWC: norms, a gate, means and a concatenation included."""
    x, r = draw((1, 8, 5, 6), np.float32), draw((1, 8, 5, 6), np.float32, 1)
    w, p = draw((8, 8, 3, 3), np.float32, 2), draw((8, 8, 1, 1), np.float32, 3)
    s = np.abs(draw(8, np.float32, 4)) + 0.5

    def block(x: Any, r: Any) -> Any:
        y = kf.silu(kf.batch_norm(kf.conv2d(x, w, padding=1, layout="NCHW"), s, s, s, s))
        gate = kf.sigmoid(kf.conv2d(kf.mean(y, (2, 3), keepdims=True), p, layout="NCHW"))
        top = kf.mean(y, (2, 3))
        return kf.concatenate([y * gate, kf.conv2d(y, p, layout="NCHW")], 1), top

    plan = kf.fuse(block).plan(x, r)
    made = [node for node in plan.graph if node.op.name == "Transpose"]
    assert len(made) == 2  # images that come in, and what is returned
    assert sorted(call.name for call in plan.calls) == [
        "columns", "columns", "concat", "conv_sm80", "elementwise", "gemm_sm80", "gemm_sm80",
    ]  # fmt: skip
    for got, want in zip(plan.run(x, r), evaluate(kf.fuse(block).graph(x, r), [x, r]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
