"""Fused functions on a GPU: their numbers, streams, capture, and the bits of the simulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_fuse as kf
from kdsl_core.errors import ArgumentError
from kdsl_runtime import driver
from kdsl_runtime.device_array import to_device

pytestmark = pytest.mark.gpu
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23}
BF16 = np.dtype(ml_dtypes.bfloat16)


@kf.fuse
def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Bias, GELU, scale and residual."""
    return kf.gelu(x @ w + b) * 0.5 + r


def rectified(x: Any, w: Any, b: Any) -> Any:
    """A tail of operators that are exact but for their one rounding."""
    return kf.relu(x @ w + b)


@kf.fuse(f32_precision="tf32")
def in_tf32(x: Any, w: Any, b: Any, r: Any) -> Any:
    """The layer on tensor cores for f32 matrices."""
    return kf.gelu(x @ w + b) * 0.5 + r


@pytest.fixture
def torch() -> Any:
    """PyTorch with its GPU."""
    return pytest.importorskip("torch")


def arguments(torch: Any, dtype: str, m: int = 200, n: int = 168, k: int = 96) -> list[Any]:
    """x, w, a bias and a residual, uniform in −1 … 1."""
    torch.manual_seed(m + n + k)
    shapes = ((m, k), (k, n), (n,), (m, n))
    kind = getattr(torch, dtype)
    return [(torch.rand(shape, device="cuda") * 2 - 1).to(kind) for shape in shapes]


def expected(torch: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    """The layer in f64."""
    x, w, b, r = (array.double() for array in (x, w, b, r))
    return torch.nn.functional.gelu(x @ w + b) * 0.5 + r


def assert_close(result: Any, want: Any, dtype: str, products: float = 2.0**-22) -> None:
    """Within one rounding of the result, and `products` for each of the sum's products."""
    bound = EPSILON[dtype] / 2 * want.abs() + 96 * products + 2.0**-20
    assert bool(((result.double() - want).abs() <= bound).all())


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("sizes", [(200, 168, 96), (1, 7, 13), (129, 33, 31)])
def test_layer_agrees_with_f64(torch: Any, dtype: str, sizes: tuple[int, int, int]) -> None:
    """Any type and any sizes: one rounding from f64."""
    args = arguments(torch, dtype, *sizes)
    result = layer(*args)
    assert (str(result.dtype), result.device) == (f"torch.{dtype}", args[0].device)
    assert_close(result, expected(torch, *args), dtype)


@pytest.mark.parametrize("dtype", EPSILON)
def test_views_are_read_in_place(torch: Any, dtype: str) -> None:
    """Transposed operands, a broadcast column and a slice of rows."""
    x, w, b, r = arguments(torch, dtype)
    args = (x.t().contiguous().t(), w.t().contiguous().t(), b, r[:, :1])
    assert_close(layer(*args), expected(torch, *args), dtype)
    args = (x[::2], w, b, r[::2])
    assert_close(layer(*args), expected(torch, *args), dtype)


def test_tf32_rounds_the_operands(torch: Any) -> None:
    """tf32 is within 10 mantissa bits for each product, and not the f32 result."""
    args = arguments(torch, "float32")
    result = in_tf32(*args)
    assert_close(result, expected(torch, *args), "float32", products=2.0**-10)
    assert not torch.equal(result, layer(*args))


def test_gpu_decides_the_target(torch: Any) -> None:
    """A plan for CUDA arrays is for the GPU that holds them."""
    plan = layer.plan(*arguments(torch, "bfloat16"))
    assert plan.options.target == driver.device(0).target
    assert f"target {plan.options.target}" in plan.explain()


def test_runs_on_the_current_stream(torch: Any) -> None:
    """On a side stream the kernel waits for what made its arguments there."""
    x, w, b, r = arguments(torch, "bfloat16")
    layer(x, w, b, r)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)  # cycles: a launch on another stream would read the zeros
        late.copy_(x)
        result = layer(late, w, b, r)
    side.synchronize()
    assert_close(result, expected(torch, x, w, b, r), "bfloat16")


def test_is_captured_into_a_graph(torch: Any) -> None:
    """A captured plan.run computes anew at each replay, from what its arguments then hold."""
    args = arguments(torch, "bfloat16")
    plan = layer.plan(*args)
    plan.run(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = plan.run(*args)
    for factor in (1.0, -0.5):
        args[0].mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        assert_close(result, expected(torch, *args), "bfloat16")


@pytest.mark.parametrize("dtype", [BF16, np.dtype("f2"), np.dtype("f4")], ids=str)
def test_bits_are_those_of_the_simulator(dtype: Any) -> None:
    """The same kernel on NumPy arrays and on their copies in a GPU's memory: equal bits."""
    rng = np.random.default_rng(5)
    fused = kf.fuse(target=driver.device(0).target)(rectified)
    for m, n, k in ((33, 24, 40), (70, 19, 77), (24, 16, 2048)):
        args = [rng.uniform(-1, 1, shape).astype(dtype) for shape in ((m, k), (k, n), (n,))]
        simulated = fused(*args)
        measured = fused(*(to_device(array) for array in args))
        assert measured.read().tobytes() == simulated.tobytes()


def test_two_layers_without_torch() -> None:
    """DeviceArrays go in and come out, through a transposed view and a held constant."""
    rng = np.random.default_rng(6)
    x = rng.uniform(-1, 1, (24, 40)).astype("f4")
    held = rng.uniform(-1, 1, (1, 40)).astype("f4")
    network = kf.fuse(lambda x: kf.relu(kf.relu(x @ x.T).T @ x + held))
    assert network(to_device(x)).read().tobytes() == network(x).tobytes()


def test_mixed_places_are_refused(torch: Any) -> None:
    """Host with GPU is K913, host tensors alone are K927."""
    x, w, b, r = arguments(torch, "float32")
    for args, code in (((x.cpu(), w, b, r), "K913"), ((x, w.cpu(), b, r), "K913")):
        with pytest.raises(ArgumentError, match="one place") as caught:
            layer(*args)
        assert caught.value.code == code
    with pytest.raises(ArgumentError, match="on the host") as caught:
        layer(*(array.cpu() for array in (x, w, b, r)))
    assert caught.value.code == "K927"
