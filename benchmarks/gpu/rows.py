"""kdsl's row-wise and element-wise kernels against PyTorch, eager and compiled, and Triton.

    python3 benchmarks/gpu/rows.py --seconds 150 --json results/gpu/rows.json

The shapes are `rowwise` of benchmarks/shapes.toml, then arrays of `--bytes` for the operations
beside those four; `--columns` asks for such arrays only.
All sides of a case run by turns, as CUDA graphs over buffers that the L2 cache cannot hold; figures
are medians. Every side is first checked against f32 in PyTorch. Shares are of the bandwidth that a
copy of 1 GiB reaches; a copy of as many bytes as the case runs beside it, as its start and its end
weigh more. Where rows are staged, `--held` times plans that hold them as well.
`--tune` tries other configurations of ours (`few` or `all`, or `ring`s of shared memory alone), and
times the fastest of them beside the chosen one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import row_variants
import timing
import torch
import triton_peers
from row_cases import EPS, OPERATIONS, Operation
from shapes import SHAPES_FILE, buffer_sets

from kdsl_core.errors import KdslError
from kdsl_fuse.kernels import rows_plan

QUOTED = ("rms_norm", "layer_norm", "softmax", "cross_entropy")  # at the shapes of the file
OWN_COLUMNS = {  # of the others, arrays of so many bytes
    "sum": (1024, 131072),
    "column_sum": (1024, 32768),
    "add_rms_norm": (1024, 8192, 131072),
    "add_layer_norm": (1024, 8192, 131072),
    **dict.fromkeys(("log_softmax", "max", "pointwise10", "copy"), (8192,)),
}
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TOTAL_BYTES = 1 << 27  # of one array of the full shape
GRAPH_SECONDS = 1.5e-3  # of launches in a row: their events cost some microseconds
POINTWISE = ("pointwise10", "copy")  # whose columns do not matter
BOUNDS = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 1e-5}
TINY = 1e-30
Sets = list[tuple[list[Any], list[Any]]]
FAILURES = (RuntimeError, ValueError, TypeError, KdslError)  # of one side or case: others go on


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--ops", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    words.add_argument("--shapes", nargs="+", metavar="ROWSxCOLUMNS", help="instead of the file's")
    words.add_argument("--columns", nargs="+", type=int, help="of arrays of --bytes")
    words.add_argument("--dtype", choices=DTYPES, default="bf16")
    words.add_argument("--bytes", type=int, default=TOTAL_BYTES, help="of one array")
    words.add_argument(
        "--tune", choices=("few", "all", "ring"), help="try other configurations as well"
    )
    words.add_argument("--held", action="store_true", help="time held rows beside staged ones")
    words.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    words.add_argument("--seconds-per-case", type=float, default=0.15)
    words.add_argument("--seconds", type=float, default=150.0, help="for the whole run")
    out = os.environ.get("OUT")
    words.add_argument("--json", type=Path, default=Path(out) / "rows.json" if out else None)
    return words


def cases(options: argparse.Namespace) -> Iterator[tuple[Operation, int, int]]:
    """Operations with rows and columns."""
    size = DTYPES[options.dtype].itemsize
    if options.columns:
        others = {name: options.columns for name in options.ops if name not in POINTWISE}
        others |= {name: OWN_COLUMNS[name] for name in options.ops if name in POINTWISE}
    else:
        shapes = tomllib.loads(SHAPES_FILE.read_text())["rowwise"]["shapes"]
        if options.shapes:
            shapes = [map(int, shape.split("x")) for shape in options.shapes]
        for rows, columns in shapes:
            for name in (x for x in QUOTED if x in options.ops):
                yield OPERATIONS[name], rows, columns
        others = {name: OWN_COLUMNS[name] for name in options.ops if name not in QUOTED}
    for name, widths in others.items():
        for columns in widths:
            yield OPERATIONS[name], max(options.bytes // (columns * size), 1), columns


def ours(plan: Any, sets: Sets) -> timing.Launch:
    """A launch of a plan on set i."""

    def launch(i: int) -> None:
        outputs, inputs = sets[i % len(sets)]
        plan.run(*outputs, *inputs)

    return launch


def theirs(function: Any, sets: Sets) -> timing.Launch:
    """PyTorch's function on set i; what it allocates lives in the graph's pool."""

    def launch(i: int) -> Any:
        with torch.no_grad():
            return function(*sets[i % len(sets)][1])

    return launch


def copying(size: int, sets: int) -> timing.Launch:
    """A copy, by a kernel, that reads and writes `size` bytes in all, from array to array."""
    arrays = [torch.randn(size // 8, device="cuda") for _ in range(2 * sets)]

    def launch(i: int) -> Any:
        start = 2 * (i % sets)
        return torch.mul(arrays[start], 1.0, out=arrays[start + 1])

    return launch


def error_of(results: Any, reference: list[Any]) -> float:
    """The largest error, relative to 1 + the reference's size."""
    found = results if isinstance(results, (tuple, list)) else (results,)
    return max(
        float(((x.float() - r).abs() / (r.abs() + r.abs().mean() + TINY)).max())
        for x, r in zip(found, reference, strict=True)
    )


