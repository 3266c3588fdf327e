"""Write the dispatch table of a convolution's kernel: of each problem the fastest plan measured.

    python3 benchmarks/make_conv_table.py results/gpu/conv_sm90-h200.json more.json …
    python3 benchmarks/make_conv_table.py --kernel conv_grouped results/gpu/conv-grouped-h200.json
    python3 benchmarks/make_conv_table.py --kernel conv_depthwise results/gpu/<record>.json

Files are what benchmarks/gpu/conv.py, conv_grouped.py or conv_depthwise.py left in $OUT, or records
of run.py; the fastest sustained time of all counts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels import conv_depthwise_table as depthwise
from kdsl_fuse.kernels import conv_grouped_table as grouped
from kdsl_fuse.kernels import conv_sm90_table as dense
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_spaces import depthwise_configs, depthwise_plan
from kdsl_fuse.kernels.conv_tables import TABLES, key_of
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, parse
from kdsl_runtime import dispatch

OURS = "kdsl "
OTHERS = ("stem", "packed", "staged")  # plans that no table is asked for
NAME = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)->(\d+) (\d+)x(\d+)/(\d+) g(\d+)")
DEPTHWISE = re.compile(r"n(\d+) (\d+)x(\d+) c(\d+) k(\d+) s(\d+)")


def dense_entry(result: dict[str, Any], words: str, us: float) -> dispatch.Entry:
    """The entry of a plan of `conv_sm90` in words."""
    problem = {name: _tuple(value) for name, value in result["problem"].items()}
    key = key_of(ConvProblem(**problem), kd.bf16, kd.bf16, result["fused"])
    config, swap = parse(words.partition(" panel")[0])
    return dense.Entry(key, config, swap, us).stored


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def grouped_entry(result: dict[str, Any], words: str, us: float) -> dispatch.Entry | None:
    """The entry of a plan of `conv_grouped` in words; none for what has a tail."""
    named = NAME.fullmatch(result["name"])
    if named is None:
        return None
    n, h, w, c, k, r, s, step, groups = map(int, named.groups())
    problem = ConvProblem(n, h, w, c, k, (r, s), (step, step), (r // 2, s // 2), groups=groups)
    config = grouped.TABLE.options_of(grouped.parse(words, problem))
    return dispatch.Entry(grouped.TABLE.key(problem), config, us)


def depthwise_entry(result: dict[str, Any], words: str, us: float) -> dispatch.Entry | None:
    """The entry of a plan of `conv_depthwise` in words; none for what has a tail.

    Raises: ValueError where the kernel's space has no such plan.
    """
    named = DEPTHWISE.fullmatch(result["name"])
    if named is None:
        return None
    n, h, w, c, r, step = map(int, named.groups())
    problem = ConvProblem(n, h, w, c, c, (r, r), (step, step), (r // 2, r // 2), groups=c)
    key = depthwise.TABLE.key(problem)
    for config in depthwise_configs(key):
        if str(depthwise_plan(key, config)) == words:
            return dispatch.Entry(key, config, us)
    raise ValueError(f"no plan {words!r} in the space of {result['name']}")


Read = Callable[[dict[str, Any], str, float], dispatch.Entry | None]
KERNELS: dict[str, tuple[str, Read, dispatch.Check]] = {  # also by its name in records
    "conv_sm90": ("conv dense", dense_entry, dense.Entry.read),
    "conv_grouped": ("conv grouped", grouped_entry, grouped.TABLE.read),
    "conv_depthwise": ("conv depthwise", depthwise_entry, depthwise.TABLE.read),
}


def results_of(path: Path, recorded: str) -> Iterator[dict[str, Any]]:
    """The results in a file of a benchmark, or those of one kernel in a record."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    yield from whole.get("results", ())
    for shape in whole.get("shapes", ()):
        if shape["kernel"] == recorded:
            sides = {s["variant"]: {"median": 1e-6 * s["us"]} for s in shape["sides"].values()}
            yield {"name": shape["shape"], "sides": sides}


def entries(results: Iterable[dict[str, Any]], read: Read) -> Iterator[dispatch.Entry]:
    """The fastest plan of each result that a table may choose."""
    for result in results:
        sides = {
            name.removeprefix(OURS): side["median"]
            for name, side in result["sides"].items()
            if name.startswith(OURS) and not any(word in name for word in OTHERS)
        }
        if sides:
            best = min(sides, key=sides.__getitem__)
            entry = read(result, best, round(1e6 * sides[best], 2))
            if entry is not None:
                yield entry


def fastest(files: Iterable[Path], recorded: str, read: Read) -> list[dispatch.Entry]:
    """The fastest entry of each problem."""
    found: dict[Any, dispatch.Entry] = {}
    for path in files:
        for entry in entries(results_of(path, recorded), read):
            if entry.problem not in found or entry.us < found[entry.problem].us:
                found[entry.problem] = entry
    return list(found.values())


def main() -> None:
    """Read, choose, write; then read what was written."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("data", nargs="+", type=Path)
    words.add_argument("--kernel", choices=KERNELS, default="conv_sm90")
    words.add_argument("--device", default=DEVICE)
    words.add_argument("--date", default=datetime.date.today().isoformat())
    words.add_argument("--out", type=Path, help="instead of the package's table of the device")
    options = words.parse_args()
    recorded, read, check = KERNELS[options.kernel]
    out = options.out or TABLES / dispatch.file_name(options.kernel, options.device)
    names = ", ".join(path.name for path in options.data)
    made = f"benchmarks/make_conv_table.py, the fastest plans of {names}"
    stored = fastest(options.data, recorded, read)
    dispatch.write_table(out, stored, device=options.device, date=options.date, made=made)
    print(f"{out}: {len(dispatch.read_table(out, check))} entries")


if __name__ == "__main__":
    main()
