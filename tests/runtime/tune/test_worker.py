"""Processes that work for others: what they send back, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kdsl_runtime.tune import LocalProcesses, Worker, WorkerLost


@pytest.fixture
def worker():
    """A worker with a variable of its own."""
    worker = Worker({"KDSL_TEST_PLACE": "here"}, time_limit_s=20.0)
    yield worker
    worker.close()


def test_runs_elsewhere(worker):
    """Another process, the same one each time, with its own environment."""
    first, again = worker.run(os.getpid), worker.run(os.getpid)
    assert first == again != os.getpid()
    assert worker.run(os.getenv, "KDSL_TEST_PLACE") == "here"
    assert worker.run(print, "not the answer") is None


def test_a_dead_one_is_replaced(worker):
    """The signal and the exit code are told, and the next function has a new process."""
    with pytest.raises(WorkerLost, match="by SIGKILL"):
        worker.run(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="exit code 3"):
        worker.run(os._exit, 3)
    assert worker.run(abs, -1) == 1


def test_an_exception_is_the_end_with_its_text(worker):
    """The last words of a process are in the message."""
    with pytest.raises(WorkerLost, match=r"exit code 1: [\s\S]*ZeroDivisionError"):
        worker.run(divmod, 1, 0)


def test_a_hanging_one_is_ended():
    """After the time limit; the next function runs."""
    worker = Worker(time_limit_s=0.5)
    with pytest.raises(WorkerLost, match=r"no answer within 0.5 s"):
        worker.run(time.sleep, 600)
    worker.time_limit_s = 20.0
    assert worker.run(abs, -1) == 1
    worker.close()


def test_closing_ends_what_runs():
    """Also in the middle of a function."""
    executor = LocalProcesses([{}], time_limit_s=600.0)
    pid = executor.submit(os.getpid).result()
    running, waiting = executor.submit(time.sleep, 600), executor.submit(abs, -1)
    threading.Timer(0.2, executor.close).start()
    with pytest.raises(WorkerLost, match="SIGKILL"):
        running.result()
    assert waiting.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


HANGS = """
import os, sys, time
from kdsl_runtime.tune import Worker
worker = Worker()
print(worker.run(os.getpid), flush=True)
worker.run(time.sleep, 600)
"""


def test_none_outlives_a_killed_run():
    """A process that hangs ends soon after the one that it worked for."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, env=environment
    ) as run:
        pid = int(run.stdout.readline())
        os.kill(pid, 0)
        run.kill()
    deadline = time.monotonic() + 30
    while lives(pid):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.1)


def lives(pid: int) -> bool:
    """Whether a process is there, and not only the entry of one that ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_one_process_for_each_device(monkeypatch):
    """Each sees one device, by the names that this process was given."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    executor = LocalProcesses.of_devices(range(2))
    try:
        name = "CUDA_VISIBLE_DEVICES"
        slow = [executor.submit(_visible, name) for _ in range(2)]
        assert {future.result() for future in slow} == {"5", "7"}
    finally:
        executor.close()


def _visible(name: str) -> str:
    time.sleep(1.0)  # so that the other process takes the other task
    return os.environ[name]
