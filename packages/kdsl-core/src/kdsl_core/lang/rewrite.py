"""The rewriting of a function's syntax tree: kernel control flow becomes calls into the stage.

The rewritten code asks the stage what each test, loop and jump is. Where the value is Python's, the
statement runs as Python wrote it; where it is the kernel's, every arm runs once and is traced.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from kdsl_core.lang.liveness import Liveness, assigned, bound_by, walk_scope
from kdsl_core.lang.source import bare

# One underscore: a name with two is another name inside a class.
STAGE = "_kdsl"
_MUTATORS = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"}
    | {"popleft", "remove", "reverse", "setdefault", "sort", "update"}
)
_KEYWORDS = {ast.If: 2, ast.For: 3, ast.While: 5, ast.With: 4, ast.Assert: 6, ast.Return: 6}
_LEAVES = (ast.Break, ast.Continue, ast.Return)


class Rewriter(ast.NodeTransformer):
    """Rewrites one function; nested functions without decorators get a rewriter of their own."""

    def __init__(self, function: ast.FunctionDef, file: str, kind: str) -> None:
        nodes = walk_scope(function)
        self._live = Liveness(function, nodes)
        self._file = file
        self._kind = kind
        self._function = function
        self._count = 0
        self._loops: list[tuple[str, bool]] = []  # (handle, whether it is a `while`)
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        self._foreign = _declared_elsewhere(nodes)
        bound = {name for node in nodes for name in bound_by(node)}
        self._local = ({a.arg for a in every} | bound) - self._foreign

    def rewrite(self) -> ast.FunctionDef:
        """The function, with no decorators, defaults and annotations."""
        node = self._function
        returns = any(_has(statement.body, (ast.Return,)) for statement in _blocks(node.body))
        body = [
            *self._statements(node.body),
            self._at(node, f"return {STAGE}_fn.give(None)"),
        ]
        if returns:
            body = [
                self._with(node, f"{STAGE}_fn", body),
                self._at(node, f"return {STAGE}_fn.result()"),
            ]
        enter = self._at(node, f"{STAGE}_fn = {STAGE}.enter({self._kind!r}, {returns})")
        arguments = bare(node.args)
        new = ast.FunctionDef(node.name, arguments, [enter, *body], [], None, None)
        return ast.copy_location(new, node)

    # -- making nodes ----------------------------------------------------------------------------
    def _at(self, place: ast.stmt | ast.expr, text: str, **parts: ast.expr) -> ast.stmt:
        """A statement at the place of another; names in capitals stand for `parts`."""
        placed = _placed(_template(text), _location(place), parts)
        assert isinstance(placed, ast.stmt)
        return placed

    def _expr(self, place: ast.stmt | ast.expr, text: str, **parts: ast.expr) -> ast.expr:
        """The same for an expression."""
        statement = self._at(place, text, **parts)
        assert isinstance(statement, ast.Expr)
        return statement.value

    def _with(self, place: ast.stmt | ast.expr, handle: str, body: list[ast.stmt]) -> ast.stmt:
        statement = self._at(place, f"with {handle}: pass")
        assert isinstance(statement, ast.With)
        statement.body = body
        return statement

    def _when(self, place: ast.stmt | ast.expr, test: str, body: list[ast.stmt]) -> ast.stmt:
        statement = self._at(place, f"if {test}: pass")
        assert isinstance(statement, ast.If)
        statement.body = body or [self._at(place, "pass")]
        return statement

    def _rebind(
        self, place: ast.stmt | ast.expr, names: Sequence[str], handle: str, step: str
    ) -> ast.stmt:
        """`x, y = handle.step(locals())`, executed in kernel mode only."""
        targets = f"{', '.join(names)}, = " if names else ""
        call = self._at(place, f"{targets}{handle}.{step}(locals())")
        return self._when(place, f"{handle}.kernel", [call])

    def _handle(self) -> str:
        self._count += 1
        return f"{STAGE}_{self._count}"

    def _guarded(self, handle: str, body: list[ast.stmt], place: ast.stmt) -> list[ast.stmt]:
        """The rewritten body; a jump out of it ends at the guard when it is the kernel's."""
        inner = self._statements(body)
        return [self._with(place, handle, inner)] if _has(body, _LEAVES) else inner

    def _statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Rewritten statements up to the first jump, behind which nothing runs."""
        out: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            out += new if isinstance(new, list) else [new]
            if isinstance(statement, _LEAVES):
                break
        return out

    def _site(self, node: ast.stmt | ast.expr) -> str:
        return f"{self._file}:{node.lineno}:{node.col_offset}"

    # -- control flow ----------------------------------------------------------------------------
    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        handle = self._handle()
        then, otherwise = assigned(node.body), assigned(node.orelse)
        names = [n for n in {**then, **otherwise} if n not in self._foreign]
        live = self._live.after.get(node, frozenset())
        spec = tuple((n, then.get(n, 0), otherwise.get(n, 0), n in live) for n in names)
        test = self.visit(node.test)
        text = f"{handle} = {STAGE}.branch(TEST, {spec!r}, {self._file!r}, locals())"
        out = [
            self._at(node.test, text, TEST=test),
            self._when(node, f"{handle}.then()", self._guarded(handle, node.body, node)),
            self._rebind(node, names, handle, "middle"),
        ]
        if node.orelse:
            other = self._guarded(handle, node.orelse, node)
            out.append(self._when(node, f"{handle}.otherwise()", other))
        return [*out, self._rebind(node, names, handle, "join")]

    def _loop_spec(self, node: ast.For | ast.While, target: set[str]) -> tuple[list[str], str]:
        bound = dict.fromkeys(sorted(target), node.lineno) | assigned(node.body)
        names = [n for n in bound if n not in self._foreign]
        needed = self._live.entry.get(node, frozenset()) | self._live.after.get(node, frozenset())
        spec = tuple((n, bound[n], n in needed, n in target) for n in names)
        return names, f"{spec!r}, {self._file!r}, {self._site(node)!r}, {bool(node.orelse)}"

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        handle = self._handle()
        target = set(assigned([node.target]))
        names, spec = self._loop_spec(node, target)
        create = f"{handle} = {STAGE}.loop(ITER, {spec}, locals())"
        out = [self._at(node.iter, create, ITER=self.visit(node.iter))]
        self._loops.append((handle, False))
        body = self._guarded(handle, node.body, node)
        self._loops.pop()
        inside = [n for n in names if n not in target]
        loop = self._at(node, f"for x in {handle}.items(): pass")
        assert isinstance(loop, ast.For)
        loop.target = self.visit(node.target)
        loop.body = [self._rebind(node, inside, handle, "enter"), *body]
        loop.orelse = self._statements(node.orelse)
        return [*out, loop, self._rebind(node, names, handle, "leave")]

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        handle = self._handle()
        names, spec = self._loop_spec(node, set())
        test = [self.visit(copy.deepcopy(node.test)) for _ in range(3)]
        head = self._rebind(node, names, handle, "enter")
        assert isinstance(head, ast.If)
        head.body.append(self._at(node.test, f"{handle}.head(TEST)", TEST=test[1]))
        out = [
            self._at(node, f"{handle} = {STAGE}.while_loop({spec}, locals())"),
            self._at(node.test, f"{handle}.probe(TEST)", TEST=test[0]),
            head,
        ]
        again = f"while ({handle}.known() if {handle}.pending else {handle}.test(TEST)): pass"
        loop = self._at(node.test, again, TEST=test[2])
        assert isinstance(loop, ast.While)
        self._loops.append((handle, True))
        loop.body = self._guarded(handle, node.body, node)
        self._loops.pop()
        loop.orelse = self._statements(node.orelse)
        return [*out, loop, self._rebind(node, names, handle, "leave")]

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        return self._when(node, f"{self._loops[-1][0]}.breaks(locals())", [node])

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return self._when(node, f"{self._loops[-1][0]}.continues(locals())", [node])

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        whiles = "".join(f"{handle}, " for handle, is_while in self._loops if is_while)
        value = self.visit(node.value) if node.value else self._expr(node, "None")
        return self._at(node, f"return {STAGE}_fn.give(VALUE, {whiles})", VALUE=value)

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        text = repr(ast.unparse(node.test))
        message = self.visit(node.msg) if node.msg else self._expr(node, text)
        failed = self._at(node, f"{STAGE}.assertion_failed(MESSAGE)", MESSAGE=message)
        check = self._when(node, "TEST", [failed])
        assert isinstance(check, ast.If)
        check.test = self._expr(node, f"{STAGE}.may_fail(TEST)", TEST=self.visit(node.test))
        return check

    # -- functions inside ------------------------------------------------------------------------
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        generator = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in walk_scope(node))
        if generator or node.decorator_list:
            return node
        new = Rewriter(node, self._file, "func").rewrite()
        new.args = node.args
        new.args.defaults = [self.visit(d) for d in node.args.defaults]
        return new

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.stmt:
        return node

    # -- what kernel code may not be -------------------------------------------------------------
    def _refuse(self, node: ast.stmt | ast.expr, what: str) -> ast.expr:
        return self._expr(node, f"{STAGE}.refuse({what!r})")

    def visit_Yield(self, node: ast.Yield) -> ast.expr:
        return self._refuse(node, "yield")

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.expr:
        return self._refuse(node, "yield from")

    # -- expressions -----------------------------------------------------------------------------
    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._expr(
            node,
            f"{STAGE}.end_choice({STAGE}.choice(TEST), (THEN if {STAGE}.then() else None), "
            f"(OTHER if {STAGE}.otherwise() else None))",
            TEST=self.visit(node.test),
            THEN=self.visit(node.body),
            OTHER=self.visit(node.orelse),
        )

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        word = "both" if isinstance(node.op, ast.And) else "either"
        values: list[ast.expr] = [self.visit(value) for value in node.values]
        result = values.pop()
        for value in reversed(values):
            result = self._logic(node, word, value, result)
        return result

    def _logic(self, node: ast.expr, word: str, left: ast.expr, right: ast.expr) -> ast.expr:
        return self._expr(
            node,
            f"{STAGE}.end_logic({STAGE}.{word}(LEFT), (RIGHT if {STAGE}.then() else None))",
            LEFT=left,
            RIGHT=right,
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return self._expr(node, f"{STAGE}.negation(VALUE)", VALUE=operand)
        return ast.copy_location(ast.UnaryOp(node.op, operand), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        values = [self.visit(value) for value in (node.left, *node.comparators)]
        if len(node.ops) == 1:
            return ast.copy_location(ast.Compare(values[0], node.ops, values[1:]), node)
        self._count += 1
        first = self._count
        self._count += len(node.ops)
        pairs: list[ast.expr] = []
        for i, op in enumerate(node.ops):
            left, right = values[i], values[i + 1]
            if i > 0:
                left = self._expr(node, f"{STAGE}.held({first + i - 1})")
            if i + 1 < len(node.ops):
                right = self._expr(node, f"{STAGE}.hold({first + i}, VALUE)", VALUE=right)
            pairs.append(ast.copy_location(ast.Compare(left, [op], [right]), node))
        result = pairs.pop()
        for pair in reversed(pairs):
            result = self._logic(node, "both", pair, result)
        return result

    def visit_Call(self, node: ast.Call) -> ast.expr:
        mutates = isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS
        self.generic_visit(node)
        if mutates:
            assert isinstance(node.func, ast.Attribute)
            node.func.value = self._owner(node.func.value, "container")
        return node

    # -- changes of objects ----------------------------------------------------------------------
    def _owner(self, value: ast.expr, word: str) -> ast.expr:
        root: ast.AST = value
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        known = not isinstance(root, ast.Name) or root.id in self._local
        return self._expr(value, f"{STAGE}.{word}(VALUE, {known})", VALUE=value)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = self._owner(node.value, "target")
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = self._owner(node.value, "target")
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        if isinstance(node.target, ast.Name) and node.target.id in self._local:
            name = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            out.append(ast.copy_location(ast.Expr(self._owner(name, "container")), node))
        return [*out, *self._checked(node)]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        return self._checked(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None:
            return [self._at(node, "pass")]
        plain = ast.Assign([node.target], node.value)
        return self._checked(ast.copy_location(plain, node))

    def _checked(self, node: ast.stmt) -> list[ast.stmt]:
        foreign = [n for n in assigned([node]) if n in self._foreign]
        self.generic_visit(node)
        return [*(self._at(node, f"{STAGE}.rebinds({name!r})") for name in foreign), node]


@lru_cache(maxsize=256)
def _template(text: str) -> ast.stmt:
    """The syntax tree of a statement; whoever changes it takes a copy."""
    (statement,) = ast.parse(text).body
    return statement


def _placed(part: Any, location: Mapping[str, int], parts: Mapping[str, ast.expr]) -> Any:
    """A copy of a template at a location of the author's text, with its parts filled in."""
    if isinstance(part, list):
        return [_placed(item, location, parts) for item in part]
    if not isinstance(part, ast.AST):
        return part
    if isinstance(part, ast.Name) and part.id in parts:
        return parts[part.id]
    new = part.__new__(type(part))  # its own constructor warns of fields that are not there yet
    held = vars(new)
    for name, inner in vars(part).items():
        held[name] = _placed(inner, location, parts)
    if "lineno" in held:
        held.update(location)
    return new


