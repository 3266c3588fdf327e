"""What an import costs, in a fresh interpreter each time."""

from __future__ import annotations

import statistics
import subprocess
import sys

BEFORE = "import sys, time, numpy, ml_dtypes; n = len(sys.modules); t = time.perf_counter()"
RUNS = 7


def ask(package: str, question: str, before: str = "") -> float:
    """The number that a fresh interpreter prints after importing `package`; `before` runs first."""
    code = f"{BEFORE}; {before or 'pass'}; import {package}; print({question})"
    return float(subprocess.check_output([sys.executable, "-c", code], timeout=60))


class Import:
    """What comes on top of NumPy and ml_dtypes; the budget: core 100 ms, all three 200 ms."""

    params = ("kdsl_core", "kdsl_runtime", "kdsl_fuse", "kdsl_fuse.kernels.gemm_sm90")
    param_names = ("package",)
    timeout = 120

    def track_import_ms(self, package: str) -> float:
        """From the statement to its end, median of fresh interpreters."""
        times = [ask(package, "time.perf_counter() - t") for _ in range(RUNS)]
        return statistics.median(times) * 1e3

    track_import_ms.unit = "ms"
    track_import_ms.version = "1"

    def track_import_kib(self, package: str) -> float:
        """Memory that Python holds for it."""
        traced = "tracemalloc.get_traced_memory()[0] / 1024"
        return ask(package, traced, "import tracemalloc; tracemalloc.start()")

    track_import_kib.unit = "KiB"
    track_import_kib.version = "1"

    def track_modules(self, package: str) -> float:
        """Modules that the import adds."""
        return ask(package, "len(sys.modules) - n")

    track_modules.unit = "modules"
    track_modules.version = "1"
