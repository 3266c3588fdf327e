"""Check that one block of a kernel fits on the target."""

from __future__ import annotations

from kdsl_core.errors import ResourceError
from kdsl_core.ir import Kernel, Target
from kdsl_core.ir.target import MAX_THREADS_PER_BLOCK

MAX_BLOCK_DIM = (1024, 1024, 64)


def check_resources(kernel: Kernel, target: Target) -> None:
    """Raise ResourceError when a block has too many threads or too much shared memory."""
    _check_threads(kernel)
    _check_shared(kernel, target)


def _check_threads(kernel: Kernel) -> None:
    sizes = kernel.block_dim
    inside = all(1 <= size <= most for size, most in zip(sizes, MAX_BLOCK_DIM, strict=True))
    if not inside or kernel.threads > MAX_THREADS_PER_BLOCK:
        raise ResourceError(
            f"a block may have at most {MAX_THREADS_PER_BLOCK} threads and sizes up to "
            f"{MAX_BLOCK_DIM}, got {sizes} = {kernel.threads} threads",
            code="K404",
            loc=kernel.loc,
            fix="use a smaller block",
        )


def _check_shared(kernel: Kernel, target: Target) -> None:
    if kernel.shared_bytes <= target.shared_bytes:
        return
    biggest = max(kernel.shared, key=lambda alloc: alloc.bytes)
    excess = kernel.shared_bytes - target.shared_bytes
    raise ResourceError(
        f"{kernel.name} needs {kernel.shared_bytes} bytes of shared memory, "
        f"{target} has {target.shared_bytes} per block: {excess} too many",
        code="K405",
        loc=biggest.loc or kernel.loc,
        notes=[
            f"{alloc.name}{f' of {alloc.loc.short()}' if alloc.loc else ''}: {alloc.bytes} bytes"
            for alloc in kernel.shared
        ],
        fix=f"use smaller tiles or fewer stages; {biggest.name} is the largest piece",
    )