def reference_of(op: Operation, inputs: list[Any]) -> list[Any]:
    """The results in f32."""
    wide = [x.float() if x.is_floating_point() else x for x in inputs]
    results = op.torch(*wide)
    return list(results) if isinstance(results, tuple) else [results]


def tuned(found: dict[str, Any], sets: Sets, reference: list[Any]) -> tuple[dict[str, Any], Any]:
    """Microseconds of each variant, or why there are none, and the fastest right one's plan."""
    times: dict[str, Any] = {}
    best = None
    for name, other in found.items():
        try:
            launch = ours(other, sets)
            for x in sets[0][0]:
                x.fill_(7)
            launch(0)
            if not error_of(sets[0][0], reference) <= BOUNDS[sets[0][1][0].dtype] * 2:
                times[name] = "wrong"
                continue
            times[name] = round(1e6 * timing.quick(launch, len(sets)), 2)
        except KdslError as problem:
            times[name] = str(problem).splitlines()[0][:100]
            continue
        if best is None or times[name] < best[0]:
            best = times[name], name, other
    return times, best


def measured(op: Operation, m: int, n: int, options: argparse.Namespace) -> dict[str, Any]:
    """One case of m rows and n columns: errors and times of all sides."""
    dtype = DTYPES[options.dtype]
    size = op.traffic * m * n * dtype.itemsize
    sets: Sets = [op.given(m, n, dtype) for _ in range(buffer_sets(size, least=2))]
    reference = reference_of(op, sets[0][1])
    record: dict[str, Any] = {"op": op.name, "rows": m, "columns": n, "bytes": size}
    record |= {"dtype": options.dtype, "errors": {}, "failures": {}, "sides": {}}
    plan = op.plan(*sets[0])
    record["config"] = str(plan.config)
    launches = {"kdsl": ours(plan, sets), "eager": theirs(op.torch, sets)}
    if options.held and op.program and plan.config.staged:
        held = rows_plan.choose(op.program, *sets[0][0], *sets[0][1], staging=False)
        launches["held"] = ours(held, sets)
    if not options.no_compile:
        torch._dynamo.reset()
        launches["compile"] = theirs(torch.compile(op.torch, dynamic=False), sets)
    launches |= triton_peers.rows(op.name, sets, EPS)
    if options.tune:
        found = row_variants.some(plan, op, options.tune)
        record["tuned"], best = tuned(found, sets, reference)
        if best:
            record["best"], launches["best"] = best[1], ours(best[2], sets)
    sides = {}
    if op.traffic > 1:
        sides["copy"] = timing.prepared(copying(size, len(sets)), len(sets), GRAPH_SECONDS)
    for name, launch in launches.items():
        try:
            results = launch(0)
            results = sets[0][0] if results is None else results
            record["errors"][name] = error_of(results, reference)
            right = record["errors"][name] <= 2 * BOUNDS[dtype]
            if name not in ("eager", "compile") and not right:
                raise RuntimeError(f"wrong: error {record['errors'][name]:.1e}")
            sides[name] = timing.prepared(launch, len(sets), GRAPH_SECONDS)
        except FAILURES as problem:
            record["failures"][name] = f"{type(problem).__name__}: {problem}"[:300]
    times = timing.interleaved(sides, options.seconds_per_case)
    record["sides"] = {name: found.record() for name, found in times.items()}
    return record


