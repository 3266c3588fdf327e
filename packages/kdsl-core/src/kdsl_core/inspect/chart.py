"""A report as an SVG picture: the source with a bar and the main counters on each line."""

from __future__ import annotations

from collections.abc import Iterator

from kdsl_core.inspect.heat import STYLE, color, safe
from kdsl_core.inspect.report import Line, Report, Source

_LETTER, _ROW = 7.1, 17
_MARGIN, _NUMBER, _BAR, _CELL = 16, 34, 70, 96
_LONGEST = 110  # letters of a line that are shown
_CSS = (
    STYLE.replace(":root{", "svg{")
    + """
text{font:11.6px var(--mono);fill:var(--text);white-space:pre}.p{fill:var(--page)}
.s{fill:var(--soft)}.r{text-anchor:end}.b{fill:var(--bad)}.t{font-weight:600}
"""
)


def chart(report: Report) -> str:
    """The SVG text of a report."""
    lines = [line for s in report.sources for function in s.functions for line in function]
    letters = min(max((len(line.text) for line in lines), default=0), _LONGEST)
    code = _MARGIN + _NUMBER + _BAR
    longest = max(len(report.launch), len(str(report.roofline)))
    width = round(code + letters * _LETTER + 24 + _CELL * len(report.columns) + _MARGIN)
    width = max(width, round(longest * _LETTER) + 2 * _MARGIN)
    rows = list(_rows(report, code, width))
    height = _MARGIN * 2 + _ROW * len(rows)
    body = [
        f'<g transform="translate(0,{_MARGIN + _ROW * i})">{row}</g>' for i, row in enumerate(rows)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}"><style>{_CSS}</style>',
            f'<rect class="p" width="{width}" height="{height}"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def _rows(report: Report, code: int, width: int) -> Iterator[str]:
    yield _text(_MARGIN, report.launch, "t")
    yield _text(_MARGIN, str(report.roofline), "s")
    for hazard in report.hazards:
        yield _text(_MARGIN, f"{hazard.code}: {hazard.message}"[: width // 7], "b")
    for source in report.sources:
        yield ""
        titles = (column.title for column in report.columns)
        yield _text(_MARGIN, f"{source.name} (bars: {report.heat_of})", "s") + _right(
            width, titles, "s"
        )
        yield from _lines(report, source, code, width)


def _lines(report: Report, source: Source, code: int, width: int) -> Iterator[str]:
    for number, function in enumerate(source.functions):
        if number:
            yield ""
        for line in function:
            cells = (column.text(line.counts) for column in report.columns)
            yield (
                _text(_MARGIN + _NUMBER - 10, str(line.number), "s r")
                + _bar(line)
                + _text(code, line.text[:_LONGEST])
                + _right(width, cells)
            )


def _bar(line: Line) -> str:
    if not line.heat:
        return ""
    long = max(round((_BAR - 12) * line.heat, 1), 1.5)
    style = f'style="fill:{color(line.heat)}"'
    return f'<rect x="{_MARGIN + _NUMBER}" y="3" width="{long}" height="10" rx="2" {style}/>'


def _text(x: float, text: str, classes: str = "") -> str:
    named = f' class="{classes}"' if classes else ""
    return f'<text x="{x:g}" y="12"{named}>{safe(text)}</text>' if text.strip() else ""


def _right(width: int, texts: Iterator[str], classes: str = "") -> str:
    """Texts in columns that end at the right margin."""
    every = list(texts)
    first = width - _MARGIN - _CELL * (len(every) - 1)
    return "".join(
        _text(first + i * _CELL, text, f"{classes} r".strip()) for i, text in enumerate(every)
    )
