"""Building, loading and launching, with a driver that only writes down what it was asked."""

from __future__ import annotations

import ctypes
import enum
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kdsl_core.errors import ArgumentError, BuildError, DriverError, ResourceError
from kdsl_runtime import driver, launch, metrics
from kdsl_runtime.assemble import AssembleOptions, KdslBuildWarning, ResourceReport
from kdsl_runtime.builds import build, key_of
from kdsl_runtime.cache import Cache
from kdsl_runtime.toolchain import Toolchain, find_toolchain, open_toolchain


class _Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_LAUNCH_FAILED = 719


class RecordingDriver(SimpleNamespace):
    """`cuLaunchKernel` that keeps its arguments and reads the parameter values."""

    def __init__(self, *answers: _Result) -> None:
        super().__init__(CUresult=_Result, calls=[], answers=list(answers))

    def cuGetErrorString(self, code):
        return (_Result.CUDA_SUCCESS, b"said the driver")

    def cuLaunchKernel(self, function, *rest):
        *shape, shared, stream, address, extra = rest
        pointers = (ctypes.c_void_p * 3).from_address(address)
        values = (
            ctypes.c_uint64.from_address(pointers[0]).value,
            ctypes.c_uint32.from_address(pointers[1]).value,
            ctypes.c_float.from_address(pointers[2]).value,
        )
        self.calls.append((function, tuple(shape), shared, stream, values, extra))
        return (self.answers.pop(0) if self.answers else _Result.CUDA_SUCCESS,)


def test_launch_hands_everything_over(add_one):
    """Grid, block, shared memory, stream and values arrive as given."""
    fake = RecordingDriver()
    kernel = launch.LoadedKernel(add_one(shared_bytes=1024), "function", fake)
    kernel.launch((3, 2), 64, [4096, 17, 0.5], stream=9)
    assert fake.calls == [("function", (3, 2, 1, 64, 1, 1), 1024, 9, (4096, 17, 0.5), 0)]


def test_argument_buffers_are_reused(add_one):
    """One buffer serves any number of launches of one thread, also after a refused one."""
    kernel = launch.LoadedKernel(add_one(), "function", RecordingDriver())
    (before,) = kernel._free
    for _ in range(3):
        kernel.launch(1, 64, [1, 2, 3.0])
    with pytest.raises(ArgumentError):
        kernel.launch(1, 64, [1, -2, 3.0])
    assert kernel._free == [before]


def test_threads_do_not_share_a_buffer(add_one):
    """A launch that begins while another is under way has values of its own."""
    fake = RecordingDriver()
    kernel = launch.LoadedKernel(add_one(), "function", fake)
    record = fake.cuLaunchKernel

    def launch_another_meanwhile(*arguments):
        kernel._launch = record
        other = threading.Thread(target=lambda: kernel.launch(1, 64, [2, 2, 2.0]))
        other.start()
        other.join()
        return record(*arguments)

    kernel._launch = launch_another_meanwhile
    kernel.launch(1, 64, [1, 1, 1.0])
    assert [call[4] for call in fake.calls] == [(2, 2, 2.0), (1, 1, 1.0)]


@pytest.mark.parametrize("lost", list(_Result)[1:3])
def test_thread_without_context_is_served(add_one, monkeypatch, lost):
    """A thread that has no context, or another device's, launches in the kernel's own."""
    entered = []

    def enter(index):
        entered.append(index)
        return nullcontext()

    monkeypatch.setattr(driver, "on_device", enter)
    fake = RecordingDriver(lost)
    launch.LoadedKernel(add_one(), "function", fake, device=1).launch(1, 64, [1, 2, 3.0])
    assert (len(fake.calls), entered) == (2, [1])


def test_failed_launch_names_the_kernel(add_one):
    """The driver's refusal is an error with the kernel's name and the code."""
    fake = RecordingDriver(_Result.CUDA_ERROR_LAUNCH_FAILED)
    with pytest.raises(DriverError, match="launch of add_one answered CUDA_ERROR_LAUNCH_FAILED"):
        launch.LoadedKernel(add_one(), "function", fake).launch(1, 64, [1, 2, 3.0])


@pytest.mark.parametrize(
    ("grid", "block", "code"),
    [
        (0, 64, "K656"),
        ((1, 1, 1, 1), 64, "K656"),
        ((), 64, "K656"),
        (1, 32, "K658"),
        (1, (64, 2), "K658"),
    ],
)
def test_bad_grid_and_block(add_one, grid, block, code):
    """An empty grid, four dimensions, or another block than the kernel was made for."""
    fake = RecordingDriver()
    with pytest.raises(ArgumentError) as caught:
        launch.LoadedKernel(add_one(), "function", fake).launch(grid, block, [1, 2, 3.0])
    assert (caught.value.code, fake.calls) == (code, [])


