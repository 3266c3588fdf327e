"""Quotients and remainders are Python's, by whichever instructions they are computed."""

from __future__ import annotations

import numpy as np
import pytest

import kdsl_core as kd

DIVISORS = (1, 2, 3, 5, 7, 64, 96, 127, 128, 641, 2**16 + 1, 2**30 - 1, 2**30 + 1, 2**31 - 1)


@kd.kernel
def by_constant(
    x: kd.Tensor["i32|u32|i64", "n"],
    q: kd.Tensor["=x", "n"],
    r: kd.Tensor["=x", "n"],
    n: kd.Static,
):
    """q, r = x // n, x % n with a divisor that the trace knows."""
    i = kd.thread_rank()
    q[i], r[i] = x[i] // n, x[i] % n


@kd.kernel
def by_value(
    x: kd.Tensor["i32|u32|i64", "n"],
    y: kd.Tensor["=x", "n"],
    q: kd.Tensor["=x", "n"],
    r: kd.Tensor["=x", "n"],
):
    """q, r = x // y, x % y."""
    i = kd.thread_rank()
    q[i], r[i] = x[i] // y[i], x[i] % y[i]


def dividends(dtype: str, n: int) -> np.ndarray:
    """Multiples of n and their neighbours, the ends of the type, and random numbers."""
    info, rng = np.iinfo(dtype), np.random.default_rng(n)
    near = [k * n + d for k in (-3, -1, 0, 1, 2, (2**31 - 1) // n) for d in (-1, 0, 1)]
    ends = [info.min, info.min + 1, -1, 0, 1, info.max - 1, info.max]
    found = [v for v in (*near, *ends) if info.min <= v <= info.max]
    some = rng.integers(info.min, info.max, 64 - len(found), dtype, endpoint=True)
    return np.concatenate([np.array(found, dtype), some])


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
@pytest.mark.parametrize("n", DIVISORS)
def test_by_constant(n: int, dtype: str) -> None:
    """Every sign and both ends of the type."""
    x = dividends(dtype, n)
    q, r = np.empty_like(x), np.empty_like(x)
    by_constant[1, 64](x, q, r, n=n)
    wanted = [divmod(int(value), n) for value in x]
    assert list(zip(q.tolist(), r.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64"])
def test_by_value(dtype: str) -> None:
    """Divisors of both signs."""
    x = np.concatenate([dividends(dtype, n)[:8] for n in (3, 7, 10, 64, 5, 9, 2, 11)])
    y = np.resize(np.array([3, 7, 64, 1, 1000] + [-5, -1, -64] * (dtype[0] == "i"), dtype), 64)
    safe = ~((x == np.iinfo(dtype).min) & (y == -1).astype(bool)) if dtype[0] == "i" else x == x
    x = np.where(safe, x, x.dtype.type(1))
    q, r = np.empty_like(x), np.empty_like(x)
    by_value[1, 64](x, y, q, r)
    wanted = [divmod(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    assert list(zip(q.tolist(), r.tolist(), strict=True)) == wanted


def test_constants_take_no_division() -> None:
    """Known divisors of i32 become shifts, masks and products."""
    x = kd.spec("i32", (64,))
    for n in DIVISORS:
        text = str(by_constant.ptx(x, x, x, n=n, block=64, target="sm_90a"))
        assert "div." not in text and "rem." not in text


@kd.kernel
def tiles(x: kd.Tensor["f32", "m n l"], counts: kd.Tensor["i32", "3"], tile: kd.Static):
    """How many tiles cover each mode of x."""
    if kd.thread_rank() == 0:
        for mode, count in enumerate(kd.ceil_div(x.shape, tile)):
            counts[mode] = count


@pytest.mark.parametrize(
    ("tile", "wanted"),
    [((4, 5, 1), (3, 2, 7)), ((4, 1), (3, 6, 7)), (20, (1, 2, 7)), ((4, 20, 2), (3, 1, 4))],
)
def test_ceil_div_of_shapes(tile: int | tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Mode by mode; modes without a divisor stay, one divisor goes through the modes."""
    counts = np.zeros(3, np.int32)
    tiles[1, 32](np.zeros((9, 6, 7), np.float32), counts, tile=tile)
    assert tuple(counts) == wanted == kd.layout.ceil_div((9, 6, 7), tile)


def test_ceil_div_by_more_modes() -> None:
    """A tile of more modes than the shape is refused at the author's line."""
    with pytest.raises(kd.LayoutError, match="K104") as caught:
        tiles[1, 32](np.zeros((9, 6, 7), np.float32), np.zeros(3, np.int32), tile=(1, 2, 3, 4))
    assert "kd.ceil_div(x.shape, tile)" in str(caught.value)
