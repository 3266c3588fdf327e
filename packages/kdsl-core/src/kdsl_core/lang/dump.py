"""`KDSL_DUMP=ir,ptx`: what kernels became, as numbered files, for a look or a bug report."""

from __future__ import annotations

import itertools
import os

from kdsl_core.errors import ArgumentError

KINDS = ("ir", "ptx")
_numbers = itertools.count(1)


def wanted(kind: str) -> bool:
    """Whether the environment asks for files of a kind.

    Raises: ArgumentError for a kind that there is not.
    """
    asked = [word.strip() for word in os.environ.get("KDSL_DUMP", "").split(",") if word.strip()]
    for word in asked:
        if word not in KINDS:
            raise ArgumentError(
                f"KDSL_DUMP names {word!r}, which is none of {', '.join(KINDS)}",
                code="K626",
                fix="set it to a list such as KDSL_DUMP=ir,ptx, or unset it",
            )
    return kind in asked


def write(name: str, kind: str, text: str) -> str:
    """Write a numbered file to $KDSL_DUMP_DIR, or to ./kdsl-dump; returns its path."""
    folder = os.environ.get("KDSL_DUMP_DIR") or "kdsl-dump"
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{next(_numbers):04d}-{name}.{kind}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path
