"""Launches like those before take the short way, and every other one the long way."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError, BuildError, DriverError
from kdsl_core.lang.launch import Launch, launches_go_to
from kdsl_runtime import call_forms
from kdsl_runtime.device_array import DeviceArray
from runtime.fake_gpu import FakeGpu, FakeTensor, Result, fake_torch

FACTOR = 2.0
POINTER, NUMBER = ctypes.c_uint64, ctypes.c_float


@dataclass(frozen=True)
class Config:
    """A trace-time argument with a part."""

    step: Any = 1


CONFIG = Config()


@kd.kernel
def scaled(
    x: kd.Tensor["f32|f16", "n"],
    y: kd.Tensor["=x", "n"],
    by: kd.f32 = 1.5,
    config: kd.Static = Config(),
):
    """y = x · by · FACTOR."""
    i = kd.thread_idx()[0] * config.step
    if i < kd.size(x):
        y[i] = x[i] * (by * FACTOR).to(x.dtype)


@kd.kernel
def named(
    y: kd.Tensor["f32", "n"], calls: kd.Tensor["f32", "n"], type: kd.f32, *,
    kernel: kd.Static, id: kd.Static,
):  # fmt: skip
    """Parameters with the names of other things."""
    y[kd.thread_idx()[0] * id.step] = calls[kernel] * type


@kd.kernel
def gathered(out: kd.Tensor["f32", "n"], *parts: kd.Tensor["f32", "n"]):
    """A kernel with any number of arrays."""
    i = kd.thread_idx()[0]
    out[i] = sum((p[i] for p in parts[1:]), parts[0][i])


@kd.kernel
def fetched(x: kd.Tensor["f32", "m n"], a: kd.f32):
    """Asks for a tile with TMA, so that a launch needs a tensor map."""
    kd.tma_load(x, kd.Layout((8, 32), (32, 1)), (8, 32)).prefetch()
    x[0, kd.thread_idx()[0]] = a


class Long:
    """Counts the launches that went the long way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        way = Launch._run

        def counted(launch: Launch, *arguments: Any) -> None:
            self.count += 1
            way(launch, *arguments)

        monkeypatch.setattr(Launch, "_run", counted)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU whose torch works on stream 5, with no kernel known to it."""
    fake_torch(monkeypatch, lambda index: 5)
    for kernel in (scaled, gathered, fetched):
        kernel.clear()
    return FakeGpu(monkeypatch, types=(POINTER,))


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Long:
    """The launches that went the long way."""
    return Long(monkeypatch)


def pair(n: int = 64, at: int = 4096, **facts: Any) -> list[FakeTensor]:
    """Two tensors."""
    return [FakeTensor((n,), at + 65536 * i, **facts) for i in range(2)]


def parameters(gpu: FakeGpu, launched: int = -1) -> dict[str, Any]:
    """Pointers and the number of a launch of `scaled`, by what its PTX says of their order."""
    pointers = gpu.driver.calls[launched].pointers
    return {"x": POINTER.from_address(pointers[0]).value,
            "by": NUMBER.from_address(pointers[-1]).value}  # fmt: skip


def test_the_second_launch_is_short(gpu, long):
    """Equal facts need no second look; addresses and numbers are this call's own."""
    scaled[2, 64](*pair(), 0.5)
    assert parameters(gpu) == {"x": 4096, "by": 0.5}
    scaled[2, 64](*pair(at=1 << 20), 0.25)
    assert parameters(gpu) == {"x": 1 << 20, "by": 0.25} and long.count == 1
    first, second = gpu.driver.calls
    assert first[:6] == second[:6] and second.stream == 5 and second.grid == (2, 1, 1)


def test_each_way_to_write_a_call(gpu, long):
    """By position, by name and by default, each is known by itself."""
    x, y = pair()
    for _ in range(3):
        scaled[1, 64](x, y)
        scaled[1, 64](x, y=y, by=2.0)
        scaled[1, 64](by=2.5, y=y, x=x)
        scaled[1, 64](x, y, 3.0, CONFIG)
    assert long.count == 4 and len(scaled.calls) == 4
    assert [parameters(gpu, -4 + i)["by"] for i in range(4)] == [1.5, 2.0, 2.5, 3.0]


