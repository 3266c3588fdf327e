"""A tiled copy between matrices of any size and strides: the port of a first CuTe C++ kernel.

python examples/porting/tiled_copy.py

A block of 256 threads copies a tile of 128 × 64, four neighbours a thread at a time where sizes and
strides prove that four are there. What hangs over the edge is left out by predicates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from shown import show

import kdsl_core as kd

TILE_M, TILE_N = 128, 64
THREADS = 256


@kd.kernel
def tiled_copy(S: kd.Tensor["f32", "m n"], D: kd.Tensor["f32", "m n"], shown: kd.Static = False):
    """D = S, with 32 × 8 threads side by side along M and N."""
    m, n, _ = kd.block_idx()
    gS = kd.local_tile(S, (TILE_M, TILE_N), (m, n))  # (128, 64)
    gD = kd.local_tile(D, (TILE_M, TILE_N), (m, n))
    cS = kd.local_tile(kd.identity_tensor(S.shape), (TILE_M, TILE_N), (m, n))  # their coordinates

    vector = vector_along_m(S, D)
    atom = kd.atoms.universal_copy(32 * vector)
    copy = kd.tiled_copy(atom, kd.f32, kd.Layout((32, 8)), kd.Layout((vector, 1)))
    part = copy.get_slice(kd.thread_rank())
    tSgS, tSgD = part.partition_S(gS), part.partition_D(gD)  # (vector, 128s, 64s)
    tScS = part.partition_S(cS)
    tSrS = kd.rmem_like(tSgS)
    if shown:
        show(gS=gS, cS=cS, tSgS=tSgS, tScS=tScS, tSrS=tSrS)

    def inside(index):
        """Whether an element, and with it its vector, lies in the matrix."""
        row, column = tScS[index]
        return row < S.shape[0] and column < S.shape[1]

    kd.copy_if(inside, tSgS, tSrS)
    kd.copy_if(inside, tSrS, tSgD)


def vector_along_m(*tensors: kd.Tensor) -> int:
    """Elements along mode 0 that one access may move in all tensors: 1, 2 or 4."""
    contiguous = all(type(t.stride[0]) is int and t.stride[0] == 1 for t in tensors)
    widths = [kd.collective.access_elements(tensor, 0) for tensor in tensors]
    return math.gcd(*widths) if contiguous else 1


def launch_tiled_copy(S: Any, D: Any) -> dict[str, Any]:
    """How to launch it for these matrices."""
    grid = -(-S.shape[0] // TILE_M), -(-S.shape[1] // TILE_N)
    return {"grid": grid, "block": THREADS, "args": (S, D)}


def example_tiled_copy() -> dict[str, Any]:
    """A launch for `kdsl inspect examples/porting/tiled_copy.py`."""
    return launch_tiled_copy(*matrices(256, 100))


def matrices(m: int, n: int, padding: int = 0, step: int = 1) -> tuple[Any, Any]:
    """M × N numbers, and a place for them: columns `padding` apart, every `step`-th element."""
    whole = np.arange((m + padding) * step * n, dtype=np.float32).reshape(n, -1)
    source = whole[:, : m * step : step].T
    return source, np.full((n, m), np.nan, np.float32).T


def main() -> None:
    """Whole tiles, tiles that hang over, and elements that are no neighbours."""
    for shape in ((256, 128), (256, 100), (131, 67), (100, 70, 4, 2)):
        source, target = matrices(*shape)
        kd.simulate(tiled_copy, **launch_tiled_copy(source, target))
        np.testing.assert_array_equal(source, target)
        print("copied", source.shape, source.strides)


if __name__ == "__main__":
    main()
