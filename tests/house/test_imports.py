"""Importing kdsl is light and touches nothing of CUDA."""

from __future__ import annotations

import subprocess
import sys

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
