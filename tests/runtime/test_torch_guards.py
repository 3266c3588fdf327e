"""Launches on tensors of torch itself, which on this machine only claim to be on a GPU."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import kdsl_core as kd
from kdsl_core.lang.launch import Launch
from kdsl_runtime.array_readers import guard_of
from runtime.fake_gpu import FakeGpu, claim_tensors

torch = pytest.importorskip("torch")
SHAPE = (8, 16)


@kd.kernel
def moved(
    x: kd.Tensor["f32|f16", "m n"], y: kd.Tensor["=x", "m n"], by: kd.f32 = 1.0, step: kd.Static = 1
):
    """y = x · by in the first row."""
    i = kd.thread_idx()[0] * step
    if i < y.shape[1]:
        y[0, i] = x[0, i] * by.to(x.dtype)


class Ways:
    """How often a launch was not like the one before, and how often it went the long way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found = self.long = 0
        find, run = Launch._find, Launch._run

        def _find(launch: Launch, *rest: Any) -> None:
            self.found += 1
            find(launch, *rest)

        def _run(launch: Launch, *rest: Any) -> None:
            self.long += 1
            run(launch, *rest)

        monkeypatch.setattr(Launch, "_find", _find)
        monkeypatch.setattr(Launch, "_run", _run)

    def of(self, call: Callable[[], Any]) -> tuple[int, int]:
        """Both for one call."""
        before = self.found, self.long
        call()
        return self.found - before[0], self.long - before[1]


SAME, KNOWN, LONG = (0, 0), (1, 0), (1, 1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU on which every tensor seems to lie."""
    claim_tensors(monkeypatch)
    moved.clear()
    return FakeGpu(monkeypatch, types=(ctypes.c_uint64,))


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    """How launches are made."""
    return Ways(monkeypatch)


def pair(*shape: int, **options: Any) -> list[Any]:
    """Two tensors."""
    return [torch.zeros(shape or SHAPE, **options) for _ in range(2)]


def launched(*args: Any, **kwargs: Any) -> Callable[[], None]:
    """A launch that can be made."""
    return lambda: moved[1, 16](*args, **kwargs)


def test_the_third_launch_asks_the_guard(gpu, ways):
    """The first is looked at, the second is found, and then one comparison is enough."""
    for expected in (LONG, KNOWN, SAME, SAME):
        x, y = pair()
        assert ways.of(launched(x, y)) == expected
        assert gpu.driver.values[-1] == (x.data_ptr(),)


def column(x: Any) -> Any:
    """The same shape with other strides."""
    return torch.zeros(SHAPE[::-1], dtype=x.dtype).t()


CHANGES: dict[str, Callable[[Any, Any], Callable[[], None]]] = {
    "shape": lambda x, y: launched(*pair(8, 15)),
    "strides": lambda x, y: launched(column(x), column(y)),
    "dtype": lambda x, y: launched(*pair(dtype=torch.float16)),
    "alignment": lambda x, y: launched(torch.zeros(129)[1:].view(SHAPE), y),
    "static": lambda x, y: launched(x, y, step=2),
    "type of a number": lambda x, y: launched(x, y, 2),
    "type of a tensor": lambda x, y: launched(torch.nn.Parameter(x), y),
    "resize_": lambda x, y: launched(x.resize_(8, 15), y.resize_(8, 15)),
    "set_": lambda x, y: launched(x.set_(pair(8, 15)[0]), y.set_(pair(8, 15)[0])),
    "t_": lambda x, y: launched(x.t_(), y.t_()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_difference_is_seen(gpu, ways, change):
    """Also what changes a tensor in place."""
    x, y = pair()
    for _ in range(3):
        launched(x, y)()
        launched(x, y, 0.5)()
    assert ways.of(CHANGES[change](x, y)) == LONG
    assert ways.of(launched(*pair())) != LONG


def test_modes_that_do_not_matter(gpu, ways):
    """A tensor that wants a gradient, or was made for inference: found again, then the same."""
    for options in ({"requires_grad": True}, {}, {"requires_grad": True}):
        tensors = pair(**options)
        launched(*tensors)()
        launched(*tensors)()
        assert ways.of(launched(*tensors)) == SAME
    with torch.inference_mode():
        tensors = pair()
        assert ways.of(launched(*tensors)) == KNOWN
        assert ways.of(launched(*tensors)) == SAME
    assert ways.long == 1


def test_one_tensor_twice(gpu, ways):
    """A guard refuses it; then facts are compared one by one, for other tensors too."""
    x, y = pair()
    assert [ways.of(launched(x, x)) for _ in range(3)] == [LONG, KNOWN, SAME]
    assert ways.of(launched(x, y)) == SAME
    assert ways.of(launched(*pair(8, 15))) == LONG


def test_statics_and_numbers_by_name(gpu, ways):
    """They are compared beside the guard."""
    x, y = pair()
    for expected in (LONG, KNOWN, SAME, SAME):
        assert ways.of(launched(x, y, step=2, by=0.5)) == expected
    assert ways.of(launched(x, y, step=3, by=0.5)) == LONG
    assert ways.of(launched(x, y, step=2, by=0.25)) == SAME
    assert ways.of(launched(x, y, step=3, by=0.5)) == KNOWN
    assert ways.of(launched(x, y, step=2, by=0.5)) == KNOWN
    assert ways.of(launched(x, y, by=0.75, step=2)) == SAME


def test_no_tensor_is_kept_alive(gpu):
    """The guard has its own note of what they were."""
    x, y = pair()
    for _ in range(3):
        launched(x, y)()
    gone = weakref.ref(x)
    del x, y
    gc.collect()
    assert gone() is None


def test_a_torch_whose_guards_see_too_little(gpu, ways, monkeypatch):
    """They are tried before they are trusted; facts are then compared one by one."""

    class Blind:
        def __init__(self, *tensors: Any, **dynamic: Any) -> None:
            self.check = lambda *given: True

    assert guard_of(pair()) is not None
    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", Blind)
    assert guard_of(pair()) is None
    for expected in (LONG, KNOWN, SAME):
        assert ways.of(launched(*pair())) == expected
    assert ways.of(launched(*pair(8, 15))) == LONG
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    assert guard_of(pair()) is None