CHANGES = {
    "dtype": lambda: scaled[1, 64](*pair(dtype="float16"), 0.5),
    "shape": lambda: scaled[1, 64](*pair(n=63), 0.5),
    "strides": lambda: scaled[1, 64](*pair(strides=(2,)), 0.5),
    "alignment": lambda: scaled[1, 64](*pair(at=4100), 0.5),
    "block": lambda: scaled[1, 32](*pair(), 0.5),
    "grid": lambda: scaled[2, 64](*pair(), 0.5),
    "overlap": lambda: scaled.configure(grid=1, block=64, overlap=True)(*pair(), 0.5),
    "cluster": lambda: scaled.configure(grid=1, block=64, cluster=1)(*pair(), 0.5),
    "type of a number": lambda: scaled[1, 64](*pair(), 1),
    "static": lambda: scaled[1, 64](*pair(), 0.5, config=Config(2)),
    "type within a static": lambda: scaled[1, 64](*pair(), 0.5, config=Config(True)),
    "another array type": lambda: scaled[1, 64](device_array(), device_array(), 0.5),
}


def device_array() -> DeviceArray:
    """kdsl's own array, without memory."""
    array = DeviceArray.__new__(DeviceArray)
    array.shape, array.dtype, array.index, array.pointer = (64,), kd.f32, 0, 1 << 21
    return array


@pytest.mark.parametrize("change", CHANGES)
def test_other_facts_take_the_long_way(gpu, long, change):
    """Whatever a launch depends on, a change of it is seen, and then known as well."""
    for _ in range(2):
        scaled[1, 64](*pair(), 0.5)
    assert long.count == 1
    CHANGES[change]()
    assert long.count == 2
    scaled[1, 64](*pair(), 0.5)
    assert long.count == 2


def test_facts_are_told_apart_by_the_last_ones_too(gpu, long):
    """Turns between two kinds of arrays are short from the third call on."""
    for _ in range(4):
        scaled[1, 64](*pair())
        scaled[1, 64](*pair(n=128))
    assert long.count == 2 and len(gpu.driver.calls) == 8


REFUSED = {
    "K608": lambda: scaled[1, 64](pair()[0], pair(dtype="float16")[1]),
    "K611": lambda: scaled[1, 64](pair()[0], pair(n=63)[1]),
    "K612": lambda: scaled[1, 64](*pair(at=4098)),
    "K659": lambda: scaled[1, 64](pair()[0], pair(device=1)[1]),
    "K607": lambda: scaled[1, 64](*pair(), True),
    "K653": lambda: scaled[1, 64](*pair(), 1e300),
    "K603": lambda: scaled[1, 64](pair()[0]),
    "K621": lambda: scaled[0, 64](*pair()),
    "K604": lambda: scaled[1, 64](pair()[0], None),
}


@pytest.mark.parametrize("code", REFUSED)
def test_bad_arguments_after_good_ones(gpu, code):
    """What is wrong is refused as in a first call."""
    for _ in range(2):
        scaled[1, 64](*pair(), 0.5)
        scaled[1, 64](*pair())
    with pytest.raises(ArgumentError) as caught:
        REFUSED[code]()
    assert caught.value.code == code and len(gpu.driver.calls) == 4


def test_sizes_that_are_no_whole_numbers(gpu):
    """True and 1.0 are no sizes, and do not spoil 1."""
    for sizes in ((True, 96), (1.0, 96), ((True, 1), 96)):
        with pytest.raises(ArgumentError) as caught:
            scaled[sizes](*pair())
        assert caught.value.code == "K621"
    scaled[1, 96](*pair())
    scaled[(1, 1), 96](*pair())


def test_rebinding_a_global(gpu, long, monkeypatch):
    """A name that the kernel reads was bound anew: new code, also after many launches."""
    for _ in range(10):
        scaled[1, 64](*pair())
    assert long.count == 1 and len(gpu.images) == 1
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    scaled[1, 64](*pair())
    assert long.count == 2 and len(gpu.images) == 2


def test_a_cleared_kernel_knows_no_calls(gpu, long):
    """A launch that is kept goes the long way again."""
    launch = scaled[1, 64]
    for _ in range(3):
        launch(*pair())
    scaled.clear()
    launch(*pair())
    launch(*pair())
    assert long.count == 2 and len(gpu.driver.calls) == 5


