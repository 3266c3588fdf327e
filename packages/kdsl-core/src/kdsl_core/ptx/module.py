"""The PTX of one kernel and what is needed to launch it."""

from __future__ import annotations

from kdsl_core.dtypes import DType
from kdsl_core.records import dataclass


@dataclass(frozen=True)
class PtxModule:
    """One kernel as PTX.

    `params` are the kernel parameters in order; pointers are u64.

    Units: `shared_bytes` is the dynamic shared memory of one block in bytes.
    """

    text: str
    entry: str
    target: str
    shared_bytes: int
    threads: int
    params: tuple[tuple[str, DType], ...]
    ptx_version: tuple[int, int]
