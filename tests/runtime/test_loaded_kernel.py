"""Building, loading and launching, with a driver that only writes down what it was asked."""

from __future__ import annotations

import ctypes
import threading
from contextlib import nullcontext

import pytest

from kdsl_core.errors import ArgumentError, BuildError, DriverError, ResourceError
from kdsl_runtime import driver, launch, metrics
from kdsl_runtime.assemble import AssembleOptions, KdslBuildWarning, ResourceReport
from kdsl_runtime.builds import build, key_of
from kdsl_runtime.cache import Cache
from kdsl_runtime.toolchain import Toolchain, find_toolchain, open_toolchain
from runtime.fake_gpu import FakeDriver, FakeGpu, Result

TYPES = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_float)


def loaded(module, *answers: Result, device: int = 0) -> tuple[launch.LoadedKernel, FakeDriver]:
    """A kernel and the driver that it is launched by."""
    fake = FakeDriver(*answers, types=TYPES)
    kernel = launch.LoadedKernel(module, 77, fake, device, launcher=fake.launch)
    return kernel, fake


def test_launch_hands_everything_over(add_one):
    """Grid, block, shared memory, stream and values arrive as given."""
    kernel, fake = loaded(add_one(shared_bytes=1024))
    kernel.launch((3, 2), 64, [4096, 17, 0.5], stream=1 << 40)
    (call,) = fake.calls
    assert call[:6] == (77, (3, 2, 1), (64, 1, 1), 1024, 1 << 40, {})
    assert fake.values == [(4096, 17, 0.5)]


def test_launches_are_counted(add_one):
    """What was put on a stream counts, and what was refused does not."""
    kernel, _ = loaded(add_one(), Result.CUDA_SUCCESS, Result.CUDA_ERROR_LAUNCH_FAILED)
    kernel.launch(1, 64, [1, 2, 3.0])
    with pytest.raises(DriverError):
        kernel.launch(1, 64, [1, 2, 3.0])
    with pytest.raises(ArgumentError):
        kernel.launch(1, 64, [1, -2, 3.0])
    assert kernel.launches == 1


def test_memory_of_arguments_is_used_again(add_one):
    """One piece of memory serves any number of launches of one thread, of each grid."""
    kernel, fake = loaded(add_one())
    for grid in (1, 1, 2, (2, 1), 2):
        kernel.launch(grid, 64, [1, 2, 3.0])
    places = [call.pointers for call in fake.calls]
    assert places[0] == places[1] and places[2] == places[4] != places[0]


def test_threads_do_not_share_memory(add_one):
    """A launch that begins while another is under way has values of its own."""
    kernel, fake = loaded(add_one())
    record = fake.launch

    def launch_another_meanwhile(*arguments):
        kernel._launcher = fake.launch = record
        other = threading.Thread(target=lambda: kernel.launch(1, 64, [2, 2, 2.0]))
        other.start()
        other.join()
        return record(*arguments)

    meanwhile = [launch_another_meanwhile]
    kernel._launcher = lambda *arguments: (meanwhile.pop() if meanwhile else record)(*arguments)
    kernel.launch(1, 64, [1, 1, 1.0])
    assert fake.values == [(2, 2, 2.0), (1, 1, 1.0)]


@pytest.mark.parametrize("lost", list(Result)[1:3])
def test_thread_without_context_is_served(add_one, monkeypatch, lost):
    """A thread that has no context, or another device's, launches in the kernel's own."""
    entered = []

    def enter(index):
        entered.append(index)
        return nullcontext()

    monkeypatch.setattr(driver, "on_device", enter)
    kernel, fake = loaded(add_one(), lost, device=1)
    kernel.launch(1, 64, [1, 2, 3.0])
    assert (len(fake.calls), entered) == (2, [1])


def test_failed_launch_names_the_kernel(add_one):
    """The driver's refusal is an error with the kernel's name and the code."""
    kernel, _ = loaded(add_one(), Result.CUDA_ERROR_LAUNCH_FAILED)
    with pytest.raises(DriverError, match="launch of add_one answered CUDA_ERROR_LAUNCH_FAILED"):
        kernel.launch(1, 64, [1, 2, 3.0])


def test_launch_attributes(add_one):
    """Clusters and overlapping launches are attributes of the launch."""
    kernel, fake = loaded(add_one())
    kernel.launch(4, 64, [1, 2, 3.0], overlap=True)
    kernel.launch(4, 64, [1, 2, 3.0], cluster=(2, 1), overlap=True)
    early, both = (call.attributes for call in fake.calls)
    assert early == {6: (1, 0, 0)} and both == {4: (2, 1, 1), 6: (1, 0, 0)}


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
    kernel, fake = loaded(add_one())
    with pytest.raises(ArgumentError) as caught:
        kernel.launch(grid, block, [1, 2, 3.0])
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


def test_load_keeps_one_kernel_per_device(add_one, monkeypatch):
    """The second request gives the same object and loads nothing."""
    gpu = FakeGpu(monkeypatch)
    cache = Cache()
    first = launch.load(add_one("sm_90a"), cache=cache)
    assert launch.load(add_one("sm_90a"), cache=cache) is first
    assert launch.load(add_one("sm_90a"), 1, cache=cache) is not first
    assert len(gpu.images) == 2 and gpu.images[0].startswith(b"\x7fELF")
    assert first.function == 1


def test_driver_jit_takes_the_ptx(add_one, monkeypatch):
    """Without an assembler the driver is given the text; the block's limits still hold."""
    gpu = FakeGpu(monkeypatch)
    jit = Toolchain(None, "13.0", "id", "driver JIT")
    module = add_one("sm_90a")
    launch.load(module, toolchain=jit)
    assert gpu.images == [module.text.encode()]
    with pytest.raises(ResourceError):
        launch.load(add_one("sm_90a", shared_bytes=1 << 20), toolchain=jit)


@pytest.mark.parametrize("target", ["sm_100a", "sm_120", "sm_89"])
def test_kernel_for_another_chip(add_one, monkeypatch, target):
    """A cubin of another generation is refused before the driver sees it."""
    gpu = FakeGpu(monkeypatch)
    with pytest.raises(BuildError, match=f"{target}.*H200.*sm_90a") as caught:
        launch.load(add_one(target), cache=Cache())
    assert (caught.value.code, gpu.images) == ("K709", [])


def test_kernel_for_an_older_chip_of_the_generation(add_one, monkeypatch):
    """An sm_80 cubin runs on sm_89; one for sm_90a runs on nothing but 9.0."""
    gpu = FakeGpu(monkeypatch, (8, 9))
    launch.load(add_one("sm_80"), cache=Cache())
    assert len(gpu.images) == 1
