"""Names of a package that are loaded when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def late_names(space: dict[str, Any], homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, whose modules `homes` have these names.

    `space` is the package's `globals()`, where names stay once they are loaded.
    """
    package = space["__name__"]
    home = {name: module for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = space[name] = getattr(importlib.import_module(f"{package}.{home[name]}"), name)
        return value

    return find
