"""The rules of style that a machine can check."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from house import census

UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
SILENCER = re.compile(r"#\s*(?:(?:ruff:\s*)?noqa|type:\s*ignore)(?P<rest>.*)")
CODES = re.compile(r"^\s*(?::\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*|\[[\w\-, ]+\])")
PLAIN_BASES = {"Protocol", "Generic", "Enum", "Flag", "IntEnum", "StrEnum", "NamedTuple", "object"}


def comments(path: Path) -> Iterator[tuple[str, int]]:
    """(text, line) of each comment."""
    with tokenize.open(path) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type == tokenize.COMMENT:
                yield token.string, token.start[0]


def at(path: Path, node: ast.AST) -> str:
    """file:line of a node."""
    return f"{census.short(path)}:{getattr(node, 'lineno', 1)}"


def test_no_utils() -> None:
    """A module is named after what it holds."""
    vague = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
    census.expect_none(census.short(p) for p in census.package_files() if p.name in vague)


def test_future_annotations_come_first() -> None:
    """Each file of the packages begins alike; front pages only re-export."""
    late = []
    for path in census.package_files():
        if path.name == "__init__.py":
            continue
        body = census.tree(path).body
        code = body[1:] if body and ast.get_docstring(census.tree(path)) is not None else body
        if code and ast.unparse(code[0]) != "from __future__ import annotations":
            late.append(at(path, code[0]))
    census.expect_none(late)


def test_no_star_imports() -> None:
    """Every name in a file can be traced to a line of that file."""
    census.expect_none(
        at(path, node)
        for path in census.all_files()
        for node in ast.walk(census.tree(path))
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    )


def is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether it catches everything and does not end by raising it again, or another from it."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and (last.exc is None or last.cause is not None):
        return False
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {ast.unparse(kind) if kind else "everything" for kind in caught}
    return bool(names & {"everything", "Exception", "BaseException"})


def test_no_broad_except() -> None:
    """A handler names what it expects, or cleans up and raises again."""
    census.expect_none(
        at(path, node)
        for path in census.all_files()
        for node in ast.walk(census.tree(path))
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    )


def test_silencers_say_why() -> None:
    """A lint or type rule is switched off for named codes and with a reason in words."""
    mute = []
    for path in census.all_files():
        if SILENCER.search(path.read_text(encoding="utf-8")) is None:
            continue
        for text, line in comments(path):
            match = SILENCER.search(text)
            if match is None:
                continue
            codes = CODES.match(match["rest"])
            words = re.findall(r"[A-Za-z]{2,}", match["rest"][codes.end() :]) if codes else []
            if len(words) < 2:
                mute.append(f"{census.short(path)}:{line} {text}")
    census.expect_none(mute)


def test_nothing_is_left_unfinished() -> None:
    """No marker of unfinished work and no placeholder in the packages, tests and examples."""
    found = [
        f"{census.short(path)}:{number}"
        for path in census.all_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    found += [
        at(path, node)
        for path in census.package_files()
        for node in ast.walk(census.tree(path))
        if isinstance(node, ast.Raise) and node.exc and "NotImplementedError" in ast.dump(node.exc)
    ]
    census.expect_none(found)


def public(path: Path) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Public functions and classes of a module, and methods of classes without a base."""
    for node in census.tree(path).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef) and is_root(node):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield inner


def protocol_methods() -> set[str]:
    """Names of methods that a protocol documents; its implementations need not repeat it."""
    return {
        inner.name
        for path in census.package_files()
        for node in ast.walk(census.tree(path))
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
        for inner in node.body
        if isinstance(inner, ast.FunctionDef) and ast.get_docstring(inner)
    }


def is_root(node: ast.ClassDef) -> bool:
    """Whether no base of the class could have documented its methods."""
    bases = {ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases}
    return bases <= PLAIN_BASES


def is_variant(node: ast.ClassDef | ast.FunctionDef) -> bool:
    """Whether it is an overload or a property's setter: the main definition has the docstring."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    return any(mark.endswith(("overload", ".setter", ".register")) for mark in marks)


def test_public_things_have_docstrings() -> None:
    """What others may use says what it means."""
    known = protocol_methods()
    census.expect_none(
        f"{at(path, node)} {node.name}"
        for path in census.package_files()
        for node in public(path)
        if not (is_variant(node) or node.name in known or ast.get_docstring(node))
    )


def test_modules_have_docstrings() -> None:
    """Each file of the packages that has code opens with one sentence about itself."""
    census.expect_none(
        census.short(path)
        for path in census.package_files()
        if census.tree(path).body and not ast.get_docstring(census.tree(path))
    )


def test_tests_have_docstrings() -> None:
    """Each test says in one line what it holds kdsl to."""
    census.expect_none(
        f"{at(path, node)} {node.name}"
        for path in sorted((census.ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(census.tree(path))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    )
