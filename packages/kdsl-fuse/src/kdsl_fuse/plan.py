"""A plan: the launches that compute a graph, in order, and the reasons behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kdsl_core.errors import ArgumentError, FusionError, KdslError
from kdsl_fuse import arrays, reference
from kdsl_fuse.calls import KernelCall, stored
from kdsl_fuse.calls import operand as operand_of
from kdsl_fuse.cover import Cover, choose_cover
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import SOURCES, is_free
from kdsl_fuse.memory import plan_memory
from kdsl_fuse.origin import line_of, locate
from kdsl_fuse.patterns import Match, Options
from kdsl_fuse.patterns.side_by_side import join
from kdsl_fuse.reasons import Reason
from kdsl_fuse.replay import Replay, replay_of
from kdsl_fuse.rewrites import rewrite
from kdsl_fuse.work import Work, work_of

if TYPE_CHECKING:
    from kdsl_fuse.capture import Captured
    from kdsl_runtime import Manifest

Values = dict[str, Any]


@dataclass(frozen=True, eq=False)
class NumpyStep:
    """One operator that runs in NumPy because the caller asked for `fallback="numpy"`."""

    graph: Graph
    node: Node
    reason: Reason

    def run(self, values: Mapping[str, Any]) -> Any:
        """The node's value, computed in f32 (f64 for f64) and rounded to its dtype."""
        operands = self.graph.operands(self.node)
        wide = "f64" in {x.dtype.name for x in (self.node, *operands)}
        compute = np.float64 if wide else np.float32
        reads = [self._read(operand, values, compute) for operand in operands]
        result = reference.apply(self.node, operands, reads, compute)
        return np.ascontiguousarray(reference.round_to(result, self.node.dtype))

    @property
    def outputs(self) -> tuple[Node, ...]:
        """The one value that it computes."""
        return (self.node,)

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the stored values that it needs."""
        given = (x for x in self.graph.operands(self.node) if not x.is_number)
        return tuple(dict.fromkeys(stored(self.graph, operand)[0].name for operand in given))

    def _read(self, operand: Node, values: Mapping[str, Any], compute: Any) -> Any:
        if operand.is_number:
            return reference.constant(operand, compute)
        return reference.widen(operand_of(self.graph, operand).view(values), compute)

    def __str__(self) -> str:
        return f"{self.node} = numpy {self.node.op} ({self.reason.code})"


Step = KernelCall | NumpyStep


class Plan:
    """How one graph runs for one set of shapes and dtypes.

    `steps` are in launch order; `calls` are those of them that are kernels, ordinary kdsl_core
    calls that can be printed, simulated and turned into PTX one by one.
    """

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step],
        cover: Cover,
        reasons: Mapping[str, Reason],
        options: Options,
        pack: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.graph = graph
        self.steps = tuple(steps)
        self.cover = cover
        self.reasons = dict(reasons)
        self.options = options
        self.memory = plan_memory(
            [call if isinstance(call, KernelCall) else None for call in self.steps],
            [step.reads for step in self.steps],
            kept={stored(graph, output)[0].name for output in graph.outputs},
        )
        self.held = [x for x in graph if x.op.name == "Constant" and not x.is_number]
        self._moved: dict[tuple[str, str], Any] = {}  # constants by name and place, moved once
        self.pack = pack or (lambda outputs: outputs[0] if len(outputs) == 1 else tuple(outputs))
        self._replay: Replay | None = None
        self._replayed: list[tuple[KernelCall, Any]] = []  # with their launches

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """The kernel launches, in order."""
        return tuple(step for step in self.steps if isinstance(step, KernelCall))

    def explain(self) -> str:
        """A table: each operator, its kernel or its reason code, what fusion saves, and why."""
        from kdsl_fuse.report import explain

        return explain(self)

    def draw(self) -> str:
        """A picture as SVG: a colour for each kernel, dashed edges where there is none."""
        from kdsl_fuse.draw import draw_plan

        return draw_plan(self)

    def match_of(self, call: KernelCall) -> Match:
        """The part of the graph that a call computes."""
        return self.cover.matches[call.outputs[-1].name]

    def capture(self, *inputs: Any) -> Captured:
        """The launches for torch tensors like `inputs`, recorded as one CUDA graph.

        Raises: FusionError K966 for other arrays; ArgumentError K910 and K927 as a run.
        """
        from kdsl_fuse.capture import Captured

        try:
            return Captured(self, inputs)
        except KdslError as problem:
            locate(problem)
            raise

    def substitute(self, index: int, call: KernelCall) -> None:
        """Run another call from now on in place of `calls[index]`, whose values it computes."""
        old = self.calls[index]
        self.steps = tuple(call if step is old else step for step in self.steps)
        self._replay = None

    def keys(self) -> list[str]:
        """The specialisations that a run builds, as text, for arrays at multiples of 16 bytes."""
        needed = (pair for call in self.calls for pair in call.needs())
        return list(dict.fromkeys(f"{kernel.signature.name}{key}" for kernel, key in needed))

    def manifest(self) -> Manifest:
        """The same for the plan's target, to warm up with (`kdsl warmup`); needs kdsl-runtime.

        Raises: ArgumentError K732 and K733 for a kernel or an epilogue of the caller's own that
        has no import path.
        """
        from kdsl_runtime import Manifest, Variant

        needed = (pair for call in self.calls for pair in call.needs())
        return Manifest(Variant.of(*pair, self.options.target) for pair in needed)

    def run(self, *inputs: Any) -> Any:
        """Compute the outputs: NumPy arrays in the simulator, CUDA arrays on their GPU.

        With torch tensors the launches are bound: later calls run what the kernels' code was in the
        first one, until a call is replaced.
        Memory: on the GPU all launches go to the caller's current stream, and nothing is waited
        for. With torch tensors a second call may be captured into a CUDA graph; the first builds.
        Raises: ArgumentError K910 when an array is not what the plan was made for.
        """
        found = self.replayed(inputs)
        if found is not None:
            return found
        try:
            return self._run(inputs)
        except KdslError as problem:
            locate(problem)
            raise

    def replayed(self, inputs: Sequence[Any]) -> Any:
        """The result for arrays like the latest ones, by launches that are bound; else None."""
        if self._replay is None or any(c.launch is not launch for c, launch in self._replayed):
            return None
        return self._replay(inputs)

    def _run(self, inputs: Sequence[Any]) -> Any:
        values = self.values(*inputs)
        like = inputs[0]
        arena = self.memory.arena(like)
        done: list[list[Work]] = []
        for step in self.steps:
            if isinstance(step, NumpyStep):
                values[step.node.name] = step.run(values)
                continue
            outputs = [self.memory.place(node, arena, like) for node in step.outputs]
            done.append(work_of(partial(step.run, values, outputs)))
            for work in done[-1]:
                work.run()
            values.update((x.name, out) for x, out in zip(step.outputs, outputs, strict=True))
        self._replay = replay_of(self, inputs, values, done)
        self._replayed = [(call, call.launch) for call in self.calls]
        return self.pack([operand_of(self.graph, x).view(values) for x in self.graph.outputs])

    __call__ = run

    def values(self, *inputs: Any) -> Values:
        """The arguments and constants by value name, as the calls' `simulate` takes them."""
        self._check(inputs)
        like = arrays.common_place(inputs)
        self._check_fallback(like)
        values: Values = dict(zip((node.name for node in self.graph.inputs), inputs, strict=True))
        place = arrays.place(like)
        for node in self.held:
            if (node.name, place) not in self._moved:
                self._moved[node.name, place] = arrays.constant(node.constant, like)
            values[node.name] = self._moved[node.name, place]
        return values

    def _check(self, inputs: Sequence[Any]) -> None:
        expected = self.graph.inputs
        if len(inputs) != len(expected):
            names = ", ".join(map(str, expected))
            raise ArgumentError(
                f"the plan takes {len(expected)} arrays ({names}), got {len(inputs)}", code="K910"
            )
        for node, array in zip(expected, inputs, strict=True):
            spec = arrays.spec_of(array)
            wanted = arrays.Spec(node.dtype, node.shape, node.strides)
            if arrays.library(array) is None or spec != wanted:
                got = (
                    type(array).__name__ if spec is None else f"{spec} with strides {spec.strides}"
                )
                raise ArgumentError(
                    f"the plan was made for {node} with strides {node.strides}, got {got}",
                    code="K910",
                    fix="call the fused function itself: it plans for each new signature",
                )

    def _check_fallback(self, like: Any) -> None:
        skipped = [step for step in self.steps if isinstance(step, NumpyStep)]
        if skipped and arrays.library(like) != "numpy":
            names = ", ".join(f"{step.node.name} ({step.reason.code})" for step in skipped)
            raise FusionError(
                f"{names} would run in NumPy, but the arrays are of {arrays.library(like)}",
                code="K911",
                loc=skipped[0].node.loc,
                fix="pass NumPy arrays, or change the function so that kernels cover it",
            )

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def _counted(graph: Graph, names: Iterable[str]) -> str:
    """ ": MatMul ×3, Softmax", the most frequent first."""
    counts = Counter(graph[name].op.name for name in names)
    each = (name if n == 1 else f"{name} ×{n}" for name, n in counts.most_common())
    return ", ".join(each)


