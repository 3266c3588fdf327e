"""What ONNX's operators mean in the words of `@kf.fuse`: `MEANING["Gemm"](inputs, attributes)`.

Inputs are traced arrays, NumPy arrays where a value is known, and None where one is left out.
Nothing here imports onnx.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kdsl_core.dtypes import dtype_of
from kdsl_fuse.frontends import functions as f
from kdsl_fuse.frontends import functions_of_rows as rows
from kdsl_fuse.frontends import functions_of_shapes as shapes
from kdsl_fuse.frontends.onnx.forms import Attributes, Inputs, Meaning, get, only, whole
from kdsl_fuse.frontends.onnx.images import IMAGES
from kdsl_fuse.frontends.traced import TracedArray, apply

# onnx.TensorProto's numbers of types, by kdsl's names
TYPES = {
    1: "f32", 2: "u8", 3: "i8", 6: "i32", 7: "i64", 9: "boolean", 10: "f16", 11: "f64",
    16: "bf16", 17: "e4m3", 19: "e5m2",
}  # fmt: skip


def _number(value: Any, what: str) -> Any:
    """One number that is known when the model is traced."""
    only(not isinstance(value, TracedArray) and np.size(value) == 1, f"{what} that are one number")
    return np.ravel(value)[0].item()


def _pair(name: str) -> Meaning:
    return lambda inputs, _: apply(name, *inputs)


def _fold(name: str) -> Meaning:
    """An operator of two that ONNX lets have many operands."""

    def folded(inputs: Inputs, _: Attributes) -> Any:
        total = inputs[0]
        for each in inputs[1:]:
            total = apply(name, total, each)
        return total

    return folded


def _clip(inputs: Inputs, _: Attributes) -> Any:
    low, high = get(inputs, 1), get(inputs, 2)
    return inputs[0] if low is high is None else f.clip(inputs[0], low, high)


def _pow(inputs: Inputs, _: Attributes) -> Any:
    exponent = _number(inputs[1], "exponents")
    special = {0.5: f.sqrt, -0.5: f.rsqrt}
    if exponent in special:
        return special[exponent](inputs[0])
    return inputs[0] ** (int(exponent) if float(exponent).is_integer() else exponent)


def _cast(inputs: Inputs, attributes: Attributes) -> Any:
    only(attributes["to"] in TYPES, f"casts to {', '.join(TYPES.values())}")
    return f.cast(inputs[0], TYPES[attributes["to"]])


def _gemm(inputs: Inputs, a: Attributes) -> Any:
    alpha, beta = (float(a.get(name, 1.0)) for name in ("alpha", "beta"))
    left, right = (bool(a.get(name, 0)) for name in ("transA", "transB"))
    return f.gemm(inputs[0], inputs[1], get(inputs, 2), alpha, beta, left, right)


# -- shapes ---------------------------------------------------------------------------------


def _reshape(inputs: Inputs, a: Attributes) -> Any:
    x, asked = inputs[0], whole(inputs[1], "shapes of Reshape")
    if not a.get("allowzero", 0):
        asked = tuple(x.shape[i] if size == 0 else size for i, size in enumerate(asked))
    return shapes.reshape(x, asked)


def _flatten(inputs: Inputs, a: Attributes) -> Any:
    x, axis = inputs[0], a.get("axis", 1)
    at = axis + x.ndim if axis < 0 else axis
    return shapes.reshape(x, (math.prod(x.shape[:at]), math.prod(x.shape[at:])))


def _expand(inputs: Inputs, _: Attributes) -> Any:
    asked = whole(inputs[1], "shapes of Expand")
    return shapes.broadcast_to(inputs[0], np.broadcast_shapes(inputs[0].shape, asked))


def _squeeze(inputs: Inputs, _: Attributes) -> Any:
    axes = get(inputs, 1)
    return shapes.squeeze(inputs[0], None if axes is None else whole(axes, "axes of Squeeze"))


def _unsqueeze(inputs: Inputs, _: Attributes) -> Any:
    return shapes.expand_dims(inputs[0], whole(inputs[1], "axes of Unsqueeze"))


def _slice(inputs: Inputs, _: Attributes) -> Any:
    x, *given = inputs
    starts, stops = (whole(value, "bounds of Slice") for value in given[:2])
    axes = whole(given[2], "axes of Slice") if get(given, 2) is not None else range(len(starts))
    steps = whole(given[3], "steps of Slice") if get(given, 3) is not None else (1,) * len(starts)
    keys = [slice(None)] * x.ndim
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        keys[axis] = slice(start, stop, step)
    return x[tuple(keys)]


def _split(inputs: Inputs, a: Attributes) -> Any:
    x, axis = inputs[0], a.get("axis", 0)
    size = x.shape[axis]
    if (given := get(inputs, 1)) is not None:
        sizes = whole(given, "sizes of Split")
    else:
        each = -(-size // a["num_outputs"])
        sizes = tuple(min(each, size - first) for first in range(0, size, each))
    return shapes.split(x, [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)], axis)


def _gather(inputs: Inputs, a: Attributes) -> Any:
    table, indices = inputs
    axis = a.get("axis", 0)
    known = not isinstance(indices, TracedArray) and np.ndim(indices) == 0
    if known and isinstance(table, TracedArray):
        at = axis + table.ndim if axis < 0 else axis
        return table[(*(slice(None),) * at, int(indices))]
    return shapes.take(table, indices, axis)


# -- rows -----------------------------------------------------------------------------------


def _reduce(function: Callable[..., Any]) -> Meaning:
    def reduced(inputs: Inputs, a: Attributes) -> Any:
        given = get(inputs, 1)
        axes = a.get("axes") if given is None else whole(given, "axes of reductions")
        if not axes and a.get("noop_with_empty_axes", 0):
            return inputs[0]
        return function(inputs[0], tuple(axes) if axes else None, bool(a.get("keepdims", 1)))

    return reduced


def _layer_norm(inputs: Inputs, a: Attributes) -> Any:
    x, scale, bias = inputs[0], inputs[1], get(inputs, 2)
    return rows.layer_norm(x, scale, bias, a.get("axis", -1), a.get("epsilon", 1e-5)), None, None


def _rms_norm(inputs: Inputs, a: Attributes) -> Any:
    return rows.rms_norm(inputs[0], inputs[1], a.get("axis", -1), a.get("epsilon", 1e-5))


def _batch_norm(inputs: Inputs, a: Attributes) -> Any:
    only(not a.get("training_mode", 0), "BatchNormalization for inference")
    x, scale, bias, mean, variance = inputs
    return rows.batch_norm(x, scale, bias, mean, variance, a.get("epsilon", 1e-5))


def _dropout(inputs: Inputs, _: Attributes) -> Any:
    training = get(inputs, 2)
    only(training is None or not _number(training, "modes"), "Dropout for inference")
    return inputs[0], None


def _attention(inputs: Inputs, a: Attributes) -> Any:
    q, k, v, mask = (get(inputs, i) for i in range(4))
    plain = not any(a.get(name) for name in ("softcap", "qk_matmul_output_mode"))
    plain = plain and all(get(inputs, i) is None for i in (4, 5, 6)) and q.ndim == 4
    only(plain, "Attention of 4 axes without past keys and soft-cap")
    return rows.attention(q, k, v, mask, bool(a.get("is_causal", 0)), a.get("scale"))


def _loss(inputs: Inputs, a: Attributes) -> Any:
    only(len(inputs) == 2, "SoftmaxCrossEntropyLoss without weights")
    kind = a.get("reduction", b"mean").decode()
    return rows.cross_entropy(inputs[0], inputs[1], kind, a.get("ignore_index")), None


MEANING: dict[str, Meaning] = {
    **{name: _pair(name) for name in (
        "Add", "Sub", "Mul", "Div", "MatMul", "Equal", "Less", "LessOrEqual", "Greater",
        "GreaterOrEqual", "And", "Or", "Xor", "Not", "Where", "Neg", "Abs", "Reciprocal", "Sign",
        "Floor", "Ceil", "Sqrt", "Exp", "Log", "Sin", "Cos", "IsNaN", "Relu", "Sigmoid", "Tanh",
        "Erf", "HardSwish", "Mish",
    )},
    "Max": _fold("Max"),
    "Min": _fold("Min"),
    "Sum": _fold("Add"),
    "Clip": _clip,
    "Pow": _pow,
    "Cast": _cast,
    "Identity": lambda inputs, _: inputs[0],
    "Dropout": _dropout,
    "Gelu": lambda i, a: f.gelu(i[0], a.get("approximate", b"none").decode()),
    "Swish": lambda i, a: f.silu(i[0]) if a.get("alpha", 1.0) == 1 else i[0] * f.sigmoid(
        i[0] * a["alpha"]),
    "LeakyRelu": lambda i, a: f.leaky_relu(i[0], a.get("alpha", 0.01)),
    "Elu": lambda i, a: f.elu(i[0], a.get("alpha", 1.0)),
    "Softplus": lambda i, _: f.softplus(i[0]),
    "HardSigmoid": lambda i, a: f.hard_sigmoid(i[0], a.get("alpha", 0.2), a.get("beta", 0.5)),
    "Gemm": _gemm,
    "Transpose": lambda i, a: shapes.transpose(i[0], a.get("perm")),
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Expand": _expand,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Slice": _slice,
    "Split": _split,
    "Concat": lambda i, a: shapes.concatenate(i, a["axis"]),
    "Gather": _gather,
    "Shape": lambda i, a: np.asarray(i[0].shape[a.get("start", 0) : a.get("end")], np.int64),
    "Size": lambda i, _: np.asarray(math.prod(i[0].shape), np.int64),
    "ReduceSum": _reduce(rows.sum),
    "ReduceMean": _reduce(rows.mean),
    "ReduceMax": _reduce(rows.max),
    "ReduceMin": _reduce(rows.min),
    "ReduceProd": _reduce(rows.prod),
    "Softmax": lambda i, a: rows.softmax(i[0], a.get("axis", -1)),
    "LogSoftmax": lambda i, a: rows.log_softmax(i[0], a.get("axis", -1)),
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "BatchNormalization": _batch_norm,
    "Attention": _attention,
    "SoftmaxCrossEntropyLoss": _loss,
    **IMAGES,
}  # fmt: skip


def known_type(number: int) -> Any:
    """kdsl's type for a number of onnx.TensorProto; None where there is none."""
    return dtype_of(TYPES[number]) if number in TYPES else None
