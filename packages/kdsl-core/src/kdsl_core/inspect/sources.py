"""Source text around counted lines, and which line an instruction's costs belong to."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Collection, Iterator
from functools import cache

from kdsl_core.loc import Loc

Place = tuple[str, int]
"""A file and a line in it."""


def places_in(file: str) -> Callable[[Loc], Place]:
    """Which line stands for a location: the innermost one in `file`, else the innermost of all.

    What a library's function does is then seen at the line that calls it.
    """

    @cache
    def place(loc: Loc) -> Place:
        frames = [Loc((frame,)) for frame in loc.frames]
        own = next((frame for frame in frames if frame.file == file), frames[0])
        return own.file, own.line

    return place


def functions_around(file: str, wanted: Collection[int]) -> Iterator[tuple[int, int]]:
    """(first, last) line of each outermost function that has wanted lines, decorators included.

    Where the file is not to be had, or lines are outside of functions, every run of such lines.
    """
    rest = set(wanted)
    for first, last in _functions(file):
        inside = {line for line in rest if first <= line <= last}
        if inside:
            yield first, last
            rest -= inside
    for line in sorted(rest):
        if line - 1 not in rest:
            last = line
            while last + 1 in rest:
                last += 1
            yield line, last


def _functions(file: str) -> Iterator[tuple[int, int]]:
    text = "".join(linecache.getlines(file))
    try:
        body = list(ast.parse(text).body)
    except SyntaxError:
        return
    while body:
        node = body.pop(0)
        if isinstance(node, ast.ClassDef):
            body = [*node.body, *body]
        elif isinstance(node, ast.FunctionDef):
            starts = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
            yield min(starts), node.end_lineno or node.lineno


def text_of(file: str, line: int) -> str:
    """A line of a file without its end; empty where there is none."""
    return linecache.getline(file, line).rstrip("\n")
