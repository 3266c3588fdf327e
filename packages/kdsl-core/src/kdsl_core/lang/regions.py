"""Branches, loops and function frames: each runs as Python or is traced, as its test decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.errors import StagingError
from kdsl_core.ir import Block, Const, Operand, Var
from kdsl_core.isa import arith, compare, register
from kdsl_core.isa.control import BreakOp, ContinueOp, IfOp, LoopOp, ReturnOp
from kdsl_core.lang.merge import Arm, Carried, Dead, Poison, Site, fitted, is_number, join
from kdsl_core.lang.ranges import Range
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder, current, is_tracing
from kdsl_core.loc import here

Names = dict[str, Any]
IfSpec = tuple[tuple[str, int, int, bool], ...]  # name, line in then, line in else, live behind
LoopSpec = tuple[tuple[str, int, bool, bool], ...]  # name, line, needed, whether it is the target
_TRUE = Const(dt.boolean, True)
# Under these keys a trace keeps its open regions, and the places of `while` loops that turned out
# to be the kernel's.
OPEN_REGIONS = "regions"
KERNEL_WHILES = "kernel_whiles"


class Leave(BaseException):
    """A jump of the kernel was traced: nothing behind it in this region runs."""


class Retrace(BaseException):
    """A `while` turned out to be the kernel's; the trace starts again knowing its place."""

    def __init__(self, site: str) -> None:
        super().__init__(site)
        self.site = site


def open_regions() -> list[Region]:
    """The regions of kernel control flow around the code being traced, outermost first."""
    return current().facts.setdefault(OPEN_REGIONS, []) if is_tracing() else []


def truth(test: Any) -> bool | Operand:
    """A test as a Python bool, or as a boolean operand of the kernel."""
    if not isinstance(test, Scalar):
        return bool(test)
    operand = test.operand
    if isinstance(operand, Const):
        return bool(operand.value)
    if operand.dtype is dt.boolean:
        return operand
    return compare.compare(builder(), "ne", operand, Const(operand.dtype, 0))


def _constant(value: bool) -> Const:
    return _TRUE if value else Const(dt.boolean, False)


class Region:
    """Something that may be kernel control flow: `kernel` says whether it is.

    As a context manager it ends the jumps of the kernel that leave it.
    """

    kernel: bool = False
    before: Names

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self.kernel and kind is Leave:
            self._ended()
            return True
        return False

    def _ended(self) -> None:
        """A jump ended the code that is being traced in this region."""

    def _open(self, block: Block) -> None:
        builder().open(block)
        open_regions().append(self)

    def _close(self) -> None:
        builder().close()
        open_regions().pop()


class Branch(Region):
    """An `if` statement."""

    def __init__(self, test: Any, spec: IfSpec, file: str, names: Names) -> None:
        decided = truth(test)
        self.kernel = not isinstance(decided, bool)
        self._test = decided
        if self.kernel:
            self._spec, self._file, self.before = spec, file, dict(names)
            self._blocks = (Block(), Block())
            self._ends = [False, False]
            self._arm = 0
            self._after_then: Names = {}
            self._line = here()

    def then(self) -> bool:
        """Whether the first arm runs now."""
        if isinstance(self._test, bool):
            return self._test
        self._open(self._blocks[0])
        return True

    def otherwise(self) -> bool:
        """Whether the second arm runs now."""
        return not self._test if isinstance(self._test, bool) else True

    def _ended(self) -> None:
        self._ends[self._arm] = True

    def middle(self, names: Names) -> tuple[Any, ...]:
        """End the first arm and begin the second with the names as they were before."""
        self._close()
        self._after_then = dict(names)
        self._arm = 1
        self._open(self._blocks[1])
        return tuple(self._start(name, line) for name, line, _, _ in self._spec)

    def _start(self, name: str, line: int) -> Any:
        if name in self.before:
            return self.before[name]
        note = f"it is bound at {Site(self._file, line)}" if line else ""
        return Poison(name, "is not bound on this path", *([note] if note else []))

    def join(self, names: Names) -> tuple[Any, ...]:
        """End the second arm; gives what each name is from here on."""
        self._close()
        then, otherwise = self._blocks
        assert not isinstance(self._test, bool)
        op = IfOp(condition=self._test, then=then, otherwise=otherwise, loc=self._line)
        builder().append(op)
        if all(self._ends):
            raise Leave
        return tuple(self._joined(names, *entry) for entry in self._spec)

    def _joined(
        self, names: Names, name: str, then_line: int, else_line: int, live: bool
    ) -> Any:
        if not live:
            return Dead(name, "has no value here")
        line = self._line.line if self._line else 0
        arms = []
        for arm, (bound, at) in enumerate(
            ((self._after_then, then_line), (names, else_line))
        ):
            value = bound.get(name, self._start(name, then_line or else_line))
            block = None if self._ends[arm] else self._blocks[arm]
            arms.append(Arm(block, value, Site(self._file, at or line)))
        return join(name, *arms, self.before.get(name))


