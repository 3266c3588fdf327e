"""Build one port for TN and NT operands, from its source to cubins, and print the seconds."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples" / "porting"), *map(str, ROOT.glob("packages/*/src"))]

import numpy as np  # noqa: E402 # the path comes first
from operands import operands  # noqa: E402

import kdsl_runtime  # noqa: E402, F401 # its import is no part of a build


def main(port: str) -> None:
    """Time what `kernel.cubin` does."""
    module = importlib.import_module(port)
    launches = []
    if port == "tiled_copy":
        name, shapes = port, ((256, 128), (131, 67))
        launches = [module.launch_tiled_copy(*module.matrices(*shape)) for shape in shapes]
    else:
        name = "sgemm" if port == "sgemm" else "hgemm"
        dtype = np.float32 if port == "sgemm" else np.float16
        make = getattr(module, f"launch_{name}")
        launches = [make(*operands(256, 256, 192, majors, dtype)) for majors in ("TN", "NT")]
    kernel, start = getattr(module, name), time.perf_counter()
    for launch in launches:
        statics = launch.get("kwargs", {})
        kernel.cubin(*launch["args"], **statics, block=launch["block"], target="sm_90a")
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(sys.argv[1])
