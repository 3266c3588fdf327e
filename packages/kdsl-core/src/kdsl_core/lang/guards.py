"""Changes of Python objects inside kernel control flow: refused, for they would happen once."""

from __future__ import annotations

import collections
from typing import Any

from kdsl_core.errors import StagingError
from kdsl_core.lang.regions import open_regions
from kdsl_core.lang.tensor import Tensor
from kdsl_core.loc import here

_CONTAINERS = (list, dict, set, bytearray, collections.deque)
_SEARCH_DEPTH = 3


def container(obj: Any, known: bool) -> Any:
    """The receiver of a method such as `append`, checked; `known` says that its name is local."""
    if isinstance(obj, _CONTAINERS):
        _check(obj, known)
    return obj


def target(obj: Any, known: bool) -> Any:
    """The object whose item or attribute is set or deleted, checked."""
    if not isinstance(obj, Tensor) and not hasattr(type(obj), "__kdsl_fields__"):
        _check(obj, known)
    return obj


def _check(obj: Any, known: bool) -> None:
    regions = open_regions()
    if not regions:
        return
    for region in regions:
        name = next((n for n, v in region.before.items() if _reaches(v, obj, _SEARCH_DEPTH)), None)
        if name is not None:
            raise _refused(obj, f"it was made before the kernel's control flow, as {name}")
    if not known:
        raise _refused(obj, "it belongs to another function or the module")


def _reaches(value: Any, obj: Any, depth: int) -> bool:
    """Whether `obj` is `value` or held by it."""
    if value is obj:
        return True
    if depth == 0:
        return False
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        inside = list(value)
    elif isinstance(value, dict):
        inside = list(value.values())
    else:
        inside = list(getattr(value, "__dict__", {}).values()) if _is_plain(value) else []
    return any(_reaches(item, obj, depth - 1) for item in inside)


def _is_plain(value: Any) -> bool:
    """Whether a value is an instance whose attributes an author may have set."""
    return (
        not isinstance(value, type) and not callable(value) and type(value).__module__ != "builtins"
    )


def _refused(obj: Any, why: str) -> StagingError:
    return StagingError(
        f"a Python {type(obj).__name__} is changed where a value of the kernel decides how often: "
        "the change would happen once, while tracing",
        code="K338",
        loc=here(),
        notes=(why,),
        fix="keep what changes at run time in a @kd.struct, a register tensor (kd.rmem) or a name",
    )
