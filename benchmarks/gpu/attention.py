"""Attention against PyTorch's backends (cuDNN, flash, eager, torch.compile) and Triton, by turns.

    python3 benchmarks/gpu/attention.py --seconds 95

The shapes are `attention.forward` and `.decode` of benchmarks/shapes.toml, in bf16 of normal
numbers, laid out (batch, sequence, heads, dimension). Each side is checked against f64 at sampled
queries, then timed as CUDA graphs over rotating buffers. The ratio is the fastest of the others
over the fastest of kdsl's.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import triton_peers
from shapes import SHAPES_FILE, buffer_sets
from sides import Result, Sides, run
from torch.nn.attention import SDPBackend, sdpa_kernel

from kdsl_fuse.kernels import attention_sm80_plan
from kdsl_fuse.kernels.attention_plan import AttentionPlan
from kdsl_fuse.kernels.attention_problem import AttentionProblem
from kdsl_fuse.kernels.attention_sm80_plan import Sm80AttentionPlan
from kdsl_fuse.kernels.attention_sm90_plan import Sm90AttentionPlan, choose

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
PORTABLE = "kdsl sm_80"  # how sides of the kernel for sm_80 are called
SAMPLED = 64  # queries of a few heads that are computed in f64


@dataclass(frozen=True)
class Case:
    """One attention; causal masks are PyTorch's (top-left)."""

    problem: AttentionProblem
    causal: bool

    @classmethod
    def of(cls, row: list[int]) -> Case:
        """From [batch, query heads, key heads, queries, keys, dimension, causal]."""
        batch, heads, key_heads, queries, keys, dim, causal = row
        return cls(AttentionProblem(batch, heads, key_heads, queries, keys, dim), bool(causal))

    @property
    def name(self) -> str:
        """One of a kind."""
        p = self.problem
        tail = " causal" if self.causal else ""
        return f"b{p.batch} h{p.heads}/{p.key_heads} {p.queries}x{p.keys} d{p.dim}{tail}"

    @property
    def flops(self) -> int:
        """Of the scores that count: those on and below the diagonal of a causal mask."""
        p = self.problem
        if not self.causal:
            return p.flops
        seen = sum(min(row + 1, p.keys) for row in range(p.queries))
        return p.flops // (p.queries * p.keys) * seen


class Set:
    """One set of buffers; PyTorch sees them as (batch, heads, sequence, dimension)."""

    def __init__(self, problem: AttentionProblem) -> None:
        p = problem
        sizes = [(p.queries, p.heads), (p.keys, p.key_heads), (p.keys, p.key_heads)]
        self.q, self.k, self.v = (
            torch.randn(p.batch, n, heads, p.dim, device="cuda", dtype=torch.bfloat16)
            for n, heads in sizes
        )
        self.out = torch.empty_like(self.q)

    @property
    def bytes(self) -> int:
        """Of all operands and the result."""
        return sum(x.numel() * x.element_size() for x in (self.q, self.k, self.v, self.out))


