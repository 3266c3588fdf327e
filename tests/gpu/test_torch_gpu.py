"""The torch door on a GPU: regions, custom operators, CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest

import kdsl_fuse as kf
from kdsl_fuse.frontends.torch.backend import kdsl

pytestmark = pytest.mark.gpu


def block(torch: Any) -> Any:
    """An encoder layer's second half."""
    nn = torch.nn
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.LayerNorm(128))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_model_equals_torch_for_each_batch_size(torch: Any, dtype: str) -> None:
    """One compilation, a plan for each size, and products on kdsl."""
    model = block(torch).eval().cuda().to(getattr(torch, dtype))
    compiled = torch.compile(model, backend=kdsl, fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for batch in (3, 64, 17):
            x = torch.randn(batch, 10, 128, device="cuda", dtype=getattr(torch, dtype))
            torch.testing.assert_close(compiled(x), model(x), rtol=3e-2, atol=3e-2)
    regions = kf.compiled_graphs()[-1].regions
    assert regions and all(len(region.plans) == 3 for region in regions)


def test_regions_are_captured_in_a_cuda_graph(torch: Any) -> None:
    """After a first call the compiled function is captured, and replays with new numbers."""
    model = block(torch).eval().cuda().half()
    compiled = torch.compile(model, backend=kdsl, fullgraph=True)
    x = torch.randn(32, 128, device="cuda", dtype=torch.float16)
    with torch.inference_mode():
        compiled(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(y, model(x), rtol=2e-2, atol=2e-2)


def test_operators_equal_torch(torch: Any) -> None:
    """linear_act and the norms on device tensors."""
    x, w = (torch.randn(n, 256, device="cuda", dtype=torch.bfloat16) for n in (64, 128))
    f, ops = torch.nn.functional, kf.torch_ops
    got = ops.linear_act(x, w, None, "silu")
    torch.testing.assert_close(got, f.silu(f.linear(x, w)), rtol=3e-2, atol=5e-2)
    norms = {
        "rms": (ops.rms_norm(x, w[0]), f.rms_norm(x, (256,), w[0], 1e-6)),
        "layer": (ops.layer_norm(x, w[0], w[1]), f.layer_norm(x, (256,), w[0], w[1])),
    }
    for got, expected in norms.values():
        torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
