"""Reductions over other axes than the last: neighbouring threads take neighbouring columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kdsl_core.dtypes import boolean
from kdsl_fuse import arrays, calls
from kdsl_fuse.calls import KernelCall, Needed, Operand, Preparation
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.origin import line_of
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.pointwise import computable, overlaps
from kdsl_fuse.patterns.row_forms import REDUCTIONS
from kdsl_fuse.reasons import Reason


class Columns:
    """A reduction over one axis, or several that follow each other, but not the last."""

    name = "columns"
    anchors: tuple[str, ...] = tuple(REDUCTIONS)
    examples: tuple[Example, ...] = (
        Example("a sum of rows", lambda kf, x: kf.sum(x, axis=0), (("bf16", (20, 48)),)),
        Example("means in parts", lambda kf, x: kf.mean(x, axis=0), (("f32", (300, 10)),)),
        Example(
            "a largest along a middle axis",
            lambda kf, x: kf.max(x, axis=1, keepdims=True),
            (("f16", (3, 9, 16)),),
        ),
        Example(
            "a product of two axes", lambda kf, x: kf.prod(x, axis=(0, 1)), (("f32", (3, 5, 8)),)
        ),
    )

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The reduction by itself."""
        (x,) = facts.graph.operands(anchor)
        if x.rank - 1 in anchor.op["axes"]:
            return []
        if x.dtype is boolean:
            return Reason("KF-DTYPE", f"truth values have no {anchor.op.name}: cast {x}")
        if 0 in x.shape:
            return Reason("KF-SHAPE", f"{anchor.name} reduces {x}, which has no elements")
        if _turned(facts.graph, anchor) is None:
            return Reason(
                "KF-LAYOUT",
                f"axes {list(anchor.op['axes'])} of {x}, which {anchor.name} "
                f"({line_of(anchor.loc)}) reads, do not follow each other in memory",
                fix="reduce one of these axes after the other",
            )
        return computable(facts.graph, anchor) or [Match(self, (anchor,))]

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of `kernels/columns.py`, or two for a tall array."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.columns import choose, columns

        node = match.anchor
        read = _turned(graph, node)
        assert read is not None, f"the guard let {node} pass"
        result = kd.spec(node.dtype, read.shape[1:])
        name = REDUCTIONS[node.op.name]
        plan = choose(name, Preparation().spec(read), result, overlap=overlaps(options))
        common: dict[str, Any] = {
            "name": "columns",
            "kernel": columns,
            "grid": plan.grid(plan.config),
            "block": (plan.config.threads,),
            "operands": (read.seen_as(replace(plan.source, offset=read.layout.offset)),),
            "extras": (),
            "outputs": match.stores,
            "seen": (plan.target,),
            "statics": plan.statics(plan.config),
            "summary": f"{plan.config.width} columns a thread, rows in {plan.config.parts} parts",
            "overlap": plan.config.overlap,
        }
        return KernelCall(**common) if plan.second is None else TallCall(**common, plan=plan)


def _turned(graph: Graph, node: Node) -> Operand | None:
    """What a reduction reads, its axes as the first one; None where they cannot be one."""
    (x,) = graph.operands(node)
    axes = node.op["axes"]
    kept = [axis for axis in range(x.rank) if axis not in axes]
    read = calls.operand(graph, x)
    rest = tuple(x.shape[axis] for axis in kept)
    turned = read.layout.permuted((*axes, *kept))
    layout = turned.reshaped((math.prod(x.shape[axis] for axis in axes), *rest))
    return None if layout is None else read.seen_as(layout)


@dataclass(eq=False)
class TallCall(KernelCall):
    """A launch that leaves parts of a reduction, and one that combines them."""

    plan: Any = None

    def run(self, values: Mapping[str, Any], outputs: Sequence[Any] | None = None) -> Any:
        """Both launches on arrays by value name; returns the output."""
        (output,) = self.empty_outputs(values) if outputs is None else outputs
        x, parts = self.arguments(values)
        self.launch(x, parts, **self.statics)
        self._second(parts, arrays.view(output, self.plan.target))
        return output

    def _second(self, parts: Any, target: Any) -> None:
        config = self.plan.second
        launch = self.kernel.configure(
            grid=self.plan.grid(config), block=config.threads, overlap=config.overlap
        )
        launch(parts, target, **self.plan.statics(config))

    def arguments(self, values: Mapping[str, Any], *outputs: Any) -> list[Any]:
        """The array arguments of the first launch."""
        x = self.operands[0].view(values)
        held = arrays.empty((self.plan.config.parts, self.plan.wide), self.plan.held, x)
        return [x, arrays.view(held, self.plan.parts)]

    def simulate(self, values: Mapping[str, Any], **options: Any) -> Any:
        """Both launches in the simulator, with the findings of both."""
        import kdsl_core as kd

        x, parts = self.arguments(values)
        target = arrays.view(self.empty_outputs(values)[0], self.plan.target)
        first = kd.simulate(
            self.kernel, grid=self.grid, block=self.block, args=(x, parts),
            kwargs=dict(self.statics), **options,
        )  # fmt: skip
        config = self.plan.second
        second = kd.simulate(
            self.kernel, grid=self.plan.grid(config), block=config.threads, args=(parts, target),
            kwargs=self.plan.statics(config), **options,
        )  # fmt: skip
        outputs, names = (first.outputs[0], second.outputs[1]), (first.names[0], second.names[1])
        return replace(first.followed_by(second), outputs=outputs, names=names)

    def specs(self) -> Sequence[Any]:
        """The array arguments of the first launch as `kd.spec`s."""
        return [self.preparation.spec(self.operands[0]), self._parts()]

    def _parts(self) -> Any:
        import kdsl_core as kd

        return kd.spec(self.plan.held, self.plan.parts.shape, strides=self.plan.parts.strides)

    def needs(self) -> list[Needed]:
        """The kernels of both launches, for arrays at multiples of 16 bytes."""
        import kdsl_core as kd

        config, target = self.plan.second, self.plan.target
        result = kd.spec(self.output.dtype, target.shape, strides=target.strides)
        second = self.kernel.specialisation(
            self._parts(), result, block=config.threads, **self.plan.statics(config)
        )
        return [*super().needs(), (self.kernel, second)]
