"""Which nodes of a torch graph kdsl takes, and in which parts: the largest that are convex."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import KdslError
from kdsl_fuse import arrays
from kdsl_fuse.arrays import Spec
from kdsl_fuse.frontends.torch.aten import COPIES, MEANING, VIEWS
from kdsl_fuse.frontends.torch.region import Settings, Value, apply_meaning, trace
from kdsl_fuse.frontends.traced import TracedArray
from kdsl_fuse.origin import Place
from kdsl_fuse.plan import Plan, make_plan
from kdsl_fuse.reasons import Reason

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torch.fx import Node as FxNode
    from torch.fx.passes.infra.partitioner import Partition

CODES = {
    "KT-COPY": "a copy that is returned must have memory of its own",
    "KT-FORM": "kdsl has the operator, but not with these arguments",
    "KT-HOST": "the tensors are not on the GPU where the graph's kernels run",
    "KT-OPERATOR": "kdsl does not have the operator",
    "KT-SIZE": "a size that is known only when the graph runs",
    "KT-VIEW": "only views: there is nothing to compute",
}
"""Why a node stays with torch; reasons of plans (`KF-…`) come on top."""

Reasons = dict[str, Reason]


def is_tensor_node(node: FxNode) -> bool:
    """Whether the node computes tensors: the others compute sizes, and stay with Python."""
    return node.op == "call_function" and any(map(_is_tensor, _values(node)))


def survey(graph: GraphModule, settings: Settings) -> Reasons:
    """Why single nodes stay with torch, whatever surrounds them."""
    found: Reasons = {}
    nodes = [node for node in graph.graph.nodes if is_tensor_node(node)]
    home = _home(nodes, settings)
    for node in nodes:
        reason = _refusal(node, home, found)
        if reason is not None:
            found[node.name] = reason
    return found


def _home(nodes: Sequence[FxNode], settings: Settings) -> Any:
    """The device of a graph's kernels: the first that kernels can run on."""
    kinds = {"cuda", "cpu"} if settings.simulate else {"cuda"}
    devices = (value.device for node in nodes for value in _values(node) if _is_tensor(value))
    return next((device for device in devices if device.type in kinds), None)


def _refusal(node: FxNode, home: Any, before: Reasons) -> Reason | None:
    if node.target is operator.getitem:
        return before.get(node.args[0].name)
    if str(node.target) not in MEANING:
        return Reason("KT-OPERATOR", f"kdsl does not have {node.target}")
    return _elsewhere(node, home) or _returned_copy(node) or _unfit(node)


def _elsewhere(node: FxNode, home: Any) -> Reason | None:
    values = [value for x in node.all_input_nodes for value in _values(x)]
    values += _values(node)[:1]  # behind it may be random states, of attention, on the host
    devices = {value.device for value in values if _is_tensor(value)}
    if devices == {home}:
        return None
    where = " and ".join(sorted(map(str, devices)))
    kernels = f"kernels run on {home}" if home else "kernels run on CUDA GPUs"
    return Reason("KT-HOST", f"its tensors are on {where}, {kernels}")


def _returned_copy(node: FxNode) -> Reason | None:
    if str(node.target) not in COPIES:
        return None
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user.op == "output":
                return Reason("KT-COPY", CODES["KT-COPY"])
            if str(user.target) in VIEWS or user.target is operator.getitem:
                stack.append(user)
    return None


COMPUTED = ("f32", "f16", "bf16", "boolean")
"""Types whose values f32 holds: f64 and whole numbers stay with torch."""


def _unfit(node: FxNode) -> Reason | None:
    if any(str(user.target) == "aten.as_strided.default" for user in node.users):
        return Reason("KT-FORM", "as_strided reads its memory, whose layout kdsl chooses")
    try:
        inputs = {x: value_of(x) for x in node.all_input_nodes}
        result = _tried(node, inputs)
        results = list(result) if isinstance(result, tuple | list) else [result]
        made = [
            (got, spec_of(value))
            for got, value in zip(results, _values(node), strict=False)
            if got is not None
        ]
    except UnknownSize as unknown:
        return Reason("KT-SIZE", f"{unknown} is known only when the graph runs")
    except KdslError as error:
        return Reason("KT-FORM", f"{error.code}: {error.message}")
    except (TypeError, KeyError) as error:  # arguments that the meaning does not know
        return Reason("KT-FORM", f"kdsl does not have these arguments: {error}")
    parts = (user.args[1] for user in node.users if user.target is operator.getitem)
    if missing := [i for i in parts if i >= len(results) or results[i] is None]:
        return Reason("KT-FORM", f"kdsl does not compute result {missing[0]} of it")
    return _other_types(made, [x for x in inputs.values() if isinstance(x, Spec)])


def _tried(node: FxNode, inputs: Mapping[FxNode, Value]) -> Any:
    """What a node computes from arguments of these types, in a graph of its own."""
    recorded = trace([], inputs, [])
    arguments = {x.name: x for x in recorded.graph.inputs}
    known = {
        x: TracedArray(recorded, arguments[x.name]) if isinstance(value, Spec) else value
        for x, value in inputs.items()
    }
    return apply_meaning(node, known)


