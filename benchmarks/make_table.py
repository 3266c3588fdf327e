"""Write the Hopper GEMM's dispatch table from measurements: of each product the fastest plan.

    python3 benchmarks/make_table.py results/gpu/gemm_sm90-tuning-h200.json more.json …

Files are journals of tuning (`.jsonl`), files of `--tuning`, or what `benchmarks/gpu/gemm.py
--tune --json` wrote; of a product in several files the last one's measurements count.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import sm90_tuning as tuning

from kdsl_fuse.kernels import gemm_sm90_table as table
from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE
from kdsl_runtime import dispatch


def parser() -> argparse.ArgumentParser:
    """The command line."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("data", nargs="+", type=Path)
    words.add_argument("--device", default=DEVICE)
    words.add_argument("--date", default=datetime.date.today().isoformat())
    words.add_argument("--out", type=Path, help="instead of the package's table of the device")
    words.add_argument("--tuning", type=Path, help="also write all measurements to this file")
    return words


def main() -> None:
    """Read, choose, write; then read what was written."""
    options = parser().parse_args()
    products = tuning.read(options.data)
    names = ", ".join(path.name for path in options.data)
    facts = {"device": options.device, "date": options.date}
    out = options.out or table.path_of(options.device)
    made = f"benchmarks/make_table.py, the fastest plans of {names}"
    dispatch.write_table(out, (product.entry().stored for product in products), **facts, made=made)
    if options.tuning:
        made = "each plan's median by CUDA graph over buffers that L2 cannot hold, microseconds"
        tuning.write(options.tuning, products, **facts, made=made)
    print(f"{out}: {len(table.read_table(out))} entries")


if __name__ == "__main__":
    main()
