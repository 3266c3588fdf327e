"""Wrong input at the front door: each error names the values, the author's line and the mend."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core.errors import ArgumentError, DriverError, FusionError, KdslError, TargetError
from kdsl_runtime import driver

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
X, W, B = np.ones((4, 8), F32), np.ones((8, 16), F32), np.ones(16, F32)


def product(x: Any, w: Any) -> Any:
    """One operator."""
    return x @ w


def biased(x: Any, w: Any, b: Any) -> Any:
    """Two operators."""
    return x @ w + b


def branching(x: Any, w: Any) -> Any:
    """A Python `if` on numbers that are not there yet."""
    y = x @ w
    return y if y > 0 else -y


def masked(x: Any, w: Any) -> Any:
    """Picking by a condition gives an array whose size is not known."""
    y = x @ w
    return y[y > 0]


def with_numpy(x: Any, w: Any) -> Any:
    """A NumPy function that kdsl has no operator for."""
    return np.fft.fft(x @ w)


def with_ufunc(x: Any, w: Any) -> Any:
    """A ufunc that kdsl has no operator for."""
    return np.arctan2(x @ w, 1.0)


# function, arguments, class, codes in the text, line after its `def`, words of the message, mend
CASES: dict[str, tuple[Any, tuple[Any, ...], type[KdslError], str, int, str, str]] = {
    "bf16 with f16": (
        *(product, (X.astype(BF16), W.astype(F16)), FusionError),
        *("K902", 2, "does not mix bf16 and f16", "kf.cast"),
    ),
    "f16 with f32": (
        *(product, (X.astype(F16), W), FusionError),
        *("K909", 2, "KF-DTYPE.*f16.*f32", "cast the arrays"),
    ),
    "f64": (
        *(product, (X.astype("f8"), W.astype("f8")), FusionError),
        *("K909", 2, "KF-DTYPE.*f64", "cast the arrays"),
    ),
    "a vector": (
        *(product, (X[0], W), FusionError),
        *("K903", 2, r"\[8\] and \[8, 16\]", "second axis"),
    ),
    "batched": (
        *(product, (np.ones((2, 2, 4, 8), F32), np.ones((2, 1, 8, 8), F32)), FusionError),
        *("K909", 2, r"KF-LAYOUT.*\[2, 1, 8, 8\].*a batch", "ascontiguousarray"),
    ),
    "inner sizes": (
        *(product, (X, W.T), FusionError),
        *("K903", 2, r"\[4, 8\] and \[16, 8\]", "transpose"),
    ),
    "bias too long": (
        *(biased, (X, W, np.ones(17, F32)), FusionError),
        *("K901", 2, "axis -1 is 16 and 17", "must be equal"),
    ),
    "no unit stride": (
        *(product, (np.ones((4, 16), F32)[:, ::2], W), FusionError),
        *("K909", 2, r"KF-LAYOUT.*x\[4, 8\]:\(16, 2\)", "ascontiguousarray"),
    ),
    "if on an array": (
        *(branching, (X, W), FusionError),
        *("K905", 3, "no numbers yet.*`if`", "kf.where"),
    ),
    "rows that do not merge": (
        *(product, (np.ones((4, 3, 8), F32).transpose(1, 0, 2), W), FusionError),
        *("K909", 2, r"KF-LAYOUT.*x: f32\[3, 4, 8\]", "ascontiguousarray"),
    ),
    "index by a mask": (
        *(masked, (X, W), FusionError),
        *("K962", 3, "whole numbers inside its axes", "kf.where"),
    ),
    "index outside": (
        *(lambda x, w: (x @ w)[4], (X, W), FusionError),
        *("K962", 0, r"\[4\] on shape \[4, 16\]", "kf.take"),
    ),
    "unequal parts": (
        *(lambda x, w: kf.split(x @ w, 3), (X, W), FusionError),
        *("K961", 0, "size 4 does not split into 3", "kf.split"),
    ),
    "NumPy function": (
        *(with_numpy, (X, W), FusionError),
        *("K905", 2, "numpy.fft", "kf"),
    ),
    "NumPy ufunc": (
        *(with_ufunc, (X, W), FusionError),
        *("K905", 2, "numpy.arctan2", "kf"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", [None, "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_error_inside_the_function(name: str, target: str | None) -> None:
    """The error stands at the operator's line, and tells the values and what to write instead."""
    function, args, kind, code, line, words, mend = CASES[name]
    with pytest.raises(kind, match=f"(?s){words}.*fix: .*{mend}") as caught:
        kf.fuse(target=target)(function)(*args)
    error = caught.value
    assert error.code == code
    assert error.loc is not None
    first = function.__code__.co_firstlineno
    assert (error.loc.file, error.loc.line) == (__file__, first + line)


