"""Build the site into build/site and check its links: what `python3 dev.py docs` does.

Warnings are errors, and every essay runs. Arguments go to Sphinx, after those stated here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import site_links
from sphinx.cmd.build import main as sphinx

DOCS = Path(__file__).resolve().parents[1]
SITE = DOCS.parent / "build" / "site"
OPTIONS = ("--quiet", "--fail-on-warning", "--keep-going", "--fresh-env", "--jobs", "2")


def build(rest: list[str]) -> int:
    """The exit status: 0 for a site without a warning or a broken link."""
    arguments = [*OPTIONS, "--conf-dir", str(DOCS / "site"), *rest, str(DOCS), str(SITE)]
    status: int = sphinx(arguments) or site_links.main(SITE)
    print(f"{SITE / 'index.html'}{' has problems' if status else ''}")
    return status


if __name__ == "__main__":
    sys.exit(build(sys.argv[1:]))
