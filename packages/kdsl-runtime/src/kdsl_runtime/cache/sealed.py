"""A cache folder that is only read, such as one baked into a container image."""

from __future__ import annotations

import os
import warnings

from kdsl_runtime.cache.entry import CorruptEntry, Entry, decode
from kdsl_runtime.cache.files import KdslCacheWarning, entry_path, read_file
from kdsl_runtime.cache.location import AnyPath, check_private

_SUPERUSER = 0


class SealedCache:
    """Entries under `root` that this user or root wrote and nobody else may write.

    A `DiskCache` that was filled before is one. Nothing is written, locked or set aside.

    Threads: safe.
    """

    def __init__(self, root: AnyPath) -> None:
        self.root = os.path.realpath(root)

    def get(self, key: str) -> Entry | None:
        """The verified entry of `key`; None when there is none, or with a warning, a bad one.

        Raises: CacheError K720–K722 for a folder and K723 for an entry not to be trusted, OSError.
        """
        owners = {os.geteuid(), _SUPERUSER}
        path = entry_path(self.root, key)
        try:
            shard = os.path.dirname(path)
            for directory in (self.root, os.path.dirname(shard), shard):
                check_private(directory, owners)
        except FileNotFoundError:
            return None
        data = read_file(path, owners)
        if data is None:
            return None
        try:
            return decode(data, key)
        except CorruptEntry as problem:
            text = f"{problem.message} ({path}); it is built again above this layer"
            warnings.warn(text, KdslCacheWarning, stacklevel=2)
            return None
