"""Fused functions with the Hopper kernel on torch tensors: shapes, streams, capture, workspaces."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_fuse as kf
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels import gemm_sm90_plan
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan
from kdsl_runtime import driver

pytestmark = pytest.mark.gpu
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SPLIT = Sm90Config((64, 32, 64), 3, consumers=1, splits=4)
CONFIGS = {
    "cooperative": Sm90Config((128, 64, 64), 3),
    "pingpong": Sm90Config((64, 64, 64), 3, "pingpong"),
    "cluster": Sm90Config((128, 128, 64), 3, "pingpong", cluster=(2, 1)),
    "registers": Sm90Config((128, 128, 64), 3, registers=(40, 232)),
    "k shared by a cluster": Sm90Config((64, 32, 64), 3, consumers=1, peers=2),
    "k split in memory": SPLIT,
}


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Bias, GELU, scale and residual."""
    return kf.gelu(x @ w + b) * 0.5 + r


@pytest.fixture
def torch() -> Any:
    """PyTorch with a GPU that has `wgmma`."""
    if driver.device(0).target != "sm_90a":
        pytest.skip("needs a GPU of compute capability 9.0")
    return pytest.importorskip("torch")


def arguments(torch: Any, m: int, n: int, k: int, dtype: str = "bfloat16") -> list[Any]:
    """x, w, a bias and a residual, uniform in −1 … 1."""
    torch.manual_seed(m + n + k)
    kind = getattr(torch, dtype)
    shapes = ((m, k), (k, n), (n,), (m, n))
    return [(torch.rand(shape, device="cuda") * 2 - 1).to(kind) for shape in shapes]


