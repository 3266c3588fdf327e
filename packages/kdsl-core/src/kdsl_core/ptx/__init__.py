"""PTX text of a kernel: what `ptxas` and the CUDA driver take."""

from kdsl_core.ptx.emit import emit
from kdsl_core.ptx.module import PtxModule

__all__ = ["PtxModule", "emit"]
