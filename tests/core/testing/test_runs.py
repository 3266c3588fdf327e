"""`testing.simulate` runs a kernel in several orders on copies, and says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.testing import simulate
from kdsl_core.testing.copies import copied


@kd.kernel
def scaled(
    x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], z: kd.Tensor["f32", "n"], by: kd.f32
):
    """y = by · x and z = x + y."""
    i = kd.thread_idx()[0]
    y[i] = x[i] * by
    z[i] = x[i] + y[i]


@kd.kernel
def last_warp_wins(x: kd.Tensor["f32", "n"]):
    """Which warp writes last depends on the order."""
    x[0] = kd.warp_idx().to(kd.f32)  # kdsl: allow race: the test wants to see the order


@kd.kernel
def never_ends(x: kd.Tensor["f32", "n"]):
    """It waits for an arrival that nobody makes."""
    b = kd.mbarrier(1, name="b")
    if kd.thread_rank() == 0:
        b.init()
    kd.sync_threads()
    b.wait(0)


def words() -> tuple[np.ndarray[Any, Any], ...]:
    """Some numbers and room for two results."""
    return np.arange(32, dtype=np.float32), np.zeros(32, np.float32), np.zeros(32, np.float32)


def test_arrays_by_place_name_and_reference() -> None:
    """Expected arrays go by the arguments that the kernel writes; references see the arguments."""
    x, y, z = words()
    run = simulate(scaled, 1, 32, x, y, z, 2.0)
    assert run.equals(2 * x, 3 * x) is run
    run.equals(z=3 * x)
    run.close_to(lambda x, y, z, by: (by * x, x + by * x))
    np.testing.assert_array_equal(run["y"], 2 * x)
    assert run.outputs[2] is run["z"]
    assert not y.any() and not z.any()
    assert list(run.results) == ["linear", "shuffle, seed 0", "shuffle, seed 1"]


def test_the_first_wrong_order_is_named() -> None:
    """A result that depends on the order is wrong in some order."""
    with pytest.raises(AssertionError, match=r"order shuffle, seed \d+:\n1 of 1 elements of x"):
        simulate(last_warp_wins, 1, 256, np.zeros(1, np.float32), seeds=range(8)).equals(7.0)


def test_tolerances() -> None:
    """Those of the caller go before those of the dtype."""
    x, y, z = words()
    run = simulate(scaled, 1, 32, x, y, z, 2.0, seeds=())
    run.close_to(y=2 * x + 0.5, atol=0.5)
    with pytest.raises(AssertionError, match=r"by more than 0 · \|expected\| \+ 0.25"):
        run.close_to(y=2 * x + 0.5, atol=0.25, rtol=0.0)


@pytest.mark.parametrize(
    ("expected", "named"), [((1.0,), {}), ((1.0, 2.0, 3.0), {}), ((), {"w": 1.0})]
)
def test_arrays_that_fit_no_argument(expected: Any, named: Any) -> None:
    """K533 says which arguments the kernel writes, or which arrays there are."""
    run = simulate(scaled, 1, 32, *words(), 2.0, seeds=())
    with pytest.raises(kd.ArgumentError) as caught:
        run.equals(*expected, **named)
    assert caught.value.code == "K533"


def test_a_run_that_cannot_go_on() -> None:
    """Hazards fail the test with their report, deadlocks as well."""
    with pytest.raises(
        AssertionError, match=r"order linear:\n(.|\n)*nothing in the kernel arrives"
    ):
        simulate(never_ends, 1, 32, np.zeros(1, np.float32))


def test_copies_look_like_the_originals() -> None:
    """Strides, alignment, aliasing and writability stay; memory does not."""
    base = np.arange(240, dtype=np.float32).reshape(12, 20)
    views = (base[::2, 3:], base[5, ::-1], base.T, np.broadcast_to(base[0], (3, 20)), base[:0])
    frozen = base[1]
    frozen.flags.writeable = False
    (made, named) = copied(((*views, frozen, 7), {"base": base, "text": "t"}))
    for old, new in zip((*views, frozen, base), (*made[:6], named["base"]), strict=True):
        assert (new.shape, new.strides, new.dtype) == (old.shape, old.strides, old.dtype)
        np.testing.assert_array_equal(new, old)
        assert (new.ctypes.data - old.ctypes.data) % 256 == 0
        assert old.size == 0 or not np.shares_memory(new, old)
        assert new.flags.writeable == old.flags.writeable
    assert made[6] == 7 and named["text"] == "t"
    named["base"][0, 3] = -1.0
    assert made[0][0, 0] == -1.0 and base[0, 3] == 3.0


def test_nothing_but_the_plugin_needs_pytest() -> None:
    """A process that uses the module never imports pytest."""
    code = (
        "import sys, kdsl_core.testing as t; t.simulate, t.differences; "
        "print('pytest' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr
