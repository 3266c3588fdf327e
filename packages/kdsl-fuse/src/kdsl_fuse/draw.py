"""A graph as a picture: a box for each value, a colour for each kernel."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.origin import line_of

if TYPE_CHECKING:
    from kdsl_fuse.plan import Plan

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 170, 44, 20, 36, 16
_PLAIN, _REFUSED = "#f2f2f2", "#ffffff"


def draw_graph(graph: Graph) -> str:
    """SVG of a graph: operands above their readers, in layers."""
    return _svg(graph, {}, {})


def draw_plan(plan: Plan) -> str:
    """SVG of a plan: values of one call in one colour, those without a kernel with a dashed edge.

    A box tells when pointed at what `plan.explain()` says of it.
    """
    from kdsl_fuse.report import told_of

    told = told_of(plan)
    fills: dict[str, str] = {}
    for index, call in enumerate(plan.calls):
        match = plan.match_of(call)
        for node in (*match.covered, *match.recomputed):
            fills.setdefault(node.name, f"hsl({index * 137 % 360}, 70%, 85%)")
    fills |= dict.fromkeys(plan.reasons, _REFUSED)
    return _svg(plan.graph, fills, {name: " ".join((row[0], row[2])) for name, row in told.items()})


def _svg(graph: Graph, fills: Mapping[str, str], told: Mapping[str, str]) -> str:
    import networkx as nx

    places: dict[str, tuple[int, int]] = {}
    layers = list(nx.topological_generations(graph.net))
    for row, layer in enumerate(layers):
        for column, name in enumerate(layer):
            places[name] = (MARGIN + column * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y))
    width = max(map(len, layers), default=1) * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    height = len(layers) * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
    ]
    lines += [_edge(places[a], places[b]) for a, b, _ in graph.net.edges(keys=True)]
    lines += [_box(graph, node, places[node.name], fills, told) for node in graph]
    return "\n".join([*lines, "</svg>"])


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + WIDTH // 2, start[1] + HEIGHT
    x2, y2 = end[0] + WIDTH // 2, end[1]
    middle = (y1 + y2) // 2
    path = f"M{x1} {y1}C{x1} {middle} {x2} {middle} {x2} {y2}"
    return f'<path d="{path}" fill="none" stroke="#888"/>'


def _box(
    graph: Graph,
    node: Node,
    place: tuple[int, int],
    fills: Mapping[str, str],
    told: Mapping[str, str],
) -> str:
    x, y = place
    fill = fills.get(node.name, _PLAIN)
    dashed = ' stroke-dasharray="4 3"' if fill == _REFUSED else ""
    edge = 2 if graph.is_output(node) else 1
    title = " ".join(filter(None, (line_of(node.loc), told.get(node.name))))
    texts = (str(node.op), f"{node.dtype}{list(node.shape)}")
    shown = "".join(
        f'<text x="{x + 6}" y="{y + 17 + 16 * i}">{escape(text[:28])}</text>'
        for i, text in enumerate(texts)
    )
    return (
        f"<g><title>{escape(f'{node.name} {title}'.strip())}</title>"
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{fill}" '
        f'stroke="#444" stroke-width="{edge}"{dashed}/>{shown}</g>'
    )