def test_parameters_of_any_name(gpu, long):
    """Names that the generated functions use are the author's, too."""
    y, calls = pair()
    for _ in range(4):
        named[1, 64](calls=calls, y=y, type=0.5, kernel=2, id=CONFIG)
    assert long.count == 1 and parameters(gpu) == {"x": y.pointer, "by": 0.5}


def test_statics_are_known_by_what_they_are(gpu, long):
    """The same object is known; an equal one is looked at, and runs the same code."""
    config = Config(1)
    for _ in range(3):
        scaled[1, 64](*pair(), config=config)
    scaled[1, 64](*pair(), config=Config(1))
    assert long.count == 2 and len(gpu.images) == 1


def test_arrays_are_not_kept_alive(gpu):
    """What is remembered of a call is its facts."""
    x, y = pair()
    scaled[1, 64](x, y)
    scaled[1, 64](x, y)
    gone = weakref.ref(x)
    del x, y
    gc.collect()
    assert gone() is None


def test_plans_are_bounded(gpu, monkeypatch, long):
    """Shapes without end do not fill the memory."""
    monkeypatch.setattr(call_forms, "_MOST_PLANS", 4)
    for n in (*range(64, 74), 73):
        scaled[1, 64](*pair(n=n))
    (form,) = scaled.calls.values()
    assert len(form.plans) <= 4 and long.count == 10


def test_any_number_of_arrays(gpu, long):
    """Variadic arguments, each number of them by itself."""
    xs = [FakeTensor((64,), 4096 * (i + 1)) for i in range(4)]
    for _ in range(3):
        gathered[1, 64](*xs)
        gathered[1, 64](*xs[:2])
    assert long.count == 2


