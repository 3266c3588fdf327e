"""What is in the house: modules, imports, functions, error codes and operations, found by `ast`.

The tests of this folder judge it, and `python3 dev.py size|errors|ops` prints it. Standard library
only, and kdsl is imported by `ops` alone.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "kdsl_core": ROOT / "packages/kdsl-core/src/kdsl_core",
    "kdsl_runtime": ROOT / "packages/kdsl-runtime/src/kdsl_runtime",
    "kdsl_fuse": ROOT / "packages/kdsl-fuse/src/kdsl_fuse",
}
ERRORS_PAGE = ROOT / "docs/errors.md"
CODE = re.compile(r"K\d{3}|KF(-[A-Z0-9]+)+")


def package_files() -> list[Path]:
    """Every Python file of the three packages, sorted."""
    return sorted(path for folder in SOURCES.values() for path in folder.rglob("*.py"))


def all_files() -> list[Path]:
    """Every Python file that people write here: packages, tests, benchmarks, examples, dev.py."""
    folders = ("tests", "benchmarks", "examples", "docs")
    others = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    return [*package_files(), *sorted(others), ROOT / "dev.py"]


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def short(path: Path) -> str:
    """The path from the root of the repository."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """The dotted name that a file of the packages is imported by."""
    source = next(folder.parent for folder in SOURCES.values() if path.is_relative_to(folder))
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def expect_none(found: Iterable[object]) -> None:
    """Fail with one line per finding."""
    lines = [str(item) for item in found]
    if lines:
        raise AssertionError("\n".join([f"{len(lines)} found:", *lines]))


# -- imports -----------------------------------------------------------------------------------
def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(dotted name, line) of each import in a file, those inside functions included.

    `from a import b` gives "a.b": `b` may be a module, and then it is the one that is imported.
    """
    here = module_name(path).split(".")
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((f"{start}.{alias.name}", node.lineno) for alias in node.names)


# -- functions ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Function:
    """One function or method: where it is and how many lines it takes, docstring included."""

    path: Path
    name: str
    line: int
    lines: int

    @property
    def key(self) -> str:
        """How an exemption names it."""
        return f"{short(self.path)}::{self.name}"


def functions(path: Path) -> Iterator[Function]:
    """Every function of a file, nested ones too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(path, node.name, node.lineno, lines)


def line_count(path: Path) -> int:
    """The number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


# -- error codes -------------------------------------------------------------------------------
@dataclass
class Code:
    """One error code: who raises it, with which messages, and where."""

    code: str
    classes: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def add(self, path: Path, kind: str, message: str) -> None:
        """Record one place that uses the code."""
        found = ((self.classes, kind), (self.messages, message), (self.files, short(path)))
        for known, new in found:
            if new and new not in known:
                known.append(new)


@cache
def error_codes() -> dict[str, Code]:
    """Every error code that the packages write as a string, sorted by code."""
    codes: dict[str, Code] = {}
    for path in package_files():
        said = {**dict(_said_by_calls(path)), **dict(_said_by_tables(path))}
        for node in ast.walk(tree(path)):
            if _is_code(node):
                code = str(node.value)
                codes.setdefault(code, Code(code)).add(path, *said.get(node, ("", "")))
    return dict(sorted(codes.items()))


