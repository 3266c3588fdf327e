"""PTX text of a kernel: what `ptxas` and the CUDA driver take.

Where it was recalled nothing emits it, so that is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdsl_core.late_names import late_names
from kdsl_core.ptx.module import PtxModule

if TYPE_CHECKING:
    from kdsl_core.ptx.emission import emit

__all__ = ["PtxModule", "emit"]

__getattr__ = late_names(globals(), {"emission": ("emit",)})
