"""When fused functions compute two convolutions in one kernel, and what they say if not."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_core as kd
import kdsl_fuse as kf

Arrays = dict[str, Any]


def arrays(
    images: tuple[int, ...] = (32, 28, 28, 192), filters: int = 32, dtype: str = "bf16"
) -> Arrays:
    """Operands of a block of MobileNet."""
    c = images[3]
    shapes = {"x": images, "w": (c, 3, 3, 1), "b": (c,), "v": (filters, 1, 1, c), "c": (filters,)}
    return {name: kd.spec(dtype, shape) for name, shape in shapes.items()}


def depthwise(x: Any, w: Any, b: Any) -> Any:
    """The first convolution and what is between."""
    return kf.clip(kf.conv2d(x, w, b, padding=1, groups=x.shape[3]), 0.0, 6.0)


def block(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    """Both convolutions with biases."""
    return kf.conv2d(depthwise(x, w, b), v, c)


def kept(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    """A block whose value between the convolutions is wanted, too."""
    between = depthwise(x, w, b)
    return kf.conv2d(between, v, c), between


def added(x: Any, w: Any, b: Any, v: Any, c: Any) -> Any:
    """A block with numbers of pixels between the convolutions."""
    return kf.conv2d(depthwise(x, w, b) + x, v, c)


def names_of(plan: Any) -> list[str]:
    """The kernels of a plan, in order."""
    return [call.name for call in plan.calls]


def test_one_kernel() -> None:
    """Where it is faster by the model, both convolutions are one launch."""
    plan = kf.fuse(target="sm_90a")(block).plan(**arrays())
    assert names_of(plan) == ["conv_separable_sm90"]
    assert "in one kernel with conv0" in plan.explain()


APART: dict[str, tuple[Any, Arrays, str, str]] = {
    "small images": (block, arrays((32, 7, 7, 960), 64), "sm_90a", "KF-COST: one kernel for both"),
    "many filters": (block, arrays((32, 56, 56, 128), 128), "sm_90a", "more than 64 pointwise"),
    "an older chip": (block, arrays(), "sm_80", "conv_depthwise"),
    "f32": (block, arrays(dtype="f32"), "sm_90a", "conv_depthwise"),
    "another reader": (kept, arrays(), "sm_90a", "conv_depthwise"),
    "pixels between": (added, arrays(), "sm_90a", "conv_depthwise"),
    "filters by 8": (block, arrays(filters=20), "sm_90a", "conv_depthwise"),
}


@pytest.mark.parametrize("name", APART)
def test_two_kernels(name: str) -> None:
    """What one kernel does not compute, or not faster, two do; the plan says when it was time."""
    function, given, target, told = APART[name]
    plan = kf.fuse(target=target)(function).plan(**given)
    assert len(plan.calls) == 2 and "conv_separable" not in " ".join(names_of(plan))
    assert told in plan.explain()
