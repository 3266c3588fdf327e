"""Packages that only some front doors need."""

from __future__ import annotations

import importlib.util

from kdsl_core.errors import FusionError
from kdsl_fuse.origin import author_loc


def required(package: str, extra: str) -> None:
    """Check that a package of one of kdsl-fuse's extras is there.

    Raises: FusionError K987 when it is not.
    """
    if importlib.util.find_spec(package) is None:
        raise FusionError(
            f"this needs the package {package}, which is not installed",
            code="K987",
            loc=author_loc(),
            fix=f"pip install 'kdsl-fuse[{extra}]'",
        )
