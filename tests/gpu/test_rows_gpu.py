"""Row-wise and pointwise kernels on torch tensors: the simulator's bits, and capture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_fuse.kernels import elementwise, row_ops
from kdsl_fuse.kernels.columns import reduce_columns
from kdsl_runtime import driver

pytestmark = pytest.mark.gpu
SHAPES = [(3, 7), (33, 128), (4, 1000), (3, 2048), (2, 16384), (1, 70000), (1, 140000),
          (140, 16400), (70, 30000)]  # fmt: skip


@pytest.fixture
def torch() -> Any:
    """PyTorch with a GPU that has clusters."""
    if driver.device(0).target != "sm_90a":
        pytest.skip("needs a GPU of compute capability 9.0")
    return pytest.importorskip("torch")


def agree(torch: Any, launch: Any, outputs: list[Any], *inputs: Any) -> None:
    """A launch on the GPU gives the bits that the simulator gives."""
    on_gpu = [torch.empty(x.shape, dtype=getattr(torch, str(x.dtype)), device="cuda")
              for x in outputs]  # fmt: skip
    launch(*on_gpu, *(torch.from_numpy(x).cuda() for x in inputs))
    launch(*outputs, *inputs)
    for got, expected in zip(on_gpu, outputs, strict=True):
        np.testing.assert_array_equal(got.cpu().numpy(), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_give_the_simulators_bits(torch: Any, shape: tuple[int, int]) -> None:
    """Softmax, norms, losses and sums of f32 rows: by warps, blocks, clusters, and streamed."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape, np.float32)
    weight = rng.standard_normal(shape[1:], np.float32)
    labels = rng.integers(0, shape[1], shape[:1])
    y, total = np.empty_like(x), np.empty_like(x)
    numbers = np.empty(shape[0], np.float32)
    agree(torch, lambda y, x: row_ops.softmax(x, y), [y], x)
    agree(torch, lambda y, x, w: row_ops.layer_norm(x, y, w, w), [y], x, weight)
    added = lambda y, s, x, r: row_ops.rms_norm(x, y, residual=r, total=s)  # noqa: E731 # as a value
    agree(torch, added, [y, total], x, x[::-1].copy())
    agree(torch, lambda y, x, n: row_ops.cross_entropy(x, n, y), [numbers], x, labels)
    agree(torch, lambda y, x: row_ops.reduce_rows("sum", x, y), [numbers], x)
    columns = np.empty(shape[1], np.float32)
    agree(torch, lambda y, x: reduce_columns("sum", x, y), [columns], x)


@pytest.mark.parametrize("columns", [65536, 128256, 131072])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_very_long_rows_give_the_same_bits_each_time(torch: Any, name: str, columns: int) -> None:
    """Nobody reads a stage that the next row has reached: bf16, 30 launches, and f32 of PyTorch."""
    functional = torch.nn.functional
    x = torch.randn(2048, columns, device="cuda", dtype=torch.bfloat16)
    first, again = torch.empty_like(x), torch.empty_like(x)
    weight = torch.randn(columns, device="cuda", dtype=torch.bfloat16)
    ours, theirs = {
        "softmax": (row_ops.softmax, lambda x: torch.softmax(x, -1)),
        "layer_norm": (
            lambda x, y: row_ops.layer_norm(x, y, weight, weight),
            lambda x: functional.layer_norm(x, (columns,), weight.float(), weight.float()),
        ),
        "rms_norm": (
            lambda x, y: row_ops.rms_norm(x, y, weight=weight),
            lambda x: functional.rms_norm(x, (columns,), weight.float(), 1e-5),
        ),
    }[name]
    ours(x, first)
    torch.testing.assert_close(first.float(), theirs(x.float()), rtol=2**-7, atol=2**-7)
    for _ in range(30):
        ours(x, again.zero_())
        assert torch.equal(first, again)


def gated(x: Any, b: Any) -> Any:
    """A function with two outputs."""
    return x * kd.sigmoid(x + b), kd.exp(x)


def test_pointwise_functions_give_the_simulators_bits(torch: Any) -> None:
    """Two outputs, a broadcast row, f16."""
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((129, 72)).astype(np.float16), np.ones(72, np.float16)

    def launch(y: Any, z: Any, x: Any, b: Any) -> None:
        elementwise.choose([y, z], [x, b]).run(gated, y, z, x, b)

    agree(torch, launch, [np.empty_like(x), np.empty_like(x)], x, b)


def test_fast_softmax_and_capture(torch: Any) -> None:
    """bf16 by fast powers within a rounding of f64; replayed from a graph on new numbers."""
    x = torch.randn(64, 8192, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    row_ops.softmax(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        row_ops.softmax(x, y)
    x.copy_(torch.randn(64, 8192, device="cuda"))
    graph.replay()
    exact = torch.softmax(x.double(), -1)
    assert bool(((y.double() - exact).abs() <= 2.0**-8 * exact).all())
