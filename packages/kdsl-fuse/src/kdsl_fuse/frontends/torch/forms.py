"""Refusals of torch's operators in forms that kdsl does not have."""

from __future__ import annotations

from kdsl_core.errors import FusionError
from kdsl_fuse.origin import author_loc


def refused(what: str) -> FusionError:
    """The refusal of an operator in a form that kdsl does not have."""
    return FusionError(what, code="K981", loc=author_loc(), fix="torch computes it")


def only(condition: bool, what: str) -> None:
    """Refuse all other forms of an operator."""
    if not condition:
        raise refused(f"only {what} has a meaning in kdsl")
