"""Arrays of the caller's library; torch is played by a small class, because it is not installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_fuse as kf
from fuse.numpy_kernel import NumpyGemm
from kdsl_core.dtypes import bf16, f32
from kdsl_core.errors import ArgumentError, FusionError
from kdsl_fuse import arrays
from kdsl_fuse.strided import Strided

F32 = np.float32
_DTYPES = {
    "float32": np.dtype(F32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "uint8": np.dtype(np.uint8),
}


class Tensor:
    """What kdsl_fuse uses of torch.Tensor, with memory of NumPy."""

    def __init__(self, array: Any, device: str = "cuda:0") -> None:
        self.array = array
        self.device = device
        self.shape = array.shape

    @property
    def dtype(self) -> str:
        """Printed as torch prints it."""
        names = {kind: name for name, kind in _DTYPES.items()}
        return f"torch.{names.get(self.array.dtype, self.array.dtype)}"

    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def t(self) -> Tensor:
        """Swapped axes."""
        return Tensor(self.array.T, self.device)

    def storage_offset(self) -> int:
        """Where it starts in its storage; here always there."""
        return 0

    def as_strided(self, shape: Any, strides: Any, start: int) -> Tensor:
        """Elements of the storage."""
        return Tensor(arrays.view(self.array, Strided(shape, strides, start)), self.device)

    def view(self, kind: Any) -> Tensor:
        """The same bytes as another type, or in another shape."""
        if isinstance(kind, tuple):
            return Tensor(self.array.reshape(kind), self.device)
        return Tensor(self.array.view(_DTYPES[kind]), self.device)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[key], self.device)

    def to(self, device: str) -> Tensor:
        """On another device."""
        return Tensor(self.array, device)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module in place of torch."""
    module = SimpleNamespace(
        Tensor=Tensor,
        float32="float32",
        bfloat16="bfloat16",
        empty=lambda shape, dtype, device: Tensor(np.empty(shape, _DTYPES[dtype]), device),
        from_numpy=lambda array: Tensor(array, "cpu"),
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    hopper = SimpleNamespace(target="sm_90a", name="NVIDIA H200", multiprocessors=132)
    monkeypatch.setattr("kdsl_runtime.driver.device", lambda index: hopper)
    return module


def test_numpy_views() -> None:
    """Elements by shape, strides and offset are a view, as NumPy's own indexing gives it."""
    x = np.arange(24, dtype=F32).reshape(4, 6)
    for expected, layout in (
        (x.T, Strided((6, 4), (1, 6))),
        (x[1:, ::2], Strided((3, 3), (6, 2), 6)),
        (x[:, None, 3].repeat(2, 1), Strided((4, 2), (6, 0), 3)),
        (x.reshape(2, 12), Strided((2, 12), (12, 1))),
    ):
        found = arrays.view(x, layout)
        np.testing.assert_array_equal(found, expected)
        assert np.shares_memory(found, x)


@pytest.mark.parametrize("seed", range(20))
def test_views_are_known_without_data(seed: int) -> None:
    """Chains of permutations, slices, repeats and reshapes give what NumPy gives; a reshape is a
    view where NumPy can make one without a copy."""
    rng = np.random.default_rng(seed)
    below = array = np.arange(360).reshape(4, 3, 1, 30)
    layout = Strided.dense(array.shape)
    for _ in range(4):
        axes = tuple(rng.permutation(array.ndim).tolist())
        array, layout = array.transpose(axes), layout.permuted(axes)
        starts = [int(rng.integers(size)) // 2 for size in array.shape]
        array = array[tuple(slice(start, None, 1 + seed % 2) for start in starts)]
        layout = layout.sliced(starts, [1 + seed % 2] * array.ndim, array.shape)
        if array.ndim < 6:
            array = np.broadcast_to(array, (2, *array.shape))
            layout = layout.broadcast(array.shape)
        np.testing.assert_array_equal(arrays.view(below, layout), array)
        merged = (array.shape[0], -1, array.shape[-1])
        flat = array.reshape(merged)
        found = layout.reshaped(flat.shape)
        assert (found is not None) == np.shares_memory(flat, array)
        if found is not None:
            np.testing.assert_array_equal(arrays.view(below, found), flat)


@pytest.mark.parametrize("dtype", [bf16, f32])
def test_parts_of_a_buffer(torch: Any, dtype: Any) -> None:
    """A part of an array of bytes is a row-major array in its memory, also a tensor."""
    for memory in (np.zeros(64, np.uint8), Tensor(np.zeros(64, np.uint8))):
        found = arrays.part(memory, 16, (2, 3), dtype)
        assert arrays.spec_of(found) == arrays.Spec(dtype, (2, 3), (3, 1))
        inner, outer = getattr(found, "array", found), getattr(memory, "array", memory)
        inner[...] = 1
        lit = np.flatnonzero(outer)
        assert lit[0] >= 16 and lit[-1] < 16 + 6 * dtype.bytes


def test_torch_tensors_are_described_and_viewed(torch: Any) -> None:
    """dtype, shape, strides, views and new buffers come from torch itself."""
    x = Tensor(np.ones((3, 4), ml_dtypes.bfloat16))
    assert arrays.spec_of(x) == arrays.Spec(bf16, (3, 4), (4, 1))
    assert arrays.spec_of(arrays.transposed(x)) == arrays.Spec(bf16, (4, 3), (1, 4))
    row = arrays.view(Tensor(np.ones(4, F32)), Strided((3, 4), (0, 1)))
    assert arrays.spec_of(row) == arrays.Spec(f32, (3, 4), (0, 1))
    fresh = arrays.empty((2, 2), f32, x)
    assert fresh.device == "cuda:0"
    with pytest.raises(ArgumentError, match="complex64") as caught:
        arrays.spec_of(Tensor(np.ones(2, np.complex64)))
    assert caught.value.code == "K925"


@pytest.mark.parametrize("dtype", [F32, ml_dtypes.bfloat16])
def test_numpy_constants_move_to_the_device(torch: Any, dtype: Any) -> None:
    """A constant held in NumPy is uploaded bit by bit."""
    value = np.arange(6).reshape(2, 3).astype(dtype)
    moved = arrays.constant(value, Tensor(np.ones(1, F32)))
    assert moved.device == "cuda:0"
    np.testing.assert_array_equal(moved.array, value)
    assert arrays.constant(value, value) is value


def test_constant_of_another_library_is_refused(torch: Any) -> None:
    """A tensor held by a function that is called with NumPy arrays is K926."""
    with pytest.raises(ArgumentError) as caught:
        arrays.constant(Tensor(np.ones(2, F32)), np.ones(2, F32))
    assert caught.value.code == "K926"


def test_mixed_places_are_refused_naming_both(torch: Any, gemm: NumpyGemm) -> None:
    """A NumPy array with a tensor, or host with GPU, is K913."""
    layer = kf.fuse(gemm=gemm)(lambda x, w: x @ w)
    x = np.ones((2, 2), F32)
    for a, b in ((x, Tensor(x)), (Tensor(x, "cpu"), Tensor(x))):
        with pytest.raises(
            ArgumentError, match=r"argument 0 is .*on (the host|cpu), .* on cuda:0"
        ) as caught:
            layer(a, b)
        assert caught.value.code == "K913"


def test_held_constants_are_uploaded_once(torch: Any) -> None:
    """Two runs on one device use the same copy."""
    held, x = np.ones((2, 2), F32), np.ones((2, 2), F32)
    plan = kf.fuse(gemm=NumpyGemm())(lambda x: x @ held).plan(Tensor(x))
    first, second = (plan.values(Tensor(x))["constant0"] for _ in range(2))
    assert first is second
    assert first.device == "cuda:0"


def test_numpy_fallback_never_moves_gpu_arrays(torch: Any, gemm: NumpyGemm) -> None:
    """NumPy steps on tensors are K911, naming the operators."""
    rows = np.zeros(2, np.int32)
    layer = kf.fuse(gemm=gemm, fallback="numpy")(lambda x: kf.take(x, rows) @ x)
    with pytest.raises(FusionError, match="gather0") as caught:
        layer(Tensor(np.ones((2, 2), F32)))
    assert caught.value.code == "K911"
