"""A part of a torch graph that runs as plans of kernels, one for each signature that it meets."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import KdslError
from kdsl_fuse import arrays
from kdsl_fuse.arrays import Spec
from kdsl_fuse.frontends.torch.aten import MEANING
from kdsl_fuse.frontends.torch.forms import refused
from kdsl_fuse.frontends.traced import Trace, TracedArray
from kdsl_fuse.origin import Place, written_at
from kdsl_fuse.patterns import Options
from kdsl_fuse.patterns.base import Chip
from kdsl_fuse.plan import Plan, make_plan

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torch.fx import Node as FxNode

Value = Spec | int | float | bool | None
"""What is known about an argument of a region: the type of a tensor, or a number itself."""


@dataclass(frozen=True)
class Settings:
    """How graphs are compiled: what `torch.compile(…, options=…)` takes.

    `simulate` lets tensors on the host run in the simulator; without it they stay with torch.
    """

    simulate: bool = False
    target: str | None = None
    f32_precision: str = "ieee"

    def options(self, tensor: Any) -> Options:
        """The options of plans for tensors that live where `tensor` lives."""
        options = Options(f32_precision=self.f32_precision)
        if self.target is not None:
            return replace(options, target=self.target)
        gpu = arrays.gpu_of(tensor)
        if gpu is None:
            return options
        chip = Chip(gpu.name, gpu.multiprocessors)
        return replace(options, target=gpu.target, chip=chip)


# -- from torch's graph to kdsl's -----------------------------------------------------------


def trace(
    nodes: Sequence[FxNode], inputs: Mapping[FxNode, Value], outputs: Sequence[FxNode]
) -> Trace:
    """Record what `nodes` compute from `inputs`, in this order, with `outputs` as the results.

    Raises: FusionError and other KdslErrors where an operator does not take its operands.
    """
    recorded = Trace("region")
    known: dict[FxNode, Any] = {}
    for node, value in inputs.items():
        known[node] = _argument(recorded, node, value) if isinstance(value, Spec) else value
    for node in nodes:
        with written_at(place_of(node)):
            known[node] = apply_meaning(node, known)
    recorded.graph.outputs = [known[node].node for node in outputs]
    return recorded


def apply_meaning(node: FxNode, known: Mapping[FxNode, Any]) -> Any:
    """What one node computes from values that are known."""
    from torch.fx.node import map_arg

    args, kwargs = (map_arg(given, known.__getitem__) for given in (node.args, node.kwargs))
    if node.target is operator.getitem:
        found = args[0][args[1]]
        if found is None:
            raise refused(f"result {args[1]} of {node.args[0]} is not computed")
        return found
    return MEANING[str(node.target)](*args, **kwargs)


def _argument(recorded: Trace, node: FxNode, spec: Spec) -> TracedArray:
    user = next(iter(node.users), node)
    found = recorded.graph.input(
        node.name, spec.shape, spec.dtype, strides=spec.strides, loc=place_of(user)
    )
    return TracedArray(recorded, found)


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def place_of(node: FxNode) -> Place:
    """The node with the model's line that it came from; lines inside of torch are passed over."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    inside = f"{os.sep}torch{os.sep}"
    own = [frame for frame in frames if inside not in frame[0]] or frames
    path, number = own[-1] if own else ("torch graph", 0)
    return Place((), "", node.name, path, int(number))


# -- running --------------------------------------------------------------------------------


@dataclass(eq=False)
class Region:
    """Calls a plan for the tensors' signature, made when it is first met.

    A signature whose plan is refused runs `module`, the same nodes in torch; `refusals` say why.
    """

    name: str
    module: GraphModule
    settings: Settings
    plans: dict[Any, Plan] = field(default_factory=dict)
    refusals: dict[Any, KdslError] = field(default_factory=dict)
    _latest: tuple[Plan, list[int], list[int], list[Any]] | None = None

    def __call__(self, *args: Any) -> Any:
        """Compute the region's results: one tensor, or a tuple of several."""
        found = self._again(args)
        return self._look_up(args) if found is None else found

    def _again(self, args: Sequence[Any]) -> Any:
        """The results for arguments like the latest ones; None for others."""
        if self._latest is None:
            return None
        plan, tensors, others, known = self._latest
        return plan.replayed(_at(args, tensors)) if _at(args, others) == known else None

    def _look_up(self, args: Sequence[Any]) -> Any:
        key = tuple(map(_key, args))
        plan = self.plans.get(key)
        if plan is None:
            if key in self.refusals:
                return self.module(*args)
            try:
                plan = self.plans[key] = self.plan(args)
            except KdslError as refusal:
                self.refusals[key] = refusal
                return self.module(*args)
        tensors = [i for i, arg in enumerate(args) if arrays.library(arg) == "torch"]
        others = [i for i in range(len(args)) if i not in tensors]
        self._latest = plan, tensors, others, _at(args, others)
        return self._run(plan, _at(args, tensors))

    def plan(self, args: Sequence[Any]) -> Plan:
        """The plan for tensors, real or fake, and numbers in the order of the region's arguments.

        Raises: FusionError K909 for operators that have no kernel with these shapes.
        """
        nodes = list(self.module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        (result,) = (node.args[0] for node in nodes if node.op == "output")
        several = isinstance(result, tuple | list)
        values = (arrays.spec_of(arg) or arg for arg in args)
        recorded = trace(
            [node for node in nodes if node.op == "call_function"],
            dict(zip(inputs, values, strict=True)),
            result if several else [result],
        )
        tensor = next(arg for arg in args if arrays.library(arg) == "torch")
        pack = tuple if several else None
        return make_plan(recorded.graph, self.settings.options(tensor), pack=pack)

    def _run(self, plan: Plan, tensors: Sequence[Any]) -> Any:
        if tensors[0].is_cuda:
            return plan.run(*tensors)
        found = plan.run(*map(arrays.numpy_from_torch, tensors))
        if isinstance(found, tuple):
            return tuple(arrays.constant(each, tensors[0]) for each in found)
        return arrays.constant(found, tensors[0])


def _at(args: Sequence[Any], places: Sequence[int]) -> list[Any]:
    return [args[i] for i in places]


def _key(arg: Any) -> Any:
    if arrays.library(arg) != "torch":
        return arg
    return arg.dtype, arg.device, tuple(arg.shape), arg.stride()
