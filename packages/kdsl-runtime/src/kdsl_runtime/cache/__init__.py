"""Built kernels, kept in memory and on disk, and found again by what decides their content.

Names are loaded when they are first used: most processes have no other layer than these two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kdsl_core.late_names import late_names

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

_HOMES = {
    "disk": ("DiskCache",),
    "entry": ("CorruptEntry", "Entry"),
    "files": ("KdslCacheWarning",),
    "keys": ("content_key", "recipe_key"),
    "layers": ("Cache", "default_cache"),
    "location": ("default_directory",),
    "memory": ("MemoryCache",),
    "remote": ("RemoteCache",),
    "sealed": ("SealedCache",),
}
__getattr__ = late_names(globals(), _HOMES)

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
