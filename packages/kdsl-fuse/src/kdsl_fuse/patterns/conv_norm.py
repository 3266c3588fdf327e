"""A depthwise convolution and a LayerNorm over its channels in one kernel, as in ConvNeXt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kdsl_fuse.calls import KernelCall, Preparation
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, grow_tail, side_nodes
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.conv_chain import tail_of, up_to
from kdsl_fuse.patterns.conv_fast import ConvForm
from kdsl_fuse.patterns.conv_forms import guard
from kdsl_fuse.patterns.folds import as_is
from kdsl_fuse.patterns.plan_call import PlanCall
from kdsl_fuse.patterns.tails import admit, as_seen, evaluable, storable
from kdsl_fuse.reasons import Reason
from kdsl_fuse.tail import Tail

NORM = "LayerNormalization"


@dataclass(frozen=True)
class Behind:
    """What follows a normalised value: · scale + shift, as far as there are such, then a tail."""

    parameters: int
    tail: Tail

    def __call__(self, value: Any, *extras: Any) -> Any:
        """tail(value · scale + shift, other extras…)."""
        import kdsl_core as kd

        scale, shift = ([*(x.to(kd.f32) for x in extras[: self.parameters]), None, None])[:2]
        value = value if scale is None else value * scale
        value = value if shift is None else value + shift
        return self.tail(value, *extras[self.parameters :])


class ConvNorm:
    """norm(act(conv(x, w) + b …)) · scale + shift, and a tail, where each channel is a group.

    f16 and bf16 on Hopper, where a cluster's blocks hold all channels of a pixel.
    """

    name = "conv_norm"
    anchors: tuple[str, ...] = ("Conv",)
    examples: tuple[Example, ...] = (
        Example(
            "7×7, a bias, a norm",
            lambda kf, x, w, b, s, t: kf.layer_norm(
                kf.conv2d(x, w, b, padding=3, groups=32), s, t, epsilon=1e-6
            ),
            (("bf16", (1, 9, 10, 32)), ("bf16", (32, 7, 7, 1)), *((("bf16", (32,)),) * 3)),
            target="sm_90a",
        ),
        Example(
            "in NCHW, with a tail and a residual",
            lambda kf, x, w, s, r: kf.gelu(kf.layer_norm(_last(kf, x, w), s)) + r,
            (("f16", (1, 8, 8, 64)), ("f16", (64, 1, 7, 7)), ("f16", (64,)),
             ("f16", (1, 8, 8, 64))),
            target="sm_90a",
        ),
    )  # fmt: skip

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The convolution, its norm, and each tail that has one way out."""
        form = ConvForm.of(facts.graph, anchor)
        head, norm = up_to(facts, anchor, NORM)
        if norm is None or isinstance(form, Reason) or not _over_channels(norm, head):
            return []
        if not _fits(form, norm, options):
            return []
        refused = guard((*facts.graph.operands(anchor), anchor))
        if refused is not None:
            return refused
        growth = grow_tail(facts, [norm], admit(facts.graph, anchor, as_is), storable)
        simple = partial(evaluable, facts.graph, anchor, fold=as_is)
        found = []
        for size in reversed(growth.cuts):
            behind = growth.members[:size]
            if behind[-1].dtype is not form.dtype:
                continue
            extra = {*side_nodes(facts, head, simple), *side_nodes(facts, behind, simple)}
            recomputed = tuple(sorted(extra, key=lambda node: facts.order[node.name]))
            found.append(
                Match(
                    self, (*head, *behind), recomputed=recomputed,
                    refused=growth.reasons if size == growth.cuts[-1] else {},
                    role="in the epilogue of",
                )
            )  # fmt: skip
        return found

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of the depthwise kernel that normalises its results."""
        from kdsl_fuse.kernels.conv_depthwise_norm import Normalised
        from kdsl_fuse.kernels.conv_depthwise_norm_plan import choose

        form = ConvForm.of(graph, match.anchor)
        assert isinstance(form, ConvForm), f"{match.anchor} was matched"
        at = next(i for i, node in enumerate(match.covered) if node.op.name == NORM)
        before, first = tail_of(graph, match, match.covered[:at])
        norm = match.covered[at]
        parameters = [as_seen(graph, x, norm.shape, as_is) for x in graph.operands(norm)[1:]]
        tail, others = tail_of(graph, match, match.covered[at:])
        behind = Behind(len(parameters), tail)
        epilogue = Normalised(before, len(first), behind, norm.op["epsilon"])
        plan = choose(form.problem)
        assert plan is not None, f"{match.anchor} was matched"
        return PlanCall.of(
            plan,
            epilogue,
            name="conv_depthwise_norm",
            operands=(form.images, form.filters),
            extras=(*first, *(x for x in parameters if x), *others),
            outputs=(match.root,),
        )


def _last(kf: Any, x: Any, w: Any) -> Any:
    """A convolution in NCHW, with its channels behind pixels again."""
    made = kf.conv2d(kf.transpose(x, (0, 3, 1, 2)), w, padding=3, groups=64, layout="NCHW")
    return kf.transpose(made, (0, 2, 3, 1))


def _over_channels(norm: Node, head: list[Node]) -> bool:
    """Whether the kernel normalises what it would not round before."""
    return norm.op["axis"] == norm.rank - 1 and head[-1].op.name != "Cast"


def _fits(form: ConvForm, norm: Node, options: Options) -> bool:
    """Whether the kernel takes the convolution, and arrays as they lie."""
    import kdsl_core as kd
    from kdsl_fuse.kernels.conv_depthwise_norm_plan import refusal
    from kdsl_fuse.kernels.conv_depthwise_plan import access_width

    if not form.problem.depthwise or refusal(form.problem, form.dtype, options.target) is not None:
        return False
    x, w = map(Preparation().spec, (form.images, form.filters))
    return access_width(x, w, kd.spec(form.dtype, norm.shape), ()) is None
