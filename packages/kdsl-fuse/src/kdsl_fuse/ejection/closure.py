"""The source of a kernel with all that it uses of its package, in the order of definition."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
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
    """Collects definitions of the modules below `owned`, and the imports that they need.

    Of two definitions of one name in different modules, the second one gets its module's name too.
    """

    owned: tuple[str, ...]
    imports: set[str] = field(default_factory=set)
    _found: dict[tuple[str, int], ast.stmt] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _homes: dict[str, str] = field(default_factory=dict)

    def add(self, module: str, name: str) -> None:
        """A definition and everything that it uses."""
        page = _page(module)
        statement = page.definitions.get(name)
        if statement is None or (module, statement.lineno) in self._found:
            return
        self._homes.setdefault(name, module)
        self._homes.setdefault(self.called(module, name), module)
        self._found[module, statement.lineno] = statement
        for used in sorted({x.id for x in ast.walk(statement) if isinstance(x, ast.Name)}):
            self._use(page, used)
        if module not in self._order:
            self._order.append(module)

    def called(self, module: str, name: str) -> str:
        """The name in the file of a module's definition."""
        alone = self._homes.get(name, module) == module
        return name if alone else f"{name}_of_{module.rpartition('.')[2]}"

    def owns(self, module: str) -> bool:
        """Whether definitions of a module are to be collected."""
        return any(module == owned or module.startswith(f"{owned}.") for owned in self.owned)

    def holds(self, name: str) -> bool:
        """Whether a definition that was collected has this name."""
        return name in self._homes

    def definitions(self) -> list[str]:
        """The texts, of modules behind those that they import, within a module as written there."""
        return [
            self._text(_page(module), statement)
            for module in TopologicalSorter(self._imported()).static_order()
            for (home, _), statement in sorted(self._found.items(), key=lambda item: item[0])
            if home == module
        ]

    def _imported(self) -> dict[str, list[str]]:
        """The modules with definitions, and what each imports of the others."""
        found = {}
        for module in self._order:
            statements = [statement for statement, _ in _page(module).imports.values()]
            sources = [x.module for x in statements if isinstance(x, ast.ImportFrom)]
            found[module] = [x for x in self._order if x in sources]
        return found

    def _use(self, page: _Page, name: str) -> None:
        home = self._home(page, name)
        if home is not None:
            self.add(*home)
        elif name in page.imports:
            statement, alias = page.imports[name]
            source = statement.module if isinstance(statement, ast.ImportFrom) else None
            asname = f" as {alias.asname}" if alias.asname else ""
            start = f"from {source} import" if source else "import"
            self.imports.add(f"{start} {alias.name}{asname}")

    def _home(self, page: _Page, name: str) -> tuple[str, str] | None:
        """The module that defines what a name stands for on a page, and its name there."""
        if name in page.definitions:
            return page.module.__name__, name
        statement, alias = page.imports.get(name, (None, None))
        source = statement.module if isinstance(statement, ast.ImportFrom) else None
        if not source or alias is None or not self.owns(source):
            return None
        return (source, alias.name) if alias.name in _page(source).definitions else None

    def _text(self, page: _Page, statement: ast.stmt) -> str:
        """A definition as written, with the names that its file has for what it uses."""
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        lines = [line.encode() for line in page.lines[first - 1 : statement.end_lineno]]
        own = {x.arg for x in ast.walk(statement) if isinstance(x, ast.arg)}
        names = [x for x in ast.walk(statement) if isinstance(x, ast.Name) and x.id not in own]
        for x in sorted(names, key=lambda x: (x.lineno, -x.col_offset)):
            home = self._home(page, x.id)
            if home is None or self.called(*home) == x.id:
                continue
            line, end = lines[x.lineno - first], x.col_offset + len(x.id.encode())
            called = self.called(*home).encode()
            lines[x.lineno - first] = line[: x.col_offset] + called + line[end:]
        text = b"\n".join(lines).decode()
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            made = self.called(page.module.__name__, statement.name)
            text = re.sub(rf"\b(def|class) {statement.name}\b", rf"\1 {made}", text, count=1)
        return text


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
