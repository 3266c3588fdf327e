"""What a pattern is, and what it returns: a match that lowers to a kernel call, or reasons."""

from __future__ import annotations

from collections.abc import Sequence, Set
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
        self, m: int, n: int, k: int, a_dtype: DType
    ) -> tuple[Any, int | Sequence[int], int | Sequence[int]]:
        """Configuration, grid and block for an m×n×k product."""


@dataclass(frozen=True)
class Options:
    """Choices of the caller that patterns look at: the target, and the kernels to use."""

    target: str | None = None
    gemm: GemmKernels | None = None


@dataclass(frozen=True, eq=False)
class Match:
    """A part of the graph that one kernel computes.

    `covered` is the anchor and its tail in topological order, its last node the value that is
    stored; `recomputed` are nodes evaluated inside for each element; `refused` holds, by node
    name, why further nodes stayed outside.
    """

    pattern: Pattern
    covered: tuple[Node, ...]
    recomputed: tuple[Node, ...] = ()
    refused: dict[str, Reason] = field(default_factory=dict)

    @property
    def anchor(self) -> Node:
        """The node that the match grew from."""
        return self.covered[0]

    @property
    def root(self) -> Node:
        """The value that the kernel stores."""
        return self.covered[-1]


class Pattern(Protocol):
    """A family of sub-graphs that one kernel family computes."""

    name: str
    anchor: str

    def match(
        self, facts: Facts, anchor: Node, claimed: Set[str], options: Options
    ) -> Match | Reason:
        """The largest legal match at `anchor` that leaves `claimed` nodes alone, or the refusal."""

    def lower(self, graph: Graph, match: Match, options: Options) -> KernelCall:
        """The kernel call that computes the match."""