def test_callable_grids(gpu, long):
    """The grid is asked at each launch."""
    launch = scaled.configure(grid=lambda x, y, by=1.0: x.shape[0] // 32, block=64)
    for n in (64, 128, 64, 128):
        launch(*pair(n=n))
    assert [call.grid[0] for call in gpu.driver.calls] == [2, 4, 2, 4] and long.count == 2


def test_streams(gpu):
    """A launch's own stream is used instead of the current one."""
    for stream in (None, 9, None, 9):
        scaled.configure(grid=1, block=64, stream=stream)(*pair())
    assert [call.stream for call in gpu.driver.calls] == [5, 9, 5, 9]


def test_tensor_maps_follow_the_addresses(gpu, long, monkeypatch):
    """Each address has its own map, made once."""
    made: list[int] = []

    def encoded(described: Any) -> bytes:
        made.append(described.address)
        return described.address.to_bytes(8, "little") * 16

    monkeypatch.setattr("kdsl_runtime.ready.encoded", encoded)
    monkeypatch.setattr("kdsl_runtime.parameters.encoded", encoded)
    tensors = [FakeTensor((64, 64), at) for at in (4096, 8192)]
    for x in (*tensors, *tensors, *tensors):
        fetched[1, 32](x, 1.0)
    found = [POINTER.from_address(gpu.driver.calls[i].pointers[-1]).value for i in (-2, -1)]
    assert long.count == 1 and sorted(made) == [4096, 4096, 8192] and found[-1] == 8192


def test_watchers_see_short_launches(gpu, long, tmp_path, monkeypatch):
    """A recording misses none, and a frozen process stays on the short way."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path))
    scaled[1, 64](*pair())
    with kr.record(target="sm_90a") as recording, kr.freeze():
        scaled[1, 64](*pair())
        scaled[1, 64](*pair())
        with pytest.raises(BuildError) as caught:
            scaled[1, 64](*pair(dtype="float16"))
    assert caught.value.code == "K730" and long.count == 2
    assert len(recording.manifest()) == 1


def test_launches_that_are_collected(gpu, long):
    """A launch that is known goes where launches go now, and to the GPU again after."""
    launch = scaled[1, 64]
    x, y = pair()
    for _ in range(3):
        launch(x, y)
    found: list[Any] = []
    with launches_go_to(lambda *call: found.append(call)):
        launch(x, y)
        thread = threading.Thread(target=launch, args=(x, y))
        thread.start()
        thread.join(60)
    launch(x, y)
    assert found == [(launch, (x, y), {})] and len(gpu.driver.calls) == 5 and long.count == 1


def test_errors_of_the_driver_have_a_place(gpu):
    """A short launch that fails says where it was called."""
    scaled[1, 64](*pair())
    gpu.driver.answers = [Result.CUDA_ERROR_LAUNCH_FAILED]
    with pytest.raises(DriverError) as caught:
        scaled[1, 64](*pair())
    assert "test_call_forms.py" in str(caught.value)


# -- bound launches --------------------------------------------------------------------------------
def test_bound_launches_read_addresses_alone(gpu, long):
    """All else is what it was bound with."""
    run = scaled[2, 64].bind(*pair(), 0.5)
    assert not gpu.driver.calls
    run(*pair(at=1 << 20))
    assert parameters(gpu) == {"x": 1 << 20, "by": 0.5} and long.count == 0
    assert gpu.driver.calls[0].stream == 5


def test_bound_launches_refuse_what_they_see(gpu):
    """Another number or kind of arrays, and less alignment than the code relies on."""
    run = scaled[2, 64].bind(*pair(), 0.5)
    for arrays in (pair()[:1], [*pair(), 1], [np.zeros(64, np.float32)] * 2):
        with pytest.raises(ArgumentError, match=r"x: f32 \(64,\), y: f32 \(64,\)") as caught:
            run(*arrays)
        assert caught.value.code == "K624"
    with pytest.raises(ArgumentError, match=r"x: .*multiple of 16 bytes, got 0x1004") as caught:
        run(*pair(at=4100))
    assert caught.value.code == "K628" and not gpu.driver.calls
    for at in (4096, 4096, 8192, 4096):
        run(*pair(at=at))
        with pytest.raises(ArgumentError) as caught:
            run(*pair(at=at + 4))
        assert caught.value.code == "K628" and parameters(gpu)["x"] == at
    assert len(gpu.driver.calls) == 4


def test_bound_launches_are_recorded(gpu):
    """They are launches like any other."""
    run = scaled[2, 64].bind(*pair(), 0.5)
    with kr.record(target="sm_90a") as recording:
        run(*pair())
    assert len(recording.manifest()) == 1


def test_bound_launches_in_the_simulator():
    """NumPy arrays run there, with every check."""
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    run = scaled[1, 64].bind(x, y, 0.5)
    assert not y.any()
    run(x * 3, y)
    assert (y == 3.0).all()
    for arrays in ((x,), (x, np.zeros(63, np.float32)), (x, np.zeros(64, np.float16))):
        with pytest.raises(ArgumentError) as caught:
            run(*arrays)
        assert caught.value.code == "K624"


# -- threads ---------------------------------------------------------------------------------------
VARIANTS, THREADS = 200, 8


@kd.kernel
def numbered(y: kd.Tensor["f32", "n"], number: kd.Static):
    """One variant for each number."""
    y[kd.thread_idx()[0]] = float(number)


def test_threads_that_compile_and_launch(gpu, tmp_path, monkeypatch):
    """8 threads build and launch 200 variants: each is built once, and no launch is mixed up."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path))
    numbered.clear()
    start = threading.Barrier(THREADS)
    builds = kr.metrics.snapshot()["builds"]

    def work(first: int) -> None:
        start.wait()
        for i in range(VARIANTS):
            number = (first * 25 + i) % VARIANTS
            numbered[1, 32](FakeTensor((64,), 4096 * (number + 1)), number)

    with ThreadPoolExecutor(THREADS) as pool:
        for task in [pool.submit(work, i) for i in range(THREADS)]:
            task.result(240)
    assert len(numbered.specialisations()) == VARIANTS
    assert len(gpu.driver.calls) == THREADS * VARIANTS
    addresses: dict[int, set[int]] = {}
    for call in gpu.driver.calls:
        addresses.setdefault(call.function, set()).add(call.values[0])
    assert all(len(each) == 1 for each in addresses.values())
    assert len({address for each in addresses.values() for address in each}) == VARIANTS
    assert kr.metrics.snapshot()["builds"] - builds == VARIANTS
