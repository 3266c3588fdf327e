"""The operator graph: structure, names, order, validation."""

from __future__ import annotations

import pytest

from kdsl_core.dtypes import f16, f32
from kdsl_core.errors import FusionError
from kdsl_fuse.graph import Graph, row_major
from kdsl_fuse.rewrites.dead_nodes import drop_dead_nodes


def _chain() -> Graph:
    graph = Graph()
    x = graph.input("x", (4, 8), f32)
    w = graph.input("w", (8, 5), f32)
    product = graph.add("MatMul", x, w)
    graph.outputs = [graph.add("Mul", product, product)]
    return graph


def test_edges_carry_operand_positions() -> None:
    """x * x has two edges with keys 0 and 1, and both ends see both."""
    graph = _chain()
    product, square = graph["matmul0"], graph["mul0"]
    assert graph.operands(square) == (product, product)
    assert graph.consumers(product) == (square, square)
    assert sorted(key for *_, key in graph.net.in_edges("mul0", keys=True)) == [0, 1]


def test_iteration_is_topological_and_in_writing_order() -> None:
    """Nodes come in the order in which they were added, operands first."""
    assert [node.name for node in _chain()] == ["x", "w", "matmul0", "mul0"]


def test_names_are_deterministic_and_unique() -> None:
    """Names count per operator, and step aside for arguments of the same name."""
    graph = Graph()
    x = graph.input("add0", (2,), f32)
    names = [graph.add("Add", x, x).name, graph.add("Add", x, x).name]
    assert names == ["add1", "add2"]
    assert graph.input("add1", (2,), f32).name not in names


def test_table_lists_every_value() -> None:
    """The table has one row per value and names the outputs."""
    table = _chain().table()
    assert "matmul0  MatMul    x, w              f32[4, 5]" in table
    assert table.endswith("returns mul0")


def test_row_major_strides() -> None:
    """Dense strides count elements from the last axis."""
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert row_major(()) == ()


def test_foreign_node_is_refused() -> None:
    """A value of another graph cannot be an operand."""
    with pytest.raises(FusionError, match="another graph") as caught:
        _chain().add("Relu", _chain()["x"])
    assert caught.value.code == "K907"


def test_validate_finds_cycles_gaps_and_wrong_types() -> None:
    """Each broken structure is K912."""
    cyclic, gap, wrong = _chain(), _chain(), _chain()
    cyclic.net.add_edge("mul0", "matmul0", key=2)
    gap.net.remove_edge("matmul0", "mul0", key=0)
    wrong.net.nodes["x"]["node"] = Graph().input("x", (4, 8), f16)
    wrong.net.nodes["w"]["node"] = Graph().input("w", (8, 5), f16)
    for graph in (cyclic, gap, wrong):
        with pytest.raises(FusionError) as caught:
            graph.validate()
        assert caught.value.code == "K912"
    _chain().validate()


def test_dead_nodes_are_dropped() -> None:
    """Values that no output needs disappear; arguments and outputs stay."""
    graph = _chain()
    graph.add("Exp", graph.add("Relu", graph["matmul0"]))
    drop_dead_nodes(graph)
    assert [node.name for node in graph] == ["x", "w", "matmul0", "mul0"]