def _is_code(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and bool(CODE.fullmatch(str(node.value)))


def _said_by_calls(path: Path) -> Iterator[tuple[ast.expr, tuple[str, str]]]:
    """(node, (class, message)) of each keyword value, as in `BuildError("…", code="K701")`."""
    for call in ast.walk(tree(path)):
        if isinstance(call, ast.Call) and any(_is_code(word.value) for word in call.keywords):
            message = template(call.args[0]) if call.args else ""
            kind = ast.unparse(call.func).rsplit(".", 1)[-1]
            yield from ((word.value, (kind, message)) for word in call.keywords)


def _said_by_tables(path: Path) -> Iterator[tuple[ast.expr, tuple[str, str]]]:
    """(node, ("", message)) of each key of a dictionary of messages, as in `{"KF-DTYPE": "…"}`."""
    for table in ast.walk(tree(path)):
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(
                    value, ast.Constant | ast.JoinedStr
                ):
                    yield key, ("", template(value))


def template(node: ast.expr) -> str:
    """A message as the reader may meet it, with `{…}` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return "{" + ast.unparse(node) + "}"


RANGES = {
    "K1": "Layouts",
    "K2": "Types",
    "K3": "Staging and the front end",
    "K4": "Targets, resources and the IR verifier",
    "K5": "Simulator hazards",
    "K6": "Launch arguments",
    "K7": "Building, the toolchain and the cache",
    "K8": "The driver",
    "K9": "Fusion",
    "KF": "Why an operator was not fused",
}
PAGE_HEAD = """\
# Errors

Every error that a user can cause is a `kdsl_core.KdslError`. It states what was expected, what was
got, where, and how to mend it, and carries a code that stays the same from release to release.
This page is written by `python3 dev.py errors` from the sources; `{…}` is filled in when raised.
"""


def errors_page() -> str:
    """The text of docs/errors.md."""
    groups: dict[str, list[Code]] = defaultdict(list)
    for code in error_codes().values():
        groups[code.code[:2]].append(code)
    parts = [PAGE_HEAD]
    for prefix, title in RANGES.items():
        if prefix in groups:
            rows = [_row(code) for code in groups[prefix]]
            head = ["| code | error | message | raised in |", "|---|---|---|---|"]
            parts.append("\n".join([f"## {title}\n", *head, *rows, ""]))
    return "\n".join(parts)


def _row(code: Code) -> str:
    said = "<br>".join(_cell(message) for message in code.messages) or "–"
    kinds = " ".join(f"`{kind}`" for kind in code.classes) or "–"
    where = "<br>".join(file.split("/src/")[-1] for file in code.files)
    return f"| {code.code} | {kinds} | {said} | {where} |"


def _cell(text: str) -> str:
    """Text that a Markdown table shows as it is."""
    flat = " ".join(text.split())
    return flat.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


# -- what dev.py prints ------------------------------------------------------------------------
def print_errors() -> None:
    """Write docs/errors.md."""
    ERRORS_PAGE.write_text(errors_page(), encoding="utf-8")
    print(f"wrote {short(ERRORS_PAGE)}: {len(error_codes())} codes")


def print_ops() -> None:
    """The table of operations."""
    from kdsl_core.isa import ALL_OPS

    rows = []
    for op in ALL_OPS:
        source = Path(inspect.getsourcefile(op) or "?")
        rows.append((op.__name__, op.NAME or "(by fields)", short(source)))
    widths = [max(len(row[k]) for row in rows) for k in range(2)]
    for name, text, file in rows:
        print(f"{name:<{widths[0]}}  {text:<{widths[1]}}  {file}")
    print(f"{len(rows)} operations")


def print_size() -> None:
    """Lines per package and folder, then the longest functions and files."""
    folders: dict[str, int] = defaultdict(int)
    for path in package_files():
        folders[short(path.parent)] += line_count(path)
    for package, source in SOURCES.items():
        total = sum(line_count(path) for path in source.rglob("*.py"))
        print(f"{total:7}  {package}")
        for folder, lines in sorted(folders.items()):
            if (ROOT / folder).is_relative_to(source):
                print(f"{lines:7}    {(ROOT / folder).relative_to(source.parent)}")
    tests = sum(line_count(path) for path in (ROOT / "tests").rglob("*.py"))
    print(f"{tests:7}  tests")
    every = sorted((f for path in package_files() for f in functions(path)), key=lambda f: -f.lines)
    if every:
        print(f"\n{every[len(every) // 10].lines} lines: 90 % of {len(every)} functions fit")
    for function in every[:10]:
        print(f"{function.lines:7}  {short(function.path)}:{function.line} {function.name}")
    print("\nlongest files")
    for path in sorted(package_files(), key=line_count, reverse=True)[:10]:
        print(f"{line_count(path):7}  {short(path)}")


if __name__ == "__main__":
    {"errors": print_errors, "ops": print_ops, "size": print_size}[sys.argv[1]]()
