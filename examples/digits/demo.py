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
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import train
from rich import box
from rich.console import Console
from rich.table import Table

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core import collective
from kdsl_runtime.builds import build

TARGETS = ("sm_80", "sm_90a")
BF16_TOLERANCE_POINTS = 0.5
Layer = tuple[Any, tuple[Any, ...]]  # a fused function and its arguments
console = Console()


@kf.fuse
def hidden(x: Any, w: Any, b: Any) -> Any:
    """A hidden layer: one kernel."""
    return kf.gelu(x @ w + b)


@kf.fuse
def logits(x: Any, w: Any, b: Any) -> Any:
    """The last layer: one kernel that stores f32."""
    return kf.cast(x @ w + b, kd.f32)


def arrays(dtype: Any, device: str) -> tuple[Any, list[Any]]:
    """The held-out images and the parameters in `dtype`, where the kernels are to run."""
    images, labels = train.load()
    _, held_out = train.split(labels)
    params = [to_device(p.astype(dtype), device) for p in train.load_weights()]
    return to_device(images[held_out].astype(dtype), device), params


def to_device(array: np.ndarray[Any, Any], device: str) -> Any:
    """The array in the memory of the simulator (NumPy) or of the GPU (torch)."""
    if device == "sim":
        return array
    import torch

    wide = torch.from_numpy(np.asarray(array, np.float32)).cuda()
    return wide.to(torch.bfloat16) if array.dtype == ml_dtypes.bfloat16 else wide


def to_numpy(array: Any) -> np.ndarray[Any, Any]:
    """The array in the host's memory."""
    return array if isinstance(array, np.ndarray) else array.float().cpu().numpy()


def predict(x: Any, params: list[Any]) -> tuple[np.ndarray[Any, Any], list[Layer], float]:
    """Predicted digits, the layers that gave them, and the seconds that they took."""
    layers, start = [], time.perf_counter()
    for index in range(0, len(params), 2):
        function = logits if index + 2 == len(params) else hidden
        args = (x, params[index], params[index + 1])
        layers.append((function, args))
        x = function(*args)
    return to_numpy(x).argmax(axis=1), layers, time.perf_counter() - start


def build_table(layers: list[Layer]) -> Table:
    """PTX size, registers and spills, and build times without and with the cache."""
    title = "builds: cold is trace + PTX + ptxas, warm takes the cubin from the cache"
    table = Table(title=title, box=box.SIMPLE)
    left = ("stores", "target", "kernel")
    for name in (*left, "PTX KiB", "regs", "spills", "cold ms", "warm ms"):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for function, args in layers:
        for target in TARGETS:
            (call,) = kf.fuse(target=target)(function.function).plan(*args).calls
            (module, report, cold), (*_, warm) = (
                timed_build(call, target),
                timed_build(call, target),
            )
            spills = report["spill_stores"] + report["spill_loads"]
            numbers = (f"{len(module.text) / 1024:.1f}", report["registers"], spills)
            times = (f"{cold * 1e3:.0f}", f"{warm * 1e3:.0f}")
            stores = f"{call.output.dtype} {'×'.join(map(str, call.output.shape))}"
            table.add_row(stores, target, call.name, *map(str, numbers), *times)
    return table


def timed_build(call: Any, target: str) -> tuple[Any, dict[str, int], float]:
    """A kernel's PTX module, what ptxas reports, and the seconds from Python source to cubin."""
    call.kernel.clear()
    start = time.perf_counter()
    module = call.module(target)
    report = build(module).metadata["report"]
    return module, report, time.perf_counter() - start


def check(name: str, dtype: Any, device: str) -> tuple[bool, list[Layer]]:
    """Classify with kernels of one type; whether the predictions are as they must be."""
    images, labels = train.load()
    _, held_out = train.split(labels)
    truth = labels[held_out]
    reference = train.forward(train.load_weights(), images[held_out])[0].argmax(axis=1)
    predicted, layers, seconds = predict(*arrays(dtype, device))
    right, expected = float(np.mean(predicted == truth)), float(np.mean(reference == truth))
    same = int(np.sum(predicted == reference))
    where = "the simulator" if device == "sim" else "the GPU"
    console.print(
        f"[bold]{name}[/]: {right:.2%} of {len(truth)} held-out digits right (NumPy f32: "
        f"{expected:.2%}, same answer for {same}); {len(layers)} fused kernels in {where}, "
        f"{seconds:.1f} s"
    )
    good = same == len(truth) if name == "f32" else True
    return good and abs(right - expected) * 100 <= BF16_TOLERANCE_POINTS, layers


def show_tile() -> None:
    """The shared-memory tile of the bf16 kernels, as a picture of its 16-byte chunks."""
    tile = kd.slice_((None, None, 0), collective.shared_tile(kd.bf16, 8, 64, contiguous=1))
    console.print(
        "\nA shared-memory tile of the bf16 kernels, 8 rows × 64 columns of K, by chunks of"
    )
    console.print(
        "8 elements (16 bytes): the number is the place where the chunk of that row lies."
    )
    print(kd.show(kd.recast_layout(tile, 16, 128), color=8 if sys.stdout.isatty() else None))
    print("Chunk c of row r lies at place c XOR r of its row, so the eight rows that one ldmatrix")
    print("reads together fall into eight different bank groups: no conflicts.")


def main() -> int:
    """Run the demo; the exit status says whether the predictions are as they must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("sim", "cuda"), default="sim")
    device = parser.parse_args().device
    checked = [check("f32", np.float32, device), check("bf16", ml_dtypes.bfloat16, device)]
    layers = [layer for _, of_type in checked for layer in of_type]
    for function, args in layers:
        for call in function.plan(*args).calls:
            console.print(f"  {call}", highlight=False, markup=False, soft_wrap=True)
    console.print(build_table(layers))
    show_tile()
    good = all(right for right, _ in checked)
    if not good:
        console.print("[red]the predictions are not what they must be[/]")
    return 0 if good else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["KDSL_CACHE_DIR"] = str(Path(folder) / "cache")
        sys.exit(main())