def test_build_goes_through_memory_disk_and_assembler(add_one, tmp_path):
    """Assembled once; the same bytes come back from memory and, in another process, from disk."""
    metrics.reset()
    first = Cache.at(tmp_path / "cache")
    made = [build(add_one(), cache=cache) for cache in (first, first, Cache.at(tmp_path / "cache"))]
    assert made[0] == made[1] == made[2]
    counted = metrics.snapshot()
    assert [counted[name] for name in ("builds", "memory_hits", "disk_hits")] == [1, 1, 1]
    assert made[0].metadata["entry"] == "add_one"
    assert ResourceReport.from_json(made[0].metadata["report"]).registers > 0


def test_warnings_survive_the_cache(add_one, fake_ptxas, write_cubin, tmp_path):
    """A spill is reported again by a process that finds the kernel built."""
    spills = "0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads"
    toolchain = open_toolchain(fake_ptxas(f"echo '{spills}' >&2; {write_cubin}"))
    for _ in range(2):
        with pytest.warns(KdslBuildWarning, match="8 bytes of spill stores") as caught:
            build(add_one(), toolchain=toolchain, cache=Cache.at(tmp_path / "cache"))
        assert len(caught) == 1


def test_key_of_depends_on_what_decides_the_cubin(add_one):
    """Text, target, toolchain and options change the key; the time limit does not."""
    used, other = find_toolchain(), Toolchain(None, "1", "other", "test")
    plain, fast = AssembleOptions(), AssembleOptions(opt_level=1)
    base = key_of(add_one(), used, plain)
    changed = [
        key_of(add_one(threads=32), used, plain),
        key_of(add_one("sm_89"), used, plain),
        key_of(add_one(), other, plain),
        key_of(add_one(), used, fast),
    ]
    assert len({base, *changed}) == 5
    assert key_of(add_one(), used, AssembleOptions(time_limit_s=1.0)) == base


class _FakeGpu:
    """The driver functions that loading uses, on a machine with one Hopper chip."""

    def __init__(self, monkeypatch, capability: tuple[int, int] = (9, 0)) -> None:
        gpu = driver.Device(0, "H200", capability, 132, 1 << 37, 232448)
        self.images: list[bytes] = []
        monkeypatch.setattr(driver, "device", lambda index: gpu)
        monkeypatch.setattr(driver, "load_module", self._load)
        monkeypatch.setattr(driver, "kernel_function", lambda *arguments: arguments)
        monkeypatch.setattr(driver, "require_driver", RecordingDriver)
        monkeypatch.setattr(launch, "_loaded", {})

    def _load(self, image, index):
        self.images.append(image)
        return "module"


def test_load_keeps_one_kernel_per_device(add_one, monkeypatch):
    """The second request gives the same object and loads nothing."""
    gpu = _FakeGpu(monkeypatch)
    cache = Cache()
    first = launch.load(add_one("sm_90a"), cache=cache)
    assert launch.load(add_one("sm_90a"), cache=cache) is first
    assert launch.load(add_one("sm_90a"), 1, cache=cache) is not first
    assert len(gpu.images) == 2 and gpu.images[0].startswith(b"\x7fELF")
    assert first.function == ("module", "add_one", 0, 0)


def test_driver_jit_takes_the_ptx(add_one, monkeypatch):
    """Without an assembler the driver is given the text; the block's limits still hold."""
    gpu = _FakeGpu(monkeypatch)
    jit = Toolchain(None, "13.0", "id", "driver JIT")
    module = add_one("sm_90a")
    launch.load(module, toolchain=jit)
    assert gpu.images == [module.text.encode()]
    with pytest.raises(ResourceError):
        launch.load(add_one("sm_90a", shared_bytes=1 << 20), toolchain=jit)


@pytest.mark.parametrize("target", ["sm_100a", "sm_120", "sm_89"])
def test_kernel_for_another_chip(add_one, monkeypatch, target):
    """A cubin of another generation is refused before the driver sees it."""
    gpu = _FakeGpu(monkeypatch)
    with pytest.raises(BuildError, match=f"{target}.*H200.*sm_90a") as caught:
        launch.load(add_one(target), cache=Cache())
    assert (caught.value.code, gpu.images) == ("K709", [])


def test_kernel_for_an_older_chip_of_the_generation(add_one, monkeypatch):
    """An sm_80 cubin runs on sm_89; one for sm_90a runs on nothing but 9.0."""
    gpu = _FakeGpu(monkeypatch, (8, 9))
    launch.load(add_one("sm_80"), cache=Cache())
    assert len(gpu.images) == 1
