"""Softmax, its logarithm, LayerNorm and RMSNorm, written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.rewrites.recognise import Formula, recognise
from kdsl_fuse.template import Attr, Bound, Number, Value, words

X, SCALE, EPSILON, AXES = Value("x"), Value("scale"), Number(), Attr()
_ROW = {"axes": AXES, "keepdims": True}
Build = Callable[[Graph, Node, Bound], Node | None]


# -- softmax --------------------------------------------------------------------------------


def _along_axis(name: str) -> Build:
    def build(graph: Graph, node: Node, bound: Bound) -> Node | None:
        x: Node = bound[X]
        if len(bound[AXES]) != 1 or x.dtype is not node.dtype:
            return None
        return graph.add(name, x, axis=bound[AXES][0], loc=node.loc)

    return build


def _log_of_softmax(graph: Graph, node: Node, bound: Bound) -> Node:
    return graph.add("LogSoftmax", bound[X], axis=bound[AXES], loc=node.loc)


def _softmax_forms() -> list[Formula]:
    forms: list[Formula] = []
    for shifted in (words.Sub(X, words.ReduceMax(X, **_ROW)), X):
        powers = words.Exp(shifted)
        total = words.ReduceSum(powers, **_ROW)
        forms += [
            Formula(words.Div(powers, total), _along_axis("Softmax")),
            Formula(words.Mul(powers, words.Reciprocal(total)), _along_axis("Softmax")),
            Formula(words.Sub(shifted, words.Log(total)), _along_axis("LogSoftmax")),
        ]
    return [*forms, Formula(words.Log(words.Softmax(X, axis=AXES)), _log_of_softmax)]


# -- norms ----------------------------------------------------------------------------------


def _over_last_axes(name: str) -> Build:
    def build(graph: Graph, node: Node, bound: Bound) -> Node | None:
        x: Node = bound[X]
        axes = bound[AXES]
        if axes != tuple(range(x.rank - len(axes), x.rank)) or x.dtype is not node.dtype:
            return None
        epsilon = float(bound[EPSILON].constant)
        return graph.add(name, x, axis=axes[0], epsilon=epsilon, loc=node.loc)

    return build


def _norm_forms() -> list[Formula]:
    centred = words.Sub(X, words.ReduceMean(X, **_ROW))
    forms: list[Formula] = []
    for name, top in (("LayerNormalization", centred), ("RMSNormalization", X)):
        mean = words.ReduceMean(words.Pow(top, exponent=2), **_ROW)
        forms += [
            Formula(words.Div(top, words.Sqrt(words.Add(mean, EPSILON))), _over_last_axes(name)),
            Formula(words.Mul(top, words.Rsqrt(words.Add(mean, EPSILON))), _over_last_axes(name)),
        ]
    return forms


_AXIS, _SMALL = Attr(), Attr()
_OPTIONS = {"axis": _AXIS, "epsilon": _SMALL}


def _with_parameter(name: str, *found: Any) -> Build:
    """The norm with one parameter more, if that has the shape of what is normalised together."""

    def build(graph: Graph, node: Node, bound: Bound) -> Node | None:
        operands = [bound[part] for part in found]
        if operands[-1].shape != operands[0].shape[bound[_AXIS] :]:
            return None
        options = {"axis": bound[_AXIS], "epsilon": bound[_SMALL]}
        return graph.add(name, *operands, loc=node.loc, **options)

    return build


_BIAS = Value("bias")
_LAYER, _RMS = "LayerNormalization", "RMSNormalization"
_SCALED = (
    Formula(
        words.Mul(words.LayerNormalization(X, **_OPTIONS), SCALE), _with_parameter(_LAYER, X, SCALE)
    ),
    Formula(
        words.Mul(words.RMSNormalization(X, **_OPTIONS), SCALE), _with_parameter(_RMS, X, SCALE)
    ),
)
_SHIFTED = (
    Formula(
        words.Add(words.LayerNormalization(X, SCALE, **_OPTIONS), _BIAS),
        _with_parameter(_LAYER, X, SCALE, _BIAS),
    ),
)
_FORMS = (*_softmax_forms(), *_norm_forms())


def recognise_norms(graph: Graph) -> None:
    """The formulas of rows first, then the parameters behind them."""
    recognise(graph, _FORMS)
    recognise(graph, _SCALED)
    recognise(graph, _SHIFTED)