class Loop(Region):
    """What `for` and `while` share: names carried from one iteration to the next, and jumps."""

    def __init__(self, spec: LoopSpec, file: str, site: str, has_else: bool, names: Names) -> None:
        self._spec, self._file, self.site = spec, file, site
        self._has_else = has_else
        self.depth = len(open_regions())
        self.before = names
        self._over = False
        self._broken = False
        self._returns: Frame | None = None

    def _begin(self) -> None:
        """Make it a loop of the kernel: everything that it changes moves to registers."""
        self.kernel = True
        if self._has_else:
            raise StagingError(
                "a loop of the kernel has no `else`",
                code="K325",
                loc=here(),
                fix="remember in a variable whether the loop was left by break",
            )
        self._line = here()
        self.before = dict(self.before)
        self._head, self._body, self._step = Block(), Block(), Block()
        line = self._line.line if self._line else 0
        self._carried = {
            name: Carried(name, self.before[name], Site(self._file, line), Site(self._file, at))
            for name, at, needed, _ in self._spec
            if needed and not isinstance(self.before.get(name, _UNBOUND), Poison)
        }
        for carried in self._carried.values():
            carried.promote()

    def _value(self, name: str, line: int, where: str) -> Any:
        if name in self._carried:
            return self._carried[name].read()
        return Poison(name, f"is not bound {where}", f"it is bound at {Site(self._file, line)}")

    def enter(self, _: Names) -> tuple[Any, ...]:
        """What each name is at the start of an iteration, the target left out."""
        where = "at the start of the first iteration"
        return tuple(self._value(n, at, where) for n, at, _, target in self._spec if not target)

    def _store(self, names: Names) -> None:
        for name, carried in self._carried.items():
            if name not in names:
                self._refuse_deleted(name)
            carried.write(names[name])

    def _refuse_deleted(self, name: str) -> None:
        raise StagingError(
            f"{name} is deleted in a loop of the kernel",
            code="K326",
            loc=here(),
            fix="leave the name bound",
        )

    def leave(self, names: Names) -> tuple[Any, ...]:
        """End the loop; gives what each name is behind it."""
        if not self._over:
            self._store(names)
        self._close()
        builder().append(
            LoopOp(
                head=self._head,
                condition=self._condition(),
                body=self._body,
                step=self._step,
                loc=self._line,
            )
        )
        if self._returns is not None:
            self._returns.leave_again()
            if self._condition() is _TRUE and not self._broken:
                raise Leave  # it ends by return only
        where = "when the loop runs no iteration"
        return tuple(self._value(name, at, where) for name, at, _, _ in self._spec)

    def _condition(self) -> Operand:
        return _TRUE

    def _ended(self) -> None:
        self._over = True

    def returns(self, frame: Frame) -> None:
        """A return inside leaves this loop too."""
        self._returns = frame

    # -- jumps -----------------------------------------------------------------------------------
    def breaks(self, names: Names) -> bool:
        """`break`: whether Python does it; a loop of the kernel traces it."""
        return self._jump(names, BreakOp, "break")

    def continues(self, names: Names) -> bool:
        """`continue`: whether Python does it; a loop of the kernel traces it."""
        return self._jump(names, ContinueOp, "continue")

    def _jump(self, names: Names, op: type[BreakOp | ContinueOp], word: str) -> bool:
        if not self.kernel:
            if len(open_regions()) > self.depth:
                self._undecided(word)
            return True
        self._store(names)
        self._broken = self._broken or op is BreakOp
        builder().append(op(loc=here()))
        raise Leave

    def _undecided(self, word: str) -> None:
        raise StagingError(
            f"{word} depends on a value of the kernel, but this loop is unrolled while tracing",
            code="K327",
            loc=here(),
            notes=(f"the loop is at {self.site.rsplit(':', 1)[0]}",),
            fix="write `for … in kd.range(…)`, or put the rest of the body under an `if`",
        )


