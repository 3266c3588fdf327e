"""`torch.compile(model, backend="kdsl")`: fused kernels for what kdsl takes, torch for the rest."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn

from kdsl_core.errors import FusionError
from kdsl_fuse.frontends.torch.partition import is_tensor_node, partition
from kdsl_fuse.frontends.torch.region import Region, Settings, place_of
from kdsl_fuse.origin import line_of
from kdsl_fuse.patterns.base import F32_PRECISIONS
from kdsl_fuse.reasons import Reason
from kdsl_fuse.report import Row, columns

if TYPE_CHECKING:
    from torch.fx import GraphModule


class CompiledGraph:
    """A graph that torch captured: `regions` run on kdsl, and `reasons` say why others do not.

    `nodes` are (name, operator, source line) of all that compute tensors; reasons are by name.
    """

    def __init__(self, graph: GraphModule, settings: Settings) -> None:
        found = [node for node in graph.graph.nodes if is_tensor_node(node)]
        self.nodes = [(node.name, str(node.target), line_of(place_of(node))) for node in found]
        self.reasons: dict[str, Reason]
        self.reasons, parts = partition(graph, settings)
        _loosen_views(graph)
        self.regions: list[Region] = []
        self._home: dict[str, str] = {}
        for name, members in parts.items():
            module = graph.get_submodule(name)
            region = Region(name, module, settings)
            delattr(graph, name)
            setattr(graph, name, region)
            self.regions.append(region)
            self._home |= dict.fromkeys(members, name)
        self._graph = graph

    def __call__(self, args: list[Any]) -> Any:
        """Run with a list of arguments, which is emptied: torch's boxed convention."""
        given = list(args)
        args.clear()
        return self._graph.forward(*given)

    _boxed_call = True

    def explain(self) -> str:
        """A table: each of torch's nodes, where it runs and why; then each region's plans."""
        rows: list[Row] = [("node", "operator", "line", "runs in", "why")]
        for name, target, line in self.nodes:
            reason = self.reasons.get(name)
            where = f"torch: {reason.code}" if reason else self._home[name]
            rows.append((name, target, line, where, reason.sentence if reason else ""))
        lines = [columns(rows)]
        for region in self.regions:
            for number, plan in enumerate(region.plans.values()):
                types = ", ".join(map(str, plan.graph.inputs))
                lines += ["", f"{region.name}, signature {number}: {types}", plan.explain()]
            for refusal in region.refusals.values():
                lines += ["", f"{region.name} ran in torch: {refusal}"]
        kept = len(self.reasons)
        lines += ["", f"{len(rows) - 1 - kept} of {len(rows) - 1} nodes run on kdsl"]
        return "\n".join(lines)


_compiled: list[weakref.ref[CompiledGraph]] = []


def compiled_graphs() -> list[CompiledGraph]:
    """The graphs that `torch.compile(…, backend="kdsl")` made and torch still holds, in order."""
    return [graph for held in _compiled if (graph := held()) is not None]


def kdsl(
    graph: GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph that torch captured; the entry point of `torch.compile(backend="kdsl")`.

    `options` are `simulate` (host tensors run in the simulator; without it they stay with torch),
    `target` ("sm_90a"; the tensors' GPU decides without it) and `f32_precision` ("ieee", "tf32").

    Raises: FusionError K982 for other options. What it returns raises FusionError K980 where
    gradients are asked for.
    """
    import torch
    from torch._dynamo.backends.common import aot_autograd

    settings = _settings(options or {})
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    if wanted and torch.is_grad_enabled():
        return _refuse_training(len(wanted))

    def compile_forward(lowered: GraphModule, _: Sequence[Any]) -> CompiledGraph:
        compiled = CompiledGraph(lowered, settings)
        _compiled.append(weakref.ref(compiled))
        return compiled

    compiled: Callable[..., Any] = aot_autograd(fw_compiler=compile_forward)(graph, inputs)
    return compiled


def _settings(options: Mapping[str, Any]) -> Settings:
    known = [field.name for field in fields(Settings)]
    unknown = sorted(set(options) - set(known))
    precision = options.get("f32_precision", "ieee")
    if unknown or precision not in F32_PRECISIONS:
        got = ", ".join(unknown) or f"f32_precision={precision!r}"
        raise FusionError(
            f"the kdsl backend does not have the option {got}",
            code="K982",
            fix=f"options are {', '.join(known)}; f32_precision is one of {F32_PRECISIONS}",
        )
    return Settings(**options)


def _refuse_training(count: int) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise FusionError(
            f"the kdsl backend computes no gradients, and {count} tensors ask for them",
            code="K980",
            fix="call the model under torch.inference_mode() or torch.no_grad(), or train with "
            "another backend",
        )

    return refuse


def _loosen_views(graph: GraphModule) -> None:
    """Let torch's nodes reshape what kdsl lays out in memory another way than torch would."""
    import torch

    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    graph.recompile()