@pytest.mark.parametrize("sizes", [(X, W.T, B), (X, W, np.ones(17, F32))])
def test_sizes_that_do_not_fit_name_both_sources(sizes: Any) -> None:
    """Each of the two operands is told with its line."""
    with pytest.raises(FusionError) as caught:
        kf.fuse(biased)(*sizes)
    assert len(caught.value.notes) == 2
    assert all("test_fuse_bad_input.py:" in note for note in caught.value.notes)


def stands_here(error: KdslError, code: str, offset: int = -3) -> None:
    """The error has a code, a mend and, in this file, the line `offset` from the caller's."""
    frame = sys._getframe(1)
    assert error.code == code
    assert error.fix
    assert error.loc is not None
    assert (error.loc.file, error.loc.line) == (__file__, frame.f_lineno + offset)


def test_reversed_rows() -> None:
    """Strides that step backwards are K924."""
    layer = kf.fuse(product)
    with pytest.raises(ArgumentError, match=r"\(-32, 4\) bytes") as caught:
        layer(X[::-1], W)

    stands_here(caught.value, "K924", -2)


class Tensor:
    """A torch tensor as far as its facts go."""

    dtype = "torch.float32"

    def __init__(self, device: str, shape: tuple[int, ...]) -> None:
        self.device = device
        self.shape = shape

    def stride(self) -> tuple[int, ...]:
        """Row-major."""
        return (self.shape[1], 1)

    def data_ptr(self) -> int:
        """Never read."""
        return 0


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module in place of torch, whose tensors have no data."""
    module = SimpleNamespace(Tensor=Tensor)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_torch_tensors_on_the_cpu(torch: Any) -> None:
    """The simulator takes NumPy arrays: K927 says how to get there, or to a GPU."""
    layer = kf.fuse(product)
    with pytest.raises(ArgumentError, match=r"a torch array on the host \(Tensor\)") as caught:
        layer(Tensor("cpu", (4, 8)), Tensor("cpu", (8, 16)))

    stands_here(caught.value, "K927", -2)
    assert "x.cuda()" in str(caught.value)


@pytest.mark.parametrize(
    "places", [("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cuda:0", "cuda:1"), (None, "cuda:0")]
)
def test_mixed_devices(torch: Any, places: tuple[Any, Any]) -> None:
    """Arguments in two places are K913, naming both."""
    layer = kf.fuse(product)
    x, w = (X if at is None else Tensor(at, (8, 8)) for at in places)
    with pytest.raises(ArgumentError, match=r"argument 0 is .* argument 1 is .*") as caught:
        layer(x, w)

    stands_here(caught.value, "K913", -2)


class CudaArray:
    """An array of some library in the memory of a GPU."""

    def __init__(self, *shape: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": (4096, False), "version": 3,
        }  # fmt: skip


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the CUDA driver."""
    monkeypatch.setattr(driver, "_LIBRARY", "libcuda_that_is_not_here.so.1")
    driver.require_driver.cache_clear()
    driver.device.cache_clear()


def test_cuda_arrays_without_a_gpu(no_driver: None) -> None:
    """A launch on CUDA arrays where there is no driver is K801, at the caller's line."""
    layer = kf.fuse(product)
    with pytest.raises(DriverError, match="no CUDA driver") as caught:
        layer(CudaArray(4, 8), CudaArray(8, 16))

    stands_here(caught.value, "K801", -2)
    assert "NumPy arrays" in str(caught.value)


def test_cuda_arrays_are_planned_for_a_stated_target(no_driver: None) -> None:
    """With a target no GPU is needed to plan; the run still is K801, and views have their facts."""
    x, w = CudaArray(4, 8), CudaArray(8, 16)
    plan = kf.fuse(target="sm_90a")(product).plan(x, w)
    (call,) = plan.calls
    _, b, _ = call.arguments(plan.values(x, w), None)
    info = b.__kdsl_array__()
    assert (info.shape, info.strides, info.device) == ((16, 8), (1, 16), ("cuda", 0))
    with pytest.raises(DriverError) as caught:
        plan.run(x, w)

    stands_here(caught.value, "K801", -2)


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"target": "sm_75"}, FusionError, "K909"),
        ({"target": "hopper"}, TargetError, "K401"),
        ({"f32_precision": "fast"}, FusionError, "K928"),
        ({"fallback": "torch"}, FusionError, "K923"),
    ],
)
def test_options(options: Any, kind: Any, code: str) -> None:
    """An option that there is not is refused by name, with those that there are."""
    with pytest.raises(kind, match=next(iter(options.values()))) as caught:
        kf.fuse(**options)(product).plan(kd.spec("f32", (4, 8)), kd.spec("f32", (8, 16)))
    assert caught.value.code == code
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__


def test_wrong_number_of_arguments() -> None:
    """A missing or unknown argument is K929 with the function's own signature."""
    layer = kf.fuse(biased)
    with pytest.raises(ArgumentError, match=r"biased: missing a required argument: 'b'") as caught:
        layer(X, W)

    stands_here(caught.value, "K929", -2)
    assert "biased(x, w, b)" in str(caught.value)
