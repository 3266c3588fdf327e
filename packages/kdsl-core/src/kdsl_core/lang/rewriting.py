"""From a function's text to the function that runs while tracing, with the same bindings."""

from __future__ import annotations

import ast
from types import CellType, CodeType, FunctionType
from typing import Any

from kdsl_core.lang.authors_code import same_text
from kdsl_core.lang.rewrite import STAGE as STAGE_NAME
from kdsl_core.lang.rewrite import Rewriter
from kdsl_core.lang.source import Source, definition, other_text, undecorated
from kdsl_core.lang.stage import STAGE

# Every __future__ flag; annotations stay text, as the author's file has them.
_FUTURE_FLAGS = 0x1FF0000
_INNER = "_kdsl_function"


def rewritten(function: FunctionType, source: Source, kind: str) -> FunctionType:
    """The rewritten function, with the globals, closure and defaults of `function`.

    Raises: StagingError K320, K321 where its text is not known, and what the rewriter refuses.
    """
    found = definition(function, source)
    compiled = _compile(undecorated(found), function, source.file)
    if not same_text(compiled, function.__code__):
        raise other_text(function, source)
    new = Rewriter(_copied(undecorated(found)), source.file, kind).rewrite()
    code = _compile(new, function, source.file)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells[STAGE_NAME] = CellType(STAGE)
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, None, closure)
    made.__defaults__ = function.__defaults__
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


def _copied(node: Any) -> Any:
    """A syntax tree of its own, in a quarter of the time that `copy.deepcopy` takes."""
    if isinstance(node, list):
        return [_copied(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    new = node.__new__(type(node))  # its own constructor warns of fields that are not there yet
    parts = vars(new)
    for name, part in vars(node).items():
        parts[name] = _copied(part)
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
        inside = ast.copy_location(ast.ClassDef(owner, [], [], [node], []), node)
        path.append(owner)
    factory = ast.parse(f"def factory({', '.join(n for n in free if n != '__class__')}): pass")
    outer = factory.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [inside]
    flags = function.__code__.co_flags & _FUTURE_FLAGS
    code: CodeType = compile(factory, file, "exec", flags, dont_inherit=True)
    for step in (*path, _INNER):
        code = _nested(code, step)
    return code.replace(co_name=name, co_qualname=function.__qualname__)


def _nested(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
