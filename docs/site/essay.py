"""An executable essay: a Python file in cells, run in order, with what it printed and drew.

`# %% [markdown]` begins a cell of prose, whose lines are comments, and `# %%` a cell of code. So
the file is a program, a notebook for editors that know these marks, and a page of the site. An
expression that ends a cell is shown as a notebook would show it: pictures as SVG, else its `repr`.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = re.compile(r"^# %%(?P<kind> \[markdown\])?\s*$")
MESSAGE = re.compile(r"\w+Error\[K\d+\]")  # long lines, no table: they may wrap
SHORT = 4  # so do a few lines
TITLE = re.compile(r"<text[^>]*>([^<]+)</text>")


@dataclass(frozen=True)
class Cell:
    """One cell: prose as Markdown, or code; `line` is that of its first line in the file."""

    is_code: bool
    text: str
    line: int


@dataclass(frozen=True)
class Shown:
    """A cell after it ran: what it printed, and the pictures of it (SVG documents)."""

    cell: Cell
    printed: str = ""
    pictures: tuple[str, ...] = ()


def cells(source: str) -> list[Cell]:
    """The cells of a file; what stands before the first mark is none."""
    found: list[Cell] = []
    lines = source.splitlines()
    starts = [(at, match) for at, line in enumerate(lines) if (match := MARK.match(line))]
    ends = [at for at, _ in starts[1:]] + [len(lines)]
    for (start, match), end in zip(starts, ends, strict=True):
        is_code, body = match["kind"] is None, lines[start + 1 : end]
        if not is_code:
            body = [line.removeprefix("#").removeprefix(" ") for line in body]
        first = next((at for at, line in enumerate(body) if line.strip()), 0)
        found.append(Cell(is_code, "\n".join(body).strip("\n"), start + 2 + first))
    return found


def run(path: Path) -> Iterator[Shown]:
    """Each cell after it ran, in one namespace; messages name the lines of the file."""
    space: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    for cell in cells(path.read_text(encoding="utf-8")):
        if not cell.is_code:
            yield Shown(cell)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            pictures = execute(cell, path, space)
        yield Shown(cell, printed.getvalue(), pictures)


def execute(cell: Cell, path: Path, space: dict[str, Any]) -> tuple[str, ...]:
    """Run a cell of code and return its pictures; another last value is printed."""
    tree = ast.parse(cell.text, str(path))
    ast.increment_lineno(tree, cell.line - 1)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, str(path), "exec"), space)
        return ()
    exec(compile(ast.Module(tree.body[:-1], []), str(path), "exec"), space)
    value = eval(compile(ast.Expression(last.value), str(path), "eval"), space)
    if pictures := tuple(pictures_in(value)):
        return pictures
    if value is not None:
        print(repr(value))
    return ()


def pictures_in(value: object) -> Iterator[str]:
    """The SVG documents that a value is, shows itself as in notebooks, or (a tuple) holds."""
    if isinstance(value, str):
        if value.lstrip().startswith("<svg"):
            yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from pictures_in(part)
    elif (draw := getattr(value, "_repr_svg_", None)) and (drawn := draw()):
        yield drawn


def page(path: Path) -> str:
    """The essay as a page in MyST's Markdown, with all that it printed and drew."""
    return "\n\n".join(part for shown in run(path) for part in parts(shown)) + "\n"


def parts(shown: Shown) -> Iterator[str]:
    """The pieces of Markdown that a cell becomes."""
    if not shown.cell.is_code:
        yield shown.cell.text
        return
    yield fenced(shown.cell.text, "{code-block} python")
    if shown.printed.strip():
        wraps = MESSAGE.search(shown.printed) or shown.printed.count("\n") < SHORT
        kind = "printed message" if wraps else "printed"
        yield fenced(shown.printed.rstrip(), "{code-block} text", f":class: {kind}")
    for picture in shown.pictures:
        yield fenced(figure(picture), "{raw} html")


def fenced(text: str, info: str, *options: str) -> str:
    """A fence that no line of the text ends."""
    return "\n".join([f"~~~~~{info}", *options, *([""] if options else []), text, "~~~~~"])


def figure(svg: str) -> str:
    """A picture that brings its own styles, named by its first words for who cannot see it."""
    words = TITLE.search(svg)
    data = base64.b64encode(svg.encode()).decode()
    name = words[1].replace('"', "&quot;") if words else "picture"
    return (
        f'<figure class="drawn"><img alt="{name}" src="data:image/svg+xml;base64,{data}"></figure>'
    )
