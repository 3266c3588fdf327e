"""One cache entry and its file: header, metadata, payload, checksum; readable by any later version.

The file, little-endian: 8 bytes magic, u32 format version, u32 metadata length, u64 payload length,
metadata (JSON, UTF-8), payload, BLAKE2b-256 of all bytes before it. The magic holds a byte above
127 and both line ends, so a transfer that changes text shows at once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from kdsl_core.digests import DIGEST_BYTES, hash256
from kdsl_core.errors import CacheError
from kdsl_core.records import dataclass
from kdsl_runtime.cache.keys import canonical_json

MAGIC = b"\x89KDSL\r\n\n"
FORMAT_VERSION = 2
_HEADER = struct.Struct("<8sIIQ")


@dataclass(frozen=True)
class Entry:
    """What is kept for one key: `metadata` (JSON values) and `payload` (a cubin)."""

    metadata: Mapping[str, Any]
    payload: bytes


class CorruptEntry(CacheError):
    """The bytes are not an intact entry for the key that was asked for."""


def encode(key: str, entry: Entry) -> bytes:
    """The bytes of the file that keeps `entry` for `key`.

    Raises: CacheError K725 when the metadata is not plain JSON.
    """
    metadata = canonical_json({"key": key, "metadata": dict(entry.metadata)})
    header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(metadata), len(entry.payload))
    body = header + metadata + entry.payload
    return body + hash256(body).digest()


def decode(data: bytes, key: str) -> Entry:
    """The entry in `data`, every byte verified.

    Raises: CorruptEntry K726 with the first thing that is wrong.
    """
    if len(data) < _HEADER.size + DIGEST_BYTES:
        raise _corrupt(key, f"{len(data)} bytes are too few")
    magic, version, metadata_bytes, payload_bytes = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise _corrupt(key, f"it begins with {magic!r} instead of {MAGIC!r}")
    if version != FORMAT_VERSION:
        raise _corrupt(key, f"its format is {version}, this kdsl reads {FORMAT_VERSION}")
    middle = _HEADER.size + metadata_bytes
    end = middle + payload_bytes
    if len(data) != end + DIGEST_BYTES:
        raise _corrupt(key, f"it has {len(data)} bytes instead of {end + DIGEST_BYTES}")
    if hash256(data[:end]).digest() != data[end:]:
        raise _corrupt(key, "its checksum is wrong")
    try:
        stated = json.loads(data[_HEADER.size : middle])
        owner, metadata = stated["key"], dict(stated["metadata"])
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise _corrupt(key, f"its metadata is none of kdsl's: {problem!r}") from problem
    if owner != key:
        raise _corrupt(key, f"it belongs to the key {owner}")
    return Entry(metadata, data[middle:end])


def _corrupt(key: str, why: str) -> CorruptEntry:
    return CorruptEntry(
        f"the cache entry {key[:12]}… is not intact: {why}",
        code="K726",
        fix="nothing to do: it is set aside and built again",
    )
