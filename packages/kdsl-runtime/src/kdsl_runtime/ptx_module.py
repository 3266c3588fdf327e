"""What the runtime needs to know about a piece of PTX, and nothing about who wrote it."""

from __future__ import annotations

import re
from typing import Protocol

from kdsl_core.dtypes import DType
from kdsl_core.errors import BuildError

_ENTRY = r"\.entry\s+([A-Za-z_$%][\w$]*)"


class PtxModule(Protocol):
    """One kernel as PTX; `kdsl_core.ptx.PtxModule` is one."""

    @property
    def text(self) -> str:
        """The whole PTX source."""

    @property
    def entry(self) -> str:
        """Name of the kernel in it."""

    @property
    def target(self) -> str:
        """Architecture that it states, "sm_90a"."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of one block, in bytes."""

    @property
    def threads(self) -> int:
        """Threads of one block: the product of its sizes."""

    @property
    def params(self) -> tuple[tuple[str, DType], ...]:
        """(name, type) in the order of the signature; a pointer is a u64."""

    @property
    def ptx_version(self) -> tuple[int, int]:
        """Version that it states, (8, 0)."""


def text_and_entry(source: PtxModule | str) -> tuple[str, str]:
    """The PTX text and the name of its kernel.

    Raises: BuildError K707 when a text declares no kernel.
    """
    if not isinstance(source, str):
        return source.text, source.entry
    match = re.search(_ENTRY, source)
    if match is None:
        raise BuildError(
            f"expected PTX with an .entry directive, got {source[:80]!r}",
            code="K707",
            fix="declare the kernel with .visible .entry NAME(...)",
        )
    return source, match[1]
