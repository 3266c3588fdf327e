"""What a call computes, as straight-line NumPy: a line for each operator of its part of the graph.

Pointwise operators are their own code on text; others are the functions that `kdsl_fuse.ops` states
as their meaning. Everything is f32, like the accumulators of kernels.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kdsl_core.dtypes import BY_NAME, DType
from kdsl_fuse.ejection.text import NUMPY, Text, shown
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.ops import op_named
from kdsl_fuse.patterns.tails import python_number
from kdsl_fuse.tail import Step, run_step

_WORDS = {
    "MatMul": "{0} @ {1}",
    "Transpose": "np.transpose({0}, {perm})",
    "Reshape": "np.reshape({0}, {shape})",
    "Expand": "np.broadcast_to({0}, {shape})",
    "Squeeze": "np.squeeze({0}, {axes})",
    "Unsqueeze": "np.expand_dims({0}, {axes})",
    "Concat": "np.concatenate([{all}], axis={axis})",
    "Gather": "np.take({0}, {1}, axis={axis})",
    "ReduceSum": "np.sum({0}, axis={axes}, keepdims={keepdims})",
    "ReduceMean": "np.mean({0}, axis={axes}, keepdims={keepdims})",
    "ReduceMax": "np.max({0}, axis={axes}, keepdims={keepdims})",
    "ReduceMin": "np.min({0}, axis={axes}, keepdims={keepdims})",
    "ReduceProd": "np.prod({0}, axis={axes}, keepdims={keepdims})",
}


class Reference:
    """The function `reference(*reads)` of the stored values that a call reads, by their names.

    `text` is its source, `imports` the lines that it needs.
    """

    def __init__(self, graph: Graph, reads: Sequence[str], outputs: Sequence[Node]) -> None:
        self.graph = graph
        self.imports: set[str] = set()
        self._names = _identifiers(node.name for node in graph)
        self._lines: list[str] = []
        parameters = [self._names[name] for name in reads]
        values = {name: self._given(graph[name]) for name in reads}
        for node in self._behind(reads, outputs):
            values[node.name] = self._value(node, values)
        results = ", ".join(shown(values[node.name]) for node in outputs)
        self.text = "\n".join(
            [
                f"def reference({', '.join(parameters)}):",
                f'    """{_names_of(outputs)} in NumPy, before anything is rounded."""',
                *self._lines,
                f"    return {results}",
            ]
        )

    def _behind(self, reads: Collection[str], outputs: Sequence[Node]) -> list[Node]:
        """The nodes between the values that are read and the outputs, operands first."""
        found: dict[str, Node] = {}
        waiting = list(outputs)
        while waiting:
            node = waiting.pop()
            if node.name not in found and node.name not in reads:
                found[node.name] = node
                waiting += self.graph.operands(node)
        return [node for node in self.graph if node.name in found]

    def _given(self, node: Node) -> Text:
        name = self._names[node.name]
        if node.dtype.is_float and node.dtype.bits < 32:
            self._lines.append(f"    {name} = {name}.astype(np.float32)")
        return Text(name, words=NUMPY)

    def _value(self, node: Node, values: Mapping[str, Any]) -> Any:
        """A node's name behind a line that computes it, or its number."""
        if node.is_number:
            return python_number(node)
        operands = [values[x.name] for x in self.graph.operands(node)]
        made = self._pointwise(node, operands) if _has_code(node) else self._called(node, operands)
        if isinstance(made, Text):
            self._lines.append(f"    {self._names[node.name]} = {made.text}")
            made = Text(self._names[node.name], words=NUMPY)
        return made

    def _pointwise(self, node: Node, operands: list[Any]) -> Any:
        if node.op.name == "Cast" and isinstance(operands[0], Text):
            to = BY_NAME[dict(node.op.attrs)["to"]]
            return Text(f"{operands[0].inside(0)}{_cast(to)}", words=NUMPY)
        step = Step(node.op.name, tuple(range(len(operands))), node.op.attrs, node.loc)
        made = run_step(NUMPY, step, operands)
        if isinstance(made, Text) and "numpy_words." in made.text:
            self.imports.add("from kdsl_fuse.ejection import numpy_words")
        return made

    def _called(self, node: Node, operands: Sequence[Any]) -> Text:
        texts, attrs = [shown(x) for x in operands], dict(node.op.attrs)
        if node.op.name == "Slice":
            parts = zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
            return Text(f"{texts[0]}[{', '.join(_slice(*part) for part in parts)}]", words=NUMPY)
        if node.op.name in _WORDS:
            made = _WORDS[node.op.name].format(*texts, all=", ".join(texts), **attrs)
            return Text(made, 1 if node.op.name == "MatMul" else 0, NUMPY)
        stated = [*texts, *(f"{name}={value!r}" for name, value in attrs.items())]
        return Text(f"{self._function(node)}({', '.join(stated)})", words=NUMPY)

    def _function(self, node: Node) -> str:
        """The operator's meaning: a function of a module, or found by the operator's name."""
        function = op_named(node.op.name).reference
        name = str(getattr(function, "__name__", ""))
        module = str(getattr(function, "__module__", ""))
        if vars(sys.modules.get(module, re)).get(name) is function:
            self.imports.add(f"from {module} import {name}")
            return name
        self.imports.add("from kdsl_fuse.ops import op_named")
        return f'op_named("{node.op.name}").reference'


def _has_code(node: Node) -> bool:
    return op_named(node.op.name).is_pointwise


def _cast(to: DType) -> str:
    """The conversions that round to a type; floats are f32 again behind it."""
    narrow = to.is_float and to.bits < 32
    return f".astype(kd.{to}.numpy)" + ".astype(np.float32)" * narrow


def _slice(start: int, stop: int, step: int) -> str:
    return f"{start}:{stop}" + (f":{step}" if step != 1 else "")


def _identifiers(names: Any) -> dict[str, str]:
    """A name of Python for each name of a graph, none given twice."""
    found: dict[str, str] = {}
    for name in names:
        made = re.sub(r"\W+", "_", name).strip("_") or "_"
        made = f"_{made}" if made[0].isdigit() or made in _TAKEN else made
        while made in found.values():
            made += "_"
        found[name] = made
    return found


_TAKEN = frozenset({"kd", "np", "numpy_words", "op_named"})


def _names_of(outputs: Sequence[Node]) -> str:
    return ", ".join(node.name for node in outputs)
