"""A GPU that only writes down what it is asked to launch, and tensors that look like torch's."""

from __future__ import annotations

import ctypes
import enum
import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kdsl_runtime import arrays, driver, launch
from kdsl_runtime.arrays import contiguous_strides
from kdsl_runtime.submission import Attribute


class Result(enum.IntEnum):
    """What the driver answers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_LAUNCH_FAILED = 719


class AttributeId(enum.IntEnum):
    """The launch attributes that are used, by their number."""

    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class Launched(NamedTuple):
    """One call of `cuLaunchKernelEx`; `values` are the parameters whose types are known."""

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    attributes: dict[int, tuple[int, ...]]
    pointers: tuple[int, ...]
    values: tuple[Any, ...]


class FakeDriver(SimpleNamespace):
    """Bindings and launcher in one: keeps what it is given, and answers what it is told to."""

    def __init__(self, *answers: Result, types: tuple[Any, ...] = ()) -> None:
        super().__init__(CUresult=Result, CUlaunchAttributeID=AttributeId)
        self.answers = list(answers)
        self.types = types
        self.calls: list[Launched] = []

    @property
    def values(self) -> list[tuple[Any, ...]]:
        """Those of each launch."""
        return [call.values for call in self.calls]

    def cuGetErrorString(self, code: Any) -> Any:
        """An answer's text."""
        return (Result.CUDA_SUCCESS, b"said the driver")

    def launch(self, config: Any, function: Any, pointers: Any, extra: Any) -> int:
        """`cuLaunchKernelEx` as ctypes would call it."""
        assert extra is None
        stated, function, pointers = config._obj, ctypes.addressof(function._obj), pointers._obj
        each = (Attribute * stated.attribute_count).from_address(stated.attributes or 0)
        made = Launched(
            function,
            tuple(stated.grid),
            tuple(stated.block),
            stated.shared_bytes,
            stated.stream,
            {a.id: tuple(a.value[:3]) for a in each} if stated.attribute_count else {},
            tuple(pointer or 0 for pointer in pointers),
            tuple(t.from_address(p).value for t, p in zip(self.types, pointers, strict=False)),
        )
        self.calls.append(made)
        return self.answers.pop(0) if self.answers else 0


class FakeGpu:
    """The driver functions that loading and launching use, on a machine with one Hopper chip."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capability: tuple[int, int] = (9, 0),
        types: tuple[Any, ...] = (),
    ) -> None:
        chip = driver.Device(0, "H200", capability, 132, 1 << 37, 232448)
        self.driver = FakeDriver(types=types)
        self.images: list[bytes] = []
        self._numbers = itertools.count(1)
        monkeypatch.setattr(driver, "device", lambda index: chip)
        monkeypatch.setattr(driver, "load_module", self._load)
        monkeypatch.setattr(driver, "kernel_function", lambda module, *rest: module)
        monkeypatch.setattr(driver, "require_driver", lambda: self.driver)
        monkeypatch.setattr(driver, "launcher", lambda: self.driver.launch)
        monkeypatch.setattr(launch, "_loaded", {})

    def _load(self, image: bytes, index: int) -> int:
        self.images.append(image)
        return next(self._numbers)


def claim_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every tensor of torch seem to lie on the GPU."""
    described = arrays._from_torch

    def claimed(tensor: Any, name: str) -> arrays.ArrayInfo:
        return replace(described(tensor, name), device=("cuda", 0))

    monkeypatch.setattr(arrays, "_from_torch", claimed)
    monkeypatch.setattr(arrays, "_describers", {})


class _Dtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


DTYPES = {name: _Dtype(name) for name in ("float32", "float16")}


class FakeTensor:
    """What a launch reads of a torch tensor."""

    def __init__(
        self,
        shape: tuple[int, ...],
        pointer: int,
        *,
        dtype: str = "float32",
        strides: tuple[int, ...] | None = None,
        device: int = 0,
    ) -> None:
        self.shape, self.pointer, self.dtype = shape, pointer, DTYPES[dtype]
        self.strides = strides or contiguous_strides(shape)
        self.device = _Place(device)

    def data_ptr(self) -> int:
        """The address."""
        return self.pointer

    def stride(self) -> tuple[int, ...]:
        """Steps, in elements."""
        return self.strides


class _Place(NamedTuple):
    index: int
    type: str = "cuda"


def fake_torch(monkeypatch: pytest.MonkeyPatch, stream: Callable[[int], int]) -> None:
    """A torch that is initialised and whose current stream is what `stream` says."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_stream=lambda index: SimpleNamespace(cuda_stream=stream(index)),
    )
    inner = SimpleNamespace(_cuda_getCurrentRawStream=stream)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=inner))
