"""Imports go down: which part of the packages may know which other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from house import census

# A part may import parts of a lower floor; floor 0 is one floor whose modules know each other.
CORE_FLOORS = {
    "errors": 0, "authors": 0, "loc": 0, "dtypes": 0, "records": 0, "digests": 0,
    "late_names": 0,
    "layout": 1,
    "ir": 2,
    "isa": 3, "ptx": 3, "sim": 3,
    "atoms": 4, "passes": 4,
    "lang": 5,
    "collective": 6, "inspect": 6, "testing": 6,
}  # fmt: skip
PACKAGE_FLOORS = {"kdsl_core": 0, "kdsl_runtime": 1, "kdsl_fuse": 2}


def core_files() -> list[Path]:
    """The files of kdsl_core, but the front page, which shows every part."""
    front = census.SOURCES["kdsl_core"] / "__init__.py"
    return [p for p in census.SOURCES["kdsl_core"].rglob("*.py") if p != front]


def part(dotted: str) -> str:
    """The folder or module right under kdsl_core, or "" for kdsl_core itself."""
    words = dotted.split(".")
    return words[1] if len(words) > 1 else ""


def may_import(importer: str, imported: str) -> bool:
    """Whether one part of kdsl_core may know the other."""
    if importer == imported:
        return True
    high, low = CORE_FLOORS[importer], CORE_FLOORS.get(imported, 99)
    return low < high or low == high == 0


def lazy_imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module, line) of each `import_module("literal")` and `__import__("literal")`."""
    for node in ast.walk(census.tree(path)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = ast.unparse(node.func).rsplit(".", 1)[-1]
            if name in ("import_module", "__import__"):
                yield str(node.args[0].value), node.lineno


def test_every_part_of_core_has_a_floor() -> None:
    """A new folder or module under kdsl_core must be given a floor."""
    found = {part(census.module_name(path)) for path in core_files()}
    assert found <= CORE_FLOORS.keys()


def test_core_imports_go_down() -> None:
    """Inside kdsl_core no part imports its own floor or a higher one."""
    wrong = [
        f"{census.short(path)}:{line} imports {name}"
        for path in core_files()
        for name, line in census.imports(path)
        if name.split(".")[0] == "kdsl_core"
        and not may_import(part(census.module_name(path)), part(name))
    ]
    census.expect_none(wrong)


def test_packages_import_down() -> None:
    """The core imports neither runtime nor fuse, and the runtime does not import fuse."""
    wrong = [
        f"{census.short(path)}:{line} imports {name}"
        for package, source in census.SOURCES.items()
        for path in source.rglob("*.py")
        for name, line in census.imports(path)
        if PACKAGE_FLOORS.get(name.split(".")[0], 0) > PACKAGE_FLOORS[package]
    ]
    census.expect_none(wrong)


def test_core_names_the_runtime_once() -> None:
    """One lazy import lets a kernel call find the runtime; there is no second one."""
    upward = [
        f"{census.short(path)}:{line} {name}"
        for path in census.SOURCES["kdsl_core"].rglob("*.py")
        for name, line in lazy_imports(path)
        if name.split(".")[0] in ("kdsl_runtime", "kdsl_fuse")
    ]
    assert len(upward) <= 1, upward
