"""Hazards that the author allows, by a comment with a reason on a line that takes part.

``# kdsl: allow race: benign counter``. Comments are looked for where a hazard was found, so a run
without hazards reads no source.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import field
from types import CodeType

from kdsl_core.errors import StagingError
from kdsl_core.ir.flat import Instruction, loc_of
from kdsl_core.loc import Loc, place_in, source_lines
from kdsl_core.records import dataclass

_MARK = "kdsl:"
_COMMENT = re.compile(r"#\s*kdsl:\s*allow\b(?P<codes>[^:]*)(?::(?P<reason>.*))?")


@dataclass(frozen=True)
class Allowance:
    """One comment: the hazards that it allows, and why."""

    file: str
    line: int
    codes: frozenset[str]
    reason: str

    def __str__(self) -> str:
        return (
            f"{place_in(self.file, self.line)}: nothing was found that the comment allows: "
            f"{', '.join(sorted(self.codes))}: {self.reason or '(no reason)'}"
        )

    def check(self, known: frozenset[str], never: frozenset[str]) -> None:
        """Raise StagingError when the comment allows nothing that may be allowed, or not why."""
        for code, wrong, why, fix in (
            ("K530", not self.reason, "does not say why",
             "end it with a reason: # kdsl: allow race: each thread adds the same value"),
            ("K531", self.codes & never, "names what nobody can allow: the run cannot go on",
             "mend the kernel; only other hazards can be allowed"),
            ("K532", not self.codes or self.codes - known,
             f"names {', '.join(sorted(self.codes - known)) or 'nothing'}, which is no hazard",
             f"name some of {', '.join(sorted(known - never))}"),
        ):  # fmt: skip
            if wrong:
                raise StagingError(
                    f"{place_in(self.file, self.line)}: the comment that allows a hazard {why}",
                    code=code,
                    notes=[source_lines(self.file)[self.line - 1].strip()],
                    fix=fix,
                )


@dataclass
class Allowances:
    """The comments of the files in which hazards were found, and which of them were of use."""

    known: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    _used: set[Allowance] = field(default_factory=set)
    _files: dict[str, list[Allowance]] = field(default_factory=dict)

    def reason(self, code: str, *parties: Loc | None) -> str | None:
        """The author's reason to allow a hazard of these parties; None when it is not allowed.

        Raises: StagingError for a comment at these lines that has no reason or allows the wrong
        thing.
        """
        for file, lines in (span for loc in parties if loc for span in loc.spans):
            for allowance in self._of(file):
                if allowance.line in lines:
                    allowance.check(self.known, self.never)
                    if code in allowance.codes:
                        self._used.add(allowance)
                        return allowance.reason
        return None

    def unused(self, instructions: Sequence[Instruction]) -> list[Allowance]:
        """The comments in the functions of a program's instructions that allowed nothing so far."""
        locs = {loc_of(instruction) for instruction in instructions}
        functions = {code for loc in locs if loc for code, _ in loc.frames}
        found = {
            allowance: None
            for code in sorted(functions, key=lambda c: (c.co_filename, c.co_firstlineno))
            for allowance in self._of(code.co_filename)
            if allowance.line in _lines(code) and allowance not in self._used
        }
        return list(found)

    def _of(self, file: str) -> list[Allowance]:
        if file not in self._files:
            self._files[file] = list(_read(file))
        return self._files[file]


def _read(file: str) -> Iterable[Allowance]:
    """The comments of a file that allow something."""
    lines = source_lines(file)
    if not any(_MARK in line for line in lines):
        return
    for token in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
        found = _COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
        if found:
            codes = frozenset(word for word in re.split(r"[,\s]+", found["codes"]) if word)
            yield Allowance(file, token.start[0], codes, (found["reason"] or "").strip())


def _lines(code: CodeType) -> range:
    """The lines of a function, from its decorator to its last instruction."""
    last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    return range(code.co_firstlineno, last + 1)
