"""Functions are within 2 ulp, and one instruction when approximate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from core.isa.bench import Traced
from kdsl_core.dtypes import DType, bf16, f16, f32, f64, i32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Const
from kdsl_core.isa.functions import direct
from kdsl_core.isa.math import NAMES, function

REFERENCE: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "ndtr": np.vectorize(lambda x: 0.5 * math.erfc(-x * math.sqrt(0.5)), otypes=[np.float64]),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
}
POSITIVE = ("log", "log2", "sqrt", "rsqrt")


def of(name: str, dtype: DType = f32, approx: bool = False) -> Traced:
    """`function` of a register."""
    return Traced(lambda b, x: function(b, name, x, approx), dtype)


def arguments(name: str) -> Any:
    """f32 arguments of every size for which the function promises 2 ulp."""
    rng = np.random.default_rng(0)
    sign = rng.choice([-1.0, 1.0], 6000)
    sized = np.exp(rng.uniform(-30, 4.4, 6000)) * sign
    plain = rng.uniform(-10, 10, 6000)
    if name in POSITIVE:
        near_one = 1 + rng.uniform(-1e-2, 1e-2, 6000)
        return np.abs(np.concatenate([np.exp(rng.uniform(-103, 88, 6000)), plain, near_one]))
    if name in ("sin", "cos"):
        multiples = np.arange(-3000, 3000) * (math.pi / 2)
        return np.concatenate([sized, plain, multiples, rng.uniform(-(2**20), 2**20, 6000)])
    if name in ("exp", "exp2"):
        return np.concatenate([sized, plain, rng.uniform(-150, 128, 6000)])
    return np.concatenate([sized, plain])


def ulps(got: Any, truth: Any) -> Any:
    """Distance in units of the last place of the true value, 0 where both overflow."""
    bounded = np.minimum(np.abs(truth), np.finfo(np.float32).max).astype(np.float32)
    unit = np.spacing(bounded).astype(np.float64)
    equal = (got.astype(np.float64) == truth) | (np.isinf(got) & (np.abs(truth) > 3.4028235e38))
    return np.where(equal, 0.0, np.abs(got.astype(np.float64) - truth) / unit)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ndtr"])
def test_results_are_within_two_ulp(name: str) -> None:
    """The full-precision form against f64."""
    x = arguments(name).astype(np.float32)
    with np.errstate(all="ignore"):
        truth = REFERENCE[name](x.astype(np.float64))
        error = ulps(of(name)(x), truth)
    assert error.max() <= 2.0, f"{name}({x[error.argmax()]!r}) is off by {error.max():.2f} ulp"


@pytest.mark.parametrize("approx", [False, True])
def test_the_normal_distribution(approx: bool) -> None:
    """Within 2^-23 everywhere; by the approximation also within 64 ulp down to −5."""
    x = np.append(np.linspace(-20, 20, 40001), arguments("ndtr")).astype(np.float32)
    truth = REFERENCE["ndtr"](x.astype(np.float64))
    got = of("ndtr", approx=approx)(x)
    assert np.abs(got - truth).max() <= 2.0**-23
    if approx:
        assert ulps(got, truth)[x > -5].max() <= 64
        assert of("ndtr", approx=True).names.total() <= 16


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("sin", "cos")])
@pytest.mark.parametrize("approx", [False, True])
def test_special_values(name: str, approx: bool) -> None:
    """Zero, infinities, NaN and huge numbers give what the function's limit is."""
    x = np.array([0.0, 1.0, np.inf, -np.inf, np.nan, -200.0, 3e38, 2.0**-149])
    with np.errstate(all="ignore"):
        x = x.astype(np.float32)
        truth = np.asarray(REFERENCE[name](x.astype(np.float64))).astype(np.float32)
        got = of(name, approx=approx)(x)
    rtol = 2.0**-11 if (name, approx) == ("tanh", True) else 1e-6
    rtol = 2e-6 if name == "ndtr" else rtol
    np.testing.assert_allclose(got, truth, rtol=rtol, atol=1e-38)


