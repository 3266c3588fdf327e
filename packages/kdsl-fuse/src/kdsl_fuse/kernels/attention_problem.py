"""Sizes of an attention and the names of its masks and layouts, as every kernel takes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import kdsl_core as kd
from kdsl_core.lang.arguments import facts_of

LAYOUTS = {"bshd": (1, 3, 2, 0), "bhsd": (2, 3, 1, 0)}
"""Names of operands' modes ↦ where sequence, dimension, head and batch are."""
MASKS = (None, "top-left", "bottom-right")
"""Whether query i sees key j: all, where j <= i, or where j - keys <= i - queries."""
MOST_DIM = 256  # elements of a head


@dataclass(frozen=True)
class AttentionProblem:
    """Sizes of an attention: `heads` of queries share `key_heads` of keys and values evenly."""

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dim: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products, without a mask."""
        return 4 * self.batch * self.heads * self.queries * self.keys * self.dim

    @property
    def sharers(self) -> int:
        """Heads of queries that share keys and values."""
        return self.heads // self.key_heads


def check_names(mask: str | None, layout: str) -> None:
    """Refuse (K951) a mask or a layout that attention does not have."""
    if mask not in MASKS or layout not in LAYOUTS:
        raise kd.ArgumentError(
            f"a mask is one of {MASKS}, a layout one of {', '.join(LAYOUTS)}, got {mask!r} and "
            f"{layout!r}",
            code="K951",
            fix='"bshd" is (batch, sequence, heads, dimension)',
        )


def joined_heads(
    problem: AttentionProblem, mask: str | None
) -> tuple[AttentionProblem, str | None, int]:
    """The problem and mask with heads that share keys as queries of one, and how many they are.

    Where there is one query, unless it sees one key only.
    """
    if problem.queries > 1 or mask == "top-left":
        return problem, mask, 1
    sharers = problem.sharers
    return replace(problem, heads=problem.key_heads, queries=sharers), None, sharers


def problem_of(q: Any, k: Any, v: Any, layout: str = "bshd") -> AttentionProblem:
    """The sizes of operands, once they fit together."""
    check_names(None, layout)
    facts = [facts_of(x, name) for name, x in (("q", q), ("k", k), ("v", v))]
    shapes = [tuple(f.shape) for f in facts]
    if any(len(shape) != 4 for shape in shapes):
        raise unfit(f"q, k and v have four modes, got {shapes}")
    if any(f.dtype is not facts[0].dtype for f in facts) or facts[0].dtype not in (kd.bf16, kd.f16):
        raise kd.ArgumentError(
            f"q, k and v are all f16 or all bf16, got {', '.join(str(f.dtype) for f in facts)}",
            code="K956",
            fix="convert them first",
        )
    seen = [tuple(shape[i] for i in LAYOUTS[layout]) for shape in shapes]
    (queries, dim, heads, batch), (keys, _, key_heads, _), _ = seen
    if seen[1] != seen[2] or seen[1][1::2] != (dim, batch) or heads % max(key_heads, 1):
        raise unfit(
            f"k and v are alike, with the batch and dimension of q, and heads that divide its, in "
            f'layout "{layout}": got {shapes}'
        )
    if min(queries, keys, batch, heads, key_heads) < 1 or not 1 <= dim <= MOST_DIM:
        raise unfit(f"no size may be 0, and heads have up to {MOST_DIM} elements: got {shapes}")
    return AttentionProblem(batch, heads, key_heads, queries, keys, dim)


def unfit(what: str) -> kd.ArgumentError:
    """The error (K953) that says what does not fit."""
    return kd.ArgumentError(
        f"operands of an attention do not fit: {what}",
        code="K953",
        fix='see `layout`: "bshd" is (batch, sequence, heads, dimension)',
    )
