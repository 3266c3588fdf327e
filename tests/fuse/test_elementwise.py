"""Pointwise kernels: any operands, types and strides; whole sectors where operands are aligned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_core.sim import Profile
from kdsl_fuse.kernels import elementwise
from kdsl_fuse.kernels.elementwise import ElementwiseConfig
from kdsl_fuse.kernels.vectors import widened

Array = np.ndarray[Any, Any]
bf16, f16 = ml_dtypes.bfloat16, np.float16


def numbers(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    """Random numbers around 0."""
    values = np.asarray(3 * np.random.default_rng(seed).standard_normal(shape))
    return values.astype(dtype)


def simulated(
    function: Callable[..., Any],
    outputs: list[Array],
    inputs: list[Array],
    config: ElementwiseConfig | None = None,
) -> Profile:
    """The counters of a launch in which nothing is wrong and every output is written."""
    plan = elementwise.choose(outputs, inputs)
    if config:
        plan = elementwise.ElementwisePlan(plan.modes, config, plan.outputs)
    result = kd.simulate(
        elementwise.elementwise,
        grid=plan.grid,
        block=plan.config.threads,
        args=plan.modes.views([*outputs, *inputs]),
        kwargs={"function": function, "config": plan.config, "outputs": len(outputs)},
        checks=("all", "unwritten"),
        overlap=True,
    )
    return result.profile


def weighted(x: Any, y: Any) -> Any:
    """A function whose operands are not alike."""
    return 2.0 * x - y


@pytest.mark.parametrize("shape", [(1,), (7,), (4096,), (3, 5), (64, 256), (2, 3, 5), (2, 4, 6, 8)])
@pytest.mark.parametrize("dtype", [np.float32, f16, bf16, np.float64], ids=str)
def test_contiguous(shape: tuple[int, ...], dtype: Any) -> None:
    """One flat run of elements, computed in 32 bits or more and rounded once."""
    x, y = numbers(shape, dtype), numbers(shape, dtype, 1)
    z = np.empty_like(x)
    simulated(weighted, [z], [x, y])
    wide = np.float64 if dtype is np.float64 else np.float32
    np.testing.assert_array_equal(z, (2 * x.astype(wide) - y.astype(wide)).astype(dtype))


@pytest.mark.parametrize(
    "shape", [(1,), (8,), (1, 8), (6, 1), (6, 8), (5, 1, 1), (5, 6, 1), (1, 1, 8), (5, 1, 8), ()]
)
def test_broadcasts(shape: tuple[int, ...]) -> None:
    """An operand that is repeated along any of three axes."""
    x, y = numbers((5, 6, 8)), numbers(shape, np.float32, 1)
    z = np.empty_like(x)
    simulated(weighted, [z], [x, y])
    np.testing.assert_array_equal(z, 2 * x - y)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1)])
def test_orders_of_axes(order: tuple[int, ...]) -> None:
    """Inputs and outputs that lie in memory in other orders; lines lie along the output's."""
    shape = (6, 5, 8)
    x, y = numbers(shape), numbers(tuple(shape[i] for i in order), np.float32, 1)
    y = y.transpose(np.argsort(order))
    for z in (np.empty(shape, np.float32), np.empty(y.T.shape, np.float32).T, np.empty_like(y)):
        simulated(weighted, [z], [x, y])
        np.testing.assert_array_equal(z, 2 * x - y)


def test_parts_of_arrays() -> None:
    """Steps over elements and pitches that no vector divides."""
    whole = numbers((9, 35))
    for x in (whole[:, ::2], whole[::3, 1:34], whole[2:7, 3:7]):
        z = np.empty(x.shape, np.float32)
        simulated(weighted, [z], [x, x])
        np.testing.assert_array_equal(z, x)
    target = np.zeros((9, 40), np.float32)
    simulated(weighted, [target[1:8, 4:36]], [whole[:7, :32], whole[:7, :32]])
    np.testing.assert_array_equal(target[1:8, 4:36], whole[:7, :32])
    assert not target[:, :4].any()
    assert not target[:, 36:].any()


def test_types_meet() -> None:
    """Inputs of several types, outputs of several others, booleans and small integers too."""
    x, n = numbers((40, 16), bf16), np.arange(640, dtype=np.int8).reshape(40, 16)
    mask = (n % 3 == 0) & (n > 5)
    scaled, counted, chosen = (np.empty(x.shape, t) for t in (np.float32, np.int32, np.bool_))

    def function(x: Any, n: Any, mask: Any) -> Any:
        return kd.where(mask, x, 0.0), n * 1000, mask & (n > 50)

    simulated(function, [scaled, counted, chosen], [x, n, mask])
    np.testing.assert_array_equal(scaled, np.where(mask, x.astype(np.float32), 0))
    np.testing.assert_array_equal(counted, n.astype(np.int32) * 1000)
    np.testing.assert_array_equal(chosen, mask & (n > 50))


