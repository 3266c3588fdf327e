"""Fusion for kdsl: say what to compute, get kernels, keep the way down. `import kdsl_fuse as kf`.

Names are loaded when they are first used, so that the import itself stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kdsl_core.authors import mark_internal

if TYPE_CHECKING:
    from kdsl_fuse.ejection.write import eject, load
    from kdsl_fuse.frontends.custom import custom
    from kdsl_fuse.frontends.functions import (
        absolute,
        cast,
        ceil,
        clip,
        cos,
        elu,
        erf,
        exp,
        floor,
        gelu,
        gemm,
        hard_sigmoid,
        hard_swish,
        isnan,
        leaky_relu,
        linear,
        log,
        logical_and,
        logical_not,
        logical_or,
        logical_xor,
        matmul,
        maximum,
        minimum,
        mish,
        reciprocal,
        relu,
        rsqrt,
        sigmoid,
        sign,
        silu,
        sin,
        softplus,
        sqrt,
        square,
        tanh,
        where,
    )
    from kdsl_fuse.frontends.functions_of_images import (
        avg_pool2d,
        conv1d,
        conv2d,
        conv_transpose2d,
        max_pool2d,
        upsample2d,
    )
    from kdsl_fuse.frontends.functions_of_rows import (
        attention,
        batch_norm,
        cross_entropy,
        layer_norm,
        log_softmax,
        max,
        mean,
        min,
        prod,
        rms_norm,
        softmax,
        sum,
        var,
    )
    from kdsl_fuse.frontends.functions_of_shapes import (
        broadcast_to,
        concatenate,
        embedding,
        expand,
        expand_dims,
        gather,
        reshape,
        split,
        squeeze,
        take,
        transpose,
        unsqueeze,
    )
    from kdsl_fuse.frontends.onnx.load import from_onnx
    from kdsl_fuse.frontends.python import Fused, fuse
    from kdsl_fuse.frontends.torch.backend import compiled_graphs
    from kdsl_fuse.frontends.torch.library import torch_ops
    from kdsl_fuse.graph import Graph, Node, Op
    from kdsl_fuse.ops.custom import Launch
    from kdsl_fuse.patterns.base import Example, Match, Options, Pattern
    from kdsl_fuse.patterns.registered import register, unregister
    from kdsl_fuse.plan import Plan, make_plan
    from kdsl_fuse.reasons import Reason
    from kdsl_fuse.tail import Tail

__all__ = [
    "Example",
    "Fused",
    "Graph",
    "Launch",
    "Match",
    "Node",
    "Op",
    "Options",
    "Pattern",
    "Plan",
    "Reason",
    "Tail",
    "absolute",
    "attention",
    "avg_pool2d",
    "batch_norm",
    "broadcast_to",
    "cast",
    "ceil",
    "clip",
    "compiled_graphs",
    "concatenate",
    "conv1d",
    "conv2d",
    "conv_transpose2d",
    "cos",
    "cross_entropy",
    "custom",
    "eject",
    "elu",
    "embedding",
    "erf",
    "exp",
    "expand",
    "expand_dims",
    "floor",
    "from_onnx",
    "fuse",
    "gather",
    "gelu",
    "gemm",
    "hard_sigmoid",
    "hard_swish",
    "isnan",
    "layer_norm",
    "leaky_relu",
    "linear",
    "load",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "make_plan",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "prod",
    "reciprocal",
    "register",
    "relu",
    "reshape",
    "rms_norm",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "sum",
    "take",
    "tanh",
    "torch_ops",
    "transpose",
    "unregister",
    "unsqueeze",
    "upsample2d",
    "var",
    "where",
]

mark_internal(__file__, except_for=("kernels",))

_HOME = {
    **dict.fromkeys(("Fused", "fuse"), "frontends.python"),
    **dict.fromkeys(("Graph", "Node", "Op"), "graph"),
    **dict.fromkeys(("Plan", "make_plan"), "plan"),
    **dict.fromkeys(("Example", "Match", "Options", "Pattern"), "patterns.base"),
    **dict.fromkeys(("register", "unregister"), "patterns.registered"),
    **dict.fromkeys(("eject", "load"), "ejection.write"),
    "Launch": "ops.custom",
    "Reason": "reasons",
    "Tail": "tail",
    "compiled_graphs": "frontends.torch.backend",
    "from_onnx": "frontends.onnx.load",
    "torch_ops": "frontends.torch.library",
    "custom": "frontends.custom",
}
_FUNCTIONS = ("functions", "functions_of_images", "functions_of_rows", "functions_of_shapes")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"kdsl_fuse has no {name!r}")
    homes = [_HOME[name]] if name in _HOME else [f"frontends.{home}" for home in _FUNCTIONS]
    modules = (importlib.import_module(f"kdsl_fuse.{home}") for home in homes)
    value = next(vars(module)[name] for module in modules if name in vars(module))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