def make_plan(
    graph: Graph,
    options: Options | None = None,
    *,
    fallback: str | None = None,
    pack: Callable[[list[Any]], Any] | None = None,
) -> Plan:
    """Rewrite, cover and schedule a graph.

    Raises: FusionError K909 when an operator has no kernel and no fallback was asked for.
    """
    options = options or Options()
    rewrite(graph)
    graph.validate()
    cover = join(graph, choose_cover(graph, options), options)
    lowered = {name: m.pattern.lower(graph, m, options) for name, m in cover.matches.items()}
    needed = _needed(graph, lowered)
    uncovered = _uncovered(graph, [name for name in needed if name not in lowered], cover)
    if uncovered and fallback != "numpy":
        raise _no_kernel(graph, uncovered)
    steps = [
        NumpyStep(graph, graph[name], uncovered[name]) if name in uncovered else lowered[name]
        for name in needed
    ]
    return Plan(graph, in_launch_order(graph, steps), cover, uncovered, options, pack)


def in_launch_order(graph: Graph, steps: Sequence[Step]) -> list[Step]:
    """The steps, each behind those whose values it reads, otherwise as the graph has them."""
    import networkx as nx

    maker = {node.name: index for index, step in enumerate(steps) for node in step.outputs}
    waits: nx.DiGraph[int] = nx.DiGraph()
    waits.add_nodes_from(range(len(steps)))
    for index, step in enumerate(steps):
        waits.add_edges_from((maker[name], index) for name in step.reads if name in maker)
    order = {node.name: place for place, node in enumerate(graph)}
    last = [max(order[node.name] for node in step.outputs) for step in steps]
    return [steps[i] for i in nx.lexicographical_topological_sort(waits, key=last.__getitem__)]


