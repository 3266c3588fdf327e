"""Scripts of `benchmarks/` and `examples/`, which import each other by their bare names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

BENCHMARKS, EXAMPLES = (Path(__file__).parents[1] / name for name in ("benchmarks", "examples"))


@contextmanager
def scripts(folder: str, *names: str, root: Path = BENCHMARKS) -> Iterator[SimpleNamespace]:
    """The scripts of a folder below `root` as modules."""
    path, before, places = str(root / folder), set(sys.modules), list(sys.path)
    sys.path.insert(0, path)
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path[:] = places  # scripts add the folders of others
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(root)):
                del sys.modules[name]