def test_circular_functions_end_where_their_digits_do() -> None:
    """sin and cos give NaN beyond 2^20, for infinities and NaN."""
    x = np.array([2.0**20 + 1, -(2.0**21), np.inf, np.nan])
    assert np.isnan(of("sin")(x)).all() and np.isnan(of("cos")(x)).all()
    assert of("sin")(np.array([0.0])).tolist() == [0.0]
    assert of("cos")(np.array([0.0])).tolist() == [1.0]


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_functions_are_odd(name: str) -> None:
    """f(−x) is −f(x) in every bit, −0 included."""
    x = np.abs(arguments(name)).astype(np.float32)
    x[0] = 0.0
    np.testing.assert_array_equal(
        of(name)(-x).view(np.uint32), of(name)(x).view(np.uint32) ^ np.uint32(1 << 31)
    )


@pytest.mark.parametrize("name", ["exp2", "log2", "rsqrt", "sqrt", "rcp", "tanh", "sin", "cos"])
def test_approximate_functions_are_one_instruction(name: str) -> None:
    """The hardware's own instruction, and nothing else."""
    assert dict(of(name, approx=True).names) == {f"math.{name}_approx": 1}


def test_exp2_that_flushes() -> None:
    """Subnormal results are zero, all others those of the plain approximation."""
    traced = Traced(lambda b, x: direct(b, "exp2_ftz_approx", x), f32)
    assert dict(traced.names) == {"math.exp2_ftz_approx": 1}
    x = np.append(arguments("exp2"), [0.0, np.inf, -np.inf, -126.5, 2.0**-140]).astype(np.float32)
    with np.errstate(all="ignore"):
        got, whole = traced(x), of("exp2", approx=True)(x)
    normal = whole >= np.finfo(np.float32).tiny
    np.testing.assert_array_equal(got, np.where(normal, whole, 0))
    assert (~normal).any() and np.isnan(traced(np.array([np.nan], np.float32))).all()


@pytest.mark.parametrize(("name", "most"), [("exp", 2), ("log", 2), ("sigmoid", 4)])
def test_composed_approximations_stay_short(name: str, most: int) -> None:
    """Functions without an instruction take a few."""
    assert of(name, approx=True).names.total() <= most


@pytest.mark.parametrize(("name", "most"), [("erf", 32), ("tanh", 30), ("exp", 22)])
def test_epilogue_functions_are_short(name: str, most: int) -> None:
    """The full-precision forms that GEMM epilogues use; bit casts cost nothing."""
    names = of(name).names
    assert sum(n for op, n in names.items() if "bits_" not in op) <= most


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("name", ["exp", "tanh", "sqrt", "floor"])
def test_narrow_types_are_computed_in_f32(name: str, dtype: DType) -> None:
    """The result is the f32 one, rounded."""
    x = np.linspace(0, 5, 100).astype(dtype.numpy)
    expected = REFERENCE[name](x.astype(np.float64)).astype(np.float32).astype(dtype.numpy)
    got = of(name, dtype)(x)
    assert got.dtype == dtype.numpy
    np.testing.assert_allclose(got.astype(float), expected.astype(float), rtol=2.0**-7)


def test_double_precision_has_the_exact_functions() -> None:
    """sqrt, rcp, rsqrt and the roundings; others are refused."""
    x = np.array([2.0, 0.3])
    assert of("sqrt", f64)(x).tolist() == np.sqrt(x).tolist()
    assert of("rsqrt", f64)(x).tolist() == (1 / np.sqrt(x)).tolist()
    assert of("ceil", f64)(x).tolist() == [2.0, 1.0]
    with pytest.raises(TypeMismatch, match="K261"):
        of("exp", f64)


def test_functions_of_constants_fold() -> None:
    """No operation is left."""
    traced = Traced(lambda b, x: function(b, "erf", Const(f32, 0.5), False), f32)
    assert isinstance(traced.result, Const) and not traced.names
    assert traced.result.value == pytest.approx(math.erf(0.5), rel=2e-7)


def test_errors_name_function_and_type() -> None:
    """Integers and unknown names are refused."""
    with pytest.raises(TypeMismatch, match=r"K261.*exp of i32"):
        of("exp", i32)
    with pytest.raises(TypeMismatch, match=r"K260.*gamma"):
        of("gamma")