def sides_of(case: Case) -> Sides:
    """Buffers, and some queries of a few heads of the last batch in f64."""
    first, p = Set(case.problem), case.problem
    sets = [first, *(Set(p) for _ in range(buffer_sets(first.bytes) - 1))]
    rows = torch.randint(0, p.queries, (SAMPLED,), device="cuda")
    heads = torch.tensor(sorted({0, p.heads // 2, p.heads - 1}), device="cuda")
    q = first.q[-1][rows][:, heads].double().transpose(0, 1)
    shared = heads // (p.heads // p.key_heads)
    k, v = (x[-1][:, shared].double().transpose(0, 1) for x in (first.k, first.v))
    scores = q @ k.transpose(1, 2) / math.sqrt(p.dim)
    if case.causal:
        hidden = torch.arange(p.keys, device="cuda") > rows[:, None]
        scores = scores.masked_fill(hidden, -math.inf)
    exact = scores.softmax(-1) @ v
    return Sides(sets, exact, lambda y: y[-1][rows][:, heads].transpose(0, 1), lambda s: (s.out,))


def peers(case: Case, compiled: bool) -> dict[str, Callable[[Set], torch.Tensor]]:
    """PyTorch's ways."""
    shared = case.problem.heads != case.problem.key_heads

    def sdpa(q: Any, k: Any, v: Any) -> Any:
        found = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), is_causal=case.causal, enable_gqa=shared
        )
        return found.transpose(1, 2)

    def by(backend: SDPBackend) -> Callable[[Set], torch.Tensor]:
        def launch(s: Set) -> torch.Tensor:
            with sdpa_kernel(backend):
                return sdpa(s.q, s.k, s.v)

        return launch

    found = {f"torch {name}": by(backend) for name, backend in BACKENDS.items()}
    found["torch eager"] = lambda s: sdpa(s.q, s.k, s.v)
    if compiled:
        program = torch.compile(sdpa, dynamic=False)
        found["torch.compile"] = lambda s: program(s.q, s.k, s.v)
    return found


def plans_of(case: Case) -> list[Sm90AttentionPlan]:
    """The chosen plan, and others worth a look."""
    first = choose(case.problem, "top-left" if case.causal else None)
    config = first.config
    others = [replace(config, turns=False)]
    if config.dim == 64:
        others += [
            replace(config, columns=192, stages=(2, 2)),
            replace(config, consumers=3, turns=False, stages=(2, 2), registers=(32, 160)),
        ]
    if config.dim == 128 and config.consumers == 2:
        others += [replace(config, columns=n, stages=(2, 2)) for n in (96, 128, 144, 160)]
    return [first, *(replace(first, config=other) for other in others if other != config)]


def portable_plans(case: Case) -> list[Sm80AttentionPlan]:
    """What every GPU since sm_80 can run: the chosen plan, one strip a warp, eight warps."""
    first = attention_sm80_plan.choose(case.problem, "top-left" if case.causal else None)
    config = first.config
    others = [replace(config, strips=1), replace(config, strips=1, warps=8)]
    others += [replace(config, columns=32)] if config.columns > 32 else []
    return [first, *(replace(first, config=other) for other in others if other != config)]


def ours(plan: AttentionPlan) -> Callable[[Set], torch.Tensor]:
    """A plan of kdsl's."""
    scale = 1 / math.sqrt(plan.problem.dim)

    def launch(s: Set) -> torch.Tensor:
        plan.run(s.q, s.k, s.v, s.out, scale=scale)
        return s.out

    return launch


def measure(case: Case, options: argparse.Namespace) -> Result:
    """All that is known of a case after measuring it."""
    sides = sides_of(case)
    tritons = triton_peers.attention(case.problem, case.causal)
    for name, launch in (*peers(case, options.compile).items(), *tritons.items()):
        sides.add(name, launch)
    plans = plans_of(case)[: 1 if options.only_chosen else None]
    for plan in plans:
        sides.add(f"kdsl {plan}", ours(plan))
    for plan in portable_plans(case) if options.ampere else ():
        sides.add(f"{PORTABLE} {plan}", ours(plan))
    quick = sides.quickest("Triton", 1)
    timed = [name for name in sides.launches if name in quick or not name.startswith("Triton")]
    found = sides.timed(timed, options.seconds_per_shape)
    for name, side in found["sides"].items():
        if name.startswith(PORTABLE):
            rate = 1e-12 * case.flops / side["median"]
            print(f"  {name}: {1e6 * side['median']:.1f} µs {rate:.0f} TF", flush=True)
    return {
        "name": case.name, "flops": case.flops, "bytes": sides.sets[0].bytes,
        "chosen": f"kdsl {plans[0]}", **found,
    }  # fmt: skip


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/attention.json."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--cases", nargs="+", type=int, help="numbers of shapes, instead of all")
    words.add_argument("--compile", action="store_true", help="torch.compile, too")
    words.add_argument("--ampere", action="store_true", help="the kernel of sm_80, too")
    words.add_argument("--only-chosen", action="store_true", help="of kdsl's plans")
    words.add_argument("--seconds-per-shape", type=float, default=1.5)
    words.add_argument("--seconds", type=float, default=95.0, help="no shape is begun behind it")
    options = words.parse_args()
    shapes = tomllib.loads(SHAPES_FILE.read_text())["attention"]
    rows = [*shapes["forward"], *shapes["decode"]]
    cases = [Case.of(row) for i, row in enumerate(rows) if i in (options.cases or range(len(rows)))]
    run(cases, partial(measure, options=options), options.seconds, "attention")


if __name__ == "__main__":
    main()
