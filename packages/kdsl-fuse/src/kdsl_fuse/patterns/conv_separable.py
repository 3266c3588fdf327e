"""A depthwise convolution and the pointwise one behind it in one kernel, as in MobileNet."""

from __future__ import annotations

from functools import partial
from typing import Any

from kdsl_fuse.calls import KernelCall, Operand, Preparation
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts, grow_tail, side_nodes
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.conv_chain import tail_of, up_to
from kdsl_fuse.patterns.conv_fast import ConvForm, in_pairs, multiprocessors
from kdsl_fuse.patterns.conv_forms import guard
from kdsl_fuse.patterns.folds import as_is
from kdsl_fuse.patterns.plan_call import PlanCall
from kdsl_fuse.patterns.tails import admit, evaluable, storable
from kdsl_fuse.reasons import Reason

CERTAIN = 0.9  # of two kernels' time, which one must not exceed by the model
MOST_FILTERS = 64  # with which an H200 needed less time


class ConvSeparable:
    """act(conv(act(depthwise(x, w) + b …), v) + c …) + residual …: `conv_separable`.

    f16 and bf16 on Hopper, where one kernel is faster than two.
    """

    name = "conv_separable"
    anchors: tuple[str, ...] = ("Conv",)
    examples: tuple[Example, ...] = (
        Example(
            "3×3, two biases and ReLU6",
            lambda kf, x, w, b, v, c: 0.1 * kf.conv2d(
                kf.clip(kf.conv2d(x, w, b, padding=1, groups=32), 0.0, 6.0), v, c
            ),
            (("bf16", (2, 9, 10, 32)), ("bf16", (32, 3, 3, 1)), ("bf16", (32,)),
             ("bf16", (24, 1, 1, 32)), ("bf16", (24,))),
            target="sm_90a",
        ),
        Example(
            "with a stride, norms, and a residual, in NCHW",
            lambda kf, x, w, s, t, v, r: 0.1 * _last(kf, _first(kf, x, w) * s + t, v) + r,
            (("f16", (1, 8, 9, 40)), ("f16", (40, 1, 3, 3)), ("f16", (40, 1, 1)),
             ("f16", (40, 1, 1)), ("f16", (16, 40, 1, 1)), ("f16", (1, 4, 5, 16))),
            target="sm_90a",
        ),
    )  # fmt: skip

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """Both convolutions and what is between them, with each tail that has one way out."""
        form = ConvForm.of(facts.graph, anchor)
        if isinstance(form, Reason) or not form.problem.depthwise:
            return []
        head, product = up_to(facts, anchor, "Conv")
        if product is None or not _is_product(facts.graph, product):
            return []
        graph = facts.graph
        refused = guard((*graph.operands(anchor), anchor, *graph.operands(product), product))
        refused = refused or _refusal(form, graph, head, product, options)
        if refused is not None:
            return refused
        gain = _gain_us(_problem(form, product), options)
        if isinstance(gain, Reason):
            return gain
        return self._with_tails(facts, head, product, form, gain - _counted_us(head[-1]))

    def _with_tails(
        self, facts: Facts, head: list[Node], product: Node, form: ConvForm, preference_us: float
    ) -> list[Match] | Reason:
        """A match with each tail behind the product that has one way out."""
        graph, anchor = facts.graph, head[0]
        growth = grow_tail(facts, [product], admit(graph, product, as_is), storable)
        between = side_nodes(facts, head, partial(evaluable, graph, anchor, fold=as_is))
        simple = partial(evaluable, graph, product, fold=as_is)
        found = []
        for size in reversed(growth.cuts):
            behind = growth.members[:size]
            if behind[-1].dtype is not form.dtype:
                continue
            extra = {*between, *side_nodes(facts, behind, simple)}
            match = Match(
                self, (*head, *behind),
                recomputed=tuple(sorted(extra, key=lambda node: facts.order[node.name])),
                refused=growth.reasons if size == growth.cuts[-1] else {},
                preference_us=preference_us,
            )  # fmt: skip
            epilogue, extras = _tails(graph, match)
            if not all(map(_for_channels, extras[: epilogue.first])):
                return Reason(
                    "KF-LAYOUT",
                    "between the convolutions one kernel reads numbers of channels, none of pixels",
                )
            if all(map(in_pairs, extras)):
                found.append(match)
        return found

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """One launch of the kernel for both."""
        from kdsl_fuse.kernels.conv_separable_plan import choose

        form = ConvForm.of(graph, match.anchor)
        assert isinstance(form, ConvForm), f"{match.anchor} was matched"
        epilogue, extras = _tails(graph, match)
        product = _product_of(match)
        problem = _problem(form, product)
        plan = choose(problem, epilogue.first, multiprocessors(options))
        second = ConvForm.of(graph, product)
        assert isinstance(second, ConvForm), f"{product} was matched"
        return PlanCall.of(
            plan,
            epilogue,
            name="conv_separable_sm90",
            operands=(form.images, form.filters, second.filters),
            extras=extras,
            outputs=(match.root,),
        )


