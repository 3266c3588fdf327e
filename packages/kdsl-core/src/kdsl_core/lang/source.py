"""The source text of a function as it was when Python compiled it, and its syntax tree."""

from __future__ import annotations

import ast
import copy
import functools
import linecache
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from kdsl_core.errors import StagingError
from kdsl_core.records import dataclass

_BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")  # of statements
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A file's text, captured when a function of it was decorated."""

    file: str
    text: str


def capture(function: FunctionType) -> Source:
    """The text of the file, cell or prompt that defines `function`, taken now.

    A later edit of the file changes nothing: the text that was compiled is the text that counts.
    """
    file = function.__code__.co_filename
    linecache.checkcache(file)
    lines = linecache.getlines(file, function.__globals__)
    return Source(file, "".join(lines))


def definition(function: FunctionType, source: Source) -> FunctionNode:
    """The syntax tree of `function`, with the file's own line and column numbers.

    Raises: StagingError K320 (no text), K321 (another text than the one that was compiled).
    """
    code = function.__code__
    if not source.text:
        raise StagingError(
            f"the source text of {function.__qualname__} is not available ({source.file})",
            code="K320",
            fix="define the kernel in a file or a notebook cell; text given to exec() must be "
            "registered in linecache.cache",
        )
    for node in definitions(source):
        names = parameters(node)
        there = (first_line(node), node.name) == (code.co_firstlineno, code.co_name)
        if there and tuple(names) == code.co_varnames[: len(names)]:
            return node
    raise other_text(function, source)


def undecorated(node: FunctionNode) -> ast.FunctionDef:
    """A definition without decorators, defaults and annotations, which are bound already."""
    new = copy.copy(node)
    assert isinstance(new, ast.FunctionDef)
    new.decorator_list, new.returns, new.args = [], None, bare(new.args)
    return new


def bare(arguments: ast.arguments) -> ast.arguments:
    """The arguments without annotations and defaults, which are bound elsewhere."""

    def plain(items: list[ast.arg]) -> list[ast.arg]:
        return [ast.copy_location(ast.arg(item.arg), item) for item in items]

    def single(item: ast.arg | None) -> ast.arg | None:
        return None if item is None else plain([item])[0]

    return ast.arguments(
        posonlyargs=plain(arguments.posonlyargs),
        args=plain(arguments.args),
        vararg=single(arguments.vararg),
        kwonlyargs=plain(arguments.kwonlyargs),
        kw_defaults=[None for _ in arguments.kwonlyargs],
        kwarg=single(arguments.kwarg),
        defaults=[],
    )


def spelled(node: ast.AST) -> str:
    """A syntax tree without positions, in half the time of `ast.dump`: equal for equal trees."""
    words: list[str] = []
    _spell(node, words)
    return "\0".join(words)


def _spell(part: Any, words: list[str]) -> None:
    """Append a node by its class, then its fields in their order; a list in brackets; else text."""
    if isinstance(part, ast.AST):
        words.append(part.__class__.__name__)
        for name in part._fields:
            _spell(getattr(part, name, None), words)
    elif isinstance(part, list):
        words.append("[")
        for item in part:
            _spell(item, words)
        words.append("]")
    else:  # in quotes, if it is a name
        words.append(repr(part))


def other_text(function: FunctionType, source: Source) -> StagingError:
    """The text found is not what Python compiled."""
    return StagingError(
        f"{source.file}:{function.__code__.co_firstlineno} does not hold the text of "
        f"{function.__qualname__} that Python compiled",
        code="K321",
        fix="import the module again; a lambda cannot hold kernel control flow, write a def",
    )


@functools.lru_cache(maxsize=64)
def definitions(source: Source) -> tuple[FunctionNode, ...]:
    """Every function that a text defines, nested ones behind those around them."""
    return tuple(_nested_functions(ast.parse(source.text, source.file)))


def _nested_functions(node: ast.AST) -> Iterator[FunctionNode]:
    """The definitions within a statement, without a look at its expressions, which hold none."""
    for part in _BLOCKS:
        for inner in getattr(node, part, ()):
            if isinstance(inner, FunctionNode):
                yield inner
            yield from _nested_functions(inner)


def first_line(node: FunctionNode) -> int:
    """Where a definition begins, as its code says: with its first mark."""
    return min([node.lineno, *(mark.lineno for mark in node.decorator_list)])


def parameters(node: FunctionNode) -> list[str]:
    """The names of a definition's parameters, in the order in which code has them."""
    args = node.args
    names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return names + [a.arg for a in (args.vararg, args.kwarg) if a is not None]
