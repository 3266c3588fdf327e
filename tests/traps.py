"""A GPU that trapped answers nothing more to its process: the next tests get a new one."""

from __future__ import annotations

import os
from typing import Any

# After one of these every call of the driver fails until the process ends.
TRAPS = (
    "ILLEGAL_INSTRUCTION",
    "ILLEGAL_ADDRESS",
    "MISALIGNED_ADDRESS",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "INVALID_PC",
)


class WorkerEndsAfterTrap:
    """Ends a worker of pytest-xdist behind the test that trapped; xdist starts another one.

    xdist reports that test twice: with its own failure, and as the one during which the worker
    ended.
    """

    def __init__(self) -> None:
        self.trapped = False

    def pytest_exception_interact(self, call: Any) -> None:
        """Remember that the driver named a trap."""
        self.trapped |= any(f"CUDA_ERROR_{trap}" in str(call.excinfo.value) for trap in TRAPS)

    def pytest_runtest_logfinish(self) -> None:
        """End the process, when all is said about the test."""
        if self.trapped:
            os._exit(1)


def pytest_configure(config: Any) -> None:
    """Watch the tests of a worker; without workers there is nobody to go on."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        config.pluginmanager.register(WorkerEndsAfterTrap())
