"""The sm_80-class GEMM against cuBLAS on the GPU at hand, side by side in one run.

    python3 benchmarks/gpu/gemm.py --json results/gpu/gemm_sm80.json

Both sides run interleaved (A/B/A/B) on rotating random normal buffers larger than the L2 cache and
are timed by events; figures are medians. Errors are relative to the f64 product of sampled rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig, gemm_sm80, identity

SHAPES = ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 8192, 1024), (2048, 2048, 2048))
ATOMS = {
    torch.bfloat16: "SM80_16x8x16_F32BF16BF16F32_TN",
    torch.float16: "SM80_16x8x16_F32F16F16F32_TN",
}
TILES = (
    ((128, 256, 64), (2, 4), 3),
    ((256, 128, 64), (4, 2), 3),
    ((128, 128, 64), (2, 2), 3),
    ((128, 128, 32), (2, 2), 4),
    ((64, 128, 64), (2, 2), 3),
)
TURNS = 12
BUFFERS = 3


def configurations(dtype: torch.dtype) -> list[GemmConfig]:
    """What is tried."""
    return [GemmConfig(ATOMS[dtype], *tile) for tile in TILES]


def launcher(config: GemmConfig, buffers: list[Any]) -> Callable[[int], None]:
    """A function that runs the kernel on buffer set i."""
    c = buffers[0][2]
    tile_m, tile_n, _ = config.tile
    grid = -(-c.shape[0] // tile_m) * -(-c.shape[1] // tile_n)
    kernel = gemm_sm80[grid, config.threads]

    def launch(i: int) -> None:
        a, b, c = buffers[i % len(buffers)]
        kernel(a, b, c, epilogue=identity, config=config)

    return launch


def captured(launch: Callable[[int], None]) -> Any:
    """A CUDA graph of one launch on each buffer set, so that launch cost is not compared."""
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(BUFFERS):
            launch(i)
    return graph


def interleaved(sides: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Median milliseconds of each side, run by turns."""
    graphs = {name: captured(launch) for name, launch in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(TURNS + 2):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end) / BUFFERS)
    return {name: statistics.median(values) for name, values in times.items()}


def relative_error(a: Any, b: Any, c: Any) -> float:
    """‖C − A·Bᵀ‖ / ‖A·Bᵀ‖ over sampled rows, in f64."""
    rows = torch.randint(0, a.shape[0], (64,), device=a.device)
    exact = a[rows].double() @ b.double().T
    return float((c[rows].double() - exact).norm() / exact.norm())


def measure(shape: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Any]:
    """All configurations and cuBLAS on one shape."""
    m, n, k = shape
    buffers = [
        [torch.randn(*size, device="cuda", dtype=dtype) for size in ((m, k), (n, k), (m, n))]
        for _ in range(BUFFERS)
    ]
    sides: dict[str, Callable[[int], None]] = {}
    errors = {}
    for config in configurations(dtype):
        name = f"{'x'.join(map(str, config.tile))} w{config.warps} s{config.stages}"
        a, b, c = buffers[0]
        c.fill_(float("nan"))
        sides[name] = launcher(config, buffers)
        sides[name](0)
        errors[name] = relative_error(a, b, c)
    sides["cuBLAS"] = lambda i: torch.mm(
        buffers[i % BUFFERS][0], buffers[i % BUFFERS][1].T, out=buffers[i % BUFFERS][2]
    )
    sides["cuBLAS"](0)
    errors["cuBLAS"] = relative_error(*buffers[0])
    times = interleaved(sides)
    rates = {name: 2e-9 * m * n * k / time for name, time in times.items()}
    return {"shape": shape, "dtype": str(dtype), "tflops": rates, "error": errors}


def main() -> None:
    """Measure, print a short table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="only the first shape, bf16")
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = [(shape, torch.bfloat16) for shape in SHAPES] + [(SHAPES[1], torch.float16)]
    results = [measure(*case) for case in (cases[:1] if options.quick else cases)]
    device = torch.cuda.get_device_name()
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"device": device, "torch": torch.__version__, "results": results}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(device, "kdsl_core", kd.__name__)
    for result in results:
        rates = result["tflops"]
        ours = sorted((n for n in rates if n != "cuBLAS"), key=rates.get, reverse=True)
        best, vendor = rates[ours[0]], rates["cuBLAS"]
        print(f"{result['shape']} {result['dtype']}: cuBLAS {vendor:.0f} TFLOP/s")
        for name in ours[:4]:
            print(
                f"   {name:32s} {rates[name]:6.0f}  {rates[name] / vendor:.2f}×"
                f"  error {result['error'][name]:.1e} (cuBLAS {result['error']['cuBLAS']:.1e})"
            )
        print(f"   best ratio {best / vendor:.3f}, worst error {max(result['error'].values()):.1e}")


if __name__ == "__main__":
    main()
