"""Functions whose control flow the kernel may run: rewritten once, at the first call."""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import inspect
import threading
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

from kdsl_core.errors import StagingError
from kdsl_core.lang.rewrite import STAGE as STAGE_NAME
from kdsl_core.lang.rewrite import Rewriter, bare
from kdsl_core.lang.source import FunctionNode, Source, capture, definition, other_text
from kdsl_core.lang.stage import STAGE

# Every __future__ flag; annotations stay text, as the author's file has them.
_FUTURE_FLAGS = 0x1FF0000
_INNER = "_kdsl_function"


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
            node = _bare(definition(self.function, self.source))
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
            return hashlib.sha256(ast.dump(node).encode()).hexdigest()

    def _rewrite(self) -> FunctionType:
        function = self.function
        self._refuse_kinds()
        found = definition(function, self.source)
        compiled = _compile(_undecorated(found), function, self.source.file)
        if not _same_text(compiled, function.__code__):
            raise other_text(function, self.source)
        new = Rewriter(_undecorated(found), self.source.file, self.kind).rewrite()
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


def _undecorated(node: FunctionNode) -> ast.FunctionDef:
    """A copy of a definition, for its decorators, defaults and annotations are bound already."""
    return copy.deepcopy(_bare(node))


def _bare(node: FunctionNode) -> ast.FunctionDef:
    """The same, with the statements of the original."""
    new = copy.copy(node)
    assert isinstance(new, ast.FunctionDef)
    new.decorator_list, new.returns, new.args = [], None, bare(new.args)
    return new


def _compile(node: ast.FunctionDef, function: FunctionType, file: str) -> CodeType:
    """The code of a function, its free variables bound as the original's.

    A method is compiled inside a class of its class's name, so that private names are the same.
    """
    free = [*function.__code__.co_freevars, STAGE_NAME]
    # Under its own name the function would see itself where the module may have something else.
    name, node.name = node.name, _INNER
    path = ["factory"]
    inside: ast.stmt = node
    owner = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    if owner and owner != "<locals>":
        inside = ast.ClassDef(owner, [], [], [node], [])
        path.append(owner)
    factory = ast.parse(f"def factory({', '.join(n for n in free if n != '__class__')}): pass")
    outer = factory.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [inside]
    ast.fix_missing_locations(factory)
    flags = function.__code__.co_flags & _FUTURE_FLAGS
    code: CodeType = compile(factory, file, "exec", flags, dont_inherit=True)
    for step in (*path, _INNER):
        code = _nested(code, step)
    return code.replace(co_name=name, co_qualname=function.__qualname__)


def _same_text(compiled: CodeType, running: CodeType) -> bool:
    """Whether the text found is the running function's.

    Everything it mentions must be in the running code; pytest's rewriting of assert adds to that.
    """
    plain = (int, float, str, bool, bytes)
    constants = {(type(c), c) for c in running.co_consts if isinstance(c, plain)}
    return (
        set(compiled.co_names) <= set(running.co_names)
        and set(compiled.co_varnames) <= set(running.co_varnames)
        and all((type(c), c) in constants for c in compiled.co_consts if isinstance(c, plain))
    )


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
