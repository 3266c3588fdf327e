"""Cycles of a quarter of a multiprocessor for a matrix product of one warp, by `mma.sync`.

    python3 benchmarks/gpu/mma_rate.py

Warps multiply registers, and add to some independent sums each, with nothing else to do.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch

import kdsl_core as kd

ROUNDS = 4000
ATOMS = ("SM80_16x8x16_F32BF16BF16F32_TN", "SM80_16x8x8_F32BF16BF16F32_TN")


@kd.kernel
def multiply(x: kd.Tensor["bf16", "n"], y: kd.Tensor["f32", "m"], atom: kd.Static, sums: kd.Static):
    """Each warp's products; the result keeps them alive."""
    mma = kd.tiled_mma(getattr(kd.atoms, atom))
    depth = mma.atom.shape_mnk[2]
    a, b = mma.make_fragment_A((16, depth)), mma.make_fragment_B((8, depth))
    thread = kd.thread_rank()
    for i in range(kd.size(a.layout)):
        a[i] = x[thread + i]
    for i in range(kd.size(b.layout)):
        b[i] = x[thread + 8 + i]
    acc = [mma.make_fragment_C((16, 8)).fill(0.0) for _ in range(sums)]
    for _ in kd.range(ROUNDS):
        for c in acc:
            kd.gemm(mma, a, b, c)
    total = acc[0][0]
    for c in acc:
        for i in range(kd.size(c.layout)):
            total = total + c[i]
    y[kd.block_idx()[0] * kd.block_dim()[0] + thread] = total


def seconds(launch: Any) -> float:
    """The best of a few launches."""
    best = 1.0
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        launch()
        end.record()
        end.synchronize()
        best = min(best, 1e-3 * start.elapsed_time(end))
    return best


def main() -> None:
    """Print TFLOP/s, and cycles at 1.98 GHz, for warps of a multiprocessor and sums of a warp."""
    chips = torch.cuda.get_device_properties(0).multi_processor_count
    x = torch.randn(2048, device="cuda", dtype=torch.bfloat16)
    for atom in ATOMS:
        for warps in (4, 8, 16):
            for sums in (1, 2, 4, 8):
                y = torch.empty(chips * 32 * warps, device="cuda")
                launch = multiply[chips, 32 * warps]
                run = partial(launch, x, y, atom=atom, sums=sums)
                run()
                torch.cuda.synchronize()
                took = seconds(run) - 3e-6
                m, n, k = getattr(kd.atoms, atom).shape_mnk
                products = ROUNDS * sums * warps / 4
                flops = 2 * m * n * k * products * 4 * chips
                print(
                    f"{m}x{n}x{k} {warps:2} warps {sums} sums {1e-12 * flops / took:6.0f} TF "
                    f"{took * 1.98e9 / products:6.2f} cycles at 1.98 GHz"
                )


if __name__ == "__main__":
    sys.exit(main())
