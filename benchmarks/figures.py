"""The figures of a release: building the bf16 GEMMs for sm_90a, and simulating kernels.

    python3 benchmarks/figures.py [--json figures.json] [--simulator]

Medians of five, but of the simulator the least. Nothing is taken from a cache: each trace is of a
forgotten kernel, each assembly a ptxas process. The times of optimising and emitting are of a trace
made before, and those of simulating, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from launches import CHECKS, LAUNCHES

import kdsl_core as kd
from kdsl_core.lang.arguments import Bound, bind
from kdsl_core.lang.traced import Traced, trace
from kdsl_core.passes import optimise
from kdsl_core.ptx import PtxModule, emit
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_runtime.assemble import assemble
from kdsl_runtime.toolchain import default_toolchain

ATOM = "SM80_16x8x16_F32BF16BF16F32_TN"
BUILT = {
    gemm_sm80: GemmConfig(ATOM, (128, 256, 64), (2, 4), 3),
    gemm_sm90: Sm90Config((128, 256, 64), 4),
}
BUILT_SIZE = 8192
TARGET = "sm_90a"
RUNS = 5


def median_seconds(run: Callable[[Any], Any], prepare: Callable[[], Any]) -> float:
    """Median time of `run` on what `prepare`, which is not timed, gives before each run."""
    times = []
    for _ in range(RUNS):
        prepared = prepare()
        start = time.perf_counter()
        run(prepared)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fresh_trace(kernel: Any, bound: Bound) -> Traced:
    """The trace of a GEMM before the passes, by a kernel that remembers nothing."""
    needed = kernel.specialised(bound, (BUILT[kernel].threads, 1, 1), None)
    return trace(kernel.staged, kernel.signature, needed)


def build_figures(kernel: Any) -> dict[str, float]:
    """Milliseconds of each step from Python to cubin, and what ptxas reports."""
    statics = {"epilogue": identity, "config": BUILT[kernel]}
    specs = [kd.spec("bf16", (BUILT_SIZE, BUILT_SIZE)) for _ in range(3)]
    bound = bind(kernel.signature, specs, statics)
    target, toolchain = kd.target_of(TARGET), default_toolchain()
    traced = partial(fresh_trace, kernel)
    traced(bound)  # the source is read and the algebra's caches are filled once a process
    optimised = optimise(traced(bound).kernel)
    module: PtxModule = emit(optimised, target)
    report = assemble(module, TARGET, toolchain).report
    seconds = {
        "trace": median_seconds(traced, lambda: bound),
        "optimise": median_seconds(optimise, lambda: traced(bound).kernel),
        "emit": median_seconds(lambda kernel: emit(kernel, target), lambda: optimised),
        "ptxas": median_seconds(lambda m: assemble(m, TARGET, toolchain), lambda: module),
    }
    figures = {f"{name} [ms]": 1e3 * value for name, value in seconds.items()}
    figures["PTX [KiB]"] = len(module.text) / 1024
    figures["registers"] = report.registers
    figures["spills [bytes]"] = report.spill_stores + report.spill_loads
    return figures


def simulation_figures() -> dict[str, float]:
    """Seconds of CPU time of simulated launches: the least, since other work can only add."""
    found = {}
    for name, made in LAUNCHES.items():
        launch = made()
        launch.run()
        for checks in CHECKS:
            seconds = []
            for _ in range(RUNS):
                start = time.process_time()
                launch.run(checks)
                seconds.append(time.process_time() - start)
            found[f"{name}, checks {checks} [s]"] = min(seconds)
        every, none = (found[f"{name}, checks {checks} [s]"] for checks in CHECKS)
        found[f"{name}, all ÷ none"] = every / none
    return found


def main() -> None:
    """Print the figures; `--json` keeps them as well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--simulator", action="store_true", help="leave out building")
    options = parser.parse_args()
    figures = {}
    for kernel, config in () if options.simulator else BUILT.items():
        name, tile = kernel.__name__, "×".join(map(str, config.tile))
        print(f"{name} bf16 {tile} for {TARGET}, ptxas {default_toolchain().version}")
        built = build_figures(kernel)
        print_figures(built)
        figures |= {f"{name}: {figure}": value for figure, value in built.items()}
    print("launches in the simulator")
    simulated = simulation_figures()
    print_figures(simulated)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**figures, **simulated}, indent=2) + "\n")


def print_figures(figures: dict[str, float]) -> None:
    """One line each."""
    for name, value in figures.items():
        print(f"  {name:<34}{value:10.3f}")


if __name__ == "__main__":
    main()