_UNBOUND = Poison("", "is not bound")


class ForLoop(Loop):
    """A `for` statement: over `kd.range` it is the kernel's, over anything else Python's."""

    def __init__(
        self, items: Any, spec: LoopSpec, file: str, site: str, has_else: bool, names: Names
    ) -> None:
        super().__init__(spec, file, site, has_else, names)
        self._items = items
        if isinstance(items, Range) and is_tracing():
            self._begin()

    def items(self) -> Iterable[Any]:
        """What the target takes: the loop index once, or Python's items."""
        return self._index() if self.kernel else self._items

    def _index(self) -> Iterator[Scalar]:
        items: Range = self._items
        b = builder()
        start, stop, step = items.operands()
        counter = register.declare(b, start.dtype, start, hint="i")
        with b.inside(self._head):
            index = register.snapshot(b, counter)
            self._test = compare.compare(b, "lt" if items.upward else "gt", index, stop)
        with b.inside(self._step):
            register.assign(b, counter, arith.binary(b, "add", counter, step))
        self._open(self._body)
        yield items.index(index)

    def _condition(self) -> Operand:
        return self._test


class WhileLoop(Loop):
    """A `while` statement: the kernel's when its test, or a jump out of it, is the kernel's."""

    def __init__(
        self, spec: LoopSpec, file: str, site: str, has_else: bool, names: Names
    ) -> None:
        super().__init__(spec, file, site, has_else, names)
        self.pending = True
        self._holds: bool | Operand = True
        self._forced = is_tracing() and site in current().facts.get(KERNEL_WHILES, ())
        self._trial = Block()
        if is_tracing():
            builder().open(self._trial)

    def probe(self, test: Any) -> None:
        """Decide by the first value of the test whose loop this is."""
        decided = truth(test)
        if is_tracing():
            builder().close()
        if self._forced or not isinstance(decided, bool):
            self._begin()
            self._open(self._head)
            return
        if is_tracing():
            builder().block.ops.extend(self._trial.ops)
        self._holds = decided

    def head(self, test: Any) -> None:
        """Take the test as it is computed before each iteration."""
        decided = truth(test)
        self._holds = _constant(decided) if isinstance(decided, bool) else decided
        builder().close()
        builder().open(self._body)

    def known(self) -> bool:
        """Whether the body runs now, by what is known already; once for a loop of the kernel."""
        if not self.kernel:
            self.pending = False
            return bool(self._holds)
        entered, self._entered = getattr(self, "_entered", False), True
        return not entered

    def test(self, test: Any) -> bool:
        """Python's decision on a later iteration."""
        decided = truth(test)
        if not isinstance(decided, bool):
            raise Retrace(self.site)
        return decided

    def _condition(self) -> Operand:
        assert not isinstance(self._holds, bool)
        return self._holds

    def _undecided(self, word: str) -> None:
        raise Retrace(self.site)