def expected(torch: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    """The layer in f64."""
    x, w, b, r = (array.double() for array in (x, w, b, r))
    return torch.nn.functional.gelu(x @ w + b) * 0.5 + r


def assert_close(result: Any, want: Any, k: int) -> None:
    """Within one rounding of the result, and one of f32 for each of the sum's products."""
    dtype = str(result.dtype).removeprefix("torch.")
    bound = EPSILON[dtype] * want.abs() + k * 2.0**-22 + 2.0**-18
    assert bool(((result.double() - want).abs() <= bound).all())


def chosen(monkeypatch: pytest.MonkeyPatch, config: Sm90Config, swap: bool = False) -> Any:
    """The layer with `config` as the choice for every product."""

    def choose(m: int, n: int, k: int, dtype: Any, result: Any, **chip: Any) -> Sm90Plan:
        return Sm90Plan(model.Problem(m, n, k, dtype.bytes, result.bytes), config, swap)

    monkeypatch.setattr(gemm_sm90_plan, "choose", choose)
    return kf.fuse(layer)


SIZES = [
    (4096, 512, 256),
    (16, 1024, 4096),
    (64, 64, 16384),
    (300, 200, 8192),
    (1, 1, 1),
    (77, 45, 131),
    (1023, 1025, 1027),
]


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_chosen_kernels_are_right(torch: Any, sizes: tuple[int, int, int], dtype: str) -> None:
    """Large, flat, deep, tiny and unaligned products, as the selection wants them."""
    fused, args = kf.fuse(layer), arguments(torch, *sizes, dtype)
    (call,) = fused.plan(*args).calls
    assert call.name == "gemm_sm90"
    for _ in range(3):
        assert_close(fused(*args), expected(torch, *args), sizes[2])


@pytest.mark.parametrize("swap", [False, True], ids=["straight", "swapped"])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_way_to_launch(
    torch: Any, name: str, swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every schedule, with the operands in either order and any layout."""
    fused = chosen(monkeypatch, CONFIGS[name], swap)
    x, w, b, r = arguments(torch, 264, 200, 712)
    turned = w.t().contiguous().t()
    off = torch.empty(264, 715, device="cuda", dtype=x.dtype)[:, 3:].copy_(x)
    for a, v in ((x, w), (x, turned), (x.t().contiguous().t(), w), (off, turned)):
        assert_close(fused(a, v, b, r), expected(torch, x, w, b, r), 712)
    whole = x[:1].expand(264, 712)
    assert_close(fused(whole, w, b, r.t().contiguous().t()), expected(torch, whole, w, b, r), 712)


def test_extras_of_every_kind(torch: Any) -> None:
    """A mask, integers, a scalar and f32 vectors along both axes; results in f32."""
    x, w, *_ = arguments(torch, 200, 136, 264)
    mask = torch.rand(200, 136, device="cuda") > 0.5
    steps = torch.randint(-3, 4, (136,), device="cuda", dtype=torch.int32)
    rows = torch.rand(200, 1, device="cuda")
    scale = torch.tensor(0.25, device="cuda")

    @kf.fuse
    def tail(x: Any, w: Any, mask: Any, steps: Any, rows: Any, scale: Any) -> Any:
        y = kf.cast(x @ w, "f32") * rows * scale
        return kf.where(mask, y, kf.cast(steps, "f32"))

    (call,) = tail.plan(x, w, mask, steps, rows, scale).calls
    assert call.name == "gemm_sm90"
    y = (x.double() @ w.double()).to(torch.bfloat16).double() * rows.double() * scale.double()
    want = torch.where(mask, y, steps.double())
    result = tail(x, w, mask, steps, rows, scale)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), want, rtol=2.0**-6, atol=2.0**-6)


@pytest.mark.parametrize("sizes", [(64, 64, 4096), (77, 45, 1031)], ids=["aligned", "unaligned"])
def test_streams_do_not_share_a_workspace(
    torch: Any, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many launches of one plan on several streams at a time: each result is its arguments'."""
    fused = chosen(monkeypatch, SPLIT)
    sets = [arguments(torch, *sizes) for _ in range(4)]
    for factor, args in enumerate(sets, start=1):
        args[0].mul_(factor / 4)
    fused(*sets[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sets]
    results: list[list[Any]] = [[] for _ in sets]
    for _ in range(20):
        for args, stream, found in zip(sets, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(fused(*args))
    torch.cuda.synchronize()
    for args, found in zip(sets, results, strict=True):
        assert_close(found[0], expected(torch, *args), sizes[2])
        assert all(torch.equal(other, found[0]) for other in found[1:])


@pytest.mark.parametrize("sizes", [(64, 64, 4096), (77, 45, 1031)], ids=["aligned", "unaligned"])
def test_captured_graphs_replay_side_by_side(
    torch: Any, sizes: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs of one plan have workspaces of their own, beside each other and beside calls."""
    fused = chosen(monkeypatch, SPLIT)
    sets = [arguments(torch, *sizes) for _ in range(3)]
    fused(*sets[0])
    torch.cuda.synchronize()
    captured = []
    for args in sets[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once = fused(*args)
            twice = fused(args[0] * once[:, :1], *args[1:])
        captured.append((graph, once, twice, args))
    for factor in (1.0, -0.5):
        for args in sets:
            args[0].mul_(factor)
        torch.cuda.synchronize()
        for _ in range(10):
            for graph, *_ in captured:
                with torch.cuda.stream(torch.cuda.Stream()):
                    graph.replay()
            beside = fused(*sets[2])
        torch.cuda.synchronize()
        assert_close(beside, expected(torch, *sets[2]), sizes[2])
        for _, once, twice, args in captured:
            assert_close(once, expected(torch, *args), sizes[2])
            assert torch.equal(twice, fused(args[0] * once[:, :1], *args[1:]))


def test_layers_in_a_row(torch: Any) -> None:
    """Launches that overlap wait for what they read: results, copies, what torch made."""
    x, w, b, r = arguments(torch, 200, 200, 200)
    network = kf.fuse(lambda x, w, b, r: kf.relu(kf.relu(x @ w + b) @ w + r) @ w)
    assert [call.name for call in network.plan(x, w, b, r).calls] == ["gemm_sm90"] * 3
    first = network(x, w, b, r)
    for _ in range(20):
        assert torch.equal(network(x.clone(), w, b, r), first)
    odd = kf.fuse(lambda x, w: kf.relu(x @ w) @ w)
    x, w = x[:, :77].contiguous(), w[:77, :77].contiguous()
    first = odd(x, w)
    for _ in range(20):
        assert torch.equal(odd(x.clone(), w.clone()), first)


@pytest.mark.parametrize("rows", [64, 1000])
@pytest.mark.parametrize("bias", [False, True])
def test_products_side_by_side(torch: Any, rows: int, bias: bool) -> None:
    """Queries, keys and values of one launch are, bit for bit, those of launches of their own."""
    x = torch.randn(rows, 384, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(384, 384, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    biases = [torch.randn(384, device="cuda", dtype=torch.bfloat16) for _ in range(3)]

    def one(x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b if bias else x @ w.T

    together = kf.fuse(
        lambda x, *rest: tuple(one(x, *each) for each in zip(rest[:3], rest[3:], strict=True))
    )
    (call,) = together.plan(x, *weights, *biases).calls
    assert call.name == "products_sm90"
    for got, w, b in zip(together(x, *weights, *biases), weights, biases, strict=True):
        assert torch.equal(got, kf.fuse(one)(x, w, b))
