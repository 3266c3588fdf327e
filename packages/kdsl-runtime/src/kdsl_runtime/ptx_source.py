"""From a ptxas message back to the PTX line, and from there to the author's line."""

from __future__ import annotations

import linecache
import re
from typing import NamedTuple

_PROBLEM = re.compile(
    r"^ptxas\s+(?:(?P<file>\S+), line (?P<line>\d+);\s*)?(?:error|fatal)\s*:\s*(?P<message>.+)$",
    re.MULTILINE,
)
_ABORTED = "Ptx assembly aborted due to errors"
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_COMMENT = re.compile(r"//\s*(?P<file>[^\s:]+\.py):(?P<line>\d+)(?::(?P<column>\d+))?")
_LABEL = re.compile(r"^\s*\.(visible|entry|func)\b")


class Problem(NamedTuple):
    """One error of ptxas; `line` is the 1-based PTX line, or None."""

    line: int | None
    message: str


class AuthorLine(NamedTuple):
    """Where the author wrote what became a PTX line; numbers are 1-based, column 0 is unknown."""

    file: str
    line: int
    column: int


def problems(log: str) -> list[Problem]:
    """The errors in what ptxas printed, without its closing remark."""
    found = []
    for match in _PROBLEM.finditer(log):
        if match["message"].strip() != _ABORTED:
            line = int(match["line"]) if match["line"] else None
            found.append(Problem(line, match["message"].strip()))
    return found


def author_line(text: str, line: int) -> AuthorLine | None:
    """The author's line of PTX line `line`: its own comment, or the nearest above it.

    The search ends at the beginning of the function.
    """
    lines = text.splitlines()
    files = {int(number): name for number, name in _FILE.findall(text)}
    for candidate in reversed(lines[: max(0, line)]):
        comment, loc = _COMMENT.search(candidate), _LOC.match(candidate)
        if comment:
            column = int(comment["column"] or 0)
            return AuthorLine(comment["file"], int(comment["line"]), column)
        if loc and int(loc[1]) in files:
            return AuthorLine(files[int(loc[1])], int(loc[2]), int(loc[3]))
        if _LABEL.match(candidate):
            return None
    return None


def context(text: str, line: int) -> list[str]:
    """Notes for an error message: the PTX line and, where the PTX tells, the author's."""
    lines = text.splitlines()
    notes = []
    if 1 <= line <= len(lines):
        notes.append(f"PTX line {line}: {lines[line - 1].strip()}")
    author = author_line(text, line)
    if author:
        column = f":{author.column}" if author.column else ""
        source = linecache.getline(author.file, author.line).strip()
        shown = f": {source}" if source else ""
        notes.append(f"written at {author.file}:{author.line}{column}{shown}")
    return notes


def advice(message: str) -> str:
    """How to mend what ptxas complained of."""
    if "does not support .target" in message:
        return "state the lowest PTX version that has the target (ptx_version of the module)"
    if "Unsupported .version" in message:
        return "use a newer assembler (KDSL_PTXAS), or instructions of an older PTX version"
    if "SM version" in message or "not supported on .target" in message:
        return "pass the target that the PTX was written for, or choose another instruction"
    if "nsufficient register" in message or "too many registers" in message:
        return "use fewer threads or smaller tiles, or split the accumulator"
    return "kdsl must not emit such PTX: please report it with KDSL_DUMP=ir,ptx"
