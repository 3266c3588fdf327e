"""The manifest: which kernels a program will need, as a TOML file that people read and review."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kdsl_core.errors import ArgumentError
from kdsl_runtime.manifest.toml_text import document
from kdsl_runtime.manifest.variant import Variant

FORMAT_VERSION = 1
_HEAD = "Kernels to build before they are needed: kdsl warmup FILE"


class Manifest:
    """Variants, each once, sorted by kernel, target and arguments."""

    def __init__(self, variants: Iterable[Variant] = ()) -> None:
        # The first of equals stays: its sample may have been written by hand.
        first: dict[Variant, Variant] = {}
        for variant in variants:
            first.setdefault(variant, variant)
        self.variants = tuple(sorted(first.values()))

    def __iter__(self) -> Iterator[Variant]:
        return iter(self.variants)

    def __len__(self) -> int:
        return len(self.variants)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.variants == other.variants

    __hash__ = None  # type: ignore[assignment] # compared by its content, which may be large

    def __or__(self, other: Manifest) -> Manifest:
        """What either names; of equal variants this one's sample is kept."""
        return Manifest((*self, *other))

    def for_target(self, target: str) -> Manifest:
        """The variants for `target`, those that state no target among them."""
        return Manifest(v.at(target) for v in self if v.target in ("", target))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Manifest:
        """The manifest in a file.

        Raises: ArgumentError K736 for a file that is none, OSError.
        """
        tables = read_tables(Path(path), "kernel", FORMAT_VERSION)
        return cls(_variant(table, path) for table in tables)

    def text(self) -> str:
        """The file's content, the same for equal manifests."""
        return document(_HEAD, FORMAT_VERSION, "kernel", [v.as_toml() for v in self])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file. Raises: OSError."""
        Path(path).write_text(self.text(), encoding="utf-8")


def read_tables(path: Path, name: str, version: int) -> list[dict[str, Any]]:
    """The tables `[[name]]` of a TOML file of this version.

    Raises: ArgumentError K736, OSError.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise not_readable(path, str(problem)) from problem
    if content.get("version") != version:
        raise not_readable(
            path, f"its version is {content.get('version')}, this kdsl reads {version}"
        )
    tables = content.get(name, [])
    if not isinstance(tables, list):
        raise not_readable(path, f"{name} is no list of tables")
    return tables


def _variant(table: dict[str, Any], path: str | os.PathLike[str]) -> Variant:
    try:
        return Variant.from_toml(table)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise not_readable(path, f"an entry lacks or misstates {problem}: {table}") from problem


def not_readable(path: str | os.PathLike[str], why: str) -> ArgumentError:
    """The error for a file that is not what it should be."""
    return ArgumentError(
        f"{os.fspath(path)} cannot be used: {why}",
        code="K736",
        fix="write it with kr.record() or `kdsl pin`, or mend it by hand",
    )
