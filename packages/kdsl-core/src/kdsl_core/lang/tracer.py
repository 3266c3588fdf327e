"""The trace in progress on this thread: where operations go and what is known about the launch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kdsl_core.errors import StagingError
from kdsl_core.ir import Builder, Kernel, Target
from kdsl_core.loc import here

_active = threading.local()


class Tracer:
    """One kernel being traced.

    `target` is the chip it is traced for, None for the simulator alone. `facts` holds what other
    parts of the language keep per trace, under a key of their own.
    """

    def __init__(
        self, kernel: Kernel, target: Target | None = None, facts: dict[str, Any] | None = None
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.facts: dict[str, Any] = {} if facts is None else facts
        self.builder = Builder(kernel)


def current() -> Tracer:
    """The trace in progress.

    Raises: StagingError outside a kernel.
    """
    tracer: Tracer | None = getattr(_active, "tracer", None)
    if tracer is None:
        raise StagingError(
            "this word has a meaning only inside a kernel",
            code="K301",
            loc=here(),
            fix="call it from a function under @kd.kernel, and launch that",
        )
    return tracer


def is_tracing() -> bool:
    """Whether a kernel is being traced on this thread."""
    return getattr(_active, "tracer", None) is not None


@contextmanager
def tracing(tracer: Tracer) -> Iterator[Tracer]:
    """Make `tracer` the current one until the end of the `with`."""
    outer = getattr(_active, "tracer", None)
    _active.tracer = tracer
    try:
        yield tracer
    finally:
        _active.tracer = outer


def builder() -> Builder:
    """The builder of the trace in progress."""
    return current().builder
