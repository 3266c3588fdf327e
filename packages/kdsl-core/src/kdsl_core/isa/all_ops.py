"""Every operation there is, in one tuple."""

from __future__ import annotations

from kdsl_core.ir.op import Op
from kdsl_core.isa import (
    arith,
    async_copy,
    atomic,
    barrier,
    bulk,
    bulk_groups,
    cluster,
    compare,
    control,
    convert,
    launch,
    math,
    matrix_copy,
    mbarrier,
    memory,
    mma,
    packed,
    register,
    special,
    tma,
    warp,
    wgmma,
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
    *wgmma.OPS,
    *warp.OPS,
    *barrier.OPS,
    *mbarrier.OPS,
    *cluster.OPS,
    *launch.OPS,
    *atomic.OPS,
    *bulk.OPS,
    *bulk_groups.OPS,
    *tma.OPS,
    *control.OPS,
)
