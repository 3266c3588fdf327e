"""PTX text of a kernel: what `ptxas` and the CUDA driver take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kdsl_core.ptx.module import PtxModule

if TYPE_CHECKING:
    from kdsl_core.ptx.emission import emit

__all__ = ["PtxModule", "emit"]


def __getattr__(name: str) -> Any:
    if name != "emit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kdsl_core.ptx.emission import emit  # not needed where PTX was recalled

    globals()["emit"] = emit
    return emit
