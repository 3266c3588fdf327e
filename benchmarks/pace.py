"""How long steps of a compile take in two checkouts, by turns: `timed` asks, this script answers.

python3 benchmarks/pace.py      reads a step's name a line, runs it once, writes its CPU seconds
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import process_time

import commits

KERNELS = ("gemm_sm80 128x128x32", "attention_sm90 128", "rows softmax 1024")
PACKAGES = ("kdsl_core", "kdsl_fuse")
STEPS = (
    *(f"import {package}" for package in PACKAGES),
    *(f"{step} {kernel}" for kernel in KERNELS for step in ("trace", "emit")),
)


# -- one checkout's process ------------------------------------------------------------------------
def steps() -> dict[str, Callable[[], float]]:
    """Each step as a function that gives CPU seconds."""
    from kernels import ROWS

    found: dict[str, Callable[[], float]] = {}
    for package in PACKAGES:
        found[f"import {package}"] = lambda p=package: import_seconds(p)
    rows = {row.name: row for row in ROWS}
    for name in KERNELS:
        found |= kernel_steps(name, rows[name])
    return found


def import_seconds(package: str) -> float:
    """Of a fresh interpreter."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"import {package}"], check=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def kernel_steps(name: str, row: object) -> dict[str, Callable[[], float]]:
    """Tracing a kernel anew, passes included, and printing its PTX."""
    from kdsl_core.ir import target_of
    from kdsl_core.ptx import emit

    launch, target = row.launch(), target_of(row.targets[-1])
    needed = launch.kernel.specialisation(
        *launch.args, block=launch.block, cluster=launch.cluster, **launch.kwargs
    )
    traced = launch.kernel.traced(needed)

    def trace() -> None:
        launch.kernel.clear()
        launch.kernel.traced(needed)

    return {
        f"trace {name}": lambda: seconds(trace),
        f"emit {name}": lambda: seconds(lambda: emit(traced.kernel, target)),
    }


def seconds(run: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = process_time()
    run()
    return process_time() - start


def serve() -> None:
    """Answer until there is no more to read; each step runs once before, to fill caches."""
    known = steps()
    for run in known.values():
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        print(known[line.strip()](), flush=True)


# -- both checkouts --------------------------------------------------------------------------------
class Checkout:
    """The process of one checkout."""

    def __init__(self, tree: Path) -> None:
        script = str(tree / "benchmarks" / Path(__file__).name)
        self.process = subprocess.Popen(
            [sys.executable, script], env=commits.environment(tree), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def answer(self) -> str:
        """The next line that it writes.

        Raises: RuntimeError with what it said when it ended instead.
        """
        assert self.process.stdout is not None and self.process.stderr is not None
        if line := self.process.stdout.readline().strip():
            return line
        raise RuntimeError(self.process.stderr.read()[-2000:])

    def seconds(self, step: str) -> float:
        """Run a step there."""
        assert self.process.stdin is not None
        print(step, file=self.process.stdin, flush=True)
        return float(self.answer())

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def timed(before: Path, after: Path, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    """CPU seconds of each step in both checkouts: A B, B A, A B, … so that drifts hit both alike.

    Raises: RuntimeError where a checkout's process ends.
    """
    found: dict[str, tuple[list[float], list[float]]] = {step: ([], []) for step in STEPS}
    sides = Checkout(before), Checkout(after)
    try:
        for side in sides:
            side.answer()
        for turn in range(rounds):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            for step, samples in found.items():
                for i in order:
                    samples[i].append(sides[i].seconds(step))
    finally:
        for side in sides:
            side.close()
    return found


if __name__ == "__main__":
    serve()
