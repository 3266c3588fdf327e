"""A product with what is done with its rows, in one kernel, against two and PyTorch, by turns.

    python3 benchmarks/gpu/gemm_rows.py --seconds 40 --shapes 8192x256x1024 16384x128x768

Sides are kdsl's plan (the kernel and its launches), the model's other plans for it, the same as a
product and a row-wise kernel ("kdsl apart"), torch eager and torch.compile, as CUDA graphs over
rotating buffers of normal bf16. Each is first checked against f64 at sampled rows. The ratio is
the fastest of PyTorch's over the fastest of kdsl's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from shapes import buffer_sets
from sides import Result, Sides, run

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_fuse.kernels.gemm_rows_sm90_plan import candidates

functional = torch.nn.functional
SAMPLED = 256  # rows that are computed in f64
SHAPES = ("8192x256x1024", "16384x128x768", "131072x256x256")


@dataclass(frozen=True)
class Operation:
    """What is done with the rows of x · wᵀ: in kdsl, behind a product in kdsl, and in PyTorch.

    `values` names what else is read: "b", "s" and "t" are rows, "r" a matrix.
    """

    values: str
    fused: Callable[..., Any]
    product: Callable[..., Any]
    rows: Callable[..., Any]
    torch: Callable[..., Any]


def _norm_in_torch(y: Any, s: Any, t: Any) -> Any:
    return functional.layer_norm(y, y.shape[-1:], s, t)


OPERATIONS = {
    "softmax": Operation(
        "",
        lambda x, w: kf.softmax(x @ w.T),
        lambda x, w: x @ w.T,
        lambda y: kf.softmax(y),
        lambda x, w: functional.softmax(functional.linear(x, w), -1),
    ),
    "bias+layer_norm": Operation(
        "bst",
        lambda x, w, b, s, t: kf.layer_norm(x @ w.T + b, s, t),
        lambda x, w, b, s, t: x @ w.T + b,
        lambda y, b, s, t: kf.layer_norm(y, s, t),
        lambda x, w, b, s, t: _norm_in_torch(functional.linear(x, w, b), s, t),
    ),
    "bias+residual+layer_norm": Operation(
        "brst",
        lambda x, w, b, r, s, t: kf.layer_norm(x @ w.T + b + r, s, t),
        lambda x, w, b, r, s, t: x @ w.T + b + r,
        lambda y, b, r, s, t: kf.layer_norm(y, s, t),
        lambda x, w, b, r, s, t: _norm_in_torch(functional.linear(x, w, b) + r, s, t),
    ),
    "largest": Operation(
        "",
        lambda x, w: kf.max(x @ w.T, axis=-1),
        lambda x, w: x @ w.T,
        lambda y: kf.max(y, axis=-1),
        lambda x, w: functional.linear(x, w).amax(-1),
    ),
}


@dataclass(frozen=True)
class Case:
    """(m, k) · (n, k)ᵀ and an operation on its rows."""

    m: int
    n: int
    k: int
    operation: str

    @property
    def name(self) -> str:
        """One of a kind."""
        return f"{self.m}x{self.n}x{self.k} {self.operation}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Operands and results in bf16."""
        matrices = 0 if self.operation == "largest" else 1 + self.operation.count("residual")
        return 2 * (self.m * self.k + self.n * self.k + matrices * self.m * self.n)


def buffers(case: Case) -> tuple[torch.Tensor, ...]:
    """One set: x, w and what the operation reads."""
    shapes = {"r": (case.m, case.n)}
    read = [shapes.get(x, (case.n,)) for x in OPERATIONS[case.operation].values]
    x, w, *others = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((case.m, case.k), (case.n, case.k), *read)
    )
    return x, w / case.k**0.5, *others


def sides_of(case: Case) -> Sides:
    """Buffers, and the result in f64 at sampled rows."""
    sets = [buffers(case) for _ in range(buffer_sets(case.bytes))]
    rows = torch.randint(0, case.m, (SAMPLED,), device="cuda")
    first = [x[rows] if x.shape[:1] == (case.m,) else x for x in sets[0]]
    exact = OPERATIONS[case.operation].torch(*(x.double() for x in first))
    return Sides(sets, exact, lambda y: y[rows], lambda _: ())


def one_kernel(case: Case, given: tuple[torch.Tensor, ...], choice: Any = None) -> Any:
    """kdsl's plan, or another one of the model's in its place."""
    plan = kf.fuse(OPERATIONS[case.operation].fused).plan(*given)
    (call,) = plan.calls
    if choice is not None:
        made = choice.plan
        call.replace(
            call.kernel, grid=(made.grid,), block=(made.config.threads,), cluster=made.cluster,
            statics={**call.statics, "config": made.config},
        )  # fmt: skip
    return lambda given: plan.run(*given)


def apart(case: Case, given: tuple[torch.Tensor, ...]) -> Any:
    """The product with its tail, and the row-wise kernel, each in a plan of its own."""
    operation = OPERATIONS[case.operation]
    product = kf.fuse(operation.product).plan(*given)
    rows = kf.fuse(operation.rows).plan(product.run(*given), *given[2:])
    return lambda given: rows.run(product.run(*given), *given[2:])


def measure(case: Case, options: argparse.Namespace) -> Result:
    """All that is known of a case after measuring it."""
    sides, operation = sides_of(case), OPERATIONS[case.operation]
    given = sides.sets[0]
    compiled = torch.compile(operation.torch, dynamic=False)
    programs = {
        "torch eager": lambda given: operation.torch(*given),
        "torch.compile": lambda given: compiled(*given),
        "kdsl": one_kernel(case, given),
        "kdsl apart": apart(case, given),
    }
    for choice in candidates(case.m, case.n, case.k, kd.bf16, limit=options.candidates):
        programs[f"kdsl {choice}"] = one_kernel(case, given, choice)
    for name, program in programs.items():
        sides.add(name, program)
    timed = sides.timed(sides.launches, options.seconds_per_shape)
    told = {name: side["median"] * 1e6 for name, side in timed["sides"].items()}
    print("; ".join(f"{name} {us:.2f} µs" for name, us in told.items()), flush=True)
    facts = {"name": case.name, "flops": case.flops, "bytes": case.bytes, "chosen": "kdsl"}
    return {**facts, **timed}


def main() -> None:
    """Measure, tell each case as it comes, then the table; keep all in $OUT/gemm_rows.json."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--shapes", nargs="+", default=SHAPES, metavar="MxNxK")
    words.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    words.add_argument("--candidates", type=int, default=4, help="of the model's plans")
    words.add_argument("--seconds-per-shape", type=float, default=0.5)
    words.add_argument("--seconds", type=float, default=60.0, help="no case is begun behind it")
    options = words.parse_args()
    sizes = [tuple(map(int, shape.split("x"))) for shape in options.shapes]
    cases = [Case(*size, operation) for size in sizes for operation in options.operations]
    run(cases, partial(measure, options=options), options.seconds, "gemm_rows")


if __name__ == "__main__":
    main()
