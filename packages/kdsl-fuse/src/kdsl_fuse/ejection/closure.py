"""The source of a kernel with all that it uses of its package, in the order of definition."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType


@dataclass
class _Page:
    """A module: its lines, its definitions, and its imports, each by the names that they bind."""

    module: ModuleType
    lines: list[str]
    definitions: dict[str, ast.stmt]
    imports: dict[str, tuple[ast.Import | ast.ImportFrom, ast.alias]]


@dataclass
class Closure:
    """Collects definitions of the package `owned`, and the imports that they need."""

    owned: str
    imports: set[str] = field(default_factory=set)
    _found: dict[tuple[str, int], str] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _homes: dict[str, str] = field(default_factory=dict)

    def add(self, module: str, name: str) -> None:
        """A definition and everything that it uses."""
        page = _page(module)
        statement = page.definitions.get(name)
        if statement is None or (module, statement.lineno) in self._found:
            return
        if self._homes.setdefault(name, module) != module:  # two of one name: leave one at home
            self.imports.add(f"from {module} import {name}")
            return
        first = min(
            [statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))]
        )
        text = "\n".join(page.lines[first - 1 : statement.end_lineno])
        self._found[module, statement.lineno] = text
        for used in sorted({x.id for x in ast.walk(statement) if isinstance(x, ast.Name)}):
            self._use(page, used)
        if module not in self._order:
            self._order.append(module)

    def _use(self, page: _Page, name: str) -> None:
        if name in page.definitions:
            self.add(page.module.__name__, name)
        elif name in page.imports:
            statement, alias = page.imports[name]
            source = statement.module if isinstance(statement, ast.ImportFrom) else None
            if source and source.startswith(self.owned) and alias.name in _page(source).definitions:
                self.add(source, alias.name)
            else:
                asname = f" as {alias.asname}" if alias.asname else ""
                start = f"from {source} import" if source else "import"
                self.imports.add(f"{start} {alias.name}{asname}")

    def definitions(self) -> list[str]:
        """The texts, used ones before their users, within a module as written there."""
        return [
            text
            for module in self._order
            for (home, _), text in sorted(self._found.items())
            if home == module
        ]


@cache
def _page(name: str) -> _Page:
    module = importlib.import_module(name)
    source = inspect.getsource(module)
    page = _Page(module, source.splitlines(), {}, {})
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                page.imports[alias.asname or alias.name.split(".")[0]] = (statement, alias)
        for bound in _bound(statement):
            page.definitions[bound] = statement
    return page


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return [x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)]