def _location(place: ast.stmt | ast.expr) -> dict[str, int]:
    """Where a node is in the text; of a statement of several lines, the keyword that begins it.

    Python dates a call that spans lines by its last one, which is not where a statement begins.
    """
    found = {name: getattr(place, name) for name in place._attributes}
    if isinstance(place, ast.stmt) and place.end_lineno != place.lineno:
        found["end_lineno"] = place.lineno
        found["end_col_offset"] = place.col_offset + _KEYWORDS.get(type(place), 1)
    return found


def _blocks(body: Sequence[ast.stmt]) -> list[ast.If]:
    """The compound statements of a body, each as something that has a body."""
    inner: list[ast.If] = []
    for node in body:
        nested = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.stmt)]
        nested += [s for h in getattr(node, "handlers", ()) for s in h.body]
        nested += [s for c in getattr(node, "cases", ()) for s in c.body]
        if nested and not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            inner.append(ast.If(ast.Constant(True), nested, []))
    return inner


def _has(body: Sequence[ast.stmt], kinds: tuple[type[ast.stmt], ...]) -> bool:
    """Whether one of the statements, at any depth of the same function, is of these kinds."""
    nested = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(
        isinstance(node, kinds)
        for statement in body
        if not isinstance(statement, nested)
        for node in (statement, *walk_scope(statement))
    )


def _declared_elsewhere(nodes: Sequence[ast.AST]) -> set[str]:
    declarations = (ast.Global, ast.Nonlocal)
    return {name for node in nodes if isinstance(node, declarations) for name in node.names}
