"""`torch.compile(backend="kdsl")` on small host tensors, whose kernels run in the simulator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kdsl_fuse as kf
from house.census import ROOT
from kdsl_core.errors import FusionError
from kdsl_fuse.frontends.torch.backend import CompiledGraph
from kdsl_fuse.frontends.torch.partition import CODES
from kdsl_fuse.frontends.torch.region import Settings

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'kdsl-fuse[torch]'")
F, nn = torch.nn.functional, torch.nn

SIMULATE = {"simulate": True}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test compiles anew, with known random numbers."""
    torch._dynamo.reset()
    torch.manual_seed(3)
    with torch.no_grad():
        yield


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    """The function through kdsl, in one graph."""
    options = SIMULATE | options
    return torch.compile(function, backend="kdsl", fullgraph=True, options=options)


def check(function: Callable[..., Any], *args: Any) -> Any:
    """Run both ways and compare; the compiled graph."""
    expected, got = function(*args), compiled(function)(*args)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if args[0].dtype is torch.bfloat16 else {}
    torch.testing.assert_close(got, expected, **tolerance)
    return kf.compiled_graphs()[-1]


def targets(graph: Any) -> set[str]:
    """The operators that stayed with torch."""
    return {target for name, target, _ in graph.nodes if name in graph.reasons}


class Mlp(nn.Module):
    """Two linear layers with what stands between them in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        """Up, down, and the residual's norm."""
        return self.norm(x + self.down(F.gelu(self.up(x))))


def test_model_equals_torch_and_products_are_kernels() -> None:
    """Linear layers with bias, GELU, residual and norm are two kernels; the numbers are torch's."""
    graph = check(Mlp().eval(), torch.randn(2, 3, 8))
    kernels = [call.name for region in graph.regions for plan in region.plans.values()
               for call in plan.calls]  # fmt: skip
    assert [name for name in kernels if "gemm" in name] == ["gemm_sm80", "gemm_rows_sm80"]
    assert not {"aten.addmm.default", "aten.gelu.default"} & targets(graph)
    table = graph.explain()
    assert "nodes run on kdsl" in table and "test_torch_backend.py" in table


def test_bfloat16_model() -> None:
    """bf16 tensors go through the simulator and come back with their type."""
    check(Mlp().eval().to(torch.bfloat16), torch.randn(5, 8, dtype=torch.bfloat16))


def test_unknown_operators_stay_with_torch_in_the_middle() -> None:
    """An operator that kdsl lacks splits the graph into two regions, and the table says why."""
    w = torch.randn(8, 8)

    def function(x: Any) -> Any:
        return F.relu(torch.cumsum(F.relu(x @ w), 0) @ w)

    graph = check(function, torch.randn(4, 8))
    assert len(graph.regions) == 2
    assert targets(graph) == {"aten.cumsum.default"}
    (reason,) = {reason.code for reason in graph.reasons.values()}
    assert reason == "KT-OPERATOR" and "torch: KT-OPERATOR" in graph.explain()


def test_a_region_is_convex() -> None:
    """Products that wait for each other through torch's node are two regions, not one."""
    w = torch.randn(8, 8)

    def function(x: Any) -> Any:
        left = x @ w
        return left, torch.cumsum(left, 0) @ w, (x + 1) @ w

    graph = check(function, torch.randn(4, 8))
    assert len(graph.regions) >= 2


def test_a_refused_plan_stays_with_torch() -> None:
    """An operator whose plan has no kernel leaves its region with the plan's reason."""
    table = torch.arange(2)

    def function(x: Any, w: Any) -> Any:
        return F.relu(x @ w).view(2, 2, 8).amax((0, 2))[table]  # axes apart in memory

    graph = check(function, torch.randn(4, 8), torch.randn(8, 8))
    codes = {graph.reasons[name].code for name, target, _ in graph.nodes
             if target == "aten.amax.default"}  # fmt: skip
    assert len(codes) == 1 and codes.pop().startswith("KF-")
    assert "aten.mm.default" not in targets(graph)


def test_batch_size_is_dynamic() -> None:
    """One compilation serves every batch size; a region makes a plan for each that it meets."""
    model = Mlp().eval()
    function = torch.compile(model, backend="kdsl", fullgraph=True, dynamic=True, options=SIMULATE)
    before = len(kf.compiled_graphs())
    for batch in (2, 5, 3, 5):
        x = torch.randn(batch, 3, 8)
        torch.testing.assert_close(function(x), model(x))
    (graph,) = kf.compiled_graphs()[before:]
    assert all(len(region.plans) == 3 and not region.refusals for region in graph.regions)


