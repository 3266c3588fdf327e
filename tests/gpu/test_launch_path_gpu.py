"""Launches on a GPU: like those before, bound, captured, on streams, from threads, and many."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError
from kdsl_runtime.device_array import to_device

pytestmark = pytest.mark.gpu
COUNT = 1000
GRID = -(-COUNT // 64)


@kd.kernel
def added(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], by: kd.f32):
    """y = y + x + by."""
    i = kd.block_idx()[0] * 64 + kd.thread_idx()[0]
    if i < kd.size(x):
        y[i] = y[i] + x[i] + by


@kd.kernel
def numbered(y: kd.Tensor["f32", "n"], number: kd.Static):
    """One variant for each number."""
    i = kd.thread_idx()[0]
    y[i] = y[i] + float(number)


def test_many_launches_of_one_kind():
    """The first and the later ones do the same, with addresses and numbers of their own."""
    torch = pytest.importorskip("torch")
    pairs = [[torch.full((COUNT,), v, device="cuda") for v in (1.0, 0.0)] for _ in range(3)]
    for turn in range(5):
        for x, y in pairs:
            added[GRID, 64](x, y, float(turn))
    assert all(torch.all(y == 5 + 10).item() for _, y in pairs)


def test_bound_launches():
    """Only addresses vary; less alignment is refused."""
    torch = pytest.importorskip("torch")
    x, y = (torch.full((COUNT,), v, device="cuda") for v in (1.0, 0.0))
    run = added[GRID, 64].bind(x, y, 2.0)
    for _ in range(4):
        run(x, y)
    assert torch.all(y == 12).item()
    with pytest.raises(ArgumentError) as caught:
        run(torch.zeros(COUNT + 1, device="cuda")[1:], y)
    assert caught.value.code == "K628"


def test_bound_launches_on_some_arrays_again():
    """Addresses are those of this launch, whichever were written before; on two streams, too."""
    torch = pytest.importorskip("torch")
    pairs = [[torch.full((COUNT,), v, device="cuda") for v in (1.0, 0.0)] for _ in range(3)]
    run = added[GRID, 64].bind(*pairs[0], 2.0)
    torch.cuda.synchronize()
    for i in (0, 0, 1, 0, 2, 2, 1):
        run(*pairs[i])
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        run(*pairs[1])
    torch.cuda.synchronize()
    assert [y[0].item() for _, y in pairs] == [9.0, 9.0, 6.0]
    assert all(torch.all(y == y[0]).item() for _, y in pairs)


OPENED = """
import kdsl_runtime as kr
kr.open_device(0)
import numpy as np
from gpu.test_launch_path_gpu import COUNT, GRID, added
x, y = (kr.to_device(np.full(COUNT, v, np.float32)) for v in (1.0, 0.0))
added[GRID, 64](x, y, 2.0)
assert (y.read() == 3.0).all()
"""


def test_an_opened_device():
    """A process that began with its device launches as any other does."""
    places = [str(Path(__file__).parents[1]), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    subprocess.run([sys.executable, "-c", OPENED], env=env, check=True, timeout=120)


def test_streams_and_capture():
    """torch's current stream is followed, also into a CUDA graph; so is a stream of one's own."""
    torch = pytest.importorskip("torch")
    x, y = (torch.full((COUNT,), v, device="cuda") for v in (1.0, 0.0))
    launch = added[GRID, 64]
    run = launch.bind(x, y, 0.0)
    launch(x, y, 0.0)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        launch(x, y, 0.0)
        run(x, y)
    launch.on(side.cuda_stream)(x, y, 0.0)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(x, y, 0.0)
        run(x, y)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.all(y == 4 + 6).item()


def test_own_arrays_in_new_threads():
    """Threads that never touched CUDA launch what was loaded before."""
    x, y = (to_device(np.full(COUNT, v, np.float32)) for v in (1.0, 0.0))
    added[GRID, 64](x, y, 1.0)
    with ThreadPoolExecutor(4) as pool:
        for task in [pool.submit(added[GRID, 64], x, y, 1.0) for _ in range(8)]:
            task.result(60)
    assert np.all(y.read() == 2 * 9)


def test_two_devices():
    """Each device runs the kernel that was loaded for it, whichever is current."""
    torch = pytest.importorskip("torch")
    for turn in range(2 * kr.driver.device_count()):
        device = turn % kr.driver.device_count()
        x, y = (torch.full((COUNT,), v, device=f"cuda:{device}") for v in (1.0, 0.0))
        added[GRID, 64](x, y, 1.0)
        torch.cuda.synchronize(device)
        assert torch.all(y == 2).item()


VARIANTS, THREADS = 200, 8


def test_threads_that_compile_and_launch(tmp_path, monkeypatch):
    """8 threads build and launch 200 variants: each is built once, and no launch is lost."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path))
    numbered.clear()
    arrays = [to_device(np.zeros(32, np.float32)) for _ in range(VARIANTS)]
    start = threading.Barrier(THREADS)
    builds = kr.metrics.snapshot()["builds"]

    def work(first: int) -> None:
        start.wait()
        for i in range(VARIANTS):
            number = (first * 25 + i) % VARIANTS
            numbered[1, 32](arrays[number], number)

    with ThreadPoolExecutor(THREADS) as pool:
        for task in [pool.submit(work, i) for i in range(THREADS)]:
            task.result(240)
    for number, array in enumerate(arrays):
        assert np.all(array.read() == THREADS * number)
    assert kr.metrics.snapshot()["builds"] - builds == VARIANTS
