"""Every error code has its row in docs/errors.md."""

from __future__ import annotations

import re

from house import census

PAGE = census.ROOT / "docs/errors.md"
ROW = re.compile(r"^\| (K\S+) \|", re.MULTILINE)


def test_page_lists_each_code_once() -> None:
    """The codes of the page are the codes of the packages; if not: python3 dev.py errors."""
    listed = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert listed == list(census.error_codes())


def test_codes_lie_in_the_stated_ranges() -> None:
    """Each code belongs to a subject, so that its first digit tells what went wrong."""
    census.expect_none(code for code in census.error_codes() if code[:2] not in census.RANGES)
