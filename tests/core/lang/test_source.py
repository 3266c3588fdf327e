"""A function's definition, found in the text of its file."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import kdsl_core.collective
import kdsl_fuse.kernels
from kdsl_core.lang import source
from kdsl_core.lang.source import FunctionNode, Source, alone, capture, definition, spelled

FILES = [
    path
    for package in (kdsl_core.collective, kdsl_fuse.kernels)
    for path in sorted(Path(str(package.__file__)).parent.glob("*.py"))
]


def first_line(node: FunctionNode) -> int:
    """Where a definition begins: with its first mark."""
    return min([node.lineno, *(mark.lineno for mark in node.decorator_list)])


def definitions(text: str) -> Iterator[FunctionNode]:
    """All that a text defines."""
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, FunctionNode))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_definition_alone_is_the_same(path: Path) -> None:
    """It has the tree that it has in its file, with all positions."""
    text = path.read_text()
    for node in definitions(text):
        found = next(definitions(alone(text, first_line(node))))
        assert ast.dump(found, include_attributes=True) == ast.dump(node, include_attributes=True)


PARTS = {
    "nested": "class A:\n    def f(x):\n        y = 1\n\n        return y\n    z = 2\n",
    "remarks": "class A:\n    def f(x):\n        y = 1\n# a draft\n    # y\n        return y\n",
    "marks": "@mark(\n  1\n)\n@mark\ndef f(\n    x,\n):\n    return x\n\n\ndef g():\n    ...\n",
    "tabs": "if 1:\n\tdef f(x):\n\t\ty = [\n\t]\n\t\treturn y\n\tz = 3\n",
    "asynchronous": "async def f(x):\n    return x\nawaited = f\n",
    "one line": "def f(x): return x\ny = 1\n",
    "closure": "def outer():\n    def f(x):\n        return x\n    return f\n",
}


@pytest.mark.parametrize("name", PARTS)
def test_where_a_definition_ends(name: str) -> None:
    """All of it is there, and nothing behind it."""
    text = PARTS[name]
    node = next(node for node in definitions(text) if node.name == "f")
    found = list(definitions(alone(text, first_line(node))))
    assert [ast.dump(each, include_attributes=True) for each in found] == [
        ast.dump(node, include_attributes=True)
    ]


WHOLES = {
    "string": 'def f(x):\n    """One\ntwo"""\n    return x\n',
    "arguments": "def f(x,\ny):\n    return x\n",
    "sum": "def f(x):\n    y = x + \\\n1\n    return y\n",
    "list": "def f(x):\n    y = [x,\nx]\n    return y\n",
}


@pytest.mark.parametrize("name", WHOLES)
def test_where_a_line_misleads(name: str) -> None:
    """A part of a definition is no Python; then the whole text is looked at."""
    with pytest.raises(SyntaxError):
        ast.parse(alone(WHOLES[name], 1))
    space: dict[str, Any] = {}
    exec(compile(WHOLES[name], "f.py", "exec"), space)
    function: FunctionType = space["f"]
    found = definition(function, Source("f.py", WHOLES[name]))
    assert spelled(found) == spelled(next(definitions(WHOLES[name])))


def test_the_rest_of_a_file_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start pays for the functions that its kernels have, not for their files."""
    sizes: list[int] = []
    parse = ast.parse

    def counted(text: str, *more: Any) -> ast.Module:
        sizes.append(len(text.lstrip("\n")))
        return parse(text, *more)

    module = importlib.import_module("kdsl_fuse.kernels.gemm_sm90")
    function = module.gemm_sm90.staged.function
    taken = capture(function)
    for known in (source._parsed, source._parsed_alone):
        known.cache_clear()
    monkeypatch.setattr(ast, "parse", counted)
    assert definition(function, taken).name == "gemm_sm90"
    assert sum(sizes) < len(taken.text) / 2


def test_a_line_behind_the_end() -> None:
    """Of a file that became shorter after its import."""
    assert alone("x = 1\n", 9).strip() == ""
