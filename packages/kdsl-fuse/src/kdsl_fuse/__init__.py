"""Fusion for kdsl: say what to compute, get kernels, keep the way down. `import kdsl_fuse as kf`.

Names are loaded when they are first used, so that the import itself stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kdsl_core.loc import mark_internal

if TYPE_CHECKING:
    from kdsl_fuse.frontends.functions import (
        absolute,
        cast,
        clip,
        erf,
        exp,
        gelu,
        log,
        matmul,
        maximum,
        minimum,
        relu,
        rsqrt,
        sigmoid,
        silu,
        sqrt,
        square,
        tanh,
        transpose,
        where,
    )
    from kdsl_fuse.frontends.python import Fused, fuse
    from kdsl_fuse.graph import Graph, Node, Op
    from kdsl_fuse.plan import Plan, make_plan
    from kdsl_fuse.reasons import Reason
    from kdsl_fuse.tail import Tail

__all__ = [
    "Fused",
    "Graph",
    "Node",
    "Op",
    "Plan",
    "Reason",
    "Tail",
    "absolute",
    "cast",
    "clip",
    "erf",
    "exp",
    "fuse",
    "gelu",
    "log",
    "make_plan",
    "matmul",
    "maximum",
    "minimum",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "square",
    "tanh",
    "transpose",
    "where",
]

mark_internal(__file__, except_for=("kernels",))

_HOME = {
    **dict.fromkeys(("Fused", "fuse"), "frontends.python"),
    **dict.fromkeys(("Graph", "Node", "Op"), "graph"),
    **dict.fromkeys(("Plan", "make_plan"), "plan"),
    "Reason": "reasons",
    "Tail": "tail",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"kdsl_fuse has no {name!r}")
    module = importlib.import_module(f"kdsl_fuse.{_HOME.get(name, 'frontends.functions')}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
