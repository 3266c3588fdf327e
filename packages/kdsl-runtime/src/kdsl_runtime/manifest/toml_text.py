"""TOML that people read: one line per fact, and a blank line between tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomlkit
from tomlkit.items import AoT, Table

_LONG = 40  # characters of a list that get a line each


def document(head: str, version: int, name: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """A file of `[[name]]` tables under a comment and a version, in the order given."""
    content = tomlkit.document()
    content.add(tomlkit.comment(head))
    content.add("version", tomlkit.item(version))
    listed = AoT([])
    for table in tables:
        listed.append(_table(table))
    content.add(tomlkit.nl())
    content.add(name, listed)
    # Between tables of different depth the library adds lines of its own.
    return re.sub(r"\n{3,}", "\n\n", tomlkit.dumps(content)).rstrip() + "\n"


def _table(values: Mapping[str, Any]) -> Table:
    table = tomlkit.table()
    # What follows a table in TOML belongs to it, so tables come last.
    for name, value in sorted(values.items(), key=lambda item: isinstance(item[1], Mapping)):
        table.add(name, _table(value) if isinstance(value, Mapping) else _item(value))
    table.add(tomlkit.nl())
    return table


def _item(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tomlkit.item(list(value)).multiline(sum(len(str(part)) for part in value) > _LONG)
    return tomlkit.item(value)
