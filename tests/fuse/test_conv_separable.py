"""Depthwise and pointwise convolutions in one kernel, in the simulator with all checks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from fuse.conv_numbers import exact
from fuse.test_conv_depthwise import array, problem
from kdsl_core.dtypes import dtype_of
from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_separable_config import SeparableConfig, Tails
from kdsl_fuse.kernels.conv_separable_model import Choice, SeparableProblem
from kdsl_fuse.kernels.conv_separable_plan import SeparablePlan, choose, conv_separable, refusal
from kdsl_fuse.kernels.conv_separable_sm90 import KERNELS
from kdsl_fuse.kernels.conv_separable_space import candidates
from kdsl_fuse.kernels.gemm_sm90 import identity

Array = np.ndarray[Any, Any]
BF16 = ml_dtypes.bfloat16


def relu6(x: Any) -> Any:
    """min(max(x, 0), 6)."""
    return kd.minimum(kd.maximum(x, 0.0), 6.0)


def biased_relu6(acc: Any, bias: Any) -> Any:
    """ReLU6 of x + bias."""
    return relu6(acc + bias.to(kd.f32))


def biased(acc: Any, bias: Any) -> Any:
    """x + bias."""
    return acc + bias.to(kd.f32)


def biased_and_added(acc: Any, bias: Any, residual: Any) -> Any:
    """x + bias + residual."""
    return acc + bias.to(kd.f32) + residual.to(kd.f32)


class Operands:
    """Normal numbers, and what the convolutions make of them in f64."""

    def __init__(self, p: SeparableProblem, dtype: Any = BF16) -> None:
        rng, d = np.random.default_rng(0), p.depthwise
        self.problem, self.dtype = p, dtype
        self.out_shape = (d.batch, *d.output, p.filters)
        sizes: dict[str, tuple[tuple[int, ...], float]] = {
            "x": ((d.batch, d.height, d.width, d.channels), 1.0),
            "w": ((d.channels, *d.kernel, 1), 1 / d.kernel[0]),
            "pointwise": ((p.filters, 1, 1, d.channels), d.channels**-0.5),
            "bias": ((d.channels,), 1.0), "second": ((p.filters,), 1.0),
            "residual": (self.out_shape, 1.0),
        }  # fmt: skip
        for name, (shape, scale) in sizes.items():
            setattr(self, name, (scale * rng.standard_normal(shape)).astype(dtype))

    def __getattr__(self, name: str) -> Array:
        raise AttributeError(name)

    def want(self, *, residual: bool = False) -> tuple[Array, Array]:
        """The result of ReLU6 between biased convolutions, and the sums of its products' sizes."""
        d = self.problem.depthwise
        found = exact(d, self.x, self.w) + self.bias.astype(np.float64)
        middle = np.clip(found, 0, 6).astype(np.float32).astype(self.dtype).astype(np.float64)
        filters = self.pointwise[:, 0, 0].astype(np.float64).T
        want = middle @ filters + self.second.astype(np.float64)
        if residual:
            want += self.residual.astype(np.float64)
        return want, np.abs(middle) @ np.abs(filters)


def assert_close(got: Array, want: Array, scale: Array) -> None:
    """Within a rounding of the result, and of a few of the numbers between the convolutions."""
    epsilon = float(ml_dtypes.finfo(got.dtype).eps)
    error = np.abs(got.astype(np.float64) - want)
    assert (error <= epsilon * (np.abs(want) + 0.1 * scale) + 1e-6).all()


def separable(
    filters: int = 24, kernel: int = 3, stride: int = 1, **sizes: Any
) -> SeparableProblem:
    """A small problem."""
    return SeparableProblem(problem((kernel,) * 2, (stride,) * 2, **sizes), filters)


