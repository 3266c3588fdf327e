"""Where the TMA unit takes the start of a box: one process for each, as it may trap.

    python3 benchmarks/gpu/tma_starts.py

Prints for each kind of copy, type and number of dimensions at which starts memory holds what it
should, and at which the kernel ends. JSON goes to $OUT.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd
from kdsl_runtime.device_array import to_device

THREADS = 32
AT_ONCE = min(16, os.cpu_count() or 1)  # processes; a trap ends its own context only
TYPES = {"u8": np.uint8, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
UNIT = 16  # bytes; innermost lines of five units at a pitch of six, of which a box has two
OUTER = {1: (), 2: ((16, 8),), 3: ((6, 2), (5, 3))}  # (extent, box) of the other dimensions
EMPTY, BEHIND = 7, 64  # what memory holds before, and elements behind the tensor
Start = tuple[str, ...]  # innermost first: that in units or halves of them, the others in elements
INNER = ("0", "1", "1/2", "-1/2", "-1", "-2", "-3", "3", "4", "5", "9")
STARTS: dict[int, list[Start]] = {
    1: [(at,) for at in INNER],
    2: [
        *((at, "0") for at in INNER),
        *(("0", at) for at in ("-1", "-3", "-8", "-9", "3", "12", "16", "40")),
        *(("-1", "-3"), ("5", "16"), ("-1", "16"), ("5", "-3")),
    ],
    3: [
        *(("0", "0", "0"), ("-1", "0", "0"), ("0", "-1", "0"), ("0", "0", "-1")),
        *(("0", "6", "0"), ("0", "0", "5"), ("5", "6", "5"), ("-1", "2", "5")),
    ],
}
FEW: list[Start] = [("0", "0"), ("1/2", "0"), ("-1", "0"), ("0", "-3"), ("0", "16"), ("9", "40")]
ASKED = [
    *((kind, "bf16", rank, STARTS[rank]) for kind in ("load", "store") for rank in STARTS),
    *((kind, "bf16", 2, FEW) for kind in ("prefetch", "add")),
    *((kind, name, 2, FEW) for kind in ("load", "store", "add") for name in ("u8", "f32")
      if (kind, name) != ("add", "u8")),
]  # fmt: skip


@kd.kernel
def read_box(
    x: kd.Tensor["u8|bf16|f32", "n"],
    at: kd.Tensor["i32", "r"],
    y: kd.Tensor["=x", "t"],
    view: kd.Static,
    box: kd.Static,
    ahead: kd.Static,
):
    """y is the box of the view of x that starts at `at`; with `ahead` it is only prefetched."""
    stage, bar = kd.smem(x.dtype, kd.Layout(box)), kd.mbarrier()
    load = kd.tma_load(x.with_layout(view), stage, box)
    start = tuple(at[mode] for mode in range(len(box)))
    if kd.thread_rank() == 0:
        bar.init()
        kd.fence_mbarrier_init()
        if ahead:
            load.prefetch_tile(start)
            bar.arrive()
        else:
            bar.arrive_expect(load.bytes)
            load(stage, start, bar)
    kd.sync_threads()
    bar.wait(0)
    if not ahead:
        for i in kd.range(kd.thread_rank(), kd.size(stage), THREADS):
            y[i] = stage[i]


@kd.kernel
def write_box(
    y: kd.Tensor["u8|bf16|f32", "n"],
    at: kd.Tensor["i32", "r"],
    x: kd.Tensor["=y", "t"],
    view: kd.Static,
    box: kd.Static,
    reduce: kd.Static,
):
    """The box of the view of y that starts at `at` becomes x, or is combined with it."""
    stage = kd.smem(y.dtype, kd.Layout(box))
    store = kd.tma_store(y.with_layout(view), stage, box)
    for i in kd.range(kd.thread_rank(), kd.size(stage), THREADS):
        stage[i] = x[i]
    kd.fence_proxy_async()
    kd.sync_threads()
    if kd.thread_rank() == 0:
        store(stage, tuple(at[mode] for mode in range(len(box))), reduce)
        kd.tma_store_commit()
        kd.tma_store_wait(0)


def shape_of(rank: int, item: int) -> tuple[kd.Layout, tuple[int, ...]]:
    """The tensor and its box."""
    unit = UNIT // item
    extents = (5 * unit, *(extent for extent, _ in OUTER[rank]))
    padded = (6 * unit, *extents[1:])
    strides = tuple(int(np.prod(padded[:mode])) for mode in range(rank))
    return kd.Layout(extents, strides), (2 * unit, *(part for _, part in OUTER[rank]))


def elements(start: Start, item: int) -> list[int]:
    """The start in elements."""
    inner, *outer = start
    units, _, halves = inner.partition("/")
    return [int(units) * UNIT // item // int(halves or 1), *map(int, outer)]


def copies_right(kind: str, name: str, rank: int, start: Start) -> bool:
    """Whether the copy of the box that starts there does what it should, on the GPU."""
    dtype = np.dtype(TYPES[name])
    view, box = shape_of(rank, dtype.itemsize)
    at = np.array(elements(start, dtype.itemsize), np.int32)
    index = np.indices(box).reshape(rank, -1, order="F") + at[:, None]
    inside = ((index >= 0) & (index < np.reshape(view.shape, (rank, 1)))).all(axis=0)
    offset = (index * np.reshape(view.stride, (rank, 1))).sum(axis=0)
    memory = (np.arange(int(kd.cosize(view)) + BEHIND) % 50 + 1).astype(dtype)
    tile = np.full(len(offset), EMPTY, dtype)
    statics: dict[str, Any] = {"view": view, "box": box}
    if kind in ("load", "prefetch"):
        held, ahead = to_device(tile), kind == "prefetch"
        read_box[1, THREADS](to_device(memory), to_device(at), held, **statics, ahead=ahead)
        if not ahead:
            tile = np.where(inside, memory[np.where(inside, offset, 0)], np.zeros(1, dtype))
        return held.read().tobytes() == tile.tobytes()
    held, reduce = to_device(memory), None if kind == "store" else kind
    write_box[1, THREADS](held, to_device(at), to_device(tile), **statics, reduce=reduce)
    place = offset[inside]
    memory[place] = tile[inside] + (memory[place] if reduce else 0)
    return held.read().tobytes() == memory.tobytes()


def outcome(case: tuple[str, ...]) -> str:
    """What a process of its own says of one start."""
    command = [sys.executable, __file__, *case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode in (0, 1) and not done.stderr:
        return "right" if done.returncode == 0 else "wrong"
    named = [word for word in done.stderr.split() if word.startswith("CUDA_ERROR")]
    rest = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
    return (named or rest)[0].strip(":")


def main() -> None:
    """Print the table, or answer for one start."""
    if sys.argv[1:]:
        kind, name, rank, *start = sys.argv[1:]
        sys.exit(0 if copies_right(kind, name, int(rank), tuple(start)) else 1)
    cases = [(kind, name, str(rank), *start) for kind, name, rank, some in ASKED for start in some]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(outcome, cases))
    found = list(zip(cases, answers, strict=True))
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "tma_starts.json").write_text(json.dumps(found, indent=1))
    for group, some in itertools.groupby(found, lambda pair: pair[0][:3]):
        print("{} of {}, {} dimensions; innermost first, in 16 bytes:".format(*group))
        by_answer: dict[str, list[str]] = {}
        for case, answer in some:
            by_answer.setdefault(answer, []).append(f"({', '.join(case[3:])})")
        for answer, starts in by_answer.items():
            print(f"    {answer}: {' '.join(starts)}", flush=True)


if __name__ == "__main__":
    main()
