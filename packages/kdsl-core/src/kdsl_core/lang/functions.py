"""Functions whose control flow the kernel may run: rewritten once, at the first call."""

from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from kdsl_core.errors import StagingError
from kdsl_core.lang.rewrite import STAGE as STAGE_NAME
from kdsl_core.lang.rewrite import Rewriter
from kdsl_core.lang.source import Source, capture, definition
from kdsl_core.lang.stage import STAGE

# Every __future__ flag; annotations stay text, as the author's file has them.
_FUTURE_FLAGS = 0x1FF0000
_INNER = "__kd_function"


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
            self._rewritten = self._rewrite()
        return self._rewritten

    def _rewrite(self) -> FunctionType:
        function = self.function
        self._refuse_kinds()
        node = copy.deepcopy(definition(function, self.source))
        assert isinstance(node, ast.FunctionDef)
        new = Rewriter(node, self.source.file, self.kind).rewrite()
        code = _compile(new, function, self.source.file)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cells[STAGE_NAME] = CellType(STAGE)
        closure = tuple(cells[name] for name in code.co_freevars)
        made = FunctionType(code, function.__globals__, function.__name__, None, closure)
        made.__defaults__ = function.__defaults__
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__ = function.__qualname__
        return made

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


def _compile(node: ast.FunctionDef, function: FunctionType, file: str) -> CodeType:
    """The code of a rewritten function, its free variables bound as the original's."""
    free = [*function.__code__.co_freevars, STAGE_NAME]
    factory = ast.parse(f"def factory({', '.join(free)}): pass")
    outer = factory.body[0]
    assert isinstance(outer, ast.FunctionDef)
    # Under its own name the function would see itself where the module may have something else.
    name, node.name = node.name, _INNER
    outer.body = [node]
    ast.fix_missing_locations(factory)
    flags = function.__code__.co_flags & _FUTURE_FLAGS
    module = compile(factory, file, "exec", flags, dont_inherit=True)
    code = _nested(_nested(module, "factory"), _INNER)
    return code.replace(co_name=name, co_qualname=function.__qualname__)


def _nested(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)


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
