"""A cache as one file, to carry it to another machine: a plain tar of its entries."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from kdsl_core.errors import CacheError
from kdsl_runtime.cache.disk import DiskCache
from kdsl_runtime.cache.entry import CorruptEntry, decode, encode
from kdsl_runtime.cache.files import SUFFIX, entry_path

_MEMBER = re.compile(rf"(?:[^/]+/)*([0-9a-f]{{64}}){re.escape(SUFFIX)}")
_LARGEST_BYTES = 1 << 30  # of one entry: a cubin has some megabytes at most


def export_entries(disk: DiskCache, path: Path) -> int:
    """Write every intact entry of `disk` to the tar `path`; gives their number.

    Equal entries give equal files: times, owners and the order on the disk are not in them.
    Raises: CacheError K713 when `path` cannot be written.
    """
    count = 0
    try:
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for key in sorted(file.key for file in disk.files()):
                entry = disk.peek(key)
                if entry is not None:
                    data = encode(key, entry)
                    member = tarfile.TarInfo(entry_path("", key))
                    member.size, member.mode = len(data), 0o600
                    archive.addfile(member, io.BytesIO(data))
                    count += 1
    except OSError as problem:
        raise CacheError(
            f"the archive {path} cannot be written: {problem}",
            code="K713",
            fix="name a file in a folder that you can write, on a disk with room",
        ) from problem
    return count


def import_entries(disk: DiskCache, path: Path) -> Iterator[tuple[str, str | None]]:
    """Put the entries of the tar `path` into `disk`; yields each name with what is wrong, or None.

    Nothing is unpacked to a place that the archive names: entries are verified, then written anew.
    The checksums do not say who made them: import only what you would run.
    Raises: CacheError K714 when `path` is no such archive, K715 when `disk` cannot be written.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, _import_member(disk, archive, member)
    except (tarfile.TarError, OSError) as problem:
        raise CacheError(
            f"{path} is no archive of a cache, or is cut off: {problem}",
            code="K714",
            fix="make one with `kdsl cache export FILE`",
        ) from problem


def _import_member(
    disk: DiskCache, archive: tarfile.TarFile, member: tarfile.TarInfo
) -> str | None:
    match = _MEMBER.fullmatch(member.name)
    if match is None:
        return "its name is not that of an entry"
    if member.size > _LARGEST_BYTES:
        return f"it has {member.size} bytes, entries have at most {_LARGEST_BYTES}"
    file = archive.extractfile(member)
    data = file.read() if file else b""
    try:
        entry = decode(data, match[1])
    except CorruptEntry as problem:
        return problem.message
    try:
        disk.put(match[1], entry)
    except OSError as problem:
        raise CacheError(
            f"the cache {disk.root} cannot be written: {problem}",
            code="K715",
            fix="name a directory that you can write with --dir or KDSL_CACHE_DIR",
        ) from problem
    return None
