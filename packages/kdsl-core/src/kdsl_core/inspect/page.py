"""A report as one HTML file: no script, nothing to fetch, light or dark as the reader's system."""

from __future__ import annotations

from collections.abc import Iterator

from kdsl_core.inspect.heat import STYLE, color, safe
from kdsl_core.inspect.report import Column, Line, Report, Source
from kdsl_core.inspect.roofline import Roof, quantity_text, time_text

_CSS = (
    STYLE
    + """
body{margin:0;background:var(--page);color:var(--text);font:14px/1.5 system-ui,sans-serif}
main{max-width:88rem;margin:0 auto;padding:1.5rem 1rem 3rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1rem;margin:2rem 0 .5rem}
p{margin:.3rem 0}.soft{color:var(--soft)}code,pre,.code{font-family:var(--mono);font-size:12.5px}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%}
th,td{padding:1px .6rem;text-align:right;white-space:nowrap;vertical-align:top}
th{position:sticky;top:0;background:var(--panel);color:var(--soft);font-weight:500;font-size:12px;
padding:.3rem .6rem;border-bottom:1px solid var(--line)}
th.code,td.code{text-align:left;padding-left:1.2rem}td.code{white-space:pre;width:100%}
td.n{color:var(--soft);font-family:var(--mono);font-size:12px}
td.v{font-family:var(--mono);font-size:12px}
td.v b{color:var(--bad);font-weight:600;margin-left:.2em}
td.h{width:5.5rem;min-width:5.5rem;padding-right:1.2rem}
.bar{display:block;height:.72rem;margin-top:.3rem;border-radius:2px}
tr.counted:hover{background:var(--panel)}tr.gap td{border-top:1px solid var(--line)}
tfoot td{border-top:1px solid var(--line);background:var(--panel);font-weight:600;
padding:.3rem .6rem}
summary{cursor:pointer;list-style:none;position:relative}
summary::-webkit-details-marker{display:none}
summary::before{content:"▸";position:absolute;left:-1rem;color:var(--soft)}
details[open]>summary::before{content:"▾"}
details pre{margin:.2rem 0 .5rem 1rem;padding:.4rem .6rem;background:var(--panel);
border-left:2px solid var(--line);color:var(--soft);white-space:pre;max-height:24rem;overflow:auto}
details pre b{font-weight:500;color:var(--text)}
.roofs{display:grid;grid-template-columns:auto 1fr auto;gap:.15rem .8rem;align-items:center}
.roofs .track{background:var(--panel);border-radius:3px}
.roofs .track span{display:block;height:.8rem;border-radius:3px;background:var(--cool)}
.roofs .near span{background:var(--hot)}.roofs .guess span{opacity:.55}
.roofs .t{text-align:right;font-family:var(--mono);font-size:12px}
.hazard{border-left:3px solid var(--bad);background:var(--panel);padding:.4rem .8rem;margin:.4rem 0}
.hazard pre{margin:0;white-space:pre-wrap}
"""
)


def page(report: Report) -> str:
    """The HTML text of a report."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{safe(report.kernel)} · kdsl inspect</title><style>{_CSS}</style></head>",
            "<body><main>",
            *_head(report),
            *_hazards(report),
            *_roofs(report),
            *(part for source in report.sources for part in _source(report, source)),
            "</main></body></html>",
            "",
        ]
    )


def _head(report: Report) -> Iterator[str]:
    yield f"<h1>{safe(report.kernel)}</h1>"
    yield f'<p class="code soft">{safe(report.launch)}</p>'
    grid = " × ".join(map(str, report.grid))
    facts = [f"grid {grid}", f"{report.threads} threads a block"]
    facts += [f"{report.shared_bytes:,} bytes of shared memory"] if report.shared_bytes else []
    facts += [report.build] if report.build else []
    yield f"<p>{safe(' · '.join(facts))}</p>"
    yield f"<p>{safe(report.roofline)}</p>"


def _hazards(report: Report) -> Iterator[str]:
    if report.hazards:
        yield f"<h2>Hazards ({len(report.hazards)})</h2>"
    for hazard in report.hazards:
        yield f'<div class="hazard"><pre>{safe(hazard)}</pre></div>'


def _roofs(report: Report) -> Iterator[str]:
    line = report.roofline
    if not line.roofs:
        return
    yield f"<h2>Roofs of {safe(line.device.name)}</h2><div class='roofs'>"
    for index, roof in enumerate(line.roofs):
        kind = f"track{' near' if index == 0 else ''}{' guess' if roof.estimated else ''}"
        width = f"{max(100 * line.share(roof), 0.4):.3g}%"
        yield f"<span>{safe(roof.name)}</span>"
        yield f'<span class="{kind}"><span style="width:{width}"></span></span>'
        yield f'<span class="t">{safe(_roof_text(roof))}</span>'
    yield "</div>"
    if any(roof.estimated for roof in line.roofs):
        yield '<p class="soft">Pale roofs count PTX instructions; the assembler may need fewer.</p>'


def _roof_text(roof: Roof) -> str:
    about = "≈ " if roof.estimated else ""
    return f"{about}{time_text(roof.seconds)} for {quantity_text(roof.amount, roof.unit)}"


def _source(report: Report, source: Source) -> Iterator[str]:
    titles = "".join(f"<th>{safe(column.title)}</th>" for column in report.columns)
    yield f'<h2 class="code">{safe(source.name)}</h2><div class="wide"><table>'
    heat = f'<th class="code">{safe(report.heat_of)}</th><th class="code"></th>'
    yield f"<thead><tr><th></th>{heat}{titles}</tr></thead><tbody>"
    for number, function in enumerate(source.functions):
        for at, line in enumerate(function):
            yield _row(report, source, line, gap=bool(number and not at))
    yield "</tbody>"
    if source is report.sources[0]:
        cells = "".join(_cell(column, report) for column in report.columns)
        yield f'<tfoot><tr><td></td><td></td><td class="code">in all</td>{cells}</tr></tfoot>'
    yield "</table></div>"


def _cell(column: Column, counted: Report | Line) -> str:
    counts = counted.totals if isinstance(counted, Report) else counted.counts
    text, _, excess = column.text(counts).partition(" ×")
    return f'<td class="v">{text}{f" <b>×{excess}</b>" if excess else ""}</td>'


def _row(report: Report, source: Source, line: Line, gap: bool) -> str:
    classes = " ".join(["counted"] * bool(line.counts) + ["gap"] * gap)
    bar = ""
    if line.heat:
        style = f"width:{max(100 * line.heat, 2):.3g}%;background:{color(line.heat)}"
        bar = f'<span class="bar" style="{style}" title="{line.heat:.1%}"></span>'
    cells = "".join(_cell(column, line) for column in report.columns)
    return (
        f'<tr class="{classes}"><td class="n">{line.number}</td><td class="h">{bar}</td>'
        f'<td class="code">{_code(report, source, line)}</td>{cells}</tr>'
    )


def _code(report: Report, source: Source, line: Line) -> str:
    """The source text, with what it became behind it."""
    place = source.file, line.number
    parts = [
        f"<pre><b>{view}</b>\n{safe(chr(10).join(listing[place]))}</pre>"
        for view, listing in report.listings.items()
        if place in listing
    ]
    text = safe(line.text) or " "
    return f"<details><summary>{text}</summary>{''.join(parts)}</details>" if parts else text
