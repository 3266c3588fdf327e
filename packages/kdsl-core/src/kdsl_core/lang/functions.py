"""Functions whose control flow the kernel may run: rewritten once, at the first call."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

from kdsl_core.errors import StagingError
from kdsl_core.lang.meanings import meaning_of
from kdsl_core.lang.source import Source, capture

# CPython 3.11 counts the depth of syntax trees per process: two threads that parse or compile trees
# at once end in "AST constructor recursion depth mismatch".
_REWRITING = threading.RLock()


class Staged:
    """A function and the rewritten form that runs while tracing.

    `kind` is "kernel" or "func". Threads: safe; two threads may rewrite at once, with one result.
    """

    def __init__(self, function: FunctionType, kind: str) -> None:
        if not isinstance(function, FunctionType):
            raise StagingError(
                f"expected a Python function, got {function!r}",
                code="K339",
                fix="decorate a def; a class is staged by decorating its methods",
            )
        self.function = function
        self.kind = kind
        self.source: Source = capture(function)
        self._rewritten: FunctionType | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the rewritten function."""
        return self.rewritten()(*args, **kwargs)

    def rewritten(self) -> FunctionType:
        """The rewritten function, with the same globals, closure and defaults."""
        if self._rewritten is None:
            with _REWRITING:
                self._rewritten = self._rewritten or self._rewrite()
        return self._rewritten

    def meaning(self) -> str:
        """A digest of the text that is rewritten: without positions, comments and docstring.

        It may differ from the running code's text when the file was edited after its import.
        Raises: StagingError K320, K321 as a launch would.
        """
        with _REWRITING:
            return meaning_of(self.function, self.source)

    def _rewrite(self) -> FunctionType:
        from kdsl_core.lang.rewriting import rewritten  # not needed where everything was recalled

        self._refuse_kinds()
        return rewritten(self.function, self.source, self.kind)

    def _refuse_kinds(self) -> None:
        function = self.function
        kinds = {
            "an async function": inspect.iscoroutinefunction(function),
            "an async generator": inspect.isasyncgenfunction(function),
            "a generator": inspect.isgeneratorfunction(function),
        }
        for kind, applies in kinds.items():
            if applies:
                raise StagingError(
                    f"{function.__qualname__} is {kind}; kernels and their helpers are plain "
                    "functions",
                    code="K340",
                    fix="write it with return, or use it undecorated as meta code",
                    notes=(f"{self.source.file}:{function.__code__.co_firstlineno}",),
                )


def func(function: Any) -> Callable[..., Any]:
    """A helper of kernels that holds control flow of the kernel, and may return values early.

    A helper without control flow on kernel values needs no decorator.
    """
    staged = Staged(function, "func")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return staged.rewritten()(*args, **kwargs)

    call.__kdsl_staged__ = staged  # type: ignore[attr-defined] # how dependencies see through it
    return call