def line(record: dict[str, Any], copy: float) -> str:
    """Microseconds, share of the copy, and ratios of one case."""
    sides = {name: side["median"] for name, side in record["sides"].items()}
    name = f"{record['op']:<14}{record['rows']:>9} x {record['columns']:<7}"
    if "kdsl" not in sides:
        return f"{name} failed: {record.get('error') or record['failures'].get('kdsl', '')}"[:160]
    mine = sides["kdsl"]
    words = [f"{name} {1e6 * mine:8.1f} µs {record['bytes'] / mine / copy:6.3f}"]
    for other in ("copy", "eager", "compile"):
        words.append(f"{sides[other] / mine:7.3f}" if other in sides else "      —")
    words.append(f"  {record['errors']['kdsl']:.0e}")
    if "held" in sides:
        words.append(f" held {record['bytes'] / sides['held'] / copy:.3f}")
    if "best" in sides:
        share = record["bytes"] / sides["best"] / copy
        words.append(f"  best {share:.3f} {record['best']}")
    for other, problem in record["failures"].items():
        words.append(f" {other}: {problem[:60]}")
    return " ".join(words)


def worst(records: list[dict[str, Any]], copy: float) -> str:
    """The least share of copy bandwidth and the least ratio to torch.compile."""
    done = [r for r in records if "kdsl" in r.get("sides", {})]
    shares = [
        (r["bytes"] / r["sides"]["kdsl"]["median"] / copy, r["op"], r["columns"]) for r in done
    ]
    ratios = [
        (r["sides"]["compile"]["median"] / r["sides"]["kdsl"]["median"], r["op"], r["columns"])
        for r in done
        if "compile" in r["sides"]
    ]
    least = [min(x) if x else "nothing" for x in (shares, ratios)]
    return f"least share of copy {least[0]}, least ratio to torch.compile {least[1]}"


def main() -> None:
    """Measure case by case until the time is over; the table comes last."""
    options = parser().parse_args()
    end = time.monotonic() + options.seconds
    torch.manual_seed(0)
    copy = timing.copy_bandwidth()
    facts = timing.device_record()
    records, left = [], []
    for op, m, n in cases(options):
        if time.monotonic() > end:
            left.append(f"{op.name} {m}x{n}")
            continue
        try:
            record = measured(op, m, n, options)
        except FAILURES as problem:
            record = {"op": op.name, "rows": m, "columns": n, "sides": {}, "failures": {}}
            record["error"] = f"{type(problem).__name__}: {problem}"[:400]
        records.append(record)
        print(line(record, copy), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(
                json.dumps({**facts, "copy": copy, "results": records}, indent=1)
            )
    print("\n" + " · ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"device copy {1e-12 * copy:.2f} TB/s")
    print(f"{'op':<14}{'rows':>9} x {'columns':<7} {'kdsl':>11} {'share':>6} "
          f"{'copy':>7} {'eager':>7} {'compile':>7}   error")  # fmt: skip
    order = list(OPERATIONS)
    for record in sorted(records, key=lambda r: (order.index(r["op"]), r["columns"])):
        print(line(record, copy))
    print(worst(records, copy))
    if left:
        print("no time for", ", ".join(left))


if __name__ == "__main__":
    main()
