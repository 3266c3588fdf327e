"""A stand-in for the GEMM kernel that computes in NumPy f32, and records its launches.

It keeps the kernel's contract (views in, one f32 accumulator and one epilogue call per element, one
rounding at the store) so that plans can be tested without a simulator.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from kdsl_core.dtypes import f32

_erf = np.frompyfunc(math.erf, 1, 1)


class Lanes:
    """Many kernel scalars at once: an array with the operators of a kdsl_core Scalar."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)

    def to(self, dtype: Any) -> Lanes:
        """Convert, as `Scalar.to` does."""
        return Lanes(self.array.astype(dtype.numpy))


def _bare(value: Any) -> Any:
    return value.array if isinstance(value, Lanes) else value


def _operator(name: str) -> Any:
    def method(self: Lanes, *others: Any) -> Lanes:
        for other in others:
            same = isinstance(other, Lanes) and other.array.dtype == self.array.dtype
            assert same or isinstance(other, bool | int | float), "operands must share a dtype"
        return Lanes(getattr(self.array, name)(*map(_bare, others)))

    return method


for _name in ("add", "sub", "mul", "truediv"):
    setattr(Lanes, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(Lanes, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("neg", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "invert"):
    setattr(Lanes, f"__{_name}__", _operator(f"__{_name}__"))


def _of_f32(function: Any) -> Any:
    def call(*args: Any, approx: bool = False) -> Lanes:
        for arg in args:
            assert not isinstance(arg, Lanes) or arg.array.dtype == np.float32, "f32 only"
        return Lanes(np.asarray(function(*map(_bare, args)), np.float32))

    return call


def _where(condition: Any, a: Any, b: Any) -> Lanes:
    assert isinstance(condition, Lanes) and condition.array.dtype == np.bool_
    chosen = np.where(_bare(condition), _bare(a), _bare(b))
    both_numbers = not isinstance(a, Lanes) and not isinstance(b, Lanes)
    return Lanes(chosen.astype(np.float32) if both_numbers else chosen)


KD = SimpleNamespace(
    exp=_of_f32(np.exp),
    log=_of_f32(np.log),
    floor=_of_f32(np.floor),
    ceil=_of_f32(np.ceil),
    sin=_of_f32(np.sin),
    cos=_of_f32(np.cos),
    sqrt=_of_f32(np.sqrt),
    rsqrt=_of_f32(lambda x: 1 / np.sqrt(x)),
    tanh=_of_f32(np.tanh),
    erf=_of_f32(lambda x: _erf(x).astype(np.float32)),
    ndtr=_of_f32(lambda x: (0.5 + 0.5 * _erf(x * 0.5**0.5)).astype(np.float32)),
    sigmoid=_of_f32(lambda x: 1 / (1 + np.exp(-x))),
    abs=_of_f32(np.abs),
    where=_where,
)


class NumpyGemm:
    """`gemm_sm80` and `plan_gemm` in one object; `launches` holds what each launch was given."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.gemm_sm80 = self

    def plan_gemm(
        self, m: int, n: int, k: int, dtype: Any, *, target: str, f32_precision: str
    ) -> tuple[Any, Any, int]:
        """Any configuration will do."""
        config = f"tile for {dtype} in {f32_precision} on {target}"
        return config, (-(-m // 128), -(-n // 128)), 128

    def configure(self, **extent: Any) -> Any:
        """A launch, as a kernel's `configure` gives it."""

        def launch(a: Any, b: Any, c: Any, *extras: Any, epilogue: Any, config: Any) -> None:
            self.launches.append({"extent": extent, "extras": extras, "epilogue": epilogue})
            assert all(x.shape == c.shape for x in extras)
            with np.errstate(all="ignore"):
                acc = a.astype(np.float32) @ b.astype(np.float32).T
                result = epilogue.evaluate(KD, Lanes(acc), *map(Lanes, extras))
                assert result.array.dtype == f32.numpy, "an epilogue returns f32"
                c[...] = result.array.astype(c.dtype)

        return launch
