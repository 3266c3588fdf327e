"""Entries in a store that fsspec can reach: an object store, a web server, a shared folder."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from kdsl_core.errors import CacheError
from kdsl_runtime.cache.entry import FORMAT_VERSION, CorruptEntry, Entry, decode, encode
from kdsl_runtime.cache.files import SUFFIX, TEMPORARY, KdslCacheWarning
from kdsl_runtime.cache.keys import check_key


class RemoteCache:
    """Entries under `url`; written to only where `writable` says so.

    The checksum shows damage, not who wrote: whoever may write there decides what runs here.

    Threads: safe.
    """

    def __init__(self, url: str, writable: bool = False) -> None:
        self.url = url
        self.writable = writable
        self._opened: tuple[Any, str] | None = None

    def get(self, key: str) -> Entry | None:
        """The verified entry of `key`; None when there is none, or with a warning, a bad one.

        Raises: CacheError K711 without fsspec, K712 when the store does not answer.
        """
        try:
            with self._answering():
                system, path = self._place(key)
                data = system.cat_file(path)
        except FileNotFoundError:
            return None
        try:
            return decode(bytes(data), key)
        except CorruptEntry as problem:
            text = f"{problem.message} ({self.url}); it is built here"
            warnings.warn(text, KdslCacheWarning, stacklevel=2)
            return None

    def put(self, key: str, entry: Entry) -> None:
        """Keep `entry` for others; it appears there whole.

        Raises: CacheError K711, K712 as `get`.
        """
        with self._answering():
            system, path = self._place(key)
            folder, _, name = path.rpartition("/")
            temporary = f"{folder}/.{name}.{os.urandom(8).hex()}{TEMPORARY}"
            system.makedirs(folder, exist_ok=True)
            system.pipe_file(temporary, encode(key, entry))
            system.mv(temporary, path)

    def _place(self, key: str) -> tuple[Any, str]:
        check_key(key)
        if self._opened is None:
            self._opened = _open(self.url)
        system, root = self._opened
        return system, f"{root.rstrip('/')}/v{FORMAT_VERSION}/{key[:2]}/{key}{SUFFIX}"

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Every error of a store, which has classes of its own, as one of kdsl's."""
        try:
            yield
        except (CacheError, FileNotFoundError):
            raise
        except Exception as problem:
            raise CacheError(
                f"the remote cache {self.url} does not answer: {type(problem).__name__}: {problem}",
                code="K712",
                fix="correct or unset KDSL_CACHE_REMOTE; kernels are built here meanwhile",
            ) from problem


def _open(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as problem:
        raise CacheError(
            f"the remote cache {url} needs the package fsspec, which is not installed",
            code="K711",
            fix="pip install 'kdsl-runtime[remote]', with the store's own package, such as s3fs",
        ) from problem
    system, root = url_to_fs(url)
    return system, str(root)