def test_a_size_that_is_refused_runs_in_torch() -> None:
    """A region meets a size that it has no kernel for: torch computes it, and the table tells."""
    w = torch.randn(8, 8)
    function = compiled(lambda x: F.relu(x @ w))
    function(torch.randn(4, 8))
    (region,) = kf.compiled_graphs()[-1].regions
    inputs = [node.meta["val"] for node in region.module.graph.nodes if node.op == "placeholder"]
    args = [w if len(value) == 8 else torch.empty(0, 8) for value in inputs]
    assert region(*args).shape == (0, 8)
    assert "ran in torch" in kf.compiled_graphs()[-1].explain()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.scaled_dot_product_attention(*(x.view(4, 2, 4).transpose(0, 1)[None],) * 3),
        lambda x: F.softmax(x * 0.5, -1) + F.silu(x),
        lambda x: F.rms_norm(x, (8,)) - x.mean(-1, keepdim=True),
        lambda x: torch.where(x > 0, x, x**2).masked_fill(x < -1, 0.0),
        lambda x: torch.stack(list(x.view(2, 2, 8).unbind(0))).sum((0, 1)),
        lambda x: [part.exp() for part in x.split(3, 1)],
        lambda x: torch.baddbmm(x[None], x[None, :, :4], x[None], beta=2, alpha=0.5),
        lambda x: F.hardtanh(x).clamp(min=0).to(torch.float64).sqrt().to(torch.float32),
        lambda x: (x[1:, ::2], x[0], x.clone(), x.T.contiguous()),
    ],
    ids=["attention", "softmax", "rms_norm", "where", "views", "split", "baddbmm", "casts", "outs"],
)
def test_forms_of_operators(function: Callable[..., Any]) -> None:
    """Whatever runs where, the numbers are torch's."""
    check(function, torch.randn(4, 8))


def test_clone_has_memory_of_its_own() -> None:
    """What torch promises to copy does not share memory with the argument."""
    x = torch.randn(4, 8)
    got = compiled(lambda x: (x.clone(), F.relu(x @ x.T)))(x)[0]
    got.add_(1)
    assert not torch.equal(got, x)
    assert "KT-COPY" in kf.compiled_graphs()[-1].explain()


def test_arguments_are_mutated_as_written() -> None:
    """In-place operations reach the caller's tensor."""
    w = torch.randn(8, 8)

    def function(x: Any) -> Any:
        x.mul_(2)
        return x @ w

    ours, theirs = torch.ones(4, 8), torch.ones(4, 8)
    torch.testing.assert_close(compiled(function)(ours), function(theirs))
    assert torch.equal(ours, theirs)


def test_host_tensors_stay_with_torch_without_the_option() -> None:
    """Without `simulate` nothing of a host graph runs in the simulator."""
    function = torch.compile(lambda x: F.relu(x @ x), backend="kdsl")
    x = torch.randn(8, 8)
    torch.testing.assert_close(function(x), F.relu(x @ x))
    graph = kf.compiled_graphs()[-1]
    assert not graph.regions
    assert {reason.code for reason in graph.reasons.values()} == {"KT-HOST"}


def test_training_is_refused() -> None:
    """Parameters that ask for gradients are K980 outside of no_grad."""
    model = Mlp()
    with torch.enable_grad(), pytest.raises(FusionError, match="inference_mode") as caught:
        compiled(model)(torch.randn(2, 8))
    assert caught.value.code == "K980"
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.enable_grad():
        x = torch.randn(2, 8)
        torch.testing.assert_close(compiled(model)(x), model(x))


@pytest.mark.parametrize("options", [{"speed": 11}, {"f32_precision": "f8"}])
def test_unknown_options_are_refused(options: dict[str, Any]) -> None:
    """An option that there is not is K982, inside torch's own error."""
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="K982"):
        compiled(lambda x: x @ x, **options)(torch.randn(8, 8))


def test_a_graph_for_a_gpu_is_planned_without_one() -> None:
    """Fake CUDA tensors: products are regions for the target, and attention's form is CUDA's."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    attention = torch.ops.aten._scaled_dot_product_flash_attention.default

    def function(x: Any, w: Any, q: Any) -> Any:
        return F.relu(x @ w), attention(q, q, q)[0]

    with FakeTensorMode() as mode:
        shapes = (16, 64), (64, 32), (1, 2, 16, 64)
        with torch.device("meta"):
            metas = [torch.empty(shape, dtype=torch.float16) for shape in shapes]
        fakes = [mode.fake_tensor_converter.from_meta_and_device(mode, meta, torch.device("cuda:0"))
                 for meta in metas]  # fmt: skip
        traced = make_fx(function)(*fakes)
    graph = CompiledGraph(traced, Settings(target="sm_90a"))
    (plan,) = (region.plan(fakes[:2]) for region in graph.regions[:1])
    assert [call.name for call in plan.calls] == ["gemm_sm90"]
    assert "KT-HOST" not in {reason.code for reason in graph.reasons.values()}


def test_numbers_that_f32_cannot_hold_stay_with_torch() -> None:
    """f64 and integers are not computed in f32 behind the caller's back."""
    x = torch.arange(16).reshape(4, 4) + 2**40
    graph = check(lambda x: (x + 1, x.double() @ x.double()), x)
    assert not graph.regions
    assert {reason.code for reason in graph.reasons.values()} == {"KT-FORM"}


def test_forms_that_kdsl_lacks_are_told() -> None:
    """The same operator in another form stays with torch; K981 says which form kdsl has."""
    graph = check(lambda x: torch.var(F.relu(x @ x), -1), torch.randn(8, 8))
    (reason,) = (graph.reasons[name] for name, target, _ in graph.nodes if ".var" in target)
    assert reason.code == "KT-FORM" and "K981" in reason.sentence


def test_page_explains_each_reason() -> None:
    """docs/frontends.md has a row for each reason of the torch door."""
    page = (ROOT / "docs/frontends.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(KT-[A-Z]+)` \|", page, re.MULTILINE) == sorted(CODES)
