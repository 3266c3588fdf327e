"""Freezing: a process that serves builds nothing any more, and says what would have had to be."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from types import TracebackType

from kdsl_core.errors import ArgumentError, BuildError
from kdsl_core.ir import Target
from kdsl_core.lang import watch
from kdsl_core.lang.dependencies import Dependencies
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.rebindings import rebound
from kdsl_core.lang.specialisation import Specialisation
from kdsl_core.lang.traced import Traced
from kdsl_runtime import metrics

MODES = ("error", "warn")


class KdslFrozenWarning(UserWarning):
    """A process that was frozen with "warn" builds a kernel all the same."""


class Freeze(watch.Watcher):
    """Refuses builds, or warns of them, until `thaw`; as a context manager it thaws at its end.

    Threads: it holds for all of them.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._late: set[watch.Origin] = set()
        self._guard = threading.Lock()
        watch.add(self)

    def tracing(
        self, kernel: KernelFunction, needed: Specialisation, kept: Sequence[Dependencies]
    ) -> None:
        """A trace: for an argument, or for a name that was bound anew."""
        reasons = map(str, needed.nearest(kernel.specialisations()))
        found = list(rebound(kept[0]) if kept else reasons)
        self._late_build(kernel.signature.name, (kernel, needed), found or [_NOTHING])

    def emitting(self, kernel: KernelFunction, traced: Traced, target: Target) -> None:
        """PTX, for a target that the trace was not used for."""
        built = ", ".join(sorted({str(known) for known, _ in traced.modules})) or "none"
        reason = f"target: {built} was built, got {target}"
        self._late_build(kernel.signature.name, (kernel, traced.specialisation), [reason])

    def assembling(self, entry: str, origin: watch.Origin | None, reasons: Sequence[str]) -> None:
        """Machine code."""
        self._late_build(entry, origin, reasons)

    def _late_build(self, name: str, origin: watch.Origin | None, reasons: Sequence[str]) -> None:
        """One report for each origin: what follows a build that was let pass belongs to it."""
        with self._guard:
            if origin in self._late:
                return
            if origin is not None and self.mode == "warn":
                self._late.add(origin)
        metrics.add("late_builds")
        error = BuildError(
            f"kernel {name} would be built in a frozen process: {reasons[0]}",
            code="K730",
            notes=reasons[1:],
            fix="add it to the manifest (kr.record) and warm up before kr.freeze()",
        )
        if self.mode == "error":
            raise error
        warnings.warn(str(error), KdslFrozenWarning, stacklevel=4)

    def thaw(self) -> None:
        """Allow builds again, as far as no other freeze forbids them."""
        watch.remove(self)

    def __enter__(self) -> Freeze:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.thaw()


_NOTHING = "no specialisation of it was built in this process"


def freeze(mode: str = "error") -> Freeze:
    """From now on every build is an error ("error") or a counted warning ("warn").

    A build is a trace, PTX for another target, or an assembly; a launch of what was built, and a
    simulation of it, are none. `kr.metrics.snapshot()["late_builds"]` counts them.

    Raises: ArgumentError K739 for another mode; the launch that needs a build then raises
    BuildError K730 with the argument that makes its key new.
    """
    if mode not in MODES:
        raise ArgumentError(
            f"a process is frozen with {' or '.join(map(repr, MODES))}, got {mode!r}",
            code="K739",
            fix='kr.freeze() refuses, kr.freeze("warn") counts and goes on',
        )
    return Freeze(mode)


def thaw() -> None:
    """Allow builds again, whoever froze the process."""
    for watcher in watch.watchers:
        if isinstance(watcher, Freeze):
            watcher.thaw()
