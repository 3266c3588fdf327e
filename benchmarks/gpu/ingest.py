"""Put the records of GPUs into asv's results, so that one site shows them beside the CPU's tracks.

    python3 benchmarks/gpu/ingest.py [--records results/gpu] [--root .]

Each kernel is a track of µs (asv takes any rise for a regression) by shape and program; the machine
is the GPU. Records of commits that this clone lacks are named and left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/gpu")]
import asv_tracks  # noqa: E402 - its folder is on the path since the line before
from asv_tracks import Track  # noqa: E402 - the same
from commits import Repository, Unknown  # noqa: E402 - the same
from records import Record, records  # noqa: E402 - the same


def tracks_of(record: Record) -> list[Track]:
    """A track for each kernel; repetitions stand for the spread around the median."""
    found: dict[str, Track] = {}
    for shape in record.shapes:
        name = "gpu." + shape["kernel"].replace(" ", "_")
        about = "benchmarks/gpu/run.py, medians by CUDA graph over rotating buffers"
        track = found.setdefault(name, Track(name, "µs", ("shape", "program"), about))
        for program, side in shape["sides"].items():
            us, half = side["us"], side["spread_us"] / 2
            track.samples[shape["shape"], program] = [us - half, us, us + half]
    return list(found.values())


def machine_of(record: Record) -> dict[str, str]:
    """A GPU as asv describes machines: the same for all drivers, so that courses do not break."""
    return {
        "machine": "-".join(record.device.lower().split()), "arch": record.device, "cpu": "",
        "num_cpu": "", "os": "", "ram": "",
    }  # fmt: skip


def ingest(root: Path, kept: Iterable[Record]) -> list[str]:
    """Put records into the results of a checkout; what was left out, and why.

    asv's graphs follow first parents: a record of a merged branch counts for the merge.
    """
    left_out = []
    for record in kept:
        try:
            commit = Repository(root).merged(record.commit, "HEAD")
        except Unknown as why:
            left_out.append(f"{record.path.name}: {why}")
            continue
        asv_tracks.put(root, machine_of(record), commit, tracks_of(record))
    return left_out


def main() -> None:
    """Ingest a folder."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    words.add_argument("--records", type=Path, help="folder (default: its results/gpu)")
    options = words.parse_args()
    kept = list(records(options.records or options.root / "results/gpu"))
    left_out = ingest(options.root, kept)
    print(f"{len(kept) - len(left_out)} of {len(kept)} records")
    for line in left_out:
        print(line)


if __name__ == "__main__":
    main()
