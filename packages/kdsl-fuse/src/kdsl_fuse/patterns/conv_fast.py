"""Convolutions by the fast kernels: which family one belongs to, and its call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kdsl_core.dtypes import DType
from kdsl_fuse import arrays
from kdsl_fuse.calls import KernelCall, Operand, Preparation
from kdsl_fuse.elements import VALUE
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.match import Facts
from kdsl_fuse.patterns.base import Example, Match, Options
from kdsl_fuse.patterns.conv_direct import ConvDirect
from kdsl_fuse.patterns.conv_forms import guard, operands_of, problem_of
from kdsl_fuse.patterns.folds import Fold, as_is
from kdsl_fuse.patterns.plan_call import PlanCall
from kdsl_fuse.patterns.products import target_refusal
from kdsl_fuse.patterns.tails import build_tail, with_tails
from kdsl_fuse.reasons import Reason
from kdsl_fuse.tail import Tail


@dataclass(frozen=True, eq=False)
class ConvForm:
    """output = tail(images convolved with filters, extras…), and the sizes of all."""

    problem: ConvProblem
    images: Operand
    filters: Operand
    output: Node
    extras: tuple[Operand, ...] = ()
    tail: Tail = field(default_factory=Tail)

    @property
    def dtype(self) -> DType:
        """The type of images and filters."""
        return self.images.dtype

    @property
    def matrices(self) -> int:
        """How many extras have an element for each pixel."""
        return sum(any(extra.strides[:3]) for extra in self.extras)

    @classmethod
    def of(cls, graph: Graph, anchor: Node) -> ConvForm | Reason:
        """A convolution by itself, or why no fast kernel takes one like it."""
        problem, (images, filters) = problem_of(graph, anchor), operands_of(graph, anchor)
        if problem is None:
            pads = list(anchor.op["pads"])
            return Reason("KF-SHAPE", f"padding differs before and behind an axis: {pads}")
        if images.dtype is not filters.dtype:
            both = f"{images.dtype} and {filters.dtype}"
            return Reason("KF-DTYPE", f"images and filters differ in type: {both}")
        return cls(problem, images, filters, anchor)


class FastConv(ABC):
    """What the patterns of the fast kernels share; the rest is theirs, in files of their own.

    `fold` is how a kernel sees extras. A family `same_type` stores results of its operands' type.
    """

    name: str
    examples: tuple[Example, ...]
    anchors: tuple[str, ...] = ("Conv",)
    fold: Fold = staticmethod(as_is)
    same_type = True

    @abstractmethod
    def concerns(self, form: ConvForm) -> bool:
        """Whether the convolution is one of the family's kind."""

    def refusal(self, form: ConvForm, options: Options) -> str | None:
        """Why the family does not compute one of its kind, None where it does."""
        return None

    @abstractmethod
    def plan(self, form: ConvForm, options: Options) -> tuple[Any, Preparation]:
        """The kernel's plan, and how operands are brought into the form that it wants."""

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """The convolution with each tail that has one way out, the longest first."""
        refusal = guard((*facts.graph.operands(anchor), anchor)) or target_refusal(options.target)
        if refusal is not None:
            return refusal
        form = ConvForm.of(facts.graph, anchor)
        if isinstance(form, Reason):
            return form
        if not self.concerns(form):
            return []
        refused = self.refusal(form, options)
        if refused is not None:
            return Reason("KF-SHAPE", refused)
        found = with_tails(self, facts, anchor, self.fold)
        return [m for m in found if not self.same_type or m.root.dtype is form.dtype]

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The plan's call; the direct kernel's where neighbours of an extra lie apart."""
        form = ConvForm.of(graph, match.anchor)
        assert isinstance(form, ConvForm), f"{match.anchor} was matched"
        tail, extras = build_tail(graph, match, fold=as_is)
        if not all(map(in_pairs, extras)):
            return ConvDirect().lower(graph, match, options)
        form = replace(form, output=match.root, extras=extras, tail=tail)
        plan, preparation = self.plan(form, options)
        return PlanCall.of(
            plan,
            tail,
            operands=(form.images, form.filters),
            extras=extras,
            outputs=(match.root,),
            preparation=preparation,
        )


def in_pairs(extra: Operand) -> bool:
    """Whether two neighbouring filters of an extra can be read at a time, or have no step of 1."""
    if extra.strides[-1] != 1:
        return True
    steps = [step for step, size in zip(extra.strides, extra.shape, strict=True) if size > 1]
    return extra.align % (2 * extra.dtype.bytes) == 0 and all(n % 2 == 0 for n in steps[:-1])


def multiprocessors(options: Options) -> int:
    """Of the GPU that a plan is for."""
    from kdsl_fuse.kernels.gemm_sm90_plan import MULTIPROCESSORS

    return MULTIPROCESSORS if options.chip is None else options.chip.multiprocessors


class Packed(Preparation):
    """Copies in row-major order of images and filters that a kernel does not take as they lie."""

    def __init__(self, wanted: Sequence[bool]) -> None:
        self.wanted = tuple(wanted)

    def operands(self, views: Sequence[Any]) -> Sequence[Any]:
        """The views, or copies of those that are wanted otherwise."""
        return [packed(x) if copy else x for x, copy in zip(views, self.wanted, strict=True)]


def packed(x: Any) -> Any:
    """A row-major copy, on the array's current stream."""
    from kdsl_fuse.kernels.elementwise import choose

    spec = arrays.spec_of(x)
    assert spec is not None, "operands are arrays"
    copy = arrays.empty(spec.shape, spec.dtype, x)
    choose((copy,), (x,)).run(VALUE, copy, x)
    return copy
