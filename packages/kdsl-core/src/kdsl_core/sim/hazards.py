"""What the simulator finds: hazards with both parties' lines, deduplicated and ordered."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from kdsl_core.errors import ArgumentError, HazardError
from kdsl_core.loc import Loc

# error code → the hazard that it carries, and what that is
HAZARDS = {
    "K501": "race: two accesses to a byte, one of them a write, that nothing orders",
    "K502": "inflight: bytes or registers touched that an asynchronous unit is still using",
    "K503": "oob: an address outside of every tensor, or of the block's shared memory",
    "K504": "uninit: bytes or a register read before anybody wrote them",
    "K505": "misaligned: an address that the size of its access does not divide",
    "K506": "deadlock: no warp can go on",
    "K507": "barrier: counts that cannot be met, or lanes that are missing",
    "K508": "value: a failed assertion, or an operand for which the result is undefined",
    "K510": "runaway: more instructions than the run was given",
    "K512": "proxy: bytes that an asynchronous unit touches before a proxy fence shows them to it",
    "K513": "exited: shared memory of a block of the cluster that may have ended",
    "K514": "unwritten: an element of an output that was never written; looked for on request only",
}
ERROR_CODES = {text.split(":")[0]: code for code, text in HAZARDS.items()}
ALL_CHECKS = frozenset(ERROR_CODES) - {"unwritten"}  # a kernel may leave part of an array alone
_ALWAYS = frozenset({"deadlock", "runaway"})  # the run cannot go on after these


@dataclass(frozen=True)
class Hazard:
    """One finding: what, where, by whom, and where the other party is.

    `thread` and `block` are (x, y, z); `address` is set for memory hazards.
    """

    code: str
    message: str
    loc: Loc | None = None
    other_loc: Loc | None = None
    other_did: str = ""
    thread: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    address: int | None = None
    fix: str | None = None

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """(file, line) of each party, the one that completed the hazard first."""
        return tuple((loc.file, loc.line) for loc in (self.loc, self.other_loc) if loc)

    def error(self) -> HazardError:
        """The exception that carries this hazard."""
        notes = []
        if self.other_loc:
            notes = [f"{self.other_did} at {self.other_loc.short()}", self.other_loc.excerpt()]
        error = HazardError(
            f"{self.code}: {self.message}",
            code=ERROR_CODES[self.code],
            loc=self.loc,
            notes=notes,
            fix=self.fix,
        )
        error.hazard = self  # type: ignore[attr-defined]  # errors lie below sim and cannot know it
        return error

    def __str__(self) -> str:
        return str(self.error())


def checks_of(checks: str | Collection[str]) -> frozenset[str]:
    """The set of hazard codes to look for: "all" or a collection of codes, in which "all" counts.

    Raises: ArgumentError K509 for a word that is no code.
    """
    asked = frozenset((checks,) if isinstance(checks, str) else checks)
    if not asked <= {"all", *ERROR_CODES}:
        raise ArgumentError(
            f"checks expects 'all' or some of {sorted(ERROR_CODES)}, got {sorted(asked)}",
            code="K509",
            fix="leave out what is not a hazard code",
        )
    return asked - {"all"} | (ALL_CHECKS if "all" in asked else frozenset())


class Findings:
    """Collects hazards, one for each (code, line, other line), or raises the first."""

    def __init__(self, checks: frozenset[str], on_hazard: str) -> None:
        self.hazards: list[Hazard] = []
        self._wanted = checks | _ALWAYS
        self._raise = on_hazard == "raise"
        self._known: set[tuple[str, Loc | None, Loc | None]] = set()

    def wants(self, code: str) -> bool:
        """Whether hazards of this code are looked for."""
        return code in self._wanted

    def new(self, code: str, loc: Loc | None, other_loc: Loc | None = None) -> bool:
        """Whether a hazard at these lines would be reported and was not yet."""
        return code in self._wanted and (code, loc, other_loc) not in self._known

    def add(self, hazard: Hazard) -> None:
        """Report a hazard."""
        if not self.new(hazard.code, hazard.loc, hazard.other_loc):
            return
        self._known.add((hazard.code, hazard.loc, hazard.other_loc))
        self.hazards.append(hazard)
        if self._raise:
            raise hazard.error()
