"""Powers, reciprocal roots, sigmoid, SiLU and both forms of GELU, written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.recognise import Formula, recognise
from kdsl_fuse.template import Bound, Call, Expression, Value, words


def _of(name: str, x: Value, **attrs: Any) -> Callable[[Graph, Node, Bound], Node | None]:
    """The operator `name` on what was found for `x`, if it has the type of the whole formula."""

    def build(graph: Graph, node: Node, bound: Bound) -> Node | None:
        source: Node = bound[x]
        if (source.shape, source.dtype) != (node.shape, node.dtype):
            return None
        return graph.add(name, source, loc=node.loc, **attrs)

    return build


X = Value("x")
_LOGISTIC = words.Add(1, words.Exp(words.Neg(X)))
_BASICS = (
    Formula(words.Mul(X, X), _of("Pow", X, exponent=2)),
    Formula(words.Mul(words.Pow(X, exponent=2), X), _of("Pow", X, exponent=3)),
    Formula(words.Div(1, words.Sqrt(X)), _of("Rsqrt", X)),
    Formula(words.Reciprocal(words.Sqrt(X)), _of("Rsqrt", X)),
    Formula(words.Div(1, _LOGISTIC), _of("Sigmoid", X)),
    Formula(words.Reciprocal(_LOGISTIC), _of("Sigmoid", X)),
    Formula(words.Mul(X, words.Sigmoid(X)), _of("Silu", X)),
    Formula(words.Div(X, _LOGISTIC), _of("Silu", X)),
)


def _halves(phi: Call) -> list[Call]:
    """½·x·φ in each grouping."""
    return [
        words.Mul(words.Mul(X, 0.5), phi),
        words.Mul(X, words.Mul(0.5, phi)),
        words.Mul(0.5, words.Mul(X, phi)),
    ]


def _erf_forms() -> list[Call]:
    scaled = (words.Mul(X, math.sqrt(0.5)), words.Div(X, math.sqrt(2)))
    return [form for s in scaled for form in _halves(words.Add(1, words.Erf(s)))]


def _tanh_forms() -> list[Call]:
    cubed = 0.044715
    cubes: list[Expression] = [
        words.Mul(cubed, words.Pow(X, exponent=3)),
        words.Mul(words.Mul(words.Mul(cubed, X), X), X),
        words.Mul(words.Mul(cubed, X), words.Pow(X, exponent=2)),
        words.Mul(words.Mul(cubed, words.Pow(X, exponent=2)), X),
    ]
    sums: list[Expression] = [words.Add(X, cube) for cube in cubes]
    sums.append(words.Mul(X, words.Add(1, words.Mul(cubed, words.Pow(X, exponent=2)))))
    scale = math.sqrt(2 / math.pi)
    return [f for s in sums for f in _halves(words.Add(1, words.Tanh(words.Mul(scale, s))))]


_GELU = (
    *(Formula(form, _of("Gelu", X, approximate="none")) for form in _erf_forms()),
    *(Formula(form, _of("Gelu", X, approximate="tanh")) for form in _tanh_forms()),
)


def recognise_activations(graph: Graph) -> None:
    """Powers first, because the formulas of GELU contain them."""
    recognise(graph, _BASICS)
    recognise(graph, _GELU)
