"""Every reason code has its place on the page, with an example that gives it and one that runs."""

from __future__ import annotations

import re

from house.census import ROOT
from kdsl_fuse.reasons import CODES

PAGE = (ROOT / "docs/fusion.md").read_text(encoding="utf-8")


def _sections() -> dict[str, str]:
    found = re.split(r"^### (KF-[A-Z]+)$", PAGE.split("## The way down")[0], flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_page_explains_each_code_once() -> None:
    """Headings are the codes, in order; the page's own test runs the examples."""
    assert list(_sections()) == sorted(CODES)


def test_each_code_has_an_example_and_a_fix() -> None:
    """Each section refuses something for its reason, and says how to mend it."""
    for code, text in _sections().items():
        assert f'refused("{code}"' in text, code
        assert "Fix: " in text, code