def configured(p: SeparableProblem, *, filters: int = 0, **fields: Any) -> SeparableConfig:
    """A configuration with small tiles."""
    d, shape = p.depthwise, {n: fields.pop(n, 1) for n in ("groups", "parts", "peers")}
    fields = {"channels": 32, "rows": 2, "tile": (1, 2, 2), "stages": 2, **fields}
    window = DepthwiseConfig(d.kernel, d.stride, d.padding, d.dilation, **fields)
    filters = filters or p.filters
    sizes = zip((*d.output, p.filters), (*window.output_tile[1:3], filters), strict=True)
    down, across, parts = (-(-size // extent) for size, extent in sizes)
    return SeparableConfig(window, d.channels, filters, (down, across, parts), **shape)


def simulated(
    p: SeparableProblem, config: SeparableConfig, clusters: int = 2, dtype: Any = BF16, **how: Any
) -> tuple[Array, Any]:
    """Run a configuration with all checks, from NaN, and compare with f64."""
    given, d = Operands(p, dtype), p.depthwise
    out = np.full(given.out_shape, np.nan, dtype)
    extras = [
        np.broadcast_to(given.bias, (*out.shape[:3], d.channels)),
        np.broadcast_to(given.second, out.shape), given.residual,
    ]  # fmt: skip
    result = kd.simulate(
        KERNELS[1], grid=clusters * config.peers, block=config.threads,
        cluster=(config.peers, 1, 1) if config.peers > 1 else None,
        args=(given.x, given.w.reshape(d.channels, -1), given.pointwise[:, 0, 0], out, *extras),
        kwargs={"epilogue": Tails(biased_relu6, 1, biased_and_added), "config": config},
        checks=("all", "unwritten"), overlap=True, **how,
    )  # fmt: skip
    assert_close(out, *given.want(residual=True))
    return out, result.profile


WINDOWS: dict[str, Any] = {
    "3x3": {},
    "3x3 s2": {"stride": 2, "fields": {"tile": (1, 2, 1)}},
    "5x5": {"kernel": 5, "fields": {"channels": 16}},
    "5x5 s2": {"kernel": 5, "stride": 2, "fields": {"channels": 16, "tile": (1, 2, 1)}},
    "4x4": {"kernel": 4, "image": (10, 14)},
    "no padding": {"padding": (0, 0), "fields": {"tile": (1, 2, 2)}},
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", (BF16, np.float16))
def test_windows(name: str, dtype: Any) -> None:
    """Windows and strides, channels that do not fill a stage, two tails with a residual."""
    sizes = dict(WINDOWS[name])
    fields = sizes.pop("fields", {})
    p = separable(channels=40, **sizes)
    simulated(p, configured(p, **fields), dtype=dtype)


TILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one row": ({}, {"rows": 1, "tile": (1, 4, 2)}),
    "four rows": ({}, {"rows": 4, "tile": (1, 2, 2)}),
    "idle strips": ({}, {"tile": (1, 3, 2)}),
    "images": ({"batch": 3, "image": (7, 7)}, {"rows": 4, "tile": (3, 2, 1)}),
    "two warp groups": ({}, {"tile": (1, 4, 4), "groups": 2}),
    "64 channels": ({"channels": 72}, {"channels": 64, "rows": 1, "tile": (1, 4, 2)}),
    "16 filters": ({"filters": 16}, {}),
    "48 filters": ({"filters": 48}, {}),
    "64 filters": ({"filters": 64}, {}),
    "80 filters": ({"filters": 80}, {}),
    "tiles of filters": ({"filters": 200}, {"filters": 104, "rows": 1, "tile": (1, 4, 2)}),
    "parts": ({"channels": 136, "filters": 64}, {"parts": 2, "stages": 4}),
    "three parts, odd eights": ({"channels": 104, "filters": 72}, {"parts": 3, "stages": 6}),
    "peers": ({"channels": 104, "filters": 64}, {"peers": 2, "channels": 16}),
    "all shares": (
        {"channels": 200, "filters": 96},
        {"parts": 2, "peers": 2, "groups": 2, "channels": 16, "stages": 4, "tile": (2, 3, 2),
         "filters": 32},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TILES)
def test_tiles(name: str) -> None:
    """Every way to share tiles, channels and filters, where they hang over."""
    sizes, fields = TILES[name]
    p = separable(**{"channels": 40, **sizes})
    simulated(p, configured(p, **fields))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("peers", (1, 2))
def test_any_order(seed: int, peers: int) -> None:
    """Blocks and warps in any order give the same bits, over several tiles and clusters."""
    p = separable(channels=72, filters=32, batch=3)
    config = configured(p, parts=2, peers=peers, channels=16, stages=4)
    first, _ = simulated(p, config)
    again, _ = simulated(p, config, order="shuffle", seed=seed)
    assert first.tobytes() == again.tobytes()


def test_counters() -> None:
    """Fragments, filters and results pass through shared memory without conflicts.

    Every sector is used in full; with a stride of 2 pixels lie in half of the banks.
    """
    for kernel in (3, 5):
        p = separable(filters=64, kernel=kernel, channels=64, image=(8, 16), batch=1)
        profile = simulated(p, configured(p, channels=64), 1)[1]
        for kind in ("ldmatrix", "stmatrix", "wgmma", "shared_load", "shared_store"):
            found, ideal = (profile.totals[f"{kind}{x}_wavefronts"] for x in ("", "_ideal"))
            assert found == ideal > 0, kind
        assert profile.totals["tma_load_sectors"] == profile.totals["tma_load_ideal_sectors"]
        assert profile.totals["tma_store_sectors"] == profile.totals["tma_store_ideal_sectors"]
    strided = separable(filters=64, channels=64, image=(8, 16), batch=1, stride=2)
    totals = simulated(strided, configured(strided, channels=64, tile=(1, 2, 1)), 1)[1].totals
    assert totals["ldmatrix_wavefronts"] == 2 * totals["ldmatrix_ideal_wavefronts"]


@pytest.mark.parametrize("dtype", (BF16, np.float16))
@pytest.mark.parametrize("channels, filters", ((8, 8), (40, 24), (144, 24), (96, 96)))
def test_call(dtype: Any, channels: int, filters: int) -> None:
    """The chosen plan, from operands to the result."""
    p = separable(filters, channels=channels, batch=1)
    given = Operands(p, dtype)
    out = conv_separable(
        given.x, given.w, given.pointwise, given.bias, given.second, padding=1, between=relu6
    )
    assert out.dtype == dtype and refusal(p, dtype_of(np.dtype(dtype))) is None
    assert_close(out, *given.want())


def test_not_a_number() -> None:
    """What is no number in a window is none in all results of its pixels; others are untouched."""
    p = separable(channels=40, batch=2)
    given = Operands(p)
    given.x[1, 4, 5, 9] = np.inf
    out = conv_separable(given.x, given.w, given.pointwise, padding=1).astype(np.float64)
    strange = ~np.isfinite(out).all(axis=3)
    assert np.argwhere(strange).tolist() == [
        [1, r, s] for r in range(3, 6) for s in range(4, 7)
    ]  # fmt: skip


def test_channels_behind_the_last() -> None:
    """A function between the convolutions may be infinite at zero."""
    p = separable(channels=24, batch=1)
    given = Operands(p)
    out = conv_separable(
        given.x, given.w, given.pointwise, padding=1, between=lambda x: 1.0 / (x * x + 0.0)
    )
    assert np.isfinite(out.astype(np.float64)).all()


def test_views() -> None:
    """Images and results may be parts of wider ones."""
    p = separable(channels=24, filters=16)
    given = Operands(p)
    wide, result = (
        np.zeros((*shape[:3], shape[3] + 8), BF16) for shape in (given.x.shape, given.out_shape)
    )
    wide[..., 8:] = given.x
    found = conv_separable(
        wide[..., 8:], given.w, given.pointwise, given.bias, given.second, result[..., 8:],
        padding=1, between=relu6,
    )  # fmt: skip
    assert np.shares_memory(found, result) and (result[..., :8] == 0).all()
    assert_close(result[..., 8:], *given.want())


X, W, V = array(1, 8, 8, 16), array(16, 3, 3, 1), array(24, 1, 1, 16)
CONFIG, WIDE = (DepthwiseConfig((3, 3), tile=(1, n, n)) for n in (2, 3))
ONE = 1, 1, 1
BAD: dict[str, tuple[str, Any]] = {
    "no depthwise filters": ("K977", lambda: conv_separable(X, array(16, 3, 3, 2), V)),
    "pointwise channels": ("K977", lambda: conv_separable(X, W, array(24, 1, 1, 8))),
    "pointwise windows": ("K977", lambda: conv_separable(X, W, array(24, 3, 3, 16))),
    "types": ("K978", lambda: conv_separable(X, W.astype(np.float16), V)),
    "out": ("K977", lambda: conv_separable(X, W, V, out=X)),
    "f32": ("K999", lambda: conv_separable(*(x.astype(np.float32) for x in (X, W, V)))),
    "channels first": ("K999", lambda: conv_separable(X.transpose(0, 2, 3, 1)[..., :8], W[:8],
                                                      V[..., :8])),
    "strips": ("K979", lambda: SeparableConfig(WIDE, 16, 16, ONE)),
    "odd filters": ("K979", lambda: SeparableConfig(CONFIG, 16, 20, ONE)),
    "shares": ("K979", lambda: SeparableConfig(CONFIG, 16, 24, ONE, parts=2)),
    "stages": ("K979", lambda: SeparableConfig(CONFIG, 16, 32, ONE, parts=2)),
    "sums": ("K979", lambda: SeparableConfig(CONFIG, 16, 256, ONE)),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    """Each mistake has its code before anything runs."""
    code, call = BAD[name]
    with pytest.raises(kd.KdslError) as caught:
        call()
    assert caught.value.code == code


REFUSED: dict[str, tuple[SeparableProblem, Any, str]] = {
    "wgmma": (separable(), kd.bf16, "sm_80"),
    "f32": (separable(), kd.f32, "sm_90a"),
    "48 for": (separable(multiplier=2), kd.bf16, "sm_90a"),
    "by 8": (separable(20), kd.bf16, "sm_90a"),
    "taps": (separable(kernel=7), kd.bf16, "sm_90a"),
    "dilation": (SeparableProblem(problem((3, 3), dilation=(2, 2)), 8), kd.bf16, "sm_90a"),
    "stride": (SeparableProblem(problem((1, 3), (2, 1)), 8), kd.bf16, "sm_90a"),
    "fits": (separable(kernel=5, channels=16384), kd.bf16, "sm_90a"),
}


@pytest.mark.parametrize("word", REFUSED)
def test_refusals(word: str) -> None:
    """What stays with two kernels, and why."""
    p, dtype, target = REFUSED[word]
    reason = refusal(p, dtype, target)
    assert reason is not None and word in reason


def test_plan() -> None:
    """As many blocks as run at a time, in whole clusters; candidates are sorted and all fit."""
    d = ConvProblem(32, 14, 14, 384, 384, (3, 3), padding=(1, 1), groups=384)
    p = SeparableProblem(d, 64)
    plan = choose(p, 1)
    assert plan.grid <= 132 * plan.choice.blocks_per_sm and plan.grid % plan.config.peers == 0
    choices = candidates(p, 1)
    assert plan.choice == choices[0] and len(choices) > 10
    for choice in choices:
        assert choice.config.shared_bytes(1) * choice.blocks_per_sm <= 233_472
    assert p.flops == 2 * 32 * 14 * 14 * 384 * (9 + 64)
    shared = SeparablePlan(p, Choice(configured(p, peers=4, rows=1), 1))
    assert shared.cluster == (4, 1, 1) and shared.grid == 112
    assert str(shared).endswith("c4") and identity(1) == 1
