"""Ahead-of-time export: kernels that a C program loads and launches without Python."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from kdsl_runtime.builds import build
from kdsl_runtime.export.header import header
from kdsl_runtime.manifest import Variant

LOADER = ("kdsl_loader.h", "kdsl_loader.c")
_DIGITS = 8


def export(variants: Sequence[Variant], directory: Path) -> list[Path]:
    """Write cubin and header of each variant, and the loader that they share.

    A file has the kernel's name; where several variants of one kernel are written, each has a
    number behind it that stays the same as long as the variant does.

    Raises: ArgumentError K745 for a tensor map that C code cannot make; what building raises.
    """
    directory.mkdir(parents=True, exist_ok=True)
    often = Counter(variant.function().signature.name for variant in variants)
    written = [path for variant in variants for path in _written(variant, often, directory)]
    for name in LOADER:
        with as_file(files("kdsl_runtime.export") / "loader" / name) as source:
            shutil.copyfile(source, directory / name)
    return [*written, *(directory / name for name in LOADER)]


def _written(variant: Variant, often: Counter[str], directory: Path) -> list[Path]:
    kernel, needed = variant.function(), variant.specialisation()
    traced, module = kernel.traced(needed), variant.module()
    name = module.entry
    if often[name] > 1:
        name += f"_{hashlib.sha256(str(variant).encode()).hexdigest()[:_DIGITS]}"
    text = header(variant, name, traced, module)
    entry = build(module, origin=(kernel, needed))
    cubin, source = directory / f"{name}.cubin", directory / f"{name}.h"
    cubin.write_bytes(entry.payload)
    source.write_text(text, encoding="utf-8")
    return [cubin, source]
