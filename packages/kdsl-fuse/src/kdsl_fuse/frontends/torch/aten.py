"""What torch's operators mean in the words of `@kf.fuse`: `MEANING["aten.addmm.default"]`, ….

Each function takes the operator's own arguments, with traced arrays in place of tensors. It may
raise FusionError, or return what torch does not mean: who calls it compares types. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kdsl_fuse import arrays
from kdsl_fuse.frontends import functions as f
from kdsl_fuse.frontends import functions_of_rows as rows
from kdsl_fuse.frontends import functions_of_shapes as shapes
from kdsl_fuse.frontends.torch.forms import only
from kdsl_fuse.frontends.torch.images import IMAGES
from kdsl_fuse.frontends.traced import TracedArray, apply

Meaning = Callable[..., Any]


# -- arithmetic -----------------------------------------------------------------------------


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _add(a: Any, b: Any, alpha: Any = 1) -> TracedArray:
    return apply("Add", a, _scaled(b, alpha))


def _sub(a: Any, b: Any, alpha: Any = 1) -> TracedArray:
    return apply("Sub", a, _scaled(b, alpha))


def _rsub(a: Any, b: Any, alpha: Any = 1) -> TracedArray:
    return apply("Sub", b, _scaled(a, alpha))


def _power(x: Any, exponent: Any) -> TracedArray:
    special = {0.5: f.sqrt, -0.5: f.rsqrt}
    if exponent in special:
        return special[exponent](x)
    whole = float(exponent).is_integer()
    return apply("Pow", x, exponent=int(exponent) if whole else exponent)


def _both(name: str) -> Meaning:
    return lambda a, b: apply(name, a, b)


def _masked_fill(x: Any, mask: Any, value: Any) -> TracedArray:
    return f.where(mask, value, x)


def _same(x: Any, **_: Any) -> Any:
    return x


def _to_copy(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    return x if dtype is None else _cast(x, dtype)


def _cast(x: Any, dtype: Any) -> TracedArray:
    return f.cast(x, arrays.dtype_from_torch(dtype))


def _as(x: Any, dtype: Any) -> Any:
    """`x`, in another type where one is asked for."""
    return x if dtype is None else _cast(x, dtype)


def _elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> TracedArray:
    only(scale == input_scale == 1, "elu without scales")
    return f.elu(x, alpha)


def _softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> TracedArray:
    only(beta == 1 and threshold >= 20, "softplus with beta 1")
    return f.softplus(x)


# -- products -------------------------------------------------------------------------------


def _addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> TracedArray:
    product = _scaled(f.matmul(a, b), alpha)
    return product if beta == 0 else apply("Add", product, _scaled(c, beta))


def _attention(q: Any, k: Any, v: Any, mask: Any, dropout: Any, causal: bool, scale: Any) -> Any:
    only(dropout == 0, "attention without dropout")
    return rows.attention(q, k, v, mask, causal, scale), None, None, None


def _flash(q: Any, k: Any, v: Any, dropout_p: Any = 0.0, is_causal: bool = False,
           return_debug_mask: bool = False, *, scale: Any = None) -> Any:  # fmt: skip
    return _attention(q, k, v, None, dropout_p, is_causal, scale)


def _flash_on_host(q: Any, k: Any, v: Any, dropout_p: Any = 0.0, is_causal: bool = False, *,
                   attn_mask: Any = None, scale: Any = None) -> Any:  # fmt: skip
    return _attention(q, k, v, attn_mask, dropout_p, is_causal, scale)


def _with_bias(q: Any, k: Any, v: Any, bias: Any, log_sum: bool = False, dropout_p: Any = 0.0,
               is_causal: bool = False, *_: Any, scale: Any = None) -> Any:  # fmt: skip
    return _attention(q, k, v, bias, dropout_p, is_causal, scale)


def _sdpa(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: Any = 0.0,
          is_causal: bool = False, *, scale: Any = None, **_: Any) -> Any:  # fmt: skip
    return _attention(q, k, v, attn_mask, dropout_p, is_causal, scale)[0]


# -- shapes ---------------------------------------------------------------------------------


def _at(x: Any, dim: int) -> int:
    return dim + int(x.ndim) if dim < 0 else dim


def _swapped(x: Any, a: int, b: int) -> TracedArray:
    order = list(range(x.ndim))
    a, b = _at(x, a), _at(x, b)
    order[a], order[b] = order[b], order[a]
    return shapes.transpose(x, order)


def _expand(x: Any, size: Sequence[int], implicit: bool = False) -> TracedArray:
    missing = len(size) - x.ndim
    kept = [x.shape[i - missing] if n == -1 else n for i, n in enumerate(size)]
    return shapes.broadcast_to(x, kept)


def _squeeze(x: Any, dims: int | Sequence[int] | None = None) -> TracedArray:
    asked = range(x.ndim) if dims is None else (dims,) if isinstance(dims, int) else dims
    return shapes.squeeze(x, tuple(d for d in (_at(x, d) for d in asked) if x.shape[d] == 1))


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[(*(slice(None),) * _at(x, dim), slice(start, end, step))]


def _select(x: Any, dim: int, index: int) -> Any:
    return x[(*(slice(None),) * _at(x, dim), index)]


def _split(x: Any, size: int, dim: int = 0) -> Any:
    whole = x.shape[_at(x, dim)]
    return [_slice(x, dim, first, min(first + size, whole)) for first in range(0, whole, size)]


def _split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [_slice(x, dim, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _unbind(x: Any, dim: int = 0) -> Any:
    return [_select(x, dim, i) for i in range(x.shape[_at(x, dim)])]


def _concatenate(parts: Sequence[Any], dim: int = 0) -> TracedArray:
    return shapes.concatenate(parts, dim)


# -- rows -----------------------------------------------------------------------------------


def _reduction(function: Meaning) -> Meaning:
    def reduced(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        return function(_as(x, dtype), None if dim in (None, []) else dim, keepdim)

    return reduced


def _total(function: Meaning) -> Meaning:
    return lambda x, *, dtype=None: function(_as(x, dtype))


def _var(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    only(correction == 0, "the variance divided by the count (correction=0)")
    return rows.var(x, dim, keepdim)


def _softmax(function: Meaning) -> Meaning:
    def along(x: Any, dim: int, half_to_float: bool = False) -> Any:
        return function(f.cast(x, "f32") if half_to_float else x, dim)

    return along


def _layer_norm(x: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    return rows.layer_norm(x, weight, bias, x.ndim - len(shape), eps), None, None


def _rms_norm(x: Any, shape: Sequence[int], weight: Any = None, eps: Any = None) -> Any:
    least = {"f16": 2.0**-10, "bf16": 2.0**-7, "f64": 2.0**-52}.get(x.dtype.name, 2.0**-23)
    return rows.rms_norm(x, weight, x.ndim - len(shape), least if eps is None else eps)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    only(weight is not None and bias is not None, "batch_norm with weight and bias")
    return rows.batch_norm(x, weight, bias, mean, var, eps), None, None


# -- the table ------------------------------------------------------------------------------

_SIMPLE: dict[str, Meaning] = {
    "neg": lambda x: -x,
    "abs": f.absolute,
    "reciprocal": f.reciprocal,
    "sign": f.sign,
    "floor": f.floor,
    "ceil": f.ceil,
    "maximum": f.maximum,
    "minimum": f.minimum,
    "clamp": lambda x, min=None, max=None: f.clip(x, min, max),
    "clamp_min": f.maximum,
    "clamp_max": f.minimum,
    "hardtanh": lambda x, low=-1, high=1: f.clip(x, low, high),
    "sqrt": f.sqrt,
    "rsqrt": f.rsqrt,
    "square": f.square,
    "exp": f.exp,
    "log": f.log,
    "sin": f.sin,
    "cos": f.cos,
    "isnan": f.isnan,
    "erf": f.erf,
    "relu": f.relu,
    "tanh": f.tanh,
    "sigmoid": f.sigmoid,
    "silu": f.silu,
    "mish": f.mish,
    "gelu": lambda x, approximate="none": f.gelu(x, approximate),
    "leaky_relu": lambda x, negative_slope=0.01: f.leaky_relu(x, negative_slope),
    "elu": _elu,
    "softplus": _softplus,
    "hardsigmoid": lambda x: f.hard_sigmoid(x, 1 / 6, 0.5),
    "hardswish": f.hard_swish,
    "logical_and": f.logical_and,
    "logical_or": f.logical_or,
    "logical_xor": f.logical_xor,
    "logical_not": f.logical_not,
    "bitwise_not": f.logical_not,
    "clone": _same,
    "alias": _same,
    "detach": _same,
    "_to_copy": _to_copy,
    "mm": f.matmul,
    "bmm": f.matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "linear": f.linear,
    "t": lambda x: x.T,
    "permute": shapes.transpose,
    "view": shapes.reshape,
    "_unsafe_view": shapes.reshape,
    "reshape": shapes.reshape,
    "expand": _expand,
    "squeeze": _squeeze,
    "unsqueeze": lambda x, dim: shapes.expand_dims(x, dim),
    "split_with_sizes": _split_with_sizes,
    "cat": _concatenate,
    "amax": _reduction(rows.max),
    "amin": _reduction(rows.min),
    "mean": _total(rows.mean),
    "sum": _total(rows.sum),
    "_softmax": _softmax(rows.softmax),
    "_log_softmax": _softmax(rows.log_softmax),
    "native_layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "_fused_rms_norm": lambda *given: (_rms_norm(*given), None),
    "_native_batch_norm_legit_no_training": _batch_norm,
    "scaled_dot_product_attention": _sdpa,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_on_host,
    "_scaled_dot_product_efficient_attention": _with_bias,
    "_scaled_dot_product_cudnn_attention": _with_bias,
}

_OVERLOADED: dict[str, dict[str, Meaning]] = {
    "add": dict.fromkeys(("Tensor", "Scalar"), _add),
    "sub": dict.fromkeys(("Tensor", "Scalar"), _sub),
    "rsub": dict.fromkeys(("Tensor", "Scalar"), _rsub),
    "mul": dict.fromkeys(("Tensor", "Scalar"), _both("Mul")),
    "div": dict.fromkeys(("Tensor", "Scalar"), _both("Div")),
    "eq": dict.fromkeys(("Tensor", "Scalar"), _both("Equal")),
    "ne": dict.fromkeys(("Tensor", "Scalar"), lambda a, b: f.logical_not(apply("Equal", a, b))),
    "lt": dict.fromkeys(("Tensor", "Scalar"), _both("Less")),
    "le": dict.fromkeys(("Tensor", "Scalar"), _both("LessOrEqual")),
    "gt": dict.fromkeys(("Tensor", "Scalar"), _both("Greater")),
    "ge": dict.fromkeys(("Tensor", "Scalar"), _both("GreaterOrEqual")),
    "bitwise_and": {"Tensor": f.logical_and},
    "bitwise_or": {"Tensor": f.logical_or},
    "bitwise_xor": {"Tensor": f.logical_xor},
    "pow": {"Tensor_Scalar": _power},
    "where": dict.fromkeys(("self", "ScalarSelf", "ScalarOther"), f.where),
    "masked_fill": {"Scalar": _masked_fill},
    "transpose": {"int": _swapped},
    "squeeze": {"dim": _squeeze, "dims": _squeeze},
    "slice": {"Tensor": _slice},
    "select": {"int": _select},
    "split": {"Tensor": _split},
    "unbind": {"int": _unbind},
    "mean": {"dim": _reduction(rows.mean)},
    "sum": {"dim_IntList": _reduction(rows.sum)},
    "prod": {"dim_int": _reduction(rows.prod)},
    "var": {"correction": _var},
}

MEANING: dict[str, Meaning] = {
    **{f"aten.{name}.default": meaning for name, meaning in _SIMPLE.items()},
    **{
        f"aten.{name}.{overload}": meaning
        for name, forms in _OVERLOADED.items()
        for overload, meaning in forms.items()
    },
    "prims.convert_element_type.default": _cast,
    **IMAGES,
}

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "alias.default", "detach.default", "t.default", "permute.default", "view.default",
        "_unsafe_view.default", "reshape.default", "expand.default", "squeeze.default",
        "squeeze.dim", "squeeze.dims", "unsqueeze.default", "transpose.int", "slice.Tensor",
        "select.int", "split.Tensor", "split_with_sizes.default", "unbind.int",
    )
)  # fmt: skip
"""Operators whose result shares the memory of their argument."""

COPIES = frozenset({"aten.clone.default", "aten._to_copy.default"})
"""Operators whose result has memory of its own, though its numbers may be the argument's."""