def _needed(graph: Graph, lowered: Mapping[str, KernelCall]) -> list[str]:
    """Steps that the outputs need, by the names of their last values, in topological order."""
    maker = {node.name: name for name, call in lowered.items() for node in call.outputs}
    found: list[str] = []
    seen: set[str] = set()
    stack = [stored(graph, output)[0] for output in graph.outputs]
    while stack:
        node = stack.pop()
        name = maker.get(node.name, node.name)
        if name in seen or node.op.name in SOURCES:
            continue
        seen.add(name)
        found.append(name)
        if name in lowered:
            stack.extend(graph[read] for read in lowered[name].reads)
        else:
            stack.extend(stored(graph, operand)[0] for operand in graph.operands(node))
    order = {node.name: place for place, node in enumerate(graph)}
    return sorted(found, key=order.__getitem__)


def _uncovered(graph: Graph, names: Sequence[str], cover: Cover) -> dict[str, Reason]:
    """Why each of these nodes, in topological order, has no kernel."""
    found: dict[str, Reason] = {}
    for name in names:
        node = graph[name]
        before = next((x.name for x in graph.operands(node) if x.name in found), None)
        if name in cover.reasons:
            found[name] = cover.reasons[name]
        elif before is not None:
            code = found[before].code
            found[name] = Reason(code, f"it follows {before}, which has no kernel")
        else:
            found[name] = _no_pattern(node)
    return found


def _no_pattern(node: Node) -> Reason:
    return Reason(
        "KF-PATTERN",
        f"no pattern contains {node.op.name} here",
    )


_MOST_NOTES = 20


def _no_kernel(graph: Graph, uncovered: Mapping[str, Reason]) -> FusionError:
    operators = [node for node in graph if not is_free(node)]
    first = graph[next(iter(uncovered))]
    told = list(uncovered.items())[:_MOST_NOTES]
    notes = [f"{name} ({line_of(graph[name].loc)}) {why}" for name, why in told]
    if len(told) < len(uncovered):
        notes.append(f"and {len(uncovered) - len(told)} more")
    fix = next((why.fix for why in uncovered.values() if why.fix), "change the function")
    return FusionError(
        f"{len(uncovered)} of {len(operators)} operators have no kernel: "
        f"{_counted(graph, uncovered)}",
        code="K909",
        loc=first.loc,
        notes=notes,
        fix=f'{fix}; or run them in NumPy: @kf.fuse(fallback="numpy")',
    )
