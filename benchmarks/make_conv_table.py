"""Write the Hopper convolution's dispatch table: of each problem the fastest plan measured.

    python3 benchmarks/make_conv_table.py results/gpu/conv_sm90-h200.json more.json …

Files are what benchmarks/gpu/conv.py left in $OUT; the fastest sustained time of all counts.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import kdsl_core as kd
from kdsl_fuse.kernels import conv_sm90_table as table
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, parse
from kdsl_runtime import dispatch

OURS = "kdsl "
OTHERS = ("stem", "packed")  # plans that no table is asked for


def entries(results: Iterable[dict[str, Any]]) -> Iterator[table.Entry]:
    """The fastest plan of each result that a table may choose."""
    for result in results:
        sides = {
            name.removeprefix(OURS): side["median"]
            for name, side in result["sides"].items()
            if name.startswith(OURS) and not any(word in name for word in OTHERS)
        }
        if sides:
            best = min(sides, key=sides.__getitem__)
            problem = {name: _tuple(value) for name, value in result["problem"].items()}
            key = table.key_of(ConvProblem(**problem), kd.bf16, kd.bf16, result["fused"])
            config, swap = parse(best.partition(" panel")[0])
            yield table.Entry(key, config, swap, round(1e6 * sides[best], 2))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def fastest(files: Iterable[Path]) -> list[table.Entry]:
    """The fastest entry of each problem."""
    found: dict[Any, table.Entry] = {}
    for path in files:
        for entry in entries(json.loads(path.read_text(encoding="utf-8"))["results"]):
            if entry.key not in found or entry.us < found[entry.key].us:
                found[entry.key] = entry
    return list(found.values())


def main() -> None:
    """Read, choose, write; then read what was written."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("data", nargs="+", type=Path)
    words.add_argument("--device", default=DEVICE)
    words.add_argument("--date", default=datetime.date.today().isoformat())
    words.add_argument("--out", type=Path, help="instead of the package's table of the device")
    options = words.parse_args()
    out = options.out or table.path_of(options.device)
    names = ", ".join(path.name for path in options.data)
    made = f"benchmarks/make_conv_table.py, the fastest plans of {names}"
    stored = (entry.stored for entry in fastest(options.data))
    dispatch.write_table(out, stored, device=options.device, date=options.date, made=made)
    print(f"{out}: {len(dispatch.read_table(out, table.Entry.read))} entries")


if __name__ == "__main__":
    main()
