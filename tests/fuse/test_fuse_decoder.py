"""A transformer's decoder layer in bf16 for Hopper: its kernels, its norms, and its numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_fuse as kf
from kdsl_fuse.plan import NumpyStep
from kdsl_fuse.reference import evaluate

BF16 = ml_dtypes.bfloat16
B, S, H, GROUPS, D, WIDE = 2, 12, 4, 2, 8, 48
HIDDEN = H * D


def heads(x: Any, count: int) -> Any:
    """[batch, rows, hidden] as [batch, heads, rows, depth]."""
    return kf.transpose(x.reshape(B, S, count, D), (0, 2, 1, 3))


def decoder(x: Any, w: dict[str, Any]) -> Any:
    """Causal attention with heads in groups, and a gated MLP, each with its norm and residual."""
    y = kf.rms_norm(x, w["s1"])
    q, k, v = (heads(y @ w[n], count) for n, count in (("q", H), ("k", GROUPS), ("v", GROUPS)))
    mixed = kf.transpose(kf.attention(q, k, v, causal=True), (0, 2, 1, 3))
    x = mixed.reshape(B, S, HIDDEN) @ w["o"] + x
    y = kf.rms_norm(x, w["s2"])
    return (kf.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"] + x


def arguments() -> tuple[Any, dict[str, Any]]:
    """Activations and weights, which keep the size of activations."""
    rng = np.random.default_rng(5)

    def weight(rows: int, columns: int) -> Any:
        return (rng.standard_normal((rows, columns)) * rows**-0.5).astype(BF16)

    sizes = {
        "q": (HIDDEN, HIDDEN), "k": (HIDDEN, GROUPS * D), "v": (HIDDEN, GROUPS * D),
        "o": (HIDDEN, HIDDEN), "gate": (HIDDEN, WIDE), "up": (HIDDEN, WIDE),
        "down": (WIDE, HIDDEN),
    }  # fmt: skip
    scales = {name: (1 + 0.1 * rng.standard_normal(HIDDEN)).astype(BF16) for name in ("s1", "s2")}
    weights = {name: weight(*shape) for name, shape in sizes.items()}
    return rng.standard_normal((B, S, HIDDEN)).astype(BF16), weights | scales


def test_a_decoder_layer_is_seven_kernels() -> None:
    """Projections, attention, the gated pair, products with residuals, of which one with a norm."""
    x, weights = arguments()
    fused = kf.fuse(fallback="numpy", target="sm_90a")(decoder)
    plan = fused.plan(x, weights)
    kernels = [call.name for call in plan.calls if "sm90" in call.name]
    assert Counter(kernels) == {
        "gemm_sm90": 4, "gemm_rows_sm90": 1, "attention_sm90": 1, "gated_sm90": 1,
    }  # fmt: skip
    left = {step.node.op.name for step in plan.steps if isinstance(step, NumpyStep)}
    assert left <= {"RMSNormalization"}, "norms are other patterns' business"
    flat = [x, *weights.values()]
    (expected,) = evaluate(fused.graph(x, weights), flat)
    result = fused(x, weights).astype(np.float64)
    error = np.abs(result - expected.astype(np.float64))
    assert error.max() <= 0.04 * np.abs(expected.astype(np.float64)).max()
    assert error.mean() <= 0.005
    assert plan.match_of(
        next(c for c in plan.calls if c.name == "attention_sm90")
    ).root.op.name == ("Reshape")
