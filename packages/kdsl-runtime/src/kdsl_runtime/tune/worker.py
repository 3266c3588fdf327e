"""A process that runs functions for another one, and may break without taking that with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, TypeVar

T = TypeVar("T")
_BOOT = f"import sys; sys.path[:] = sys.argv[2:]; from {__name__} import main; main()"
_START_LIMIT_S = 120.0
_GRACE_S = 2.0
_PARENT_POLL_S = 1.0
_SAID = 600  # characters of what a dead process said last


class WorkerLost(Exception):
    """The process died or gave no answer in time; the message says how, and what it said last."""


class Worker:
    """Runs functions in a process of its own, a fresh one after each that it lost.

    The process has this one's environment with `environment` on top, and `time_limit_s` for each
    function. Functions, arguments and results are pickled; an exception in a function ends the
    process. It ends with this one.

    Threads: one at a time.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, time_limit_s: float = 120.0
    ) -> None:
        self.environment = dict(environment or {})
        self.time_limit_s = time_limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._said: IO[bytes] | None = None

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function gives.

        Raises: WorkerLost.
        """
        if self._process is None:
            self._start()
            self._ask(None, _START_LIMIT_S)
        result: T = self._ask((function, arguments), self.time_limit_s)
        return result

    def _ask(self, task: tuple[Callable[..., Any], tuple[Any, ...]] | None, limit_s: float) -> Any:
        """What the process answers to a task, or at its start."""
        assert self._pipe is not None
        try:
            if task is not None:
                self._pipe.send(task)
            if self._pipe.poll(limit_s):
                return self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            how, said = self._ended()
            raise WorkerLost(f"the process ended {how}{said}") from error
        self.kill()
        _, said = self._ended()
        raise WorkerLost(f"no answer within {limit_s:g} s{said}")

    def kill(self) -> None:
        """End the process at once, whatever it does. From any thread: `run` then raises."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process, which must be idle."""
        if self._process is not None:
            self._ended()

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `_ended` closes it, calls later
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno()), *sys.path],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=(theirs.fileno(),),
            )

    def _ended(self) -> tuple[str, str]:
        """Wait for the process to end; how it did, and what it said last."""
        assert self._process is not None and self._pipe is not None and self._said is not None
        self._pipe.close()  # at which an idle process ends
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        with self._said as said:
            said.seek(0)
            text = said.read().decode(errors="replace").strip()[-_SAID:]
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return how, f": {text}" if text else ""


def main() -> None:
    """Run what arrives, until the other end is closed."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with Connection(int(sys.argv[1])) as pipe:
        pipe.send("ready")
        while True:
            try:
                function, arguments = pipe.recv()
            except EOFError:
                return
            pipe.send(function(*arguments))


def _end_with(parent: int) -> None:
    """End when the parent was killed, also in the middle of a function that hangs."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)
