"""kdsl's kernels as torch operators: `torch.ops.kdsl.linear_act`, `rms_norm`, `layer_norm`.

They have fake kernels, so that `torch.compile` and `torch.export` see through them, and no
gradients. Host tensors run in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdsl_core.errors import FusionError
from kdsl_fuse import arrays
from kdsl_fuse.frontends import functions as f
from kdsl_fuse.frontends.python import fuse
from kdsl_fuse.origin import author_loc
from kdsl_fuse.required import required

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": f.relu,
    "gelu": f.gelu,
    "gelu_tanh": lambda x: f.gelu(x, "tanh"),
    "silu": f.silu,
    "sigmoid": f.sigmoid,
    "tanh": f.tanh,
}


@fuse
def _linear_act(x: Any, weight: Any, bias: Any, act: str) -> Any:
    return ACTIVATIONS[act](f.linear(x, weight, bias))


def _check(x: Any, weight: Any, bias: Any, act: str) -> None:
    n, k = weight.shape if weight.dim() == 2 else (-1, -1)
    fits = x.dim() >= 2 and x.shape[-1] == k and (bias is None or tuple(bias.shape) == (n,))
    if not fits or act not in ACTIVATIONS:
        shapes = [list(t.shape) for t in (x, weight, bias) if t is not None]
        raise FusionError(
            f"kdsl::linear_act takes x […, m, k], weight [n, k], bias [n] and one of "
            f"{', '.join(ACTIVATIONS)}, got {shapes} and {act!r}",
            code="K983",
            loc=author_loc(),
            fix="weights are as in torch.nn.Linear",
        )


def linear_act(x: Any, weight: Any, bias: Any = None, act: str = "none") -> Any:
    """act(x · weightᵀ + bias) in one kernel."""
    _check(x, weight, bias, act)
    if x.is_cuda:
        return _linear_act(x, weight, bias, act)
    given = (None if t is None else arrays.numpy_from_torch(t) for t in (x, weight, bias))
    return arrays.constant(_linear_act(*given, act), x)


def _linear_act_fake(x: Any, weight: Any, bias: Any = None, act: str = "none") -> Any:
    _check(x, weight, bias, act)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def rms_norm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    """x / √(mean of x² + eps) · weight along the last axis."""
    return _normalised("rms_norm", eps, x, weight)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    """(x − mean) / √(variance + eps) · weight + bias along the last axis."""
    return _normalised("layer_norm", eps, x, weight, bias)


def _normalised(name: str, eps: float, x: Any, *extras: Any) -> Any:
    """By the function of `row_ops` of this name."""
    from kdsl_fuse.kernels import row_ops

    if any(tuple(extra.shape) != tuple(x.shape[-1:]) for extra in extras) or not x.dim():
        raise FusionError(
            f"kdsl's norms take one weight for each of the last axis of {list(x.shape)}, got "
            f"{[list(extra.shape) for extra in extras]}",
            code="K983",
            loc=author_loc(),
            fix="weights are as in torch.nn.LayerNorm over the last axis",
        )
    seen, *weights = (x, *extras) if x.is_cuda else map(arrays.numpy_from_torch, (x, *extras))
    result = arrays.empty(tuple(x.shape), arrays.dtype_from_torch(x.dtype), seen)
    getattr(row_ops, name)(seen, result, *weights, eps=eps)
    return result if x.is_cuda else arrays.constant(result, x)


def _like(x: Any, *_: Any, **__: Any) -> Any:
    return x.new_empty(x.shape)


def _register() -> Any:
    required("torch", "torch")
    import torch

    for schema, real, fake in (
        ("linear_act(Tensor x, Tensor weight, Tensor? bias=None, str act='none') -> Tensor",
         linear_act, _linear_act_fake),
        ("rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor", rms_norm, _like),
        ("layer_norm(Tensor x, Tensor weight, Tensor bias, float eps=1e-5) -> Tensor",
         layer_norm, _like),
    ):  # fmt: skip
        name, _, rest = schema.partition("(")
        made = torch.library.custom_op(f"kdsl::{name}", real, mutates_args=(), schema=f"({rest}")
        made.register_fake(fake)
    return torch.ops.kdsl


torch_ops = _register()
"""`torch.ops.kdsl`, with the operators of this module."""
