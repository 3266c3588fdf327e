"""A plan's launches made again, on tensors that only claim to be on a GPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import pytest

import kdsl_fuse as kf
from kdsl_core.lang.launch import Launch
from kdsl_fuse import arrays as library_arrays
from kdsl_fuse.plan import Plan
from kdsl_runtime.array_readers import guard_of
from runtime.fake_gpu import FakeGpu, claim_tensors

torch = pytest.importorskip("torch")
EMPTY = torch.empty
POINTERS = (ctypes.c_uint64,) * 3  # of each launch at least


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU of sm_80 on which every tensor seems to lie, new memory always in the same places."""
    claim_tensors(monkeypatch)
    monkeypatch.setattr(library_arrays, "device_index", lambda array: 0)
    memory = torch.zeros(1 << 20, dtype=torch.uint8)

    @functools.cache
    def placed(shape: Any, dtype: Any, device: Any) -> Any:
        if dtype is torch.uint8:  # between launches
            return memory[: shape if isinstance(shape, int) else shape[0]]
        return EMPTY(shape, dtype=dtype)

    assert guard_of(tensors()) is not None  # which tries torch's guards once, on tensors of its own
    monkeypatch.setattr(torch, "empty", placed)
    return FakeGpu(monkeypatch, capability=(8, 0), types=POINTERS)


def network(x: Any, w: Any, b: Any) -> Any:
    """A view of an input with an offset, values between launches, a view of a result."""
    x = x[8:]
    for _ in range(3):
        x = kf.softmax(kf.gelu(x @ w + b))
    return x.T, kf.sum(x, axis=0)


def tensors() -> list[Any]:
    """Arguments of the network at addresses of their own."""
    shapes = ((24, 32), (32, 32), (32,))
    return [torch.ones(shape, dtype=torch.float16) for shape in shapes]


def plan_of(args: list[Any]) -> Plan:
    """A plan that nothing ran so far."""
    plan = kf.fuse(network, target="sm_80").plan(*args)
    for call in plan.calls:
        call.kernel.clear()  # of what was loaded on the GPU of another test
    return plan


def addresses(gpu: FakeGpu, run: Callable[[], Any]) -> list[tuple[Any, ...]]:
    """What the launches of a run were given, each with its grid."""
    gpu.driver.calls.clear()
    run()
    return [(call.grid, call.block, *call.values) for call in gpu.driver.calls]


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each launch that looks at its arguments."""
    seen: list[int] = []
    made = Launch._find
    monkeypatch.setattr(Launch, "_find", lambda *args: (seen.append(1), made(*args))[1])
    return seen


def test_new_tensors_get_the_launches_of_a_first_run(gpu, long):
    """Same grids and addresses, without a look at any argument of a launch."""
    first, second = tensors(), tensors()
    plan, other = plan_of(first), plan_of(second)
    plan(*first)
    long.clear()
    again = addresses(gpu, lambda: plan(*second))
    assert not long
    assert again == addresses(gpu, lambda: other(*second))
    assert len(again) == len(long) == len(plan.calls)
    assert again != addresses(gpu, lambda: plan(*first))


def test_results_are_new_each_time(gpu, monkeypatch):
    """Of two calls nothing is shared; the first output is a transpose of what is stored."""
    args = tensors()
    plan = plan_of(args)
    plan(*args)
    monkeypatch.setattr(torch, "empty", EMPTY)
    (turned, total), (other, last) = plan.replayed(args), plan.replayed(args)
    assert turned.shape == (32, 16) and turned.stride() == (1, 32) and total.shape == (32,)
    places = {x.data_ptr() for x in (turned, total, other, last)}
    assert len(places) == 4


CHANGES: dict[str, Callable[[list[Any]], list[Any]]] = {
    "strides": lambda args: [args[0], args[1].t(), args[2]],
    "shape": lambda args: [torch.ones(25, 32, dtype=torch.float16), *args[1:]],
    "dtype": lambda args: [args[0].float(), *args[1:]],
    "an address off 16 bytes": lambda args: [
        *args[:2],
        torch.ones(33, dtype=torch.float16)[1:],
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_tensors_are_no_replay(gpu, change):
    """What a launch depends on is compared."""
    args = tensors()
    plan = plan_of(args)
    plan(*args)
    assert plan.replayed(args) is not None
    changed = CHANGES[change](args)
    assert plan.replayed(changed) is None


def test_overlapping_inputs_have_no_replay(gpu, long):
    """An address in two inputs does not say which one it moves with."""
    memory = torch.ones(32 * 32 + 32, dtype=torch.float16)
    args = [tensors()[0], memory[: 32 * 32].view(32, 32), memory[32 * 32 - 32 :][:32]]
    plan = plan_of(args)
    plan(*args)
    assert plan.replayed(args) is None
    long.clear()
    assert len(addresses(gpu, lambda: plan(*args))) == len(long) > 0


def test_a_replaced_call_is_looked_at(gpu, long):
    """The next run launches the new kernel, later ones replay it."""
    args = tensors()
    plan = plan_of(args)
    plan(*args)
    call = plan.calls[0]
    call.replace(call.kernel, block=call.block)
    assert plan.replayed(args) is None
    plan(*args)
    long.clear()
    plan(*args)
    assert not long
