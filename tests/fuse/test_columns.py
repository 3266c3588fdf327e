"""Reductions over the first axis: all shapes, types and orders, by whole sectors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from covering import combined
from kdsl_core.errors import ArgumentError
from kdsl_fuse.kernels.columns import ColumnsConfig, columns, reduce_columns, shared_out
from kdsl_fuse.kernels.row_programs import REDUCTIONS

SHAPES = [(5,), (1, 1), (7, 3), (130, 64), (1000, 256), (64, 5, 7), (3000, 8), (0, 4), (4, 0)]


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    """Random numbers around 1."""
    return (1 + np.random.default_rng(0).standard_normal(shape) / 8).astype(dtype)


@pytest.mark.parametrize(
    "shape, dtype",
    combined(
        SHAPES, {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f64": np.float64}, together=1
    ),
)
def test_reductions(shape: tuple[int, ...], dtype: Any) -> None:
    """Every reduction against f64, of matrices whose rows are split among blocks and of others."""
    x = numbers(shape, dtype)
    wide = x.astype(np.float64)
    names = [n for n in REDUCTIONS if shape[0] or n in ("sum", "prod")]
    for name in names:
        if name == "prod" and shape[0] > 200:
            continue
        y = np.full(shape[1:], np.nan, np.float64 if dtype is np.float64 else np.float32)
        reduce_columns(name, x, y)
        np.testing.assert_allclose(y, getattr(np, name)(wide, axis=0), rtol=1e-5)


def test_integers_and_nan() -> None:
    """Integers are exact, their mean is a float; NaN goes through an extreme."""
    x = np.random.default_rng(0).integers(-99, 99, (300, 33)).astype(np.int8)
    y, mean = np.empty(33, np.int32), np.empty(33, np.float32)
    reduce_columns("sum", x, y)
    np.testing.assert_array_equal(y, x.sum(0))
    reduce_columns("mean", x, mean)
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-6)
    z = numbers((40, 8))
    z[7, 3] = np.nan
    top = np.empty(8, np.float32)
    reduce_columns("max", z, top)
    np.testing.assert_array_equal(top, z.max(0))


def test_orders_of_axes() -> None:
    """Other axes that do not join, transposed matrices, results with a pitch."""
    x = numbers((9, 40, 6)).transpose(1, 2, 0)
    y = np.empty((6, 9), np.float32)
    reduce_columns("sum", x, y)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-5)
    turned, out = numbers((16, 70)).T, np.zeros((16, 2), np.float32)
    reduce_columns("mean", turned, out[:, 1])
    np.testing.assert_allclose(out[:, 1], turned.mean(0), rtol=1e-5)
    assert not out[:, 0].any()


def test_traffic_and_order() -> None:
    """Sectors once, no bank conflicts, the same bits in any order of blocks."""
    x = numbers((512, 512), ml_dtypes.bfloat16)
    config = ColumnsConfig(8, 4, parts=4, finished=False)
    found = []
    for order in ("linear", "shuffle"):
        y = np.full((4, 512), np.nan, np.float32)
        result = kd.simulate(
            columns,
            grid=(2, 4),
            block=config.threads,
            args=(x, y),
            kwargs={"count": 512, "reduction": REDUCTIONS["sum"], "config": config},
            checks=("all", "unwritten"),
            overlap=True,
            order=order,
        )
        assert result.profile.totals["global_load_sectors"] == x.nbytes / 32
        assert result.profile.totals["global_store_sectors"] >= 0.5 * y.nbytes / 32
        assert result.profile.bank_conflicts == 0
        found.append(y)
    np.testing.assert_allclose(found[0].sum(0), x.astype(np.float64).sum(0), rtol=1e-5)
    assert found[0].tobytes() == found[1].tobytes()


def test_shares() -> None:
    """Narrow and tall matrices are split, wide ones are not."""
    assert shared_out(1 << 20, 256, 8, 2).parts == 792
    assert shared_out(4096, 1 << 20, 8, 2).parts == 1
    assert shared_out(64, 256, 8, 2).parts == 1


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("K947", lambda: reduce_columns("sum", numbers((4, 8)), numbers((4,)))),
        ("K950", lambda: reduce_columns("median", numbers((4, 8)), numbers((8,)))),
        ("K950", lambda: reduce_columns("max", numbers((0, 8)), numbers((8,)))),
        ("K945", lambda: reduce_columns("sum", numbers((4, 8)), np.broadcast_to(np.float32(0), 8))),
    ],
)
def test_bad_input(code: str, call: Any) -> None:
    """Each mistake has its code."""
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.code == code
