"""Build one port for TN and NT operands, from its source to cubins, and print the seconds."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def launches(module: Any, port: str) -> list[dict[str, Any]]:
    """Two launches: TN and NT, or two ways to copy."""
    if port == "tiled_copy":
        return [module.launch_tiled_copy(*module.matrices(*s)) for s in ((256, 128), (131, 67))]
    dtype = np.float32 if port == "sgemm" else np.float16
    make = getattr(module, f"launch_{name_of(port)}")
    return [make(*module.operands(256, 256, 192, majors, dtype)) for majors in ("TN", "NT")]


def name_of(port: str) -> str:
    """The kernel's name in its file."""
    return port if port in ("tiled_copy", "sgemm") else "hgemm"


def main(port: str) -> None:
    """Time what `kernel.cubin` does."""
    sys.path[:0] = [str(ROOT / "examples" / "porting"), *map(str, ROOT.glob("packages/*/src"))]
    importlib.import_module("kdsl_runtime.builds")  # its import is no part of a build
    module = importlib.import_module(port)
    kernel, stated = getattr(module, name_of(port)), launches(module, port)
    start = time.perf_counter()
    for launch in stated:
        statics = launch.get("kwargs", {})
        kernel.cubin(*launch["args"], **statics, block=launch["block"], target="sm_90a")
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(sys.argv[1])
