"""What a pattern is, and what it returns: a match that lowers to a kernel call, or reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kdsl_core.dtypes import DType
from kdsl_fuse.calls import KernelCall
from kdsl_fuse.graph import Graph, Node
from kdsl_fuse.match import Facts
from kdsl_fuse.reasons import Reason


class GemmKernels(Protocol):
    """The kernel of the GEMM pattern and its planner; `kdsl_fuse.kernels.gemm_sm80` is one."""

    gemm_sm80: Any

    def plan_gemm(
        self, m: int, n: int, k: int, dtype: DType, *, target: str, f32_precision: str
    ) -> tuple[Any, int | Sequence[int], int | Sequence[int]]:
        """Configuration, grid and block for an m×n×k product on `target`."""


DEFAULT_TARGET = "sm_80"  # what is planned for it runs on everything newer
F32_PRECISIONS = ("ieee", "tf32")


@dataclass(frozen=True)
class Chip:
    """The GPU that a plan is for: its name and how many multiprocessors it has."""

    name: str
    multiprocessors: int


@dataclass(frozen=True)
class Options:
    """Choices of the caller that patterns look at.

    `target` bounds the instructions and the shared memory of a kernel. `f32_precision` "tf32" lets
    products of f32 matrices use the tensor cores, which round the operands to 10 mantissa bits;
    "ieee" keeps every bit. `gemm` holds the kernels to use instead of those shipped. `chip` is the
    GPU of the arguments, where one decided the target.
    """

    target: str = DEFAULT_TARGET
    gemm: GemmKernels | None = None
    f32_precision: str = "ieee"
    chip: Chip | None = None

    def __str__(self) -> str:
        return f"target {self.target}, products of f32 in {self.f32_precision}"


@dataclass(frozen=True, eq=False)
class Match:
    """A part of the graph that one kernel computes.

    `covered` are its nodes, the anchor first, operands before consumers; `stores` those of them
    that the kernel writes, the last one unless stated. `recomputed` are nodes outside that it
    evaluates for each element; `refused` holds, by node name, why further nodes stayed outside.
    `role` says in words what the nodes behind the anchor are to it. `preference_us` is added to
    what the match saves, where a kernel is known to be faster or slower than its memory traffic.
    """

    pattern: Pattern
    covered: tuple[Node, ...]
    stores: tuple[Node, ...] = ()
    recomputed: tuple[Node, ...] = ()
    refused: dict[str, Reason] = field(default_factory=dict)
    role: str = "in one kernel with"
    preference_us: float = 0.0

    def __post_init__(self) -> None:
        if not self.stores:
            object.__setattr__(self, "stores", (self.covered[-1],))

    @property
    def anchor(self) -> Node:
        """The node that the match grew from."""
        return self.covered[0]

    @property
    def root(self) -> Node:
        """The last value that the kernel stores."""
        return self.stores[-1]


@dataclass(frozen=True)
class Example:
    """A function that a pattern covers with one kernel: `function(kf, *arrays)`.

    The tests of every pattern run on its examples: they fuse them, leak each interior value,
    compare the kernel with NumPy, and show them to all other patterns.
    """

    name: str
    function: Callable[..., Any]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    target: str = DEFAULT_TARGET


class Pattern(Protocol):
    """A family of sub-graphs that one kernel family computes.

    A pattern with a true `fills` is asked for what is left when the others have their nodes. One
    with a true `generic` takes what better ones refuse, and plans tell why they did.
    """

    name: str
    anchors: tuple[str, ...]
    examples: tuple[Example, ...]

    def match(self, facts: Facts, anchor: Node, options: Options) -> list[Match] | Reason:
        """Every match at `anchor`, a node whose operator is one of `anchors`, or why there is none.

        An empty list says that the node is none of this pattern's business.

        Each match must be computable by itself; the cover takes at most one of them, those with
        the most nodes if nothing else wants these. That no interior value escapes is checked for
        all patterns at once.
        """

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The kernel call that computes the match; its outputs are what the match stores."""
