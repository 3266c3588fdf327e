"""What the functions of a file mean, as digests: without positions, comments and docstrings.

To parse a file takes a start milliseconds, so a later process finds them in a note. That holds for
this very text, this Python and this kdsl; when the file was written, it does not ask.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CodeType, FunctionType

from kdsl_core.digests import hash256
from kdsl_core.lang.file_states import library_digest
from kdsl_core.lang.host import runtime
from kdsl_core.lang.source import (
    FunctionNode,
    Source,
    definition,
    definitions,
    first_line,
    parameters,
    spelled,
    undecorated,
)


def meaning_of(function: FunctionType, source: Source) -> str:
    """The digest of a function's definition in the text of its file.

    Raises: StagingError K320, K321 where it is not there.
    """
    code = function.__code__
    found = _meanings(source).get(_key(code.co_firstlineno, code.co_name, _parameters_of(code)))
    return _digest(definition(function, source)) if found is None else found


@lru_cache(maxsize=64)
def _meanings(source: Source) -> dict[str, str]:
    """The digests of all definitions of a text."""

    def find() -> str:
        nodes = [node for node in definitions(source) if isinstance(node, ast.FunctionDef)]
        return json.dumps({_key(first_line(n), n.name, parameters(n)): _digest(n) for n in nodes})

    if not os.path.isfile(source.file):  # each cell of a notebook would leave a note behind
        text = find()
    else:
        kdsl = library_digest()
        state = None if kdsl is None else f"{kdsl}\0{sys.version}\0{source.text}"
        text = runtime("building a kernel").noted(f"meanings in {source.file}", state, find)
    found: dict[str, str] = json.loads(text)
    return found


def _digest(definition: FunctionNode) -> str:
    node = undecorated(definition)
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        node.body = node.body[1:]
    return hash256(spelled(node).encode()).hexdigest()


def _key(first: int, name: str, names: Iterable[str]) -> str:
    """What tells a definition from all others of its text, and from the code of another text."""
    return f"{first} {name} {' '.join(names)}"


def _parameters_of(code: CodeType) -> tuple[str, ...]:
    collecting = (code.co_flags & CO_VARARGS, code.co_flags & CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + sum(map(bool, collecting))
    return code.co_varnames[:count]
