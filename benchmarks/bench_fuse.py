"""From a Python function of arrays to a plan, by the number of operators."""

from __future__ import annotations

from typing import Any

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_fuse.cover import choose_cover
from kdsl_fuse.patterns import Options
from kdsl_fuse.plan import make_plan
from kdsl_fuse.rewrites import rewrite

OF_A_LAYER = 5


def network(operators: int) -> Any:
    """Residual layers of a product, a bias, GELU, a scale and a sum."""

    def layers(x: Any, w: Any, b: Any) -> Any:
        for _ in range(operators // OF_A_LAYER):
            x = kf.gelu(x @ w + b) * 0.5 + x
        return x

    return layers


def graph(operators: int) -> kf.Graph:
    """Its graph, as it is written."""
    specs = [kd.spec("bf16", shape) for shape in ((64, 64), (64, 64), (64,))]
    return kf.fuse(network(operators)).graph(*specs)


class Plan:
    """Each step of planning: linear, if ten times as many operators take ten times as long."""

    params = (10, 100, 1_000, 10_000)
    param_names = ("operators",)
    timeout = 300
    number = 1

    def setup(self, operators: int) -> None:
        """A graph as it is written, and one in the form that patterns see."""
        self.written, self.plain = graph(operators), graph(operators)
        rewrite(self.plain)

    def time_trace(self, operators: int) -> None:
        """Python function → graph."""
        graph(operators)

    def time_rewrite(self, operators: int) -> None:
        """Graph → its one form."""
        rewrite(self.written)

    def time_cover(self, operators: int) -> None:
        """Graph → disjoint matches."""
        choose_cover(self.plain, Options())

    def time_plan(self, operators: int) -> None:
        """Graph → plan, all steps and the launches of every call."""
        make_plan(self.plain)

    def track_peak_bytes(self, operators: int) -> int:
        """Memory between the launches: two values of 8 KiB, however many layers."""
        return make_plan(self.plain).memory.peak_bytes

    track_peak_bytes.unit = "bytes"  # type: ignore[attr-defined] # how asv learns of it


for _benchmark in vars(Plan).values():
    if getattr(_benchmark, "__name__", "").startswith(("time_", "track_")):
        _benchmark.version = "1"
del _benchmark


def main() -> None:
    """A table of the least of three runs, in ms."""
    from time import process_time

    steps = ("time_trace", "time_rewrite", "time_cover", "time_plan")
    print("operators", *(step.removeprefix("time_") for step in steps), "(ms)")
    for operators in Plan.params:
        least = dict.fromkeys(steps, float("inf"))
        for _ in range(3):
            plan = Plan()
            plan.setup(operators)
            for step in steps:
                start = process_time()
                getattr(plan, step)(operators)
                least[step] = min(least[step], 1e3 * (process_time() - start))
        print(f"{operators:9}", *(f"{least[step]:8.1f}" for step in steps))


if __name__ == "__main__":
    main()
