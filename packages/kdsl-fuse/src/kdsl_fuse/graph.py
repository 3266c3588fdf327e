"""The operator graph: values and the operators that make them, on a networkx MultiDiGraph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kdsl_core.dtypes import DType
from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.origin import line_of
from kdsl_fuse.strided import Shape, row_major

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class Op:
    """An operator: its name in ONNX's vocabulary and its attributes, sorted by name."""

    name: str
    attrs: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, attr: str) -> Any:
        return dict(self.attrs)[attr]

    def __str__(self) -> str:
        return self.name + "".join(f" {key}={value}" for key, value in self.attrs)


@dataclass(frozen=True, eq=False)
class Node:
    """One value of the graph: the operator that makes it, its type, and where it was written.

    `strides` (in elements) are known for arrays that come from outside; a value made by a kernel is
    row-major. `constant` is the array or Python number of a Constant.
    """

    name: str
    op: Op
    shape: Shape
    dtype: DType
    loc: Loc | None = None
    strides: tuple[int, ...] = field(default=())
    constant: Any = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the value in memory."""
        return int(math.prod(self.shape) * self.dtype.bytes)

    @property
    def is_number(self) -> bool:
        """Whether it is a Constant that holds one Python number, which kernels bake in."""
        return self.op.name == "Constant" and self.shape == ()

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"

    def note(self) -> str:
        """One line for an error: the value, its type, and its source line."""
        sources = {"Input": "is an argument of the call", "Constant": "is held by the function"}
        where = line_of(self.loc)
        what = sources.get(self.op.name, f"was made by {self.op.name}")
        return f"{self} {what}" + (f" at {where}" if where else "")


class Graph:
    """A directed graph of values; the key of an edge is the operand's position in its consumer."""

    def __init__(self, name: str = "graph") -> None:
        import networkx as nx  # takes as long to import as all the rest: only when a graph is made

        self.name = name
        self.net: nx.MultiDiGraph[str] = nx.MultiDiGraph()
        self.inputs: list[Node] = []
        self.outputs: list[Node] = []
        self._serial: dict[str, int] = {}
        self._added = 0

    # -- building ---------------------------------------------------------------------------

    def input(
        self,
        name: str,
        shape: Shape,
        dtype: DType,
        *,
        strides: Sequence[int] | None = None,
        loc: Loc | None = None,
    ) -> Node:
        """Add an argument of the graph."""
        laid = row_major(shape) if strides is None else tuple(strides)
        free = self._numbered(name) if name in self.net else name
        node = Node(free, Op("Input"), tuple(shape), dtype, loc, laid)
        self.inputs.append(node)
        return self._insert(node, ())

    def constant(self, value: Any, shape: Shape, dtype: DType, **where: Any) -> Node:
        """Add a value that is known now: an array, or a Python number when `shape` is ()."""
        name = self._numbered("constant")
        laid = where.get("strides") or row_major(shape)
        loc = where.get("loc")
        return self._insert(Node(name, Op("Constant"), shape, dtype, loc, laid, value), ())

    def add(self, name: str, *operands: Node, loc: Loc | None = None, **attrs: Any) -> Node:
        """Add the operator `name` on `operands`; its rule decides the shape and the dtype.

        Raises: FusionError K901–K904 when the operands do not fit, with each operand's line.
        """
        from kdsl_fuse.ops import op_named

        op = Op(name, tuple(sorted(attrs.items())))
        for operand in operands:
            if operand.name not in self.net or self[operand.name] is not operand:
                raise FusionError(
                    f"{name} reads {operand}, which belongs to another graph",
                    code="K907",
                    loc=loc,
                    notes=[operand.note()],
                    fix="return values from a fused function; do not keep them between calls",
                )
        shape, dtype = op_named(name, loc).infer(op, operands, loc)
        return self._insert(Node(self._numbered(name.lower()), op, shape, dtype, loc), operands)

    def remove(self, node: Node) -> None:
        """Remove a value that nothing reads."""
        assert not self.consumers(node), f"{node} is still read"
        self.net.remove_node(node.name)

    def replace(self, old: Node, new: Node) -> None:
        """Let everything that reads or returns `old` take `new`, of the same type, instead."""
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise FusionError(f"{new} cannot stand for {old}", code="K912", loc=old.loc)
        for _, reader, position in list(self.net.out_edges(old.name, keys=True)):
            if reader != new.name:
                self.net.remove_edge(old.name, reader, key=position)
                self.net.add_edge(new.name, reader, key=position)
        self.outputs = [new if output is old else output for output in self.outputs]

    def _insert(self, node: Node, operands: Sequence[Node]) -> Node:
        self.net.add_node(node.name, node=node, order=self._added)
        self._added += 1
        for position, operand in enumerate(operands):
            self.net.add_edge(operand.name, node.name, key=position)
        return node

    def _numbered(self, stem: str) -> str:
        """The next free name of a kind: matmul0, matmul1, …"""
        while True:
            serial = self._serial.get(stem, 0)
            self._serial[stem] = serial + 1
            if f"{stem}{serial}" not in self.net:
                return f"{stem}{serial}"

    # -- reading ----------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Node:
        node: Node = self.net.nodes[name]["node"]
        return node

    def __len__(self) -> int:
        return int(self.net.number_of_nodes())

    def __iter__(self) -> Iterator[Node]:
        """All nodes, operands before consumers, otherwise in the order in which they were added."""
        import networkx as nx

        nodes = self.net.nodes
        order = nx.lexicographical_topological_sort(self.net, key=lambda name: nodes[name]["order"])
        return (self[name] for name in order)

    def operands(self, node: Node) -> tuple[Node, ...]:
        """The values that `node` reads, by position."""
        edges = self.net.in_edges(node.name, keys=True)
        return tuple(self[source] for source, _, _ in sorted(edges, key=lambda edge: edge[2]))

    def consumers(self, node: Node) -> tuple[Node, ...]:
        """The nodes that read `node`, once per edge, in the order in which they were added."""
        nodes = self.net.nodes
        readers = [reader for _, reader, _ in self.net.out_edges(node.name, keys=True)]
        return tuple(self[name] for name in sorted(readers, key=lambda name: nodes[name]["order"]))

    def is_output(self, node: Node) -> bool:
        """Whether the graph returns this value."""
        return any(node is output for output in self.outputs)

    def table(self) -> str:
        """One line per value: name, operator, operands, type, source line."""
        from kdsl_fuse.report import columns

        rows = [("value", "operator", "operands", "type", "line")]
        for node in self:
            reads = ", ".join(operand.name for operand in self.operands(node))
            kind = f"{node.dtype}{list(node.shape)}"
            rows.append((node.name, str(node.op), reads, kind, line_of(node.loc)))
        outputs = ", ".join(output.name for output in self.outputs)
        return f"{columns(rows)}\nreturns {outputs}"

    def draw(self) -> str:
        """A picture as SVG: a box for each value, operands above their readers."""
        from kdsl_fuse.draw import draw_graph

        return draw_graph(self)

    # -- checking ---------------------------------------------------------------------------

    def validate(self) -> None:
        """Check edges, arities, and that each node has the type that its rule gives.

        Raises: FusionError K912 for a broken structure, the rule's own error for a wrong type.
        """
        import networkx as nx

        if not nx.is_directed_acyclic_graph(self.net):
            raise FusionError("the operator graph has a cycle", code="K912")
        for node in self:
            self._check(node)
        for output in self.outputs:
            if output.name not in self.net:
                raise FusionError(f"output {output} is not in the graph", code="K912")

    def _check(self, node: Node) -> None:
        from kdsl_fuse.ops import op_named

        positions = sorted(key for _, _, key in self.net.in_edges(node.name, keys=True))
        if positions != list(range(len(positions))):
            raise FusionError(
                f"{node} has operands at positions {positions}, expected 0…{len(positions) - 1}",
                code="K912",
                loc=node.loc,
            )
        if node.op.name in ("Input", "Constant"):
            return
        rule = op_named(node.op.name, node.loc)
        shape, dtype = rule.infer(node.op, self.operands(node), node.loc)
        if (shape, dtype) != (node.shape, node.dtype):
            raise FusionError(
                f"{node} contradicts the rule of {node.op.name}: {dtype}{list(shape)}",
                code="K912",
                loc=node.loc,
            )
