"""The instructions in a cubin, without what an assembler notes beside them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_TABLE_OFFSET, _TABLE_FACTS = 40, 58
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NO_BITS = 8
_INSTRUCTION = struct.Struct("<QQ")  # since Volta: 128 bits, the operation in the lowest 12
_OPERATION, _NOP = 0xFFF, 0x918


def instructions(cubin: bytes) -> bytes:
    """The content of the `.text.*` sections by name; the image itself where it is no ELF file.

    Versions, notes and line tables of the assembler are left out.
    """
    if not cubin.startswith(_MAGIC):
        return cubin
    return b"".join(name + b"\0" + data for name, data in sorted(_code(cubin)))


def instruction_count(cubin: bytes) -> int:
    """Machine instructions, without those that only fill up; 0 where the image is no ELF file."""
    if not cubin.startswith(_MAGIC):
        return 0
    words = (low for _, data in _code(cubin) for low, _ in _INSTRUCTION.iter_unpack(data))
    return sum(low & _OPERATION != _NOP for low in words)


def _code(elf: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, data) for name, data in _sections(elf) if name.startswith(b".text.")]


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