class Frame(Region):
    """One call of a rewritten function; where it may return early, a loop that runs once."""

    def __init__(self, kind: str, early: bool) -> None:
        self._kind = kind
        self._base = len(open_regions())
        self._wrapped = early and kind == "func" and is_tracing()
        self.kernel = early and is_tracing()
        self._recorded = False
        self._done = False
        self._held: Any = None
        self._flag: Var | None = None
        self._value: Any = None
        if self._wrapped:
            self._parent = builder().block
            self._body = Block()
            builder().open(self._body)

    def give(self, value: Any, *whiles: WhileLoop) -> Any:
        """`return value`: at once where Python decides, else traced."""
        if not is_tracing() or len(open_regions()) == self._base:
            if self._kind == "kernel":
                _refuse_value(value)
            self._value = value
            return self.result() if not self._recorded else self._last(value)
        for loop in whiles:
            if not loop.kernel and len(open_regions()) > loop.depth:
                raise Retrace(loop.site)
        loops = [region for region in open_regions()[self._base :] if isinstance(region, Loop)]
        for loop in loops:
            loop.returns(self)
        if self._kind == "kernel":
            _refuse_value(value)
            builder().append(ReturnOp(loc=here()))
            raise Leave
        self._record(value)
        if loops:
            self._raise_flag()
        builder().append(BreakOp(loc=here()))
        raise Leave

    def _last(self, value: Any) -> Any:
        self._record(value)
        return self.result()

    def _raise_flag(self) -> None:
        b = builder()
        if self._flag is None:
            with b.inside(self._parent):
                self._flag = register.declare(b, dt.boolean, Const(dt.boolean, False), "returned")
        register.assign(b, self._flag, _TRUE)

    def leave_again(self) -> None:
        """Behind a loop that was left by a return: leave what is around it too."""
        if self._flag is None:
            return  # a kernel's return needs no help
        then = Block()
        with builder().inside(then):
            builder().append(BreakOp(loc=here()))
        flag = register.snapshot(builder(), self._flag)
        builder().append(IfOp(condition=flag, then=then, otherwise=Block(), loc=here()))

    def result(self) -> Any:
        """What the call gives, once its code is traced."""
        if not self._wrapped or self._done:
            return self._value
        self._done = True
        builder().append(BreakOp(loc=here()))
        builder().close()
        if not self._recorded:
            builder().block.ops.extend(self._body.ops[:-1])
            return self._value
        builder().append(LoopOp(condition=_TRUE, body=self._body, loc=here()))
        return _read_tree(self._held)

    def _record(self, value: Any) -> None:
        if not self._recorded:
            with builder().inside(self._parent):
                self._held = _declared_like(value)
            self._recorded = True
        _assign_tree(self._held, value)


def _refuse_value(value: Any) -> None:
    if value is not None:
        raise StagingError(
            f"a kernel returns no value, got {value!r}",
            code="K328",
            loc=here(),
            fix="store the result to a tensor argument; helpers under @kd.func may return values",
        )


def _declared_like(value: Any) -> Any:
    if isinstance(value, Scalar) or is_number(value):
        dtype = value.dtype if isinstance(value, Scalar) else _number_dtype(value)
        return builder().var(dtype, "result")
    if isinstance(value, tuple):
        return tuple(map(_declared_like, value))
    return _Fixed(value)


def _number_dtype(value: Any) -> dt.DType:
    return {bool: dt.boolean, int: dt.i32, float: dt.f32}[type(value)]


class _Fixed:
    """A Python object that every return of a function must give."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _assign_tree(held: Any, value: Any) -> None:
    if isinstance(held, tuple) and isinstance(value, tuple) and len(held) == len(value):
        for part, new in zip(held, value, strict=True):
            _assign_tree(part, new)
        return
    if isinstance(held, Var) and (isinstance(value, Scalar) or is_number(value)):
        operand = fitted(value, held.dtype)
        if operand is not None:
            register.assign(builder(), held, operand)
            return
    elif isinstance(held, _Fixed) and held.value is value:
        return
    was = held.dtype if isinstance(held, Var) else getattr(held, "value", held)
    raise StagingError(
        f"returns of one function differ: {was!r} and {value!r}",
        code="K329",
        loc=here(),
        fix="return values of the same types on every path",
    )


def _read_tree(held: Any) -> Any:
    if isinstance(held, Var):
        return Scalar(register.snapshot(builder(), held))
    if isinstance(held, tuple):
        return tuple(map(_read_tree, held))
    return held.value if isinstance(held, _Fixed) else held

