"""The errors of kdsl: one class per party who must act, one stable code per message.

A message says what was expected, what was got (with the values), where, and how to mend it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kdsl_core.loc import Loc


class KdslError(Exception):
    """Base of every error that a user of kdsl can cause.

    `code` is stable across releases (``docs/errors.md`` lists them), `loc` is the author's line,
    `notes` name other places involved, and `fix` says how to mend it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        loc: Loc | None = None,
        notes: Sequence[str] = (),
        fix: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.loc = loc
        self.notes = tuple(notes)
        self.fix = fix

    def locate(self) -> None:
        """Name the author's line that is executing now, where no line was named before."""
        if self.loc is None:
            from kdsl_core.loc import here  # not needed where there are no errors

            self.loc = here(depth=1)

    def __str__(self) -> str:
        where = f"{self.loc.short()}: " if self.loc else ""
        parts = [f"{where}{type(self).__name__}[{self.code}]: {self.message}"]
        if self.loc:
            parts.append(self.loc.excerpt())
        parts += [f" {note}" for note in self.notes]
        if self.fix:
            parts.append(f" fix: {self.fix}")
        return "\n".join(part for part in parts if part)


class LayoutError(KdslError, ValueError):
    """A layout operation has no exact answer; the message holds a witness."""


class TypeMismatch(KdslError, TypeError):
    """Operand types do not fit the operation."""


class StagingError(KdslError):
    """A Python construct cannot become kernel code, or is used in a way that would lie."""


class VerifyError(KdslError):
    """An operation breaks a rule of the IR."""


class TargetError(KdslError):
    """The instruction does not exist on the target named."""


class ResourceError(KdslError):
    """Shared memory, registers, threads or another limit of the target is exceeded."""


class HazardError(KdslError):
    """The simulator found a race, deadlock, bad address or another hazard."""


class ArgumentError(KdslError, ValueError):
    """A launch argument has the wrong dtype, rank, size, stride, alignment or device."""


class BuildError(KdslError):
    """The assembler is missing or refused the PTX."""


class DriverError(KdslError):
    """The CUDA driver is missing or reported an error."""


class CacheError(KdslError):
    """A cache directory cannot be trusted or used."""


class FusionError(KdslError):
    """An operator graph is wrong, or no kernel covers it and no fallback was asked for."""
