"""Finding a space by words: "file.py:NAME", "package.module:NAME", or the name of a kernel."""

from __future__ import annotations

import hashlib
import importlib
import sys
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from kdsl_core.errors import ArgumentError
from kdsl_core.lang.source_module import module_of_file
from kdsl_runtime.tune.space import Space

ENTRY_POINTS = "kdsl.spaces"  # the group in which a package names its kernels' spaces


@cache
def load_space(words: str) -> Space:
    """The space that `words` name, which another process finds again.

    A bare name is that of an entry point of the group "kdsl.spaces".
    Raises: ArgumentError K763 when there is none.
    """
    place, colon, name = words.rpartition(":")
    if not colon:
        place, _, name = _entry_point(words).rpartition(":")
    path = Path(place)
    try:
        if path.suffix == ".py":
            place = str(path.resolve())
            module = _module_of(place)
        else:
            module = importlib.import_module(place)
        space = getattr(module, name)
    except (ImportError, AttributeError, OSError, ValueError) as error:
        raise _no_space(words, f"{type(error).__name__}: {error}") from error
    if not isinstance(space, Space):
        raise _no_space(words, f"{name} is of the type {type(space).__name__}")
    return replace(space, origin=f"{place}:{name}")


def spaces() -> dict[str, str]:
    """Kernels whose spaces installed packages name, and where they lie."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def _entry_point(kernel: str) -> str:
    known = spaces()
    if kernel not in known:
        raise _no_space(kernel, f"kernels with a space are {', '.join(sorted(known)) or 'none'}")
    return known[kernel]


def _module_of(path: str) -> ModuleType:
    """A Python file as a module, executed once; the kernels in it find their source there."""
    name = f"kdsl_space_{hashlib.sha256(path.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    return module_of_file(Path(path), name)


def _no_space(words: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"{words!r} names no kdsl_runtime.tune.Space: {why}",
        code="K763",
        fix="write file.py:NAME or package.module:NAME, or the name of a kernel that has a space",
    )
