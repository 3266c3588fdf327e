"""Sources of the site: essays are run and become pages, and pages that are named become links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import essay
from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

FENCE = re.compile(r"(^[ \t]*(?:```|~~~).*?^[ \t]*(?:```|~~~)+[ \t]*$)", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<!\[)`docs/([\w/-]+)\.md`")


class EssayParser(MystParser):  # type: ignore[misc] # the package states no types
    """Runs a file of `docs/tour/` and reads the page that it becomes."""

    supported = ("essay",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Fill `document`; `inputstring`, the program's text, is what the file has as well."""
        super().parse(essay.page(Path(document["source"])), document)


def link_pages(app: Sphinx, name: str, content: list[str]) -> None:
    """Make a link of each page that prose names as `docs/….md`."""
    depth = "../" * name.count("/")
    pieces = FENCE.split(content[0])
    pieces[::2] = [NAMED.sub(rf"[`docs/\1.md`]({depth}\1.md)", piece) for piece in pieces[::2]]
    content[0] = "".join(pieces)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_source_parser(EssayParser)
    app.connect("source-read", link_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
