"""The instruction set: every operation, with its type rule, PTX and meaning in one place."""

from kdsl_core.ir.op import Op
from kdsl_core.isa import (
    arith,
    async_copy,
    atomic,
    barrier,
    compare,
    control,
    convert,
    math,
    matrix_copy,
    memory,
    mma,
    packed,
    register,
    special,
    warp,
)

ALL_OPS: tuple[type[Op], ...] = (
    *register.OPS,
    *special.OPS,
    *arith.OPS,
    *compare.OPS,
    *convert.OPS,
    *math.OPS,
    *packed.OPS,
    *memory.OPS,
    *async_copy.OPS,
    *matrix_copy.OPS,
    *mma.OPS,
    *warp.OPS,
    *barrier.OPS,
    *atomic.OPS,
    *control.OPS,
)

__all__ = ["ALL_OPS"]
