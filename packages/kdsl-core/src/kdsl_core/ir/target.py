"""GPU targets: what a chip has, by name, and nothing guessed."""

from __future__ import annotations

import re

from kdsl_core.errors import TargetError
from kdsl_core.records import dataclass

_KIB = 1024
# architecture number → most shared memory of one block, in bytes (CUDA programming guide)
_SHARED_BYTES = {
    75: 64 * _KIB,
    80: 163 * _KIB,
    86: 99 * _KIB,
    87: 163 * _KIB,
    89: 99 * _KIB,
    90: 227 * _KIB,
    100: 227 * _KIB,
    103: 227 * _KIB,
    120: 99 * _KIB,
}
MAX_THREADS_PER_BLOCK = 1024


@dataclass(frozen=True)
class Target:
    """A chip to build for: architecture number and whether its own features ("a") are allowed."""

    number: int
    arch_features: bool

    @property
    def name(self) -> str:
        """The assembler's spelling: "sm_90a"."""
        return f"sm_{self.number}{'a' if self.arch_features else ''}"

    @property
    def shared_bytes(self) -> int:
        """Most bytes of shared memory that one block may have."""
        return _SHARED_BYTES[self.number]

    def __str__(self) -> str:
        return self.name


def target_of(name: str | Target) -> Target:
    """The target that a name such as "sm_80" or "sm_90a" means.

    Raises: TargetError for a name that is no known chip.
    """
    if isinstance(name, Target):
        return name
    match = re.fullmatch(r"sm_(\d+)(a?)", str(name))
    if match and int(match[1]) in _SHARED_BYTES and int(match[1]) >= 80:
        return Target(int(match[1]), bool(match[2]))
    known = ", ".join(f"sm_{number}" for number in sorted(_SHARED_BYTES) if number >= 80)
    raise TargetError(
        f"{name!r} is not a target that kdsl knows",
        code="K401",
        fix=f"name one of {known}, with an 'a' for the chip's own instructions (sm_90a, sm_100a)",
    )


@dataclass(frozen=True)
class Need:
    """What an instruction asks of a target.

    `sm` is the least architecture number, `ptx` the least PTX version, and `only` the numbers of
    the chips whose own ("a") features it belongs to; empty means every chip from `sm` on.
    """

    sm: int = 80
    ptx: tuple[int, int] = (7, 0)
    only: tuple[int, ...] = ()

    def missing(self, target: Target) -> str | None:
        """Why `target` lacks it, as half a sentence; None when it is there."""
        if self.only:
            if target.number in self.only and target.arch_features:
                return None
            names = " or ".join(f"sm_{number}a" for number in self.only)
            return f"it exists on {names} only"
        if target.number < self.sm:
            return f"it needs sm_{self.sm} or newer"
        return None


BASELINE = Need()
