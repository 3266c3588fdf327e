"""Regions of a function that run as Python or are traced, as a test decides; branches."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.ir import Block, Const, Operand
from kdsl_core.isa import compare
from kdsl_core.isa.control import IfOp
from kdsl_core.lang.merge import Arm, Dead, Poison, Site, join
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder, current, is_tracing
from kdsl_core.loc import here

Names = dict[str, Any]
IfSpec = tuple[tuple[str, int, int, bool], ...]  # name, line in then, line in else, live behind
TRUE = Const(dt.boolean, True)
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

    def _joined(self, names: Names, name: str, then_line: int, else_line: int, live: bool) -> Any:
        if not live:
            return Dead(name, "has no value here")
        line = self._line.line if self._line else 0
        arms: list[Arm] = []
        for arm, (bound, at) in enumerate(((self._after_then, then_line), (names, else_line))):
            value = bound.get(name, self._start(name, then_line or else_line))
            block = None if self._ends[arm] else self._blocks[arm]
            arms.append(Arm(block, value, Site(self._file, at or line)))
        return join(name, arms[0], arms[1], self.before.get(name))
