"""What one block may use on each target, checked before the assembler runs."""

from __future__ import annotations

import re

from kdsl_core.errors import ResourceError, TargetError
from kdsl_runtime.ptx_module import PtxModule

MAX_THREADS_PER_BLOCK = 1024
REGISTERS_PER_SM = 65536
_REGISTERS_PER_WARP_UNIT = 256  # the hardware hands registers to a warp in units of this many
_KIB = 1024

# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
SHARED_BYTES_PER_BLOCK = {
    "sm_80": 163 * _KIB,
    "sm_86": 99 * _KIB,
    "sm_87": 163 * _KIB,
    "sm_89": 99 * _KIB,
    "sm_90": 227 * _KIB,
    "sm_100": 227 * _KIB,
    "sm_103": 227 * _KIB,
    "sm_110": 227 * _KIB,
    "sm_120": 99 * _KIB,
    "sm_121": 99 * _KIB,
}


def shared_limit_bytes(target: str) -> int:
    """Shared memory that one block may use on `target`; "sm_90a" means "sm_90".

    Raises: TargetError K480 for a target that is not in the table.
    """
    family = re.sub(r"[af]$", "", target)
    if family not in SHARED_BYTES_PER_BLOCK:
        known = ", ".join(SHARED_BYTES_PER_BLOCK)
        raise TargetError(
            f"the target {target!r} is not known", code="K480", fix=f"use one of {known}"
        )
    return SHARED_BYTES_PER_BLOCK[family]


def check_block(module: PtxModule, target: str) -> None:
    """Refuse a block that `target` cannot hold.

    Raises: ResourceError K481 for too many threads, K482 for too much shared memory.
    """
    if module.threads > MAX_THREADS_PER_BLOCK:
        raise ResourceError(
            f"kernel {module.entry}: {module.threads} threads per block, "
            f"the limit of {target} is {MAX_THREADS_PER_BLOCK}",
            code="K481",
            fix="launch more, smaller blocks",
        )
    limit = shared_limit_bytes(target)
    if module.shared_bytes > limit:
        raise ResourceError(
            f"kernel {module.entry}: {module.shared_bytes} bytes of shared memory per block, the "
            f"limit of {target} is {limit} ({module.shared_bytes - limit} bytes too many)",
            code="K482",
            fix="use smaller tiles or fewer pipeline stages",
        )


def check_registers(entry: str, registers: int, threads: int, target: str) -> None:
    """Refuse a block whose registers exceed what one multiprocessor has.

    Raises: ResourceError K483.
    """
    warps = -(-threads // 32)
    unit = _REGISTERS_PER_WARP_UNIT
    needed = -(-registers * 32 // unit) * unit * warps
    if needed > REGISTERS_PER_SM:
        raise ResourceError(
            f"kernel {entry}: {registers} registers for each of {threads} threads need {needed} "
            f"registers, a multiprocessor of {target} has {REGISTERS_PER_SM}",
            code="K483",
            fix="declare the block's size with .reqntid, or use smaller blocks or tiles",
        )
