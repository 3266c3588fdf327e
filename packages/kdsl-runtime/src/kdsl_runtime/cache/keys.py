"""The two keys of a kernel: what was written (recipe) and what it became (content)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kdsl_core.digests import DIGEST_BYTES, hash256
from kdsl_core.errors import CacheError

_DIGITS = 2 * DIGEST_BYTES


def content_key(ptx: str, target: str, toolchain_id: str, options: Sequence[str] = ()) -> str:
    """Hash of all that decides the cubin: the PTX, the target, the assembler and its arguments."""
    digest = hash256(b"kdsl content 2\0")
    for part in (ptx, target, toolchain_id, *options):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def recipe_key(ingredients: Mapping[str, Any]) -> str:
    """Hash of what a trace depended on; the order of a dict's items does not matter.

    Raises: CacheError K725 for an ingredient that JSON cannot state exactly.
    """
    return hash256(b"kdsl recipe 2\0" + canonical_json(ingredients)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """The one JSON text of `value`: sorted names, no spaces, ASCII.

    Raises: CacheError K725 for another type than dict with str names, list, tuple, str, int,
    finite float, bool and None.
    """
    _check_exact(value, "ingredients")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check_key(key: str) -> str:
    """`key` itself when it is 256 bits in lower-case hex, which makes it safe as a file name.

    Raises: CacheError K724.
    """
    if not isinstance(key, str) or len(key) != _DIGITS or key.strip("0123456789abcdef"):
        raise CacheError(
            f"expected a key of {_DIGITS} hex digits, got {key!r}",
            code="K724",
            fix="make keys with content_key or recipe_key",
        )
    return key


def _check_exact(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise _inexact(name, f"a name in {where}")
            _check_exact(item, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_exact(item, f"{where}[{index}]")
    elif not _is_exact_scalar(value):
        raise _inexact(value, where)


def _is_exact_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | int)


def _inexact(value: object, where: str) -> CacheError:
    return CacheError(
        f"{where} is {value!r} ({type(value).__name__}), which JSON cannot state exactly",
        code="K725",
        fix="put its parts in as dict, list, str, int, finite float, bool or None",
    )
