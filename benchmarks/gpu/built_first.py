"""Benchmarks whose plans are built on all processors before the GPU is used: what they share.

Nothing here loads torch before the builds: processes must not share its driver.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any


def parser(doc: str) -> argparse.ArgumentParser:
    """The command line: which shapes, how many other plans, against what and for how long."""
    words = argparse.ArgumentParser(description=doc.splitlines()[0])
    words.add_argument("--cases", nargs="+", type=int, help="numbers of shapes, in this order")
    words.add_argument("--tune", type=int, default=0, help="try so many other configurations")
    words.add_argument("--compile", action="store_true", help="torch.compile, too")
    words.add_argument("--build-only", action="store_true", help="on a machine without a GPU")
    words.add_argument("--seconds-per-shape", type=float, default=0.5)
    words.add_argument("--seconds", type=float, default=85.0, help="no shape is begun behind it")
    return words


def run(
    cases: Sequence[Any],
    plans_of: Callable[[Any, int], Sequence[Any]],
    build: Callable[[tuple[Any, Any]], None],
    measure: Callable[..., Any],
    options: argparse.Namespace,
    name: str,
) -> None:
    """Build all plans, then measure the cases; all is kept in $OUT/<name>.json."""
    jobs = [(case, plan) for case in cases for plan in plans_of(case, options.tune)]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, jobs))
    print(f"{len(jobs)} plans built", flush=True)
    if options.build_only:
        return
    import sides
    import torch

    torch.backends.cudnn.benchmark = True
    sides.run(cases, partial(measure, options=options), options.seconds, name)
