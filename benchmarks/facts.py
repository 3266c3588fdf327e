"""Everything of a commit that is the same in every run: figures by subject, as JSON.

    python3 benchmarks/facts.py [--json FILE] [--kinds]

Subjects are the kernels of `kernels.py` for each of their targets, and what kdsl itself does:
imports, a start with and without a cache, launches, planning. No time is measured and no GPU is
needed. `pins/figures.py` names the figures of kernels, `pins/limits.py` says how much they may
grow. `--kinds` has machine instructions by kind as well, where `nvdisasm` is.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FORMAT = 1
ROOT = Path(__file__).resolve().parents[1]
SIZES = (10, 100, 1000)  # operators of a graph
FAILURES = (  # of one subject: the others go on
    RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ImportError,
    ArithmeticError, OSError, subprocess.SubprocessError,
)  # fmt: skip
Figures = dict[str, float]
Subject = tuple[str, Callable[[], Figures]]
_runs: dict[str, tuple[Any, Any]] = {}  # of rows by name: the launch, and its run in the simulator


# -- kernels ---------------------------------------------------------------------------------------
def kernels(kinds: bool) -> Iterator[Subject]:
    """Each kernel of the list for each of its targets."""
    from kernels import ROWS

    for row in ROWS:
        for target in row.targets:
            yield f"{row.name} {target}", lambda r=row, t=target: figures_of(r, t, kinds)


def without_row() -> list[str]:
    """Kernels of kdsl-fuse that no row has launched so far."""
    import importlib
    import pkgutil

    import kdsl_fuse.kernels as package
    from kdsl_core.lang.kernel import KernelFunction

    listed = {launch.kernel for launch, _ in _runs.values()}
    found = set()
    for module in pkgutil.iter_modules(package.__path__):
        held = vars(importlib.import_module(f"{package.__name__}.{module.name}")).values()
        found |= {x for x in held if isinstance(x, KernelFunction) and x not in listed}
    return sorted(kernel.__name__ for kernel in found)


def figures_of(row: Any, target: str, kinds: bool) -> Figures:
    """What was built, and what one run in the simulator counts."""
    from kdsl_runtime.assemble import ResourceReport
    from kdsl_runtime.builds import build
    from kdsl_runtime.disassembly import sass
    from kdsl_runtime.instruction_counts import sass_counts
    from kdsl_runtime.pins.figures import built_figures, run_figures

    launch, run = counted(row)
    needed = launch.kernel.specialisation(
        *launch.args, block=launch.block, cluster=launch.cluster, **launch.kwargs
    )
    module = launch.kernel.lowered(needed, target).module
    entry = build(module)
    report = ResourceReport.from_json(entry.metadata["report"])
    found = built_figures(module, entry.payload, report)
    if kinds:
        found |= {f"sass_{name}": n for name, n in sass_counts(sass(entry.payload)).items()}
    return {**found, **run_figures(run.profile), "roofline_us": roofline_us(launch, run, target)}


def has_disassembler() -> bool:
    """Whether machine instructions can be told by kind here."""
    from kdsl_runtime.disassembly import find_nvdisasm

    return find_nvdisasm() is not None


def counted(row: Any) -> tuple[Any, Any]:
    """A row's launch, and its run in the simulator, which all its targets share."""
    if row.name not in _runs:
        launch = row.launch()
        _runs[row.name] = launch, launch.run("all", profile=True)
    return _runs[row.name]


def roofline_us(launch: Any, run: Any, target: str) -> float:
    """The least time that the target's largest chip needs for what was counted."""
    import math

    import kdsl_core as kd
    from kdsl_core.inspect.roofline import roofline
    from kdsl_core.lang.launch import extent

    device = next(d for d in kd.inspect.DEVICES if d.target == target)
    blocks = math.prod(extent(launch.grid, "grid"))
    return round(1e6 * roofline(run.profile.totals, blocks, device).seconds, 6)


# -- kdsl itself -----------------------------------------------------------------------------------
def calls(run: Callable[[], Any]) -> int:
    """How many functions a call calls, Python's and C's; none by the garbage collector."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()
    return count


def itself() -> Iterator[Subject]:
    """What is no kernel."""
    for package in ("kdsl_core", "kdsl_runtime", "kdsl_fuse"):
        yield f"import {package}", lambda p=package: imported(p)
    yield "start", started
    for count in (3, 8):
        yield f"launch of {count} arrays", lambda n=count: launched(n)
    for size in SIZES:
        yield f"plan of {size} operators", lambda n=size: planned(n)


def imported(package: str) -> Figures:
    """Modules that an import adds to NumPy's."""
    from bench_import import ask

    return {"modules": ask(package, "len(sys.modules) - n")}


def started() -> Figures:
    """Files opened and programs started to get a Hopper GEMM's machine code, cold and warm."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "KDSL_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": "1"}
        for state in ("cold", "warm"):
            words = [sys.executable, str(ROOT / "benchmarks/start_counters.py")]
            answer = json.loads(subprocess.check_output(words, env=environment, timeout=300))
            found |= {f"{state}_{name}": n for name, n in answer.items()}
        found["cache_files"] = sum(path.is_file() for path in Path(cache).rglob("*"))
    return found


def launched(count: int) -> Figures:
    """Functions called to check the arguments and to launch, on a driver that does nothing."""
    from bench_launch import Launches

    launches = Launches()
    launches.setup(count)
    launches.time_bound(count)
    try:
        ways = {"unbound": launches.time_unbound, "bound": launches.time_bound}
        return {f"calls_{name}": calls(lambda w=way: w(count)) for name, way in ways.items()}
    finally:
        launches.teardown(count)


def planned(size: int) -> Figures:
    """Functions called to match patterns, launches of the plan, and its memory."""
    from bench_fuse import graph

    from kdsl_fuse.cover import choose_cover
    from kdsl_fuse.patterns import Options
    from kdsl_fuse.plan import make_plan
    from kdsl_fuse.rewrites import rewrite

    plain = graph(size)
    rewrite(plain)
    choose_cover(plain, Options())
    plan = make_plan(plain)
    return {
        "calls_cover": calls(lambda: choose_cover(plain, Options())),
        "launches": len(plan.steps),
        "peak_bytes": plan.memory.peak_bytes,
    }


# -- the whole -------------------------------------------------------------------------------------
def collect(kinds: bool = False) -> dict[str, Any]:
    """All subjects; those that fail are named with why, and take no other along."""
    from kdsl_core.errors import KdslError
    from kdsl_runtime.toolchain import default_toolchain

    found: dict[str, Figures] = {}
    problems: dict[str, str] = {}
    for subjects in (kernels(kinds), itself()):
        for name, figures in subjects:
            try:
                found[name] = figures()
            except (KdslError, *FAILURES) as problem:
                problems[name] = f"{type(problem).__name__}: {problem}"
    return {
        "format": FORMAT, "ptxas": default_toolchain().version, "subjects": found,
        "problems": problems, "without_row": without_row(),
    }  # fmt: skip


def main() -> None:
    """Collect, from the packages of this checkout alone."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--json", type=Path, help="write to this file instead")
    words.add_argument("--kinds", action="store_true", help="machine instructions by kind")
    options = words.parse_args()
    import kdsl_core

    if not Path(kdsl_core.__file__).is_relative_to(ROOT):
        sys.exit(f"facts.py: kdsl_core is {kdsl_core.__file__}, not the one beside this script")
    warnings.simplefilter("ignore")  # spills are figures here
    text = json.dumps(collect(options.kinds), indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
