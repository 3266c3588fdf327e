"""Where the tuner's work is done: in this process, in processes of this machine, or on a fleet."""

from __future__ import annotations

import importlib
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, Protocol, TypeVar

from kdsl_core.errors import ArgumentError
from kdsl_runtime.tune.worker import Worker

T = TypeVar("T")
TIME_LIMIT_S = 120.0


class Executor(Protocol):
    """What runs functions elsewhere. They and their arguments can be pickled."""

    @property
    def workers(self) -> int:
        """How many functions run at a time."""

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Have a function run. A future of one whose process died or hung raises WorkerLost."""

    def close(self) -> None:
        """End what runs."""


class Inline:
    """This process. A candidate that hangs or breaks the device takes the run with it."""

    workers = 1

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(function(*arguments))
        return future

    def close(self) -> None:
        pass


class LocalProcesses:
    """Processes of this machine, one for each of `environments`, which is added to this one's.

    A process that dies, or takes longer than `time_limit_s` for one function, is replaced.
    """

    def __init__(
        self, environments: Sequence[Mapping[str, str]], time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        self.workers = len(environments)
        self._all = [Worker(environment, time_limit_s) for environment in environments]
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="kdsl-tune")
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._all:
            self._idle.put(worker)

    @classmethod
    def of_devices(
        cls, indices: Sequence[int], time_limit_s: float = TIME_LIMIT_S
    ) -> LocalProcesses:
        """One process for each GPU, which is device 0 there."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = [visible[i] if any(visible) else str(i) for i in indices]
        return cls([{"CUDA_VISIBLE_DEVICES": name} for name in names], time_limit_s)

    @classmethod
    def of_cores(
        cls, count: int | None = None, time_limit_s: float = TIME_LIMIT_S
    ) -> LocalProcesses:
        """One process for each core."""
        return cls([{}] * (count or len(os.sched_getaffinity(0))), time_limit_s)

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        return self._threads.submit(self._run, function, arguments)

    def _run(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        worker = self._idle.get()
        try:
            return worker.run(function, *arguments)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.kill()
        self._threads.shutdown(wait=True)
        for worker in self._all:
            worker.close()


class Dask:
    """The workers of a Dask cluster, one for each GPU: `client` is a `distributed.Client`.

    On each of them functions run in a process of their own, so that a candidate that breaks or
    hangs costs neither the worker nor another candidate.
    """

    def __init__(self, client: Any, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._client = client
        self._pool = client.get_executor(pure=False, retries=0)
        self._time_limit_s = time_limit_s

    @classmethod
    def at(cls, address: str, time_limit_s: float = TIME_LIMIT_S) -> Dask:
        """The cluster whose scheduler has that address, "host:port".

        Raises: ArgumentError K767 without `dask.distributed`, K768 when nobody answers there.
        """
        try:
            distributed = importlib.import_module("distributed")
        except ImportError as error:
            raise ArgumentError(
                f"Dask is not installed: {error}",
                code="K767",
                fix="pip install 'kdsl-runtime[fleet]', or use --executor processes",
            ) from error
        try:
            return cls(distributed.Client(address), time_limit_s)
        except (OSError, ValueError) as error:
            raise ArgumentError(
                f"no Dask scheduler answers at {address!r}: {error}",
                code="K768",
                fix="start one with `dask scheduler`, and `dask worker` for each GPU",
            ) from error

    @property
    def workers(self) -> int:
        return max(1, len(self._client.ncores()))

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        future: Future[T] = self._pool.submit(_supervised, self._time_limit_s, function, arguments)
        return future

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._client.close()


_one_at_a_time = threading.Lock()


def _supervised(time_limit_s: float, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    """Run a function in this process's own worker."""
    with _one_at_a_time:
        return _own_worker(time_limit_s).run(function, *arguments)


@cache
def _own_worker(time_limit_s: float) -> Worker:
    return Worker({}, time_limit_s)
