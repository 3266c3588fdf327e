"""Which pointers and tensor maps a kernel may write through."""

from __future__ import annotations

from collections import defaultdict

from kdsl_core.dtypes import u64
from kdsl_core.ir import Effect, Kernel, Reg


def written_parameters(kernel: Kernel) -> set[str]:
    """Names of pointers and tensor maps among the parameters that a global write goes through.

    Follows registers from the parameters through every operation, whatever it does; so it may name
    too many, never too few, as long as pointers are not kept in memory.
    """
    reaches: dict[Reg, set[str]] = defaultdict(set)
    for param in kernel.params:
        if param.value.dtype is u64:
            reaches[param.value].add(param.name)
    ops = list(kernel.body.walk())
    changed = True
    while changed:
        changed = False
        for op in ops:
            sources = [reaches[x] for x in op.reads() if isinstance(x, Reg) and reaches.get(x)]
            names = set().union(*sources)
            for target in op.writes() if names else ():
                changed |= not names <= reaches[target]
                reaches[target] |= names
    writers = [op for op in ops if Effect.WRITES_GLOBAL in op.effects]
    pointers = [x for op in writers for x in op.reads() if isinstance(x, Reg) and x.dtype is u64]
    return set().union(*(reaches[x] for x in pointers)) if pointers else set()
