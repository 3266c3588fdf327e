"""Gated products in one kernel against PyTorch: act(x · Wgᵀ) * (x · Wuᵀ), by turns.

    python3 benchmarks/gpu/mlp.py --seconds 95

All sides of a shape (kdsl's plans, torch eager and torch.compile, with two weights or with one that
holds both, and a kernel of Triton's) run as CUDA graphs over rotating buffers of normal bf16. Each
is first checked against f64 at sampled places. The ratio is the fastest of the others over the
fastest of kdsl's; "chosen" is the plan that kdsl takes when nothing was measured. With `--down`,
the product behind it is timed, too, on all sides.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton_peers
from shapes import SHAPES_FILE, buffer_sets
from sides import Result, Sides, run

import kdsl_core as kd
from kdsl_fuse.kernels import gemm_sm90_plan
from kdsl_fuse.kernels.gated_sm90_plan import GatedPlan, candidates, choose, gated, gelu, silu
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, parse

functional = torch.nn.functional
ACTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {  # kdsl's, PyTorch's
    "swiglu": (silu, functional.silu),
    "geglu": (gelu, lambda x: functional.gelu(x, approximate="tanh")),
}
SAMPLED = 128  # rows and columns that are computed in f64
KEPT = 3  # of kdsl's plans, timed by turns


@dataclass(frozen=True)
class Case:
    """(m, hidden) · two weights (inner, hidden)ᵀ, and with `down` (hidden, inner)ᵀ behind them."""

    m: int
    hidden: int
    inner: int
    act: str
    down: bool = False

    @property
    def name(self) -> str:
        """One of a kind."""
        tail = " + down" if self.down else ""
        return f"{self.m}x{self.hidden}x{self.inner} {self.act}{tail}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        return 2 * self.m * self.hidden * self.inner * (3 if self.down else 2)

    @property
    def bytes(self) -> int:
        """Weights, operand and result."""
        weights = self.hidden * self.inner * (3 if self.down else 2)
        return 2 * (weights + self.m * (self.hidden + self.inner))


class Set:
    """One set of buffers; `gate` and `up` are the halves of `both`, as a user may keep them."""

    def __init__(self, case: Case) -> None:
        m, hidden, inner = case.m, case.hidden, case.inner
        self.x = self.normal(m, hidden)
        self.both = self.normal(2 * inner, hidden) / hidden**0.5
        self.gate, self.up = self.both[:inner], self.both[inner:]
        self.c = torch.empty(m, inner, device="cuda", dtype=torch.bfloat16)
        if case.down:
            self.down = self.normal(hidden, inner) / inner**0.5
            self.y = torch.empty(m, hidden, device="cuda", dtype=torch.bfloat16)

    @staticmethod
    def normal(*shape: int) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def sides_of(case: Case) -> Sides:
    """Buffers, and the result in f64 at sampled rows and columns."""
    sets = [Set(case) for _ in range(buffer_sets(case.bytes))]
    first, act = sets[0], ACTS[case.act][1]
    width = case.hidden if case.down else case.inner
    rows, columns = (torch.randint(0, n, (SAMPLED,), device="cuda") for n in (case.m, width))
    kept = slice(None) if case.down else columns
    x = first.x[rows].double()
    gate, up = (x @ w[kept].double().T for w in (first.gate, first.up))
    exact = act(gate) * up
    if case.down:
        exact = exact @ first.down[columns].double().T
    return Sides(
        sets, exact, lambda y: y[rows][:, columns], lambda s: (s.c, s.y) if case.down else (s.c,)
    )


def ours(plan: GatedPlan, case: Case) -> Callable[[Set], torch.Tensor]:
    """A plan of kdsl's."""
    epilogue = gated(ACTS[case.act][0])
    down = gemm_sm90_plan.choose(case.m, case.hidden, case.inner, kd.bf16) if case.down else None

    def launch(s: Set) -> torch.Tensor:
        plan.run(s.x, s.gate, s.up, s.c, epilogue=epilogue)
        if down is None:
            return s.c
        down.run(s.c, s.down, s.y)
        return s.y

    return launch


