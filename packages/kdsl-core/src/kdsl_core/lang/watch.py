"""Who is told of launches, and of builds before they begin: what records, and what freezes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kdsl_core.ir import Target
    from kdsl_core.lang.dependencies import Dependencies
    from kdsl_core.lang.kernel import KernelFunction
    from kdsl_core.lang.specialisation import Specialisation
    from kdsl_core.lang.traced import Traced

# What a piece of PTX was made from.
Origin: TypeAlias = "tuple[KernelFunction, Specialisation]"

_guard = threading.Lock()
# A tuple that is replaced, so that one may be removed while it is gone through.
watchers: tuple[Watcher, ...] = ()
# The same in a list that stays: generated code looks at each launch whether it is empty.
listed: list[Watcher] = []


class Watcher:
    """What a watcher may be told; each method does nothing until it is overridden.

    An error that it raises goes to whoever launches or builds.
    """

    def launched(self, kernel: KernelFunction, needed: Specialisation) -> None:
        """A kernel ran, or was put on a stream, in this specialisation."""

    def tracing(
        self, kernel: KernelFunction, needed: Specialisation, kept: Sequence[Dependencies]
    ) -> None:
        """A kernel is about to be traced.

        `kept` belongs to earlier traces of the same specialisation, newest first: something that
        they read was bound anew since.
        """

    def emitting(self, kernel: KernelFunction, traced: Traced, target: Target) -> None:
        """PTX of a trace is about to be written; `traced.modules` holds what was written before."""

    def assembling(self, entry: str, origin: Origin | None, reasons: Sequence[str]) -> None:
        """Machine code of the kernel `entry` is about to be made; `reasons` say what is new."""


def add(watcher: Watcher) -> None:
    """Tell `watcher` from now on. Threads: safe."""
    global watchers
    with _guard:
        watchers = (*watchers, watcher)
        listed[:] = watchers


def remove(watcher: Watcher) -> None:
    """Tell it no more; one that was not added is no error. Threads: safe."""
    global watchers
    with _guard:
        watchers = tuple(other for other in watchers if other is not watcher)
        listed[:] = watchers


def launched(kernel: KernelFunction, needed: Specialisation) -> None:
    """Tell all of a launch."""
    for watcher in watchers:
        watcher.launched(kernel, needed)
