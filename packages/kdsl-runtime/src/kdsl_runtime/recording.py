"""Recording: a real run writes down which kernels it needed."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from kdsl_core.errors import ArgumentError
from kdsl_core.lang import watch
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.specialisation import Specialisation
from kdsl_runtime import driver
from kdsl_runtime.manifest import Manifest, Variant


class KdslRecordWarning(UserWarning):
    """A kernel was launched that a manifest cannot name."""


class Recording(watch.Watcher):
    """The launches since it was made, until `stop`; a context manager that stops at its end.

    `unnamed` says of each kernel that a manifest cannot name why.

    Threads: launches of every thread are recorded.
    """

    def __init__(self, path: str | os.PathLike[str] | None, targets: tuple[str, ...]) -> None:
        self.path = None if path is None else Path(path)
        self.targets = targets
        self.unnamed: dict[str, str] = {}
        self._launched: dict[tuple[KernelFunction, Specialisation], None] = {}
        self._guard = threading.Lock()
        watch.add(self)

    def launched(self, kernel: KernelFunction, specialisation: Specialisation) -> None:
        """Note a launch."""
        with self._guard:
            self._launched[kernel, specialisation] = None

    def manifest(self) -> Manifest:
        """What was launched so far, for every target of the recording."""
        with self._guard:
            launched = list(self._launched)
        named = [variant for pair in launched if (variant := self._variant(*pair))]
        return Manifest(variant.at(target) for variant in named for target in self.targets)

    def _variant(self, kernel: KernelFunction, specialisation: Specialisation) -> Variant | None:
        try:
            return Variant.of(kernel, specialisation)
        except ArgumentError as problem:
            self.unnamed[f"{kernel.__name__}{specialisation}"] = problem.message
            return None

    def stop(self) -> Manifest:
        """End the recording and write its file; what the file named before stays in it.

        Raises: ArgumentError K736 when the file there is no manifest, OSError.
        """
        watch.remove(self)
        found = self.manifest()
        for key, why in self.unnamed.items():
            warnings.warn(f"{key} is not in the manifest: {why}", KdslRecordWarning, stacklevel=2)
        if self.path is not None:
            if self.path.exists():
                found = Manifest.load(self.path) | found
            found.save(self.path)
        return found

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def record(
    path: str | os.PathLike[str] | None = None, *, target: str | Iterable[str] | None = None
) -> Recording:
    """Record every launch from now on, on a GPU or in the simulator, until `stop()`.

    The manifest is for `target`, one or several; by default for the GPUs of this machine. What the
    file at `path` names already stays in it.

    Raises: ArgumentError K738 without a target where there is no GPU; K736 when the file is no
    manifest, K746 when it cannot be written: at once, not after a day of launches.
    """
    targets = (target,) if isinstance(target, str) else tuple(target or _targets_here())
    if not targets:
        raise ArgumentError(
            "nothing says for which target the kernels are recorded: there is no GPU here",
            code="K738",
            fix='record("manifest.toml", target="sm_90a")',
        )
    if path is not None:
        _check_usable(Path(path))
    return Recording(path, targets)


def _check_usable(path: Path) -> None:
    if path.exists():
        Manifest.load(path)
    place = path if path.exists() else path.absolute().parent
    if not os.access(place, os.W_OK):
        raise ArgumentError(
            f"the recording of {path} could not be kept: this process cannot write to {place}",
            code="K746",
            fix="name a file in a folder that there is and that this user may write to",
        )


def _targets_here() -> list[str]:
    if not driver.is_available():
        return []
    every = (driver.device(index).target for index in range(driver.device_count()))
    return list(dict.fromkeys(every))
