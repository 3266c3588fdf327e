"""A plan as one CUDA graph: what is recorded and when, with a torch that has no GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kdsl_fuse as kf
from fuse.test_fuse_arrays import _DTYPES, Tensor
from kdsl_core.errors import ArgumentError, FusionError

F32 = np.float32
X, W = np.arange(6, dtype=F32).reshape(2, 3), np.ones((3, 2), F32)


class Recorder:
    """A GEMM kernel for tensors of NumPy, and CUDA graphs that replay its launches."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.events: list[str] = []
        self.recording: list[Any] | None = None
        self.gemm_sm80 = self
        self.CUDAGraph = lambda: SimpleNamespace(replay=self.replay, launches=[])
        self.Stream = None

    def plan_gemm(self, *_: Any, **__: Any) -> tuple[str, int, int]:
        """Any configuration will do."""
        return "any", 1, 32

    def configure(self, **_: Any) -> Any:
        """A launch that is done at once, or recorded."""

        def launch(a: Any, b: Any, c: Any, *, epilogue: Any, config: Any) -> None:
            def work() -> None:
                c.array[...] = a.array @ b.array.T

            self.events.append("launch" if self.recording is None else "record")
            (work() if self.recording is None else self.recording.append(work))

        return launch

    def synchronize(self) -> None:
        """All is done at once."""
        self.events.append("synchronize")

    @contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        """Launches go into the graph meanwhile."""
        self.recording = graph.launches
        yield
        self.done, self.recording = graph.launches, None

    def replay(self) -> None:
        """Do all that was recorded."""
        self.events.append("replay")
        for work in self.done:
            work()


class Copied(Tensor):
    """A tensor that can be copied into."""

    def copy_(self, other: Any) -> Copied:
        """Other numbers in the same memory."""
        self.array[...] = other.array
        return self


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A module in place of torch."""
    recorder = Recorder()

    def empty(shape: Any, dtype: str, device: str) -> Copied:
        return Copied(np.empty(shape, _DTYPES[str(dtype).removeprefix("torch.")]), device)

    module = SimpleNamespace(
        Tensor=Tensor,
        float32="float32",
        uint8="uint8",
        empty=empty,
        empty_strided=lambda shape, strides, dtype, device: empty(shape, dtype, device),
        cuda=recorder,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    hopper = SimpleNamespace(target="sm_90a", name="NVIDIA H200", multiprocessors=132)
    monkeypatch.setattr("kdsl_runtime.driver.device", lambda index: hopper)
    return recorder


def test_builds_first_then_records_then_replays(torch: Recorder) -> None:
    """The first run builds outside of the graph; a call copies its inputs and replays."""
    layer = kf.fuse(gemm=torch)(lambda x, w: (x @ w) @ w[:2])
    plan = layer.plan(Tensor(X), Tensor(W))
    captured = plan.capture(Tensor(X), Tensor(W))
    assert torch.events == ["launch", "launch", "synchronize", "record", "record"]
    for factor in (1, 2):
        result = captured(Tensor(X * factor), Tensor(W))
        np.testing.assert_array_equal(result.array, (X * factor) @ W @ W[:2])
        assert result is captured.result
    captured.inputs[0].array[...] = 3
    np.testing.assert_array_equal(captured.replay().array, np.full((2, 3), 3) @ W @ W[:2])
    assert torch.events[5:] == ["replay"] * 3


def test_other_inputs_are_refused(torch: Recorder) -> None:
    """A captured plan checks types and places like any other; a simulator has no graphs."""
    plan = kf.fuse(gemm=torch)(lambda x, w: x @ w).plan(Tensor(X), Tensor(W))
    captured = plan.capture(Tensor(X), Tensor(W))
    with pytest.raises(ArgumentError) as caught:
        captured(Tensor(X.T.copy()), Tensor(W))
    assert caught.value.code == "K910"
    with pytest.raises(FusionError, match="a numpy array on the host") as refused:
        plan.capture(X, W)
    assert refused.value.code == "K966"
    assert refused.value.loc is not None and refused.value.loc.file == __file__


def test_inputs_that_repeat_are_refused(torch: Recorder) -> None:
    """A capture copies its inputs, which memory that stands for several elements cannot take."""
    row = Tensor(np.broadcast_to(X[:1], (2, 3)))
    plan = kf.fuse(gemm=torch)(lambda x, w: x @ w).plan(row, Tensor(W))
    with pytest.raises(FusionError, match="repeats memory") as caught:
        plan.capture(row, Tensor(W))
    assert caught.value.code == "K966"
