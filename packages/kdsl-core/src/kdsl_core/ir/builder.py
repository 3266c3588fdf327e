"""The builder appends operations where tracing stands, and shares equal pure ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from kdsl_core.dtypes import DType
from kdsl_core.ir.block import Block, Kernel
from kdsl_core.ir.op import Effect, Op
from kdsl_core.ir.value import Value, Var
from kdsl_core.loc import Loc, here

OpT = TypeVar("OpT", bound=Op)


class Builder:
    """Appends operations to the innermost open block of a kernel.

    Equal pure operations on SSA values and constants are shared within a block and with the
    blocks that enclose it, so that address arithmetic written twice is computed once.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._blocks: list[Block] = [kernel.body]
        self._known: list[dict[Any, Op]] = [{}]

    @property
    def depth(self) -> int:
        """How many blocks are open; 1 in the kernel's own body."""
        return len(self._blocks)

    @property
    def block(self) -> Block:
        """The innermost open block."""
        return self._blocks[-1]

    def traced(self) -> Iterator[Op]:
        """Every operation of the blocks that are open, nested ones included."""
        for block in self._blocks:
            yield from block.walk()

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Append to `block` until the end of the `with`."""
        self.open(block)
        try:
            yield block
        finally:
            self.close()

    def open(self, block: Block) -> None:
        """Append to `block` until `close`."""
        self._blocks.append(block)
        self._known.append({})

    def close(self) -> Block:
        """Return to the enclosing block; gives the block that was closed."""
        self._known.pop()
        return self._blocks.pop()

    def loc(self) -> Loc | None:
        """The author's line that is being traced."""
        return here()

    def value(self, dtype: DType, hint: str = "") -> Value:
        """A fresh SSA value for an operation about to be appended."""
        return Value(dtype, None, hint)

    def var(self, dtype: DType, hint: str = "") -> Var:
        """A fresh register variable; its content is undefined until written."""
        return Var(dtype, here(), hint)

    def append(self, op: OpT) -> OpT:
        """Append an operation after checking its type rule."""
        op.verify()
        self.block.ops.append(op)
        return op

    def share(self, op: OpT) -> OpT:
        """Append a pure operation, or return an equal one that is already available here."""
        if op.effects is not Effect.NONE or any(isinstance(reg, Var) for reg in op.reads()):
            return self.append(op)
        key = op.key()
        for known in reversed(self._known):
            if key in known:
                return cast(OpT, known[key])
        self.append(op)
        self._known[-1][key] = op
        return op
