"""The instructions in a cubin, without what an assembler notes beside them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_TABLE_OFFSET, _TABLE_FACTS = 40, 58
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8


def instructions(cubin: bytes) -> bytes:
    """The content of the `.text.*` sections by name; the image itself where it is no ELF file.

    Versions, notes and line tables of the assembler are left out.
    """
    if not cubin.startswith(_MAGIC):
        return cubin
    found = [(name, data) for name, data in _sections(cubin) if name.startswith(b".text.")]
    return b"".join(name + b"\0" + data for name, data in sorted(found))


def _sections(elf: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(name, content) of each section."""
    (table,) = struct.unpack_from("<Q", elf, _TABLE_OFFSET)
    size, count, names = struct.unpack_from("<HHH", elf, _TABLE_FACTS)
    headers = [_SECTION.unpack_from(elf, table + index * size) for index in range(count)]
    names_at = headers[names][4]
    for name, kind, _, _, offset, length, *_ in headers:
        start = names_at + name
        content = b"" if kind == _NO_BITS else elf[offset : offset + length]
        yield elf[start : elf.index(b"\0", start)], content