def peers(case: Case) -> dict[str, Callable[[Set], torch.Tensor]]:
    """The ways to write it with PyTorch."""
    act = ACTS[case.act][1]

    def two(s: Set) -> torch.Tensor:
        return _two(s.x, s.gate, s.up, s.down if case.down else None)

    def merged(s: Set) -> torch.Tensor:
        return _merged(s.x, s.both, s.down if case.down else None)

    def _two(x: Any, gate: Any, up: Any, down: Any) -> Any:
        h = act(functional.linear(x, gate)) * functional.linear(x, up)
        return h if down is None else functional.linear(h, down)

    def _merged(x: Any, both: Any, down: Any) -> Any:
        gate, up = functional.linear(x, both).chunk(2, dim=-1)
        h = act(gate) * up
        return h if down is None else functional.linear(h, down)

    compiled_two = torch.compile(_two, dynamic=False)
    compiled_merged = torch.compile(_merged, dynamic=False)
    return {
        "torch eager": two,
        "torch eager, one weight": merged,
        "torch.compile": lambda s: compiled_two(s.x, s.gate, s.up, s.down if case.down else None),
        "torch.compile, one weight": lambda s: compiled_merged(
            s.x, s.both, s.down if case.down else None
        ),
    }


def tritons(case: Case) -> dict[str, Callable[[Set], torch.Tensor]]:
    """Triton's kernel of the gated product; what follows is PyTorch's."""
    found = triton_peers.gated(case.m, case.inner, case.hidden, case.act)
    if not case.down:
        return found

    def behind(first: Callable[[Set], torch.Tensor]) -> Callable[[Set], torch.Tensor]:
        return lambda s: functional.linear(first(s), s.down)

    return {name: behind(first) for name, first in found.items()}


def plans_of(case: Case, options: argparse.Namespace) -> list[GatedPlan]:
    """kdsl's plans: the chosen one first, then stated ones or candidates."""
    sizes = case.m, case.inner, case.hidden
    first = choose(*sizes, kd.bf16)
    if options.plans:
        problem = first.both.problem
        return [first, *(GatedPlan(Sm90Plan(problem, *parse(text))) for text in options.plans)]
    return [first, *candidates(*sizes, kd.bf16, limit=options.candidates)]


def measure(case: Case, options: argparse.Namespace) -> Result:
    """All that is known of a case after measuring it."""
    sides = sides_of(case)
    for name, launch in (*peers(case).items(), *tritons(case).items()):
        sides.add(name, launch)
    plans = plans_of(case, options)
    for plan in plans:
        sides.add(f"kdsl {plan}", ours(plan, case))
    chosen = f"kdsl {plans[0]}"
    best = [*sides.quickest("torch", 4), *sides.quickest("Triton", 1)]
    best += sides.quickest("kdsl", KEPT)
    best += [chosen] if chosen in sides.launches else []
    return {
        "name": case.name, "flops": case.flops, "bytes": case.bytes, "chosen": chosen,
        **sides.timed(best, options.seconds_per_shape),
    }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--shapes", nargs="+", metavar="MxHxI", help="only these")
    words.add_argument("--plans", nargs="+", help="of kdsl's, instead of candidates")
    words.add_argument("--candidates", type=int, default=4, help="of the model's, beside others")
    words.add_argument("--down", action="store_true", help="with the product behind")
    words.add_argument("--seconds-per-shape", type=float, default=1.5)
    words.add_argument("--seconds", type=float, default=95.0, help="no shape is begun behind it")
    return words


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/mlp.json."""
    options = parser().parse_args()
    rows = tomllib.loads(SHAPES_FILE.read_text())["fused_mlp"]["gated"]
    cases = [Case(*row, down=options.down) for row in rows]
    if options.shapes:
        cases = [c for c in cases if f"{c.m}x{c.hidden}x{c.inner}" in options.shapes]
    run(cases, partial(measure, options=options), options.seconds, "mlp")


if __name__ == "__main__":
    main()
