"""How well the Hopper GEMM's model chooses among measured plans, and its constants fitted anew.

    python3 benchmarks/fit_sm90_model.py results/gpu/gemm_sm90-tuning-h200.json [--seconds 120]

A product's regret is the time of the plan that the model finds fastest, divided by that of the
fastest plan. With `--seconds`, constants move at random to where regrets and errors are smaller;
with `--folds` also without each part of the products in turn, to be judged on that part.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import sm90_tuning as tuning

from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels.gemm_sm90_model import H200, Rates
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan

SHARPNESS = 0.015  # how near to the first a plan's prediction must be to count as chosen
ERROR_WEIGHT, SCALE_WEIGHT = 0.4, 0.1  # of errors within a product, and of the absolute time
STEP = 0.25  # of the logarithm of a constant
Product = list[tuple[model.Problem, Sm90Plan, float]]


def product_of(measured: tuning.Measured) -> Product:
    """(problem as the rows' side sees it, plan, microseconds) of each plan."""
    return [
        (plan.problem.swapped if plan.swap else plan.problem, plan, us)
        for plan, us in measured.plans()
    ]


def sizes(product: Product) -> str:
    """M × N × K."""
    problem = product[0][1].problem
    return f"{problem.m} × {problem.n} × {problem.k}"


def predicted(product: Product, rates: Rates) -> list[float]:
    """Microseconds of each plan by the model."""
    return [
        model.cycles(problem, plan.config, plan.multiprocessors, rates) / model.CYCLES_PER_US
        for problem, plan, _ in product
    ]


def regret(product: Product, rates: Rates = H200) -> float:
    """Time of the model's first plan over the time of the fastest one."""
    guesses = predicted(product, rates)
    first = min(range(len(product)), key=guesses.__getitem__)
    return product[first][2] / min(us for *_, us in product)


def loss(products: list[Product], rates: Rates) -> float:
    """What fitting makes small: regrets, softened so that they have a slope, and errors."""
    return sum(_loss(product, predicted(product, rates)) for product in products) / len(products)


def _loss(product: Product, guesses: list[float]) -> float:
    best, first = min(us for *_, us in product), min(guesses)
    chosen = [math.exp(-math.log(guess / first) / SHARPNESS) for guess in guesses]
    slow = [math.log(us / best) for *_, us in product]
    weights = [(best / us) ** 2 for *_, us in product]  # what is slow need not be known so well
    errors = [math.log(guess / us) for guess, (*_, us) in zip(guesses, product, strict=True)]
    late, bias = _mean(slow, chosen), _mean(errors, weights)
    spread = math.sqrt(_mean([(error - bias) ** 2 for error in errors], weights))
    return late + 2 * late * late + ERROR_WEIGHT * spread + SCALE_WEIGHT * abs(bias)


def _mean(values: list[float], weights: list[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def fit(products: list[Product], rates: Rates, seconds: float, seed: int = 0) -> Rates:
    """Constants with a smaller loss, by random steps for so many seconds."""
    rng, least = random.Random(seed), loss(products, rates)
    names, end = list(asdict(rates)), time.monotonic() + seconds
    while time.monotonic() < end:
        step = STEP * rng.random()
        moved = {
            name: getattr(rates, name) * math.exp(rng.gauss(0, step))
            for name in rng.sample(names, rng.choice((1, 1, 2, 3)))
        }
        other = replace(rates, **moved)
        found = loss(products, other)
        if found < least:
            rates, least = other, found
    return rates


def geomean(values: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def summary(products: list[Product], rates: Rates) -> str:
    """Geometric mean and worst of the regrets."""
    regrets = [regret(product, rates) for product in products]
    return f"regret: geomean {geomean(regrets):.3f}, worst {max(regrets):.3f}"


def table(products: list[Product], rates: Rates) -> str:
    """A line for each product: regret, the model's first plan and its times."""
    lines = []
    for product in products:
        guesses = predicted(product, rates)
        first = min(range(len(product)), key=guesses.__getitem__)
        fastest = min(range(len(product)), key=lambda i: product[i][2])
        lines.append(
            f"{sizes(product):<22} {regret(product, rates):.3f}  "
            f"{product[first][1]}: {guesses[first]:.1f} → {product[first][2]:.1f} µs; "
            f"fastest {product[fastest][1]}: {guesses[fastest]:.1f} → {product[fastest][2]:.1f} µs"
        )
    return "\n".join(lines)


def left_out(
    products: list[Product], start: Rates, folds: int, seconds: float
) -> list[tuple[float, str]]:
    """Each product's regret with constants that were fitted without it, and its sizes."""
    regrets = []
    for fold in range(folds):
        rest = [p for i, p in enumerate(products) if i % folds != fold]
        rates = fit(rest, start, seconds)
        rated = [p for i, p in enumerate(products) if i % folds == fold]
        regrets += [(regret(p, rates), sizes(p)) for p in rated]
    return regrets


def main() -> None:
    """Show regrets, and fit if asked to."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("data", nargs="+", type=Path)
    words.add_argument("--seconds", type=float, default=0.0, help="of fitting; 0: none")
    words.add_argument("--folds", type=int, default=0, help="for the leave-out check; 0: none")
    words.add_argument(
        "--start", type=float, default=1.0, help="constants times this to begin with"
    )
    options = words.parse_args()
    products = [product_of(m) for m in tuning.read(options.data) if not (m.note or m.tail)]
    rates, start = H200, Rates(**{n: v * options.start for n, v in asdict(H200).items()})
    if options.seconds:
        rates = fit(products, start, options.seconds)
        print("\n".join(f"{name} {value:.4g}" for name, value in asdict(rates).items()))
    print(table(products, rates))
    print(summary(products, rates))
    if options.folds:
        found = left_out(products, start, options.folds, options.seconds)
        worst = ", ".join(f"{value:.3f} ({name})" for value, name in sorted(found)[:-6:-1])
        print(f"left out: geomean {geomean(value for value, _ in found):.3f}, worst {worst}")


if __name__ == "__main__":
    main()
