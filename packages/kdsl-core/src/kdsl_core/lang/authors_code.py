"""A function's code as its author wrote it, where pytest has put its own into the asserts.

That code reads the frame's locals and pytest itself, which no kernel depends on: to follow them all
took a second a kernel.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

_MARK = "@"  # starts the names that pytest adds, which no source can hold


def authors_code(code: CodeType) -> CodeType:
    """The code that the file's text gives; `code` itself unless pytest changed it."""
    if not any(name.startswith(_MARK) for part in nested_codes(code) for name in part.co_names):
        return code
    lines = linecache.getlines(code.co_filename)
    found = _codes_of(code.co_filename, "".join(lines)).get((code.co_qualname, code.co_firstlineno))
    return found if found is not None and same_text(found, code) else code


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def same_text(compiled: CodeType, running: CodeType) -> bool:
    """Whether a text that was found is the running function's.

    Everything it mentions must be in the running code; pytest's rewriting of assert adds to that.
    """
    plain = (int, float, str, bool, bytes)
    constants = {(type(c), c) for c in running.co_consts if isinstance(c, plain)}
    return (
        set(compiled.co_names) <= set(running.co_names)
        and set(compiled.co_varnames) <= set(running.co_varnames)
        and all((type(c), c) in constants for c in compiled.co_consts if isinstance(c, plain))
    )


@lru_cache(maxsize=16)
def _codes_of(file: str, text: str) -> dict[tuple[str, int], CodeType]:
    try:
        code = compile(text, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}
    return {(part.co_qualname, part.co_firstlineno): part for part in nested_codes(code)}
