"""Which names a function assigns where, and which are still read after a statement."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from kdsl_core.records import dataclass

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_PATTERNS = (ast.MatchAs, ast.MatchStar, ast.MatchMapping)
_BINDING = (*_IMPORTS, *_DEFINITIONS, ast.ExceptHandler, *_PATTERNS)
Names = frozenset[str]
_NONE: Names = frozenset()


def walk_scope(node: ast.AST) -> list[ast.AST]:
    """The nodes below `node` that belong to the same function; targets of comprehensions do not."""
    found: list[ast.AST] = []
    _collect(node, found, _SCOPES)
    return found


def _collect(node: ast.AST, found: list[ast.AST], opaque: tuple[type[ast.AST], ...]) -> None:
    """Append the nodes below `node`, and none below those of the kinds `opaque`.

    Each before its own, as `ast.walk` does not have them, in a third of its time. Without contexts
    such as `ast.Load`; nor, where scopes are opaque, the targets of comprehensions.
    """
    for name in node._fields:
        part = getattr(node, name, None)
        if isinstance(part, ast.AST):
            children: Iterable[Any] = (part,)
        elif isinstance(part, list):
            children = part
        else:
            continue
        if name == "ctx" or (opaque and name == "target" and isinstance(node, ast.comprehension)):
            continue
        for child in children:
            if isinstance(child, ast.AST):
                found.append(child)
                if not isinstance(child, opaque):
                    _collect(child, found, opaque)


def assigned(statements: Iterable[ast.AST]) -> dict[str, int]:
    """Names that statements bind, each with the line where it is bound first."""
    found: dict[str, int] = {}
    for statement in statements:
        nested = () if isinstance(statement, _SCOPES) else walk_scope(statement)
        for node in (statement, *nested):
            for name in bound_by(node):
                found.setdefault(name, getattr(node, "lineno", 0))
    return found


def bound_by(node: ast.AST) -> Sequence[str]:
    """Names that this node itself binds."""
    if isinstance(node, ast.Name):
        return () if isinstance(node.ctx, ast.Load) else (node.id,)
    if not isinstance(node, _BINDING):
        return ()
    if isinstance(node, _IMPORTS):
        return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
    name = node.rest if isinstance(node, ast.MatchMapping) else node.name
    return (name,) if name else ()


def read_by(node: ast.AST | None) -> Names:
    """Names that an expression or statement may read, those of nested functions included."""
    if node is None:
        return _NONE
    parts = [node]
    _collect(node, parts, ())
    return frozenset(
        part.id
        for part in parts
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Store)
    ) | frozenset(
        part.target.id
        for part in parts
        if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)
    )


@dataclass
class Liveness:
    """What may be read after each `if`, `for` and `while` of a function, given with its nodes.

    `after[statement]` are the names live behind it, `entry[loop]` those live when an iteration
    begins. A name that a nested function reads counts as live everywhere.
    """

    function: ast.FunctionDef
    nodes: Sequence[ast.AST]
    after: dict[ast.stmt, Names] = field(default_factory=dict)
    entry: dict[ast.stmt, Names] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reads: dict[ast.AST, Names] = {}
        self._escaping = frozenset(
            name for node in self.nodes if isinstance(node, _SCOPES) for name in read_by(node)
        )
        self._block(self.function.body, self._escaping, _NONE, _NONE)

    def _read_by(self, node: ast.AST | None) -> Names:
        """`read_by`, kept: a loop's statements are looked at until nothing new is live."""
        if node is None:
            return _NONE
        found = self._reads.get(node)
        if found is None:
            found = self._reads[node] = read_by(node)
        return found

    def _block(self, body: Sequence[ast.stmt], after: Names, stop: Names, again: Names) -> Names:
        for statement in reversed(body):
            after = self._statement(statement, after, stop, again) | self._escaping
        return after

    def _statement(self, node: ast.stmt, after: Names, stop: Names, again: Names) -> Names:
        if isinstance(node, ast.If):
            self.after[node] = self.after.get(node, _NONE) | after
            then = self._block(node.body, after, stop, again)
            return then | self._block(node.orelse, after, stop, again) | self._read_by(node.test)
        if isinstance(node, ast.For | ast.While):
            return self._loop(node, after, stop, again)
        if isinstance(node, ast.Return):
            return self._read_by(node.value)
        if isinstance(node, ast.Break):
            return stop
        if isinstance(node, ast.Continue):
            return again
        if isinstance(node, ast.Assign | ast.AnnAssign):
            return self._assignment(node, after)
        return self._compound(node, after, stop, again)

    def _assignment(self, node: ast.Assign | ast.AnnAssign, after: Names) -> Names:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        bound = {name for target in targets for name in _plain_names(target)}
        return (after - bound if node.value is not None else after) | self._read_by(node)

    def _loop(self, node: ast.For | ast.While, after: Names, stop: Names, again: Names) -> Names:
        self.after[node] = self.after.get(node, _NONE) | after
        done = self._block(node.orelse, after, stop, again)
        test = self._read_by(node.test) if isinstance(node, ast.While) else _NONE
        target = _plain_names(node.target) if isinstance(node, ast.For) else set()
        entry = done | test
        while True:
            body = self._block(node.body, entry, after, entry)
            grown = entry | (body - target)
            if grown == entry:
                break
            entry = grown
        self.entry[node] = self.entry.get(node, _NONE) | entry
        return entry | (self._read_by(node.iter) if isinstance(node, ast.For) else _NONE)

    def _compound(self, node: ast.stmt, after: Names, stop: Names, again: Names) -> Names:
        """Everything else: what it reads, and what its nested blocks need; nothing is killed."""
        live = after
        for name in ("body", "orelse", "finalbody"):
            nested = getattr(node, name, None)
            if isinstance(nested, list) and not isinstance(node, _SCOPES):
                live = live | self._block(nested, live, stop, again)
        for case in [*getattr(node, "cases", ()), *getattr(node, "handlers", ())]:
            live = live | self._block(case.body, after, stop, again)
        return live | self._read_by(node)


def _plain_names(target: ast.expr) -> set[str]:
    """Names that an assignment target surely rebinds."""
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple | ast.List):
        return {name for item in target.elts for name in _plain_names(item)}
    return _plain_names(target.value) if isinstance(target, ast.Starred) else set()