def test_no_inputs_and_no_elements() -> None:
    """A constant; nothing to write; a single number."""
    z = np.empty((70, 3), np.int32)
    simulated(lambda: 7, [z], [])
    assert (z == 7).all()
    empty = np.empty((3, 0), np.float32)
    elementwise.choose([empty], [empty]).run(widened, empty, empty)
    one = np.empty((), np.float32)
    simulated(weighted, [one], [np.full((), 3, np.float32), np.full((), 2, np.float32)])
    assert one == 4


@pytest.mark.parametrize("vectors", [1, 2, 5])
@pytest.mark.parametrize("wide", [False, True])
def test_configurations(vectors: int, wide: bool) -> None:
    """Several vectors a thread, counted in 32 or 64 bits, with other cache operators."""
    x, y = numbers((37, 64)), numbers((64,), np.float32, 1)
    z = np.empty_like(x)
    config = ElementwiseConfig(4, vectors, threads=64, wide=wide, load="cs", store="cs")
    simulated(weighted, [z], [x, y], config)
    np.testing.assert_array_equal(z, 2 * x - y)


@pytest.mark.parametrize("dtype", [np.float32, bf16, np.int8], ids=str)
def test_traffic(dtype: Any) -> None:
    """Aligned operands: each sector once, and 16 bytes for each request of a lane."""
    x = numbers((64, 512), dtype)
    z = np.empty_like(x)
    profile = simulated(lambda x, y: x + y, [z], [x, x.copy()])
    assert profile.sector_efficiency == 1
    assert profile.totals["sectors"] == 3 * x.nbytes / 32
    assert profile.totals["requests"] == 3 * x.nbytes / (32 * 16)


def test_traffic_of_broadcasts_and_of_mixed_types() -> None:
    """A row and a column beside a matrix, f32 beside bf16: still whole sectors."""
    x, row, column = numbers((64, 512)), numbers((512,), bf16), numbers((64, 1))
    z = np.empty(x.shape, bf16)
    profile = simulated(lambda x, r, c: x * r + c, [z], [x, row, column])
    assert profile.sector_efficiency >= 0.98


def test_many_elements_take_several_vectors_a_thread() -> None:
    """Large arrays: enough bytes under way; small ones: threads first; beyond 2^31: 64 bits."""
    large, small = kd.spec("bf16", (8192, 8192)), kd.spec("bf16", (64, 64))
    expected = ElementwiseConfig(8, 4, partial=False, load="evict_last", store="cs")
    assert elementwise.choose([large], [large]).config == expected
    assert elementwise.choose([large], [large] * 3).config.vectors == 1
    assert elementwise.choose([small], [small]).config.vectors == 1
    assert not elementwise.choose([large], [large]).config.wide
    huge = kd.spec("i8", (1 << 16, 1 << 15))
    assert elementwise.choose([huge], [huge]).config.wide


def test_caches_keep_what_is_read_where_results_do_not_fit() -> None:
    """Results that L2 can hold are written as usual, for whoever reads them next."""
    wide, narrow = kd.spec("bf16", (1 << 13, 1 << 12)), kd.spec("i8", (1 << 13, 1 << 12))
    for outputs, operators in {wide: ("evict_last", "cs"), narrow: ("", "")}.items():
        config = elementwise.choose([outputs], [wide]).config
        assert (config.load, config.store) == operators


@pytest.mark.parametrize(
    ("code", "outputs", "inputs"),
    [
        ("K944", [(4, 8)], [(4, 7)]),
        ("K944", [(8,)], [(4, 8)]),
        ("K946", [(4, 8), (8,)], [(8,)]),
    ],
)
def test_bad_shapes(code: str, outputs: list[Any], inputs: list[Any]) -> None:
    """Each mistake has its code."""
    with pytest.raises(ArgumentError) as caught:
        elementwise.choose([numbers(s) for s in outputs], [numbers(s) for s in inputs])
    assert caught.value.code == code


def test_outputs_that_share_elements() -> None:
    """Broadcast and overlapping outputs are refused, gaps and other orders are not."""
    x = numbers((4, 8))
    overlapping = np.lib.stride_tricks.as_strided(x, (4, 8), (16, 4))
    for z in (np.broadcast_to(x[:1], x.shape), overlapping):
        with pytest.raises(ArgumentError, match="K945"):
            elementwise.choose([z], [x])
    elementwise.choose([numbers((8, 12)).T[::3, :]], [x])
