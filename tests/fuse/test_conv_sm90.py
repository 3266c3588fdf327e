"""The Hopper convolution in the simulator with all checks: windows, channels, tails, no hazard."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from fuse.conv_numbers import BF16, Array, assert_close, exact, lying, operands, unwritten
from kdsl_fuse.kernels import conv_sm90_plan
from kdsl_fuse.kernels.conv_pack import THREADS, Packing, pack_pixels
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm90 import conv_sm90
from kdsl_fuse.kernels.conv_sm90_plan import ConvPlan, choose, conv2d_sm90, panel_of, plan_of
from kdsl_fuse.kernels.conv_views import filter_view
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config

SMALL = Sm90Config((64, 64, 64), 3, consumers=1)
PLAIN = Sm90Config((128, 64, 64), 3)
CHECKS = ("all", "unwritten")


def convolve(
    plan: ConvPlan,
    x: Array,
    w: Array,
    *extras: Array,
    epilogue: Any = identity,
    result: Any = BF16,
    **options: Any,
) -> Array:
    """The result of one launch of three blocks or clusters, and of the packing before it."""
    plan = replace(plan, product=replace(plan.product, multiprocessors=3))
    out = unwritten(plan.problem, result)
    if plan.packing is None:
        seen = x, filter_view(w)
    else:
        seen = packed(plan.packing, x, w)
    matrix = out.reshape(-1, plan.problem.filters)
    tails = [np.broadcast_to(extra, out.shape).reshape(matrix.shape) for extra in extras]
    views = (plan.product.oriented(y) for y in (matrix, *tails))
    kd.simulate(
        conv_sm90,
        grid=plan.grid, block=plan.block, cluster=plan.cluster,
        args=(*seen, *views), kwargs={"epilogue": epilogue, **plan.statics},
        checks=CHECKS, overlap=True, **options,
    )  # fmt: skip
    return out


def packed(packing: Packing, x: Array, w: Array) -> tuple[Array, Array]:
    """Images and filters after one launch of the packing kernel."""
    copies = [np.full(shape, np.nan, x.dtype) for shape in packing.shapes]
    kd.simulate(
        pack_pixels, grid=packing.grid, block=THREADS, args=(x, copies[0], w, copies[1]),
        kwargs={"places": packing.places(x, w)}, checks=CHECKS, overlap=True,
    )  # fmt: skip
    assert not any(np.isnan(copy.astype(np.float32)).any() for copy in copies)
    return packing.views(*copies)


def planned(problem: ConvProblem, config: Sm90Config, swap: bool = False) -> ConvPlan:
    """The plan with a stated configuration."""
    return plan_of(problem, kd.bf16, None, config, swap)


WINDOWS = {
    "3x3": ConvProblem(2, 9, 11, 64, 40, (3, 3), padding=(1, 1)),
    "unpadded": ConvProblem(1, 9, 11, 64, 40, (3, 3)),
    "strided": ConvProblem(2, 9, 11, 64, 72, (3, 2), (2, 1), (1, 0)),
    "strided 1x1": ConvProblem(2, 9, 11, 72, 72, (1, 1), (2, 2)),
    "dilated": ConvProblem(2, 9, 11, 64, 40, (3, 3), (2, 2), (2, 2), (2, 2)),
    "wider than the image": ConvProblem(1, 3, 4, 64, 16, (5, 5), padding=(3, 2)),
    "a line": ConvProblem(2, 1, 50, 64, 40, (1, 9), padding=(0, 4)),
    "a column": ConvProblem(2, 50, 1, 64, 40, (9, 1), (3, 1), (4, 0)),
    "72 channels": ConvProblem(1, 9, 11, 72, 40, (3, 3), padding=(1, 1)),
    "48 channels": ConvProblem(1, 9, 11, 48, 40, (3, 3), padding=(1, 1)),
    "32 channels": ConvProblem(1, 9, 11, 32, 40, (3, 3), padding=(1, 1)),
    "16 channels": ConvProblem(1, 9, 11, 16, 40, (3, 3), padding=(1, 1)),
    "8 channels": ConvProblem(1, 9, 11, 8, 40, (3, 3), padding=(1, 1)),
    "33 filters": ConvProblem(1, 9, 11, 64, 33, (3, 3), padding=(1, 1)),
}


@pytest.mark.parametrize("name, swap", combined([*WINDOWS], (False, True), together=1))
def test_windows(name: str, swap: bool) -> None:
    """Strides, dilations, paddings and channels, pixels on either side of the product."""
    problem = WINDOWS[name]
    x, w = operands(problem)
    assert_close(convolve(planned(problem, PLAIN, swap), x, w), exact(problem, x, w))


STEMS = {
    "7x7/2": ConvProblem(2, 18, 22, 3, 24, (7, 7), (2, 2), (3, 3)),
    "odd width": ConvProblem(1, 17, 21, 3, 24, (7, 7), (2, 2), (3, 3)),
    "3x3": ConvProblem(1, 9, 11, 3, 24, (3, 3), padding=(1, 1)),
    "grey": ConvProblem(1, 9, 11, 1, 24, (5, 5), padding=(2, 2)),
    "patches": ConvProblem(1, 16, 20, 3, 24, (4, 4), (4, 4)),
    "dilated": ConvProblem(1, 16, 20, 3, 24, (3, 3), (1, 1), (2, 2), (2, 2)),
    "13 channels": ConvProblem(1, 9, 11, 13, 24, (3, 3), padding=(1, 1)),
    "68 channels": ConvProblem(1, 9, 11, 68, 24, (3, 2), (2, 2), padding=(1, 1)),
}


@pytest.mark.parametrize("name", STEMS)
def test_packed(name: str) -> None:
    """Few and odd channels are padded, rows of small windows joined."""
    problem = STEMS[name]
    x, w = operands(problem)
    plan = planned(problem, SMALL)
    assert plan.packing is not None
    assert plan.packing.joined == (problem.channels <= 3 and problem.dilation == (1, 1))
    assert_close(convolve(plan, x, w), exact(problem, x, w))


@pytest.mark.parametrize("name", ("7x7/2", "13 channels", "68 channels"))
def test_packed_from_planes(name: str) -> None:
    """The same from images and filters in NCHW."""
    problem = STEMS[name]
    x, w = operands(problem)
    planes = lying(x, (0, 3, 1, 2)), lying(w, (0, 3, 1, 2))
    assert_close(convolve(planned(problem, SMALL), *planes), exact(problem, x, w))


def test_values_outside_of_windows() -> None:
    """What no window has, not even an infinity beside one, reaches no sum."""
    problem = ConvProblem(1, 9, 12, 3, 8, (3, 3), (4, 4))
    x, w = operands(problem)
    inside = np.zeros(x.shape, bool)
    for r, s in np.ndindex(3, 3):
        inside[:, r::4, s::4] = True
    x[~inside] = np.inf
    want = exact(problem, np.where(inside, x, 0).astype(BF16), w)
    assert_close(convolve(planned(problem, SMALL), x, w), want)


CONFIGS = {
    "one group": SMALL,
    "two blocks of rows": Sm90Config((256, 32, 64), 3),
    "pingpong": Sm90Config((64, 64, 64), 3, "pingpong"),
    "deep stages": Sm90Config((64, 32, 128), 3, consumers=1),
    "setmaxnreg": Sm90Config((128, 64, 64), 3, registers=(40, 232)),
    "cluster of two rows": Sm90Config((128, 64, 64), 3, cluster=(2, 1)),
    "cluster of two columns": Sm90Config((128, 64, 64), 3, cluster=(1, 2)),
    "k shared by a cluster": Sm90Config((64, 16, 64), 3, consumers=1, peers=2),
}


@pytest.mark.parametrize("swap", (False, True))
@pytest.mark.parametrize("name", CONFIGS)
def test_schedules(name: str, swap: bool) -> None:
    """Every schedule, with taps that share a stage and a last stage that is not full."""
    problem = ConvProblem(2, 9, 11, 32, 72, (3, 3), padding=(1, 1))
    x, w = operands(problem)
    assert_close(convolve(planned(problem, CONFIGS[name], swap), x, w), exact(problem, x, w))


def tail(acc: Any, scale: Any, bias: Any, residual: Any) -> Any:
    """A BatchNorm as a scale and a bias, a residual, and ReLU."""
    return kd.maximum(acc * scale + bias + residual.to(kd.f32), 0.0)


@pytest.mark.parametrize("swap", (False, True))
@pytest.mark.parametrize("result", (BF16, np.float32))
def test_tail(swap: bool, result: Any) -> None:
    """BatchNorm, residual and ReLU behind the sums."""
    problem = ConvProblem(2, 9, 11, 64, 40, (3, 3), padding=(1, 1))
    x, w = operands(problem)
    rng = np.random.default_rng(1)
    scale, bias = (rng.standard_normal(40).astype(np.float32) for _ in range(2))
    residual = rng.standard_normal(unwritten(problem).shape).astype(BF16)
    plan = planned(problem, PLAIN, swap)
    y = convolve(plan, x, w, scale, bias, residual, epilogue=tail, result=result)
    want = np.maximum(exact(problem, x, w) * scale + bias + residual.astype(np.float64), 0)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ("pingpong", "k shared by a cluster"))
def test_any_order(name: str) -> None:
    """Blocks and warps in any order give the same bits."""
    problem = ConvProblem(2, 9, 11, 32, 72, (3, 3), padding=(1, 1))
    x, w = operands(problem)
    plan = planned(problem, CONFIGS[name])
    first = convolve(plan, x, w)
    for seed in range(2):
        assert first.tobytes() == convolve(plan, x, w, order="shuffle", seed=seed).tobytes()


# -- the public function ---------------------------------------------------------------------------
CALLS: dict[str, tuple[ConvProblem, dict[str, Any]]] = {
    "3x3": (WINDOWS["3x3"], {}),
    "1x1 is a product": (ConvProblem(2, 9, 11, 72, 40, (1, 1)), {}),
    "1x1 of odd channels": (ConvProblem(2, 5, 7, 71, 40, (1, 1)), {}),
    "stem": (STEMS["7x7/2"], {}),
    "wide groups": (ConvProblem(1, 7, 9, 144, 48, (3, 3), padding=(1, 1), groups=2), {}),
    "odd groups": (ConvProblem(1, 7, 9, 134, 16, (3, 3), padding=(1, 1), groups=2), {}),
    "1x1 groups": (ConvProblem(1, 7, 9, 144, 48, (1, 1), groups=2), {}),
    "k split": (ConvProblem(1, 4, 4, 512, 64, (3, 3), padding=(1, 1)), {}),
    "NCHW": (ConvProblem(1, 7, 9, 16, 24, (3, 3), padding=(1, 1)), {"axes": (0, 3, 1, 2)}),
    "NCHW 1x1": (ConvProblem(1, 7, 9, 16, 24, (1, 1)), {"axes": (0, 3, 1, 2)}),
    "steps of 16": (ConvProblem(1, 32, 48, 3, 24, (16, 16), (16, 16)), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    """One call computes any convolution, on arrays that lie in any order."""
    problem, options = CALLS[name]
    x, w = operands(problem)
    if "axes" in options:
        x, w = lying(x, options["axes"]), lying(w, options["axes"])
    y = conv2d_sm90(
        x, w, stride=problem.stride, padding=problem.padding, dilation=problem.dilation,
        groups=problem.groups,
    )  # fmt: skip
    assert_close(y, exact(problem, x, w))


def test_lines() -> None:
    """One dimension: images of one row, without a mode for it; a bias broadcasts."""
    problem = ConvProblem(2, 1, 40, 64, 24, (1, 5), padding=(0, 2))
    x, w = operands(problem)
    bias = np.arange(24, dtype=np.float32)
    y = conv2d_sm90(x[:, 0], w, None, bias, padding=(0, 2), epilogue=lambda acc, b: acc + b)
    assert y.shape == (2, 40, 24)
    assert_close(y, exact(problem, x, w)[:, 0] + bias)


@pytest.mark.parametrize("precision, bound", (("ieee", 1e-6), ("tf32", 1e-3)))
def test_f32(precision: str, bound: float) -> None:
    """f32 is exact on the ordinary cores, or rounded to tf32 where asked."""
    problem = ConvProblem(1, 9, 11, 8, 24, (3, 3), padding=(1, 1))
    x, w = operands(problem, np.float32)
    y = conv2d_sm90(x, w, padding=1, f32_precision=precision)
    want = exact(problem, x, w)
    assert np.abs(y - want).max() < bound * np.abs(want).max()


# -- the choice ------------------------------------------------------------------------------------
def test_panels_waste_little() -> None:
    """A panel is the widest that most of is used."""
    assert [panel_of(n) for n in (8, 16, 24, 32, 48, 64, 72, 96, 100, 128, 192)] == [
        16, 16, 32, 32, 64, 64, 32, 32, 64, 64, 64,
    ]  # fmt: skip


def test_pointwise_is_the_matrix_product() -> None:
    """1x1 without stride and padding has no windows."""
    plan = choose(ConvProblem(8, 28, 28, 256, 128, (1, 1)), kd.bf16)
    assert plan.panel is None and plan.packing is None
    assert (plan.product.problem.m, plan.product.problem.k) == (8 * 28 * 28, 256)
    assert choose(ConvProblem(8, 28, 28, 256, 128, (1, 1), (2, 2)), kd.bf16).panel == 64


def test_plans_for_tails() -> None:
    """Filters are the rows of what takes turns; few tiles, or few filters, stay as they were."""
    large = ConvProblem(64, 30, 30, 128, 256, (3, 3), padding=(1, 1))
    turns = choose(large, kd.bf16, tail=True)
    assert isinstance(turns, ConvPlan) and turns.config.pingpong and turns.product.swap
    for problem in (replace(large, batch=1), replace(large, filters=40)):
        plain, tailed = (choose(problem, kd.bf16, tail=tail) for tail in (False, True))
        assert isinstance(plain, ConvPlan) and isinstance(tailed, ConvPlan)
        assert plain.product.swap == tailed.product.swap
        assert plain.config.tile == tailed.config.tile
    crowded = choose(large, kd.bf16, tail=True, reads=True)
    assert isinstance(crowded, ConvPlan) and crowded.config.registers == (40, 232)


@pytest.mark.parametrize(
    "problem, dtype, word",
    (
        (ConvProblem(1, 64, 64, 64, 64, (3, 3), (9, 9)), kd.bf16, "stride"),
        (ConvProblem(1, 400, 1, 64, 64, (3, 1), padding=(130, 0)), kd.bf16, "padding"),
        (ConvProblem(1, 400, 1, 64, 64, (3, 1), dilation=(100, 1)), kd.bf16, "dilation"),
        (ConvProblem(1, 16, 16, 64, 64, (3, 3)), kd.f32, "f32"),
    ),
)
def test_refusals_name_the_reason(problem: ConvProblem, dtype: Any, word: str) -> None:
    """What TMA cannot walk over is refused, and the portable kernel named."""
    with pytest.raises(kd.ArgumentError, match=word) as caught:
        choose(problem, dtype)
    assert caught.value.code == "K989" and "conv_sm80" in str(caught.value)


def test_plans_of_small_problems_fit() -> None:
    """The model's choices keep within K, and are no more than asked for."""
    problem = ConvProblem(1, 7, 7, 64, 512, (3, 3), padding=(1, 1))
    plans = conv_sm90_plan.candidates(problem, kd.bf16, limit=5)
    assert len({str(plan) for plan in plans}) == 5
    for plan in plans:
        assert (
            -(-plan.product.problem.k // plan.config.tile[2])
            >= plan.config.peers * plan.config.splits
        )
