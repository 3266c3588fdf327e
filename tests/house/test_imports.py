"""Importing kdsl is light and touches nothing of CUDA."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASK = "import {}, sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
CUDA = ("cuda", "torch", "triton", "cupy", "nvidia", "jax", "numba", "pynvml")
LATE = ("pytest", "hypothesis", "onnx", "dask", "matplotlib", "scipy", "pandas")


def loaded_by(package: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after importing one package."""
    argv = [sys.executable, "-c", ASK.format(package)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("package", "not_needed"),
    [
        ("kdsl_core", ("kdsl_runtime", "kdsl_fuse", "networkx", "click", "rich")),
        ("kdsl_runtime", ("kdsl_fuse", "networkx", "click", "rich")),
        ("kdsl_fuse", ("click", "rich")),
    ],
)
def test_import_is_light(package: str, not_needed: tuple[str, ...]) -> None:
    """An import loads no CUDA package, no higher floor and nothing that only one command needs."""
    loaded = loaded_by(package)
    assert {name for name in loaded if name.startswith(CUDA)} == set()
    assert loaded & {*not_needed, *LATE} == set()


CACHED = """
import sys
import ml_dtypes
before = set(sys.modules)
import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config

config = Sm90Config((128, 64, 64), 2)
specs = [kd.spec("bf16", (256, 256)) for _ in range(3)]
statics = {"epilogue": identity, "config": config}
needed = gemm_sm90.specialisation(*specs, block=config.threads, **statics)
gemm_sm90.lowered(needed, "sm_90a")
print(*(sys.modules.keys() - before))
"""
TRACING = (
    "isa", "sim", "passes", "atoms", "collective", "layout", "lang.stage", "lang.traced",
    "ir.op", "ir.block", "ir.value", "loc", "lang.differences", "lang.rewriting",
)  # fmt: skip
# What a start takes milliseconds to import, and what only other kinds of caches need.
SPARED = {
    "hashlib", "_hashlib", "pathlib", "urllib.parse", "subprocess", "tempfile", "glob", "array",
    "kdsl_runtime.cache.remote", "kdsl_runtime.cache.sealed", "kdsl_runtime.cache.file_lock",
    "kdsl_runtime.resources", "kdsl_runtime.ptxas",
}  # fmt: skip


def test_found_kernels_need_no_tracer(tmp_path: Path) -> None:
    """A process that finds the PTX of a kernel imports no instruction, no pass and no layout."""
    environment = {**os.environ, "KDSL_CACHE_DIR": str(tmp_path / "cache")}
    words: list[str] = []
    for _ in range(2):
        argv = [sys.executable, "-c", CACHED]
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        words, first = done.stdout.split(), words
    assert "kdsl_core.isa.wgmma" in first
    parts = tuple(f"kdsl_core.{part}" for part in TRACING)
    assert [word for word in words if word.startswith(parts)] == []
    assert SPARED.isdisjoint(words), SPARED & {*words}
