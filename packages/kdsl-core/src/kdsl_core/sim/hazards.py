"""What the simulator finds: hazards with both parties' lines, deduplicated and ordered."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import asdict, replace
from typing import Any

from kdsl_core.errors import ArgumentError, HazardError
from kdsl_core.loc import Loc
from kdsl_core.records import dataclass
from kdsl_core.sim.allowances import Allowances
from kdsl_core.sim.parties import Dim3, Party, party_dict
from kdsl_core.sim.places import Place
from kdsl_core.sim.waits import Wait

# error code → the hazard that it carries, and what that is
HAZARDS = {
    "K501": "race: two accesses to a byte, one of them a write, that nothing orders",
    "K502": "inflight: bytes or registers touched that an asynchronous unit or a load still uses",
    "K503": "oob: an address outside of every tensor, or of the block's shared memory",
    "K504": "uninit: bytes or a register read before anybody wrote them",
    "K505": "misaligned: an address that the size of its access does not divide",
    "K506": "deadlock: no warp can go on",
    "K507": "barrier: counts that cannot be met, or lanes that are missing",
    "K508": "value: a failed assertion, or an operand for which the result is undefined",
    "K510": "runaway: more instructions than the run was given",
    "K512": "proxy: bytes that an asynchronous unit touches before a proxy fence shows them to it",
    "K513": "exited: shared memory of a block of the cluster that may not have begun or have ended",
    "K514": "unwritten: an element of an output that was never written; looked for on request only",
}
ERROR_CODES = {text.split(":")[0]: code for code, text in HAZARDS.items()}
ALL_CHECKS = frozenset(ERROR_CODES) - {"unwritten"}  # a kernel may leave part of an array alone
_ALWAYS = frozenset({"deadlock", "runaway"})  # the run cannot go on after these


@dataclass(frozen=True)
class Hazard:
    """One finding: what happened, the line and thread that completed it, and the other party's.

    `who` and `other` are threads, `place` the byte that both touched, `waits` who waits for what
    in a deadlock, `notes` more lines for the reader. `count` says how many accesses showed the
    same hazard; `reason` is the author's for allowing it.
    """

    code: str
    message: str
    loc: Loc | None = None
    other_loc: Loc | None = None
    other_did: str = ""
    who: Party | None = None
    other: Party | None = None
    place: Place | None = None
    fix: str | None = None
    notes: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    count: int = 1
    reason: str | None = None

    @property
    def thread(self) -> Dim3 | None:
        """(x, y, z) of the thread that completed it, in its block."""
        return self.who.thread if self.who else None

    @property
    def block(self) -> Dim3 | None:
        """(x, y, z) of that thread's block."""
        return self.who.block if self.who else None

    @property
    def address(self) -> int | None:
        """The address of a memory hazard."""
        return self.place.address if self.place else None

    @property
    def lines(self) -> tuple[tuple[str, int], ...]:
        """(file, line) of each party, the one that completed the hazard first."""
        return tuple(loc.author.lines[0] for loc in (self.loc, self.other_loc) if loc)

    def error(self) -> HazardError:
        """The exception that carries this hazard."""
        notes = list(self.notes)
        if self.other_loc:
            notes.append(
                f"{self.other_did} at {self.other_loc.short()}\n{self.other_loc.excerpt()}"
            )
        if self.place and self.place.detail:
            notes.append(self.place.detail)
        if self.count > 1:
            notes.append(f"{self.count:,} accesses at these lines show the same")
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

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it, for tools."""
        return {
            "code": self.code,
            "error": ERROR_CODES[self.code],
            "message": self.message,
            "count": self.count,
            "allowed": self.reason,
            "parties": [
                {"did": did, **party_dict(who, loc)}
                for did, who, loc in (
                    ("", self.who, self.loc),
                    (self.other_did, self.other, self.other_loc),
                )
                if who or loc
            ],
            "place": asdict(self.place) if self.place else None,
            "waits": [wait.to_dict() for wait in self.waits],
            "fix": self.fix,
        }


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


Key = tuple[str, Hashable]


class Findings:
    """Collects hazards, one for each (code, pair of lines) with a count, or raises the first.

    Hazards that the author's comments allow are kept apart and not raised.
    """

    def __init__(self, checks: frozenset[str], on_hazard: str) -> None:
        self.allowances = Allowances(frozenset(ERROR_CODES), _ALWAYS)
        self._wanted = checks | _ALWAYS
        self._raise = on_hazard == "raise"
        self._found: dict[Key, Hazard] = {}
        self._times: dict[Key, int] = {}

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What was found and is not allowed, in the order of the run."""
        return tuple(hazard for hazard in self._counted() if hazard.reason is None)

    @property
    def allowed(self) -> tuple[Hazard, ...]:
        """What was found and is allowed."""
        return tuple(hazard for hazard in self._counted() if hazard.reason is not None)

    def _counted(self) -> list[Hazard]:
        return [replace(hazard, count=self._times[key]) for key, hazard in self._found.items()]

    @property
    def looks(self) -> bool:
        """Whether anything is looked for but what ends a run."""
        return self._wanted != _ALWAYS

    def wants(self, code: str) -> bool:
        """Whether hazards of this code are looked for."""
        return code in self._wanted

    def new(
        self, code: str, loc: Loc | None, other_loc: Loc | None = None, *, times: int = 1
    ) -> bool:
        """Whether a hazard at these lines would be reported and was not yet.

        One that was is counted `times` more.
        """
        if code not in self._wanted:
            return False
        key = _key(code, loc, other_loc)
        if key in self._times:
            self._times[key] += times
        return key not in self._times

    def add(self, hazard: Hazard) -> None:
        """Report a hazard.

        Raises: HazardError when hazards are raised and the author does not allow this one;
        StagingError when a comment that should allow it is wrong.
        """
        if not self.new(hazard.code, hazard.loc, hazard.other_loc, times=hazard.count):
            return
        if hazard.code not in _ALWAYS:
            reason = self.allowances.reason(hazard.code, hazard.loc, hazard.other_loc)
            hazard = replace(hazard, reason=reason)
        key = _key(hazard.code, hazard.loc, hazard.other_loc)
        self._found[key], self._times[key] = hazard, hazard.count
        if self._raise and hazard.reason is None:
            raise hazard.error()


def _key(code: str, loc: Loc | None, other_loc: Loc | None) -> Key:
    """Equal for hazards between the same lines, whichever party came first."""
    return code, frozenset(at.lines for at in (loc, other_loc) if at)
