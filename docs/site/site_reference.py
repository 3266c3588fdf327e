"""The reference of the site: public names of the packages, with their docstrings.

A page says `<!-- reference: kdsl_core layout lang.tma -->` where the names of these parts of a
package belong, or `<!-- reference: kdsl_core.testing -->` for all names of a module.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

MARK = re.compile(r"^<!-- reference: (?P<package>[\w.]+)(?P<parts>[^\n]*?) -->$", re.MULTILINE)
FIELD = re.compile(r"^(Shapes|Units|Threads|Memory|Raises|Source): (?=\S)")
NEEDS_AN_EXTRA = {"torch_ops"}  # described in docs/frontends.md, and absent without torch
TYPES = ("DType",)  # instances of these are listed in tables


def names(package: str, parts: list[str]) -> list[str]:
    """The public names of a package that come from one of its parts; all of them without parts."""
    module = importlib.import_module(package)
    return [name for name in public(module) if not parts or home(module, name).startswith(
        tuple(f"{package}.{part}" for part in parts))]  # fmt: skip


def public(module: Any) -> list[str]:
    """What a module offers: no submodules, no private names, no plain types."""
    offered = module._HOME if module.__name__ == "kdsl_core" else getattr(module, "__all__", ())
    offered = offered or [
        name for name in vars(module) if home(module, name) == module.__name__ + "."
    ]
    chosen = {name for name in offered if name[0] != "_" and name not in NEEDS_AN_EXTRA}
    return [name for name in sorted(chosen, key=str.lower) if is_documented(getattr(module, name))]


def is_documented(value: object) -> bool:
    """Whether a value has a docstring of its own."""
    return not inspect.ismodule(value) and type(value).__name__ not in TYPES


def home(module: Any, name: str) -> str:
    """The module that a public name was written in."""
    value = getattr(module, name)
    return str(getattr(value, "__module__", None) or type(value).__module__) + "."


def entry(package: str, name: str) -> str:
    """The directive that documents one name."""
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        return f".. {kind}:: {package}.{name}\n   :members:\n"
    if callable(value):
        return f".. autofunction:: {package}.{name}\n"
    return f".. autodata:: {package}.{name}\n   :no-value:\n"


def fill(app: Sphinx, page: str, content: list[str]) -> None:
    """Put the directives where a page asks for them."""

    def filled(match: re.Match[str]) -> str:
        package = match["package"]
        found = names(package, match["parts"].split())
        rows = "\n".join(entry(package, name) for name in found)
        return f"```{{eval-rst}}\n{rows}```"

    content[0] = MARK.sub(filled, content[0])


# -- docstrings --------------------------------------------------------------------------------
def to_rst(lines: list[str]) -> Iterator[str]:
    """A docstring of this house, in which `x` is code and `Raises: …` a field, as RST."""
    in_example, in_field = False, False
    for line in lines:
        text = line.strip()
        in_example = bool(text) and (in_example or text.startswith(">>>"))
        begins = FIELD.match(line)
        in_field = bool(text) and (in_field or begins is not None)
        if in_example:
            yield line
        elif begins:
            yield from ("", f":{begins[1]}: {escaped(line[begins.end() :])}")
        else:
            yield f"   {escaped(line)}" if in_field else escaped(line)


def escaped(line: str) -> str:
    """Prose with its code marked as RST wants it, and nothing else taken for a mark."""
    pieces = line.replace("``", "`").split("`")
    if len(pieces) % 2 == 0:
        return re.sub(r"([`*|\\])", r"\\\1", line)
    prose = [re.sub(r"([*|\\])|(?<=\w)(_)(?=\W|$)", r"\\\g<0>", piece) for piece in pieces[::2]]
    code = [f"``{piece}``" for piece in pieces[1::2]]
    for at, (before, after) in enumerate(itertools.pairwise(pieces[::2])):
        opens = "\\ " if before[-1:].isalnum() else ""  # marks stand alone, or say that they do not
        code[at] = opens + code[at] + ("\\ " if after[:1].isalnum() else "")
    return "".join(a + b for a, b in zip(prose, [*code, ""], strict=True))


def translate(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring by RST."""
    lines[:] = list(to_rst(lines))


def unlink_builtins(app: Sphinx, document: nodes.document) -> None:
    """Leave `bytes` in a signature alone, which else leads to somebody's attribute of that name."""
    for reference in list(document.findall(addnodes.pending_xref)):
        if reference.get("reftarget") in dir(builtins):
            reference.replace_self(reference.children)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", fill)
    app.connect("doctree-read", unlink_builtins)
    app.connect("autodoc-process-docstring", translate)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