def _first(kf: Any, x: Any, w: Any) -> Any:
    """A depthwise convolution in NCHW."""
    return kf.conv2d(kf.transpose(x, (0, 3, 1, 2)), w, None, 2, 1, groups=40, layout="NCHW")


def _last(kf: Any, x: Any, v: Any) -> Any:
    """A pointwise convolution in NCHW, with its channels behind pixels again."""
    return kf.transpose(kf.conv2d(kf.relu(x), v, layout="NCHW"), (0, 2, 3, 1))


def _is_product(graph: Graph, node: Node) -> bool:
    """Whether a convolution's windows are the pixels themselves, of one type with the filters."""
    x, w = graph.operands(node)
    plain = w.shape[1:3] == node.op["stride"] == (1, 1) and node.op["groups"] == 1
    return plain and not any(node.op["pads"]) and x.dtype is w.dtype


def _problem(form: ConvForm, product: Node) -> Any:
    from kdsl_fuse.kernels.conv_separable_model import SeparableProblem

    return SeparableProblem(form.problem, product.shape[3])


def _gain_us(problem: Any, options: Options) -> float | Reason:
    """How much faster one kernel is than two, about; the refusal where it is not for certain."""
    from kdsl_fuse.kernels.conv_separable_model import apart_us
    from kdsl_fuse.kernels.conv_separable_plan import choose

    count = multiprocessors(options)
    one, two = choose(problem, 0, count).about_us, apart_us(problem, count)
    if one > CERTAIN * two:
        text = f"one kernel for both convolutions would take about {one:.1f} µs, two {two:.1f} µs"
        return Reason("KF-COST", text)
    if problem.filters > MOST_FILTERS:
        text = f"one kernel was not faster than two with more than {MOST_FILTERS} pointwise filters"
        return Reason("KF-COST", f"{text}, and there are {problem.filters}")
    return two - one


def _counted_us(between: Node) -> float:
    """What the cover counts by itself where a value is neither written nor read back."""
    from kdsl_fuse.cost import BYTES_PER_US, LAUNCH_US  # which asks patterns for their matches

    return 2 * between.bytes / BYTES_PER_US + LAUNCH_US


def _refusal(
    form: ConvForm, graph: Graph, head: list[Node], product: Node, options: Options
) -> Reason | None:
    """Why the kernel does not take these convolutions as they lie, None where it does."""
    from kdsl_fuse.kernels.conv_separable_plan import lie_well, refusal

    if head[-1].dtype is not form.dtype:
        return Reason(
            "KF-DTYPE",
            f"one kernel for both convolutions rounds to {form.dtype} between them, and "
            f"{head[-1].name} is {head[-1].dtype}",
        )
    why = refusal(_problem(form, product), form.dtype, options.target)
    if why is not None:
        return Reason("KF-SHAPE", f"no kernel for both convolutions: {why}")
    second = ConvForm.of(graph, product)
    assert isinstance(second, ConvForm), "it is a product"
    operands = form.images, form.filters, second.filters
    if not lie_well(*map(Preparation().spec, operands)):
        return Reason(
            "KF-LAYOUT", "one kernel for both convolutions takes NHWC images and dense filters"
        )
    return None


def _product_of(match: Match) -> Node:
    """The pointwise convolution of a match."""
    return next(node for node in match.covered[1:] if node.op.name == "Conv")


def _tails(graph: Graph, match: Match) -> tuple[Any, tuple[Operand, ...]]:
    """What is computed between the convolutions and behind them, and what that loads."""
    from kdsl_fuse.kernels.conv_separable_config import Tails

    at = match.covered.index(_product_of(match))
    before, first = tail_of(graph, match, match.covered[:at])
    behind, others = tail_of(graph, match, match.covered[at:])
    return Tails(before, len(first), behind), (*first, *others)


def _for_channels(extra: Operand) -> bool:
    """Whether there is one number for each channel, or one for all."""
    return not any(extra.strides[:3])
