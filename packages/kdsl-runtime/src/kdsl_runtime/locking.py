"""A locked process runs only machine code that its lock pins, or reports every other."""

from __future__ import annotations

import functools
import os
import warnings
from typing import TYPE_CHECKING

from kdsl_core.errors import ArgumentError, BuildError
from kdsl_core.lang import watch
from kdsl_runtime import metrics
from kdsl_runtime.ptx_module import PtxModule

if TYPE_CHECKING:
    from kdsl_runtime.pins import Lock

MODES = ("strict", "warn")
_active: ProcessLock | None = None


class KdslLockWarning(UserWarning):
    """A process that was locked with "warn" runs a kernel that is not as it was pinned."""


class ProcessLock:
    """A lock, and whether what it does not pin is refused ("strict") or reported ("warn")."""

    def __init__(self, path: str | os.PathLike[str], mode: str) -> None:
        from kdsl_runtime.pins import Lock

        if mode not in MODES:
            raise ArgumentError(
                f"a process is locked with {' or '.join(map(repr, MODES))}, got {mode!r}",
                code="K739",
                fix='kr.lock(path) refuses, kr.lock(path, mode="warn") reports',
            )
        self.lock: Lock = Lock.load(path)
        self.path = os.fspath(path)
        self.mode = mode

    def verify(self, module: PtxModule, image: bytes, origin: watch.Origin | None) -> None:
        """Refuse or report an image that is not the one that is pinned."""
        problem = self._problem(module, image, origin)
        if problem is None:
            return
        metrics.add("pin_mismatches")
        if self.mode == "strict":
            raise problem
        warnings.warn(str(problem), KdslLockWarning, stacklevel=4)

    def _problem(
        self, module: PtxModule, image: bytes, origin: watch.Origin | None
    ) -> BuildError | None:
        from kdsl_runtime.manifest import Variant
        from kdsl_runtime.pins.pinning import sha256

        cubin = sha256(image)
        if origin is None:
            return None if self.lock.has_cubin(cubin) else self._unpinned(module.entry, "")
        try:
            pinned = self.lock.get(Variant.of(*origin, module.target))
        except ArgumentError as problem:
            return self._unpinned(module.entry, f": {problem.message}")
        if pinned is None:
            return self._unpinned(module.entry, f" for {module.target} in this specialisation")
        if pinned.cubin == cubin:
            return None
        return BuildError(
            f"kernel {module.entry} for {module.target} is not the machine code that {self.path} "
            f"pins: {pinned.cubin[:12]}… is pinned, got {cubin[:12]}…",
            code="K743",
            notes=[str(pinned.variant), f"pinned with ptxas {pinned.toolchain}"],
            fix="`kdsl check` says what changed; `kdsl pin` accepts it",
        )

    def _unpinned(self, entry: str, why: str) -> BuildError:
        return BuildError(
            f"kernel {entry} is not pinned by {self.path}{why}",
            code="K744",
            fix="add it to the manifest, and pin that again: kdsl pin",
        )


def lock(path: str | os.PathLike[str] = "kdsl.lock", mode: str = "strict") -> None:
    """Lock this process: every kernel that is loaded from now on must be what the file pins.

    "strict" refuses others with BuildError K743 (other machine code) or K744 (no pin); "warn"
    reports them and counts them as `pin_mismatches`. `KDSL_LOCK` and `KDSL_LOCK_MODE` do the same
    from outside.

    Raises: ArgumentError K736 (no lock), K739 (mode); OSError.
    """
    global _active
    _active = ProcessLock(path, mode)


def unlock() -> None:
    """Undo `lock`; what the environment asks for stays."""
    global _active
    _active = None


def verify(module: PtxModule, image: bytes, origin: watch.Origin | None) -> None:
    """Refuse or report an image that the process's lock, if there is one, does not pin."""
    named = os.environ.get("KDSL_LOCK")
    active = _active
    if active is None and named:
        active = _from_environment(named, os.environ.get("KDSL_LOCK_MODE") or "strict")
    if active is not None:
        active.verify(module, image, origin)


@functools.cache
def _from_environment(path: str, mode: str) -> ProcessLock:
    return ProcessLock(path, mode)
