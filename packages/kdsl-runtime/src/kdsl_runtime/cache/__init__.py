"""Built kernels, kept in memory and on disk, and found again by what decides their content.

Names are loaded when they are first used: most processes have no other layer than these two.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kdsl_runtime.cache.disk import DiskCache
    from kdsl_runtime.cache.entry import CorruptEntry, Entry
    from kdsl_runtime.cache.files import KdslCacheWarning
    from kdsl_runtime.cache.keys import content_key, recipe_key
    from kdsl_runtime.cache.layers import Cache, default_cache
    from kdsl_runtime.cache.location import default_directory
    from kdsl_runtime.cache.memory import MemoryCache
    from kdsl_runtime.cache.remote import RemoteCache
    from kdsl_runtime.cache.sealed import SealedCache

_HOME = {
    "Cache": "layers",
    "CorruptEntry": "entry",
    "DiskCache": "disk",
    "Entry": "entry",
    "KdslCacheWarning": "files",
    "MemoryCache": "memory",
    "RemoteCache": "remote",
    "SealedCache": "sealed",
    "content_key": "keys",
    "default_cache": "layers",
    "default_directory": "location",
    "recipe_key": "keys",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "Cache",
    "CorruptEntry",
    "DiskCache",
    "Entry",
    "KdslCacheWarning",
    "MemoryCache",
    "RemoteCache",
    "SealedCache",
    "content_key",
    "default_cache",
    "default_directory",
    "recipe_key",
]
