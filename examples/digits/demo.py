"""Classify handwritten digits with a three-layer perceptron whose layers are fused kernels.

    python3 dev.py demo                    # in the simulator, no GPU needed
    python3 dev.py demo --device cuda      # the same kernels on a GPU (needs torch for its arrays)

Prints what the kernels are, what the assembler made of them, and how many held-out digits are read
right: with f32 kernels the predictions must be those of NumPy in f32, with bf16 kernels the
accuracy must lie within half a point.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import train
from rich.console import Console
from rich.table import Table

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core import collective

TARGETS = ("sm_80", "sm_90a")
BF16_TOLERANCE_POINTS = 0.5
console = Console()


@kf.fuse
def hidden(x: Any, w: Any, b: Any) -> Any:
    """A hidden layer: one kernel."""
    return kf.gelu(x @ w + b)


@kf.fuse
def logits(x: Any, w: Any, b: Any) -> Any:
    """The last layer: one kernel that stores f32."""
    return kf.cast(x @ w + b, kd.f32)


def layers(params: list[Any], x: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each layer's fused function and the arrays it was called with, as the network runs."""
    for index in range(0, len(params), 2):
        function = logits if index + 2 == len(params) else hidden
        args = (x, params[index], params[index + 1])
        x = function(*args)
        yield function, (*args, x)


def to_device(array: np.ndarray[Any, Any], device: str) -> Any:
    """The array where the kernels are to run."""
    if device == "sim":
        return array
    import torch

    wide = torch.from_numpy(np.asarray(array, np.float32)).cuda()
    return wide.to(torch.bfloat16) if array.dtype == ml_dtypes.bfloat16 else wide


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """The array in the host's memory."""
    return array if isinstance(array, np.ndarray) else array.float().cpu().numpy()


def run(dtype: Any, device: str) -> tuple[np.ndarray[Any, Any], list[Any], float]:
    """Predictions for the held-out digits, the kernel calls, and the seconds that they took."""
    images, labels = train.load()
    _, held_out = train.split(labels)
    params = [to_device(p.astype(dtype), device) for p in train.load_weights()]
    x = to_device(images[held_out].astype(dtype), device)
    calls, result, start = [], x, time.perf_counter()
    for function, args in layers(params, x):
        calls += function.plan(*args[:-1]).calls
        result = args[-1]
    scores = to_numpy(result)
    return scores.argmax(axis=1), calls, time.perf_counter() - start


def builds(calls: list[Any]) -> Table:
    """PTX size, what ptxas made of it, and build times without and with the cache."""
    from kdsl_runtime.builds import build

    table = Table(title="builds: cold is trace + PTX + ptxas, warm comes from the cache")
    for name in ("kernel", "target", "PTX KiB", "registers", "spills B", "cold ms", "warm ms"):
        table.add_column(name, justify="left" if name in ("kernel", "target") else "right")
    for call in calls:
        for target in TARGETS:
            start = time.perf_counter()
            module = call.module(target)
            report = build(module).metadata["report"]
            cold = time.perf_counter() - start
            start = time.perf_counter()
            build(call.module(target))
            warm = time.perf_counter() - start
            spills = report["spill_stores"] + report["spill_loads"]
            table.add_row(
                f"{call.output.name} {list(call.output.shape)}", target,
                f"{len(module.text) / 1024:.1f}", str(report["registers"]), str(spills),
                f"{cold * 1e3:.0f}", f"{warm * 1e3:.1f}",
            )  # fmt: skip
    return table


def main() -> int:
    """Run the demo; the exit status says whether the predictions are as they must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("sim", "cuda"), default="sim")
    device = parser.parse_args().device
    where = "the simulator" if device == "sim" else "the GPU"
    images, labels = train.load()
    _, held_out = train.split(labels)
    truth = labels[held_out]
    reference = train.forward(train.load_weights(), images[held_out])[0].argmax(axis=1)
    expected = float(np.mean(reference == truth))
    good, calls = True, []
    for name, dtype in (("f32", np.float32), ("bf16", ml_dtypes.bfloat16)):
        predicted, dtype_calls, seconds = run(dtype, device)
        accuracy = float(np.mean(predicted == truth))
        same = int(np.sum(predicted == reference))
        exact = name != "f32" or same == len(truth)
        good &= exact and abs(accuracy - expected) * 100 <= BF16_TOLERANCE_POINTS
        console.print(
            f"[bold]{name}[/]: {accuracy:.2%} of {len(truth)} held-out digits right "
            f"(NumPy f32: {expected:.2%}; same answer for {same}), {len(dtype_calls)} fused "
            f"kernels in {where}, {seconds:.1f} s"
        )
        calls += dtype_calls
    for call in calls:
        console.print(f"  {call}", highlight=False, markup=False)
    console.print(builds(calls))
    tile = collective.shared_tile(kd.bf16, 8, 64, contiguous=1)
    console.print("\nThe shared-memory tile of the bf16 kernels, 8 rows × 64 columns of K:")
    print(kd.show(tile, color=8 if sys.stdout.isatty() else None))
    print("Each run of 8 neighbours is one 16-byte chunk; chunk c of row r lies at c XOR r, so the")
    print("eight rows that one ldmatrix reads together fall into eight different bank groups.")
    if not good:
        console.print("[red]the predictions are not what they must be[/]")
    return 0 if good else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KDSL_CACHE_DIR"] = str(Path(folder) / "cache")
        sys.exit(main())
