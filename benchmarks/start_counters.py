"""What a process does before its first launch of a Hopper GEMM, counted: prints JSON.

    KDSL_CACHE_DIR=DIR python3 benchmarks/start_counters.py

Counted are files of the cache that it opens, programs that it starts, and the cache's own counters.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

COUNTED = ("builds", "misses", "memory_hits", "disk_hits")
CACHE = os.environ.get("KDSL_CACHE_DIR", "")
opened, programs = 0, 0


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """An event of the interpreter."""
    global opened, programs
    if event == "open" and isinstance(arguments[0], str):
        opened += arguments[0].startswith(CACHE)
    elif event == "subprocess.Popen":
        programs += 1


def main() -> None:
    """Get the machine code."""
    import kdsl_core as kd
    import kdsl_runtime as kr
    from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
    from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
    from kdsl_runtime import metrics

    config = Sm90Config((128, 256, 64), 4)
    specs = [kd.spec("bf16", (1024, 1024)) for _ in range(3)]
    statics = {"epilogue": identity, "config": config}
    needed = gemm_sm90.specialisation(*specs, block=config.threads, **statics)
    kr.build(gemm_sm90.lowered(needed, "sm_90a").module)
    counters = metrics.snapshot()
    counted = {name: int(counters[name]) for name in COUNTED}
    print(json.dumps({"opens": opened, "programs": programs, **counted}))


if __name__ == "__main__":
    sys.addaudithook(note)  # before kdsl: what it opens on import counts as well
    main()
