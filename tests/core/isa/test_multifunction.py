"""The fast functions against bits recorded on an H200, and what PTX states of them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.isa.bench import Traced
from kdsl_core.dtypes import f32
from kdsl_core.ir import Const
from kdsl_core.isa import multifunction
from kdsl_core.isa.functions import APPROX
from kdsl_core.isa.math import function
from scripts import scripts

GOLDEN = Path(__file__).parents[2] / "golden" / "functions"
CHECKSUMS: dict[str, int] = json.loads((GOLDEN / "checksums.json").read_text())
SHORT = [name for name in CHECKSUMS if "binade" not in name]
WHOLE = [name for name in CHECKSUMS if "binade" in name]


@pytest.fixture(scope="module")
def recordings() -> Iterator[SimpleNamespace]:
    """The script that made the recordings: their inputs, and what the files hold."""
    with scripts("gpu", "ulps", "record_functions") as found:
        yield found.record_functions


def model(name: str, x: Any) -> Any:
    """The simulator's results."""
    with np.errstate(all="ignore"):
        return APPROX[name][1](x)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.npz")), ids=lambda path: path.stem)
def test_every_number_of_16_bits(recordings: Any, path: Path) -> None:
    """Each result for an f16 or bf16 argument has the H200's bits, NaN and zeros included."""
    x, got = recordings.recorded(path)
    assert len(x) == 1 << 16
    y = model(path.stem.partition("-")[0], x)
    np.testing.assert_array_equal(y.view(np.uint32), got.view(np.uint32))


def agrees(recordings: Any, stem: str) -> None:
    """The simulator's results for a set of inputs have the checksum of the H200's."""
    name, _, which = stem.partition("-")
    assert zlib.crc32(model(name, recordings.inputs(which)).tobytes()) == CHECKSUMS[stem]


@pytest.mark.parametrize("stem", SHORT)
def test_random_bits(recordings: Any, stem: str) -> None:
    """A million bit patterns, with the first and last numbers of each exponent."""
    agrees(recordings, stem)


@pytest.mark.slow
@pytest.mark.parametrize("stem", WHOLE)
def test_whole_binades(recordings: Any, stem: str) -> None:
    """Every number of a binade."""
    agrees(recordings, stem)


def _log2_bound(x: Any, exact: Any) -> Any:
    return np.where((x >= 0.5) & (x <= 2), 2.0**-22, 2.0**-22 * np.abs(exact))


# function → (f64 function, arguments from and to, absolute error that PTX allows), without rounding
PTX: dict[str, tuple[Any, float, float, Callable[[Any, Any], Any]]] = {
    "exp2": (np.exp2, -126, 128, lambda x, y: 2 * 2.0**-23 * y),
    "log2": (np.log2, 2.0**-149, 3e38, _log2_bound),
    "rcp": (np.reciprocal, 2.0**-126, 2.0**126, lambda x, y: 2.0**-23 * y),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2.0**-149, 3e38, lambda x, y: 2.0**-22.9 * y),
    "sqrt": (np.sqrt, 2.0**-126, 3e38, lambda x, y: 2.0**-23 * y),
    "tanh": (np.tanh, -10, 10, lambda x, y: 2.0**-11 * np.abs(y)),
    "sin": (np.sin, -np.pi, np.pi, lambda x, y: 2.0**-20.5),
    "cos": (np.cos, -np.pi, np.pi, lambda x, y: 2.0**-20.5),
}


@pytest.mark.parametrize("name", APPROX)
def test_what_ptx_states(name: str) -> None:
    """The error is within PTX's bound, and one rounding."""
    exact, low, high, bound = PTX[name]
    rng = np.random.default_rng(3)
    x = rng.uniform(max(low, -300), min(high, 300), 1 << 18)
    if low > 0:
        x = np.concatenate([x, np.exp2(rng.uniform(np.log2(low), np.log2(high), 1 << 18))])
    x = x.astype(np.float32)
    want = exact(x.astype(np.float64))
    error = np.abs(model(name, x) - want) - np.spacing(np.abs(want).astype(np.float32))
    assert (error <= bound(x.astype(np.float64), want)).all()


def test_shapes_and_constants() -> None:
    """Any number of modes, none too; a constant's function is a constant."""
    x = np.linspace(0.1, 3, 24).astype(np.float32)
    for name in APPROX:
        y = model(name, x)
        assert np.array_equal(model(name, x.reshape(2, 3, 4)[:, ::-1]), y.reshape(2, 3, 4)[:, ::-1])
        assert model(name, np.array(x[3])) == y[3] and model(name, x[:0]).shape == (0,)
        half = Traced(lambda b, x, name=name: function(b, name, Const(f32, 0.5), True), f32)
        assert half.result.value == model(name, np.full(1, 0.5, np.float32))[0]


def test_squares_are_cut_off() -> None:
    """The squarer never gives more than the square, and 9 units of 2^19 less at most."""
    x = np.arange(1 << multifunction.LOW_BITS)
    missing = x**2 / 2.0**19 - multifunction.squares()
    assert missing.min() == 0 and 8 < missing.max() < 9
