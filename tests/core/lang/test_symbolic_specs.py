"""Kernels built for sizes that are symbols: the facts of the symbol decide what code there is."""

from __future__ import annotations

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import ArgumentError
from kdsl_core.layout import substitute


@kd.kernel
def copies(x: kd.Tensor["bf16", "m n"], y: kd.Tensor["bf16", "m n"]):
    """Each thread copies eight neighbours of a row."""
    row, first = kd.block_idx()[0], kd.thread_idx()[0]
    kd.copy(x.tile((1, 8), (row, first)), y.tile((1, 8), (row, first)))


def ptx(n: object, m: object = None) -> str:
    """The PTX for rows of n elements."""
    rows = kd.sym("m") if m is None else m
    spec = kd.spec("bf16", (rows, n))
    return copies.ptx(spec, spec, block=32, target="sm_80")


@pytest.mark.parametrize(
    ("divisor", "access"), [(8, "v4.b32"), (4, "v2.b32"), (2, ".b32"), (1, ".b16")]
)
def test_divisibility_decides_the_vector_width(divisor: int, access: str) -> None:
    """A pitch that is known to be divisible gives accesses as wide as the divisor proves."""
    loads = [
        line for line in ptx(kd.sym("n", divisible_by=divisor)).splitlines() if "ld.global" in line
    ]
    assert loads and all(access in line for line in loads)


def test_symbols_and_numbers_share_code_but_for_the_offsets() -> None:
    """Open sizes need 64-bit offsets; otherwise the code is that of any array with the facts."""
    open_sizes, known = ptx(kd.sym("n", divisible_by=8)), ptx(64, 1 << 26)
    assert open_sizes == known
    assert ptx(64, 64) != known


def test_one_symbol_is_one_size() -> None:
    """The same dimension name takes the same symbol, and another one is refused."""
    m, n, k = kd.sym("m"), kd.sym("n"), kd.sym("k")
    with pytest.raises(kd.ArgumentError) as caught:
        copies.ptx(kd.spec("bf16", (m, n)), kd.spec("bf16", (m, k)), block=32, target="sm_80")
    assert caught.value.code == "K611"
    assert copies.keys(kd.spec("bf16", (m, n)), kd.spec("bf16", (m, n)), block=32)


@kd.kernel
def measures(x: kd.Tensor["i32", "m n"], out: kd.Tensor["i32", "k"]):
    """What the layout algebra says of a matrix whose sizes are run-time scalars."""
    tiles = kd.zipped_divide(kd.Layout(x.shape), (16, 8))
    values = (kd.size(tiles[1]), kd.size(tiles[1][0]), tiles(((3, 5), (1, 2))), kd.size(tiles[0]))
    for i, value in enumerate(values):
        out[i] = value + kd.thread_idx()[0]


@pytest.mark.parametrize("sizes", [(64, 40), (33, 17), (1, 9)])
def test_symbols_and_scalars_obey_one_algebra(sizes: tuple[int, int]) -> None:
    """An expression of symbols, given numbers, is what the kernel computes from its scalars."""
    m, n = kd.sym("m", at_least=1), kd.sym("n", at_least=1)
    tiles = kd.zipped_divide(kd.Layout((m, n)), (16, 8))
    symbolic = (kd.size(tiles[1]), kd.size(tiles[1][0]), tiles(((3, 5), (1, 2))), kd.size(tiles[0]))
    wanted = [substitute(x, {"m": sizes[0], "n": sizes[1]}) for x in symbolic]
    out = np.zeros(4, np.int32)
    measures[1, 1](np.zeros(sizes, np.int32), out)
    assert out.tolist() == wanted


def test_sizes_of_other_kinds() -> None:
    """NumPy's integers count as Python's; names and fractions are refused where they stand."""
    spec = kd.spec("f32", (np.int64(4), 6), strides=(np.int64(8), np.int32(1)))
    assert [type(n) for n in (*spec.shape, *spec.strides)] == [int] * 4
    for given in ({"shape": ("n",)}, {"shape": (4, 2.0)}, {"shape": (4,), "strides": (None,)}):
        with pytest.raises(ArgumentError, match="expected integers and symbols") as caught:
            kd.spec("f32", **given)
        assert caught.value.code == "K601"