def _other_types(made: Sequence[tuple[Any, Spec]], inputs: Sequence[Spec]) -> Reason | None:
    for dtype in {spec.dtype for spec in (*inputs, *(want for _, want in made))}:
        if dtype.name not in COMPUTED:
            return Reason("KT-FORM", f"kernels compute in f32, which cannot hold {dtype}")
    for got, want in made:
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            ours = f"{got.dtype}{list(got.shape)}"
            return Reason("KT-FORM", f"torch makes {want} of it, kdsl would make {ours}")
    return None


# -- values as torch traced them ------------------------------------------------------------


class UnknownSize(Exception):
    """A size for which torch has no example."""


def value_of(node: FxNode) -> Value:
    """What a node's value is like in the example that torch compiled the graph for."""
    value = node.meta["val"]
    return spec_of(value) if _is_tensor(value) else number_of(value)


def spec_of(tensor: Any) -> Spec:
    """The type of a fake tensor, with numbers for its symbols."""
    shape, strides = (tuple(map(number_of, x)) for x in (tensor.shape, tensor.stride()))
    return Spec(arrays.dtype_from_torch(tensor.dtype), shape, strides)


def number_of(value: Any) -> Any:
    """A number, or the example that torch has for a symbol; no guard comes of it."""
    symbol = getattr(value, "node", None)
    if symbol is None:
        return value
    if symbol.hint is None:
        raise UnknownSize(str(value))
    return symbol.hint


def _values(node: FxNode) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, tuple | list) else [value]


def _is_tensor(value: Any) -> bool:
    return arrays.library(value) == "torch"


# -- parts ----------------------------------------------------------------------------------


def partition(graph: GraphModule, settings: Settings) -> tuple[Reasons, dict[str, list[str]]]:
    """Put the parts that kdsl takes into sub-modules of `graph`, and say why other nodes stay.

    Returns the reasons by node name, and the nodes' names by sub-module. A part is planned for
    torch's example; nodes whose plan is refused leave it, and what remains is parted again.
    """
    reasons = survey(graph, settings)
    while True:
        partitioner = _partitioner(graph, reasons)
        parts = partitioner.propose_partitions()
        refused = {k: v for part in parts for k, v in _refused(part, settings).items()}
        if not refused:
            break
        reasons |= refused
        _pass_on(graph, reasons)
    names = {f"{PREFIX}{i}": [node.name for node in part.nodes] for i, part in enumerate(parts)}
    partitioner.fuse_partitions(parts, prefix=PREFIX)
    return reasons, names


PREFIX = "kdsl_"


def _pass_on(graph: GraphModule, reasons: Reasons) -> None:
    """Parts of a result stay where the result is."""
    for node in graph.graph.nodes:
        source = node.args[0].name if node.target is operator.getitem else None
        if source in reasons:
            reasons.setdefault(node.name, reasons[source])


@dataclass(frozen=True)
class _Support:
    """torch's partitioner asks it which nodes may be in a part."""

    reasons: Reasons

    def is_node_supported(self, submodules: Mapping[str, Any], node: FxNode) -> bool:
        """Whether nothing speaks against the node."""
        return is_tensor_node(node) and node.name not in self.reasons


def _partitioner(graph: GraphModule, reasons: Reasons) -> Any:
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner

    return CapabilityBasedPartitioner(graph, _Support(reasons), allows_single_node_partition=True)


def _refused(part: Partition, settings: Settings) -> Reasons:
    """Nodes of a part that have no kernel."""
    nodes = sorted(part.nodes)  # fx orders nodes as the graph has them
    members = set(nodes)
    if all(str(node.target) in VIEWS or node.target is operator.getitem for node in nodes):
        return {node.name: Reason("KT-VIEW", CODES["KT-VIEW"]) for node in nodes}
    outer = dict.fromkeys(x for n in nodes for x in n.all_input_nodes if x not in members)
    outputs = [n for n in nodes if any(user not in members for user in n.users)]
    tensor = next(v for n in nodes for v in _values(n) if _is_tensor(v))
    try:
        recorded = trace(nodes, {x: value_of(x) for x in outer}, outputs)
        plan = make_plan(recorded.graph, settings.options(tensor), fallback="numpy")
    except KdslError as error:
        reason = Reason("KT-FORM", f"{error.code}: {error.message}")
        return {node.name: reason for node in nodes}
    if not plan.reasons and not plan.calls:
        return {node.name: Reason("KT-VIEW", CODES["KT-VIEW"]) for node in nodes}
    return _blamed(plan, nodes)


def _blamed(plan: Plan, nodes: Sequence[FxNode]) -> Reasons:
    """torch's names for the values that have no kernel."""
    names = {node.name for node in nodes}
    found: Reasons = {}
    for name, reason in plan.reasons.items():
        loc = plan.graph[name].loc
        if isinstance(loc, Place) and loc.name in names:
            found.setdefault(loc.name, reason)
    if plan.reasons and not found:
        reason = next(iter(plan.reasons.values()))
        return {node.name: reason for node in nodes}
    return found
