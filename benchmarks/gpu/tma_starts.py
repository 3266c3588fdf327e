"""At which innermost coordinates the TMA unit loads a box: one process for each, as it may trap.

    python3 benchmarks/gpu/tma_starts.py

Prints for each type and start whether the box arrived right, wrong, or ended the kernel.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

import kdsl_core as kd
from kdsl_runtime.device_array import to_device

ROWS, LINE, THREADS = 8, 32, 32
TYPES = {"u8": np.uint8, "bf16": ml_dtypes.bfloat16, "f32": np.float32}
AT_ONCE = 8  # processes; a trap ends its own context only
STARTS = (0, 1, 2, 4, 8, 16, 24, -1, -8, -16, 60, 64, 80)


@kd.kernel
def load_box(x: kd.Tensor["u8|bf16|f32", "m n"], at: kd.Tensor["i32", "1"], y: kd.Tensor["=x"]):
    """y (8, 32) is the box of x (m, n) that starts at row 2, column at[0]."""
    stage, bar = kd.smem(x.dtype, kd.Layout((ROWS, LINE), (LINE, 1))), kd.mbarrier()
    load = kd.tma_load(x, stage, (ROWS, LINE))
    if kd.thread_rank() == 0:
        bar.init()
        kd.fence_mbarrier_init()
        kd.fence_proxy_async()
        bar.arrive_expect(load.bytes)
        load(stage, (2, at[0]), bar)
    kd.sync_threads()
    bar.wait(0)
    for row in range(ROWS):
        y[row, kd.thread_rank()] = stage[row, kd.thread_rank()]


def loads_right(dtype: Any, start: int) -> bool:
    """Whether the box that starts there arrives as it should, on the GPU."""
    x = np.arange(1, 16 * 96 + 1).reshape(16, 96).astype(dtype)[:, :80]
    held = to_device(np.ascontiguousarray(x))
    at = to_device(np.array([start], np.int32))
    y = to_device(np.zeros((ROWS, LINE), dtype))
    load_box[1, THREADS](held, at, y)
    columns = np.arange(start, start + LINE)
    inside = (columns >= 0) & (columns < x.shape[1])
    expected = np.where(
        inside, x[2 : 2 + ROWS][:, np.where(inside, columns, 0)], np.zeros(1, dtype)
    )
    return y.read().tobytes() == expected.astype(dtype).tobytes()


def outcome(name: str, start: int) -> str:
    """What a process of its own says of one start."""
    command = [sys.executable, __file__, name, str(start)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode in (0, 1) and not done.stderr:
        return "right" if done.returncode == 0 else "wrong"
    last = (done.stderr.strip().splitlines() or ["?"])[-1]
    return next((word for word in last.split() if word.startswith("CUDA_ERROR")), last)


def main() -> None:
    """Print the table, or answer for one start."""
    if len(sys.argv) == 3:
        sys.exit(0 if loads_right(TYPES[sys.argv[1]], int(sys.argv[2])) else 1)
    asked = list(itertools.product(TYPES, STARTS))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(lambda case: outcome(*case), asked)
        for (name, start), answer in zip(asked, answers, strict=True):
            print(f"{name:<5} starts at {start:>4}: {answer}", flush=True)


if __name__ == "__main__":
    main()
