"""What this machine once found out about files that lie here, kept until one of them changes.

A note saves a look at megabytes, or a process; it never decides what is right: it holds only while
the state that it names is the state of the files. Notes are this machine's own and never exported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from kdsl_core.digests import hash256
from kdsl_core.errors import CacheError
from kdsl_runtime.cache.disk import DiskCache
from kdsl_runtime.cache.files import read_file, write_file
from kdsl_runtime.cache.layers import default_cache
from kdsl_runtime.cache.location import make_private


def noted(subject: str, state: str | None, find: Callable[[], str]) -> str:
    """What `find` gives for a subject, asked only when `state` is another one than it was.

    Without a state, or a directory to trust, it is asked in any case.
    Raises: whatever `find` raises.
    """
    disk = default_cache().disk
    if state is None or disk is None:
        return find()
    stated = hash256(state.encode()).hexdigest()
    with contextlib.suppress(OSError, CacheError):
        known = _read(disk, subject, stated)
        if known is not None:
            return known
    found = find()
    with contextlib.suppress(OSError, CacheError):
        _write(disk, subject, stated, found)
    return found


def _read(disk: DiskCache, subject: str, stated: str) -> str | None:
    data = read_file(disk.note_path(subject), {os.geteuid()})
    seal, _, rest = (data or b"").partition(b"\n")
    if seal.decode("ascii", "replace") != hash256(rest).hexdigest():
        return None
    before, _, text = rest.decode().partition("\n")
    return text if before == stated else None


def _write(disk: DiskCache, subject: str, stated: str, text: str) -> None:
    path, rest = disk.note_path(subject), f"{stated}\n{text}".encode()
    notes = os.path.dirname(path)
    for directory in (disk.root, os.path.dirname(notes), notes):
        make_private(directory)
    sealed = hash256(rest).hexdigest().encode() + b"\n" + rest
    write_file(path, sealed, synced=False)  # what a crash leaves of it has a broken seal
