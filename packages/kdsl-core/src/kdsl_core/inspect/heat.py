"""Colours and bars that say how hot a line is, readable on light and on dark."""

from __future__ import annotations

from xml.sax.saxutils import escape

_EIGHTHS = " ▏▎▍▌▋▊▉█"
STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1b1f26;--soft:#68707d;--line:#e4e7ec;
--panel:#f6f7f9;--hot:#d9480f;--warm:#f59f00;--cool:#4c6ef5;--bad:#c92a2a;
--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
@media(prefers-color-scheme:dark){:root{--page:#14171c;--text:#e2e5ea;--soft:#949caa;--line:#2a2f38;
--panel:#1b1f26;--hot:#ff8a4c;--warm:#fcc419;--cool:#748ffc;--bad:#ff8787}}
"""
"""Custom properties of both pictures, for a style sheet."""


def bar(share: float, width: int = 8) -> str:
    """A bar of characters, `width` of them for a share of 1.

    >>> bar(0.5, 4), bar(0.04, 4)
    ('██  ', '▏   ')
    """
    eighths = max(round(share * width * 8), 1) if share > 0 else 0
    full, part = divmod(min(eighths, width * 8), 8)
    return ("█" * full + (_EIGHTHS[part] if part else "")).ljust(width)


def color(share: float) -> str:
    """The custom property of `STYLE` for a share of the whole."""
    return "var(--hot)" if share >= 0.25 else "var(--warm)" if share >= 0.05 else "var(--cool)"


def safe(text: object) -> str:
    """Text for HTML and SVG, also inside of quotes."""
    return escape(str(text), {'"': "&quot;"})
