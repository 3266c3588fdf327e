"""kdsl's first page: kernels × devices, and what needs no GPU; one file that fetches nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from urllib.parse import urlencode

from asv_tracks import ratios
from history import Kernel, Regression, Subject
from records import OURS, Shape, best_peer, ratio

STYLE = """
:root{color-scheme:light dark;--line:#8884;--good:#2a7d46;--bad:#b3372c;--soft:#7a7a7a}
@media(prefers-color-scheme:dark){:root{--good:#6cc58a;--bad:#ef8579;--soft:#9a9a9a}}
body{font:15px/1.45 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}p,small{color:var(--soft)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{font-weight:600;font-size:.85rem}td.n,th.n{text-align:right}
.good{color:var(--good)}.bad{color:var(--bad)}details table{margin:.4rem 0 1rem;font-size:.88rem}
svg.spark{width:7rem;height:1.5rem}svg.spark path{fill:none;stroke:currentColor;stroke-width:1.5}
"""
FIGURES = (
    ("registers", "registers"), ("spill_bytes", "spilled"), ("blocks_per_sm", "blocks / SM"),
    ("ptx_instructions", "PTX"), ("sass_instructions", "SASS"),
    ("wavefronts_over_ideal", "wavefronts / ideal"), ("sectors_over_ideal", "sectors / ideal"),
    ("roofline_us", "roofline µs"),
)  # fmt: skip
WIDTH, HEIGHT, EDGE = 112.0, 24.0, 3.0


def page(
    title: str, kernels: Sequence[Kernel], subjects: Sequence[Subject], measured: Mapping[str, str]
) -> str:
    """The page; `measured` says of devices when and with what they were measured last."""
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
            '<link rel="icon" href="data:,">',
            f"<style>{STYLE}</style>",
            f"<h1>{escape(title)}</h1>",
            '<p><a href="asv/index.html">All tracks by commit</a> · '
            '<a href="asv/index.html#regressions">regressions as asv finds them</a></p>',
            *_gpu_part(kernels, measured),
            *_figures_part([s for s in subjects if "registers" in s.figures]),
            *_itself_part([s for s in subjects if "registers" not in s.figures]),
            "</html>",
            "",
        ]
    )


# -- parts -----------------------------------------------------------------------------------------
def _gpu_part(kernels: Sequence[Kernel], measured: Mapping[str, str]) -> Iterator[str]:
    yield "<h2>Kernels on devices</h2>"
    if not kernels:
        yield "<p>No record of a GPU yet: benchmarks/gpu/run.py makes one.</p>"
        return
    yield (
        "<p>Ratio: how many times faster kdsl is than the best peer in the same run; geometric mean"
        " over the shapes of a kernel, and the worst shape.</p>"
    )
    devices = list(dict.fromkeys(kernel.device for kernel in kernels))
    for device in devices:
        of_it = [kernel for kernel in kernels if kernel.device == device]
        yield f'<table class="kernels" data-device="{escape(device)}">'
        yield _head(f"{device}", "#shapes", "#ratio", "#worst", "best peers", "course",
                    "last regression", "")  # fmt: skip
        for kernel in of_it:
            yield from _kernel_rows(kernel)
        yield f"</table><p>{escape(measured.get(device, ''))}</p>"


def _kernel_rows(kernel: Kernel) -> Iterator[str]:
    machine = "-".join(kernel.device.lower().split())
    track = "gpu." + kernel.name.replace(" ", "_")
    link = f"asv/index.html#{track}?{urlencode({'machine': machine})}"
    yield _row(
        f'<td id="{escape(track)}">{escape(kernel.name)}</td>',
        _number(len(kernel.shapes)),
        _ratio_cell(kernel.geomeans[-1]),
        _ratio_cell(kernel.worst),
        f"<td>{escape(', '.join(kernel.peers[:3]))}</td>",
        f"<td>{sparkline(kernel.geomeans, 'ratio to the best peer')}</td>",
        _regression_cell(kernel.last_regression, kernel.name),
        f'<td><a href="{escape(link)}">history</a></td>',
    )
    yield f'<tr><td colspan="8"><details><summary>{len(kernel.shapes)} shapes</summary><table>'
    yield _head("shape", "#kdsl µs", "#± µs", "best peer", "#its µs", "#ratio", "other peers, µs")
    yield from (_shape_row(shape) for shape in kernel.shapes)
    yield "</table></details></td></tr>"


def _shape_row(shape: Shape) -> str:
    ours, peer = shape["sides"].get(OURS), best_peer(shape)
    others = {n: s["us"] for n, s in shape["sides"].items() if n not in (OURS, peer and peer[0])}
    words = (f"{name} {others[name]:,.4g}" for name in sorted(others, key=others.__getitem__))
    return _row(
        f"<td>{escape(shape['shape'])}</td>",
        _number(ours and ours["us"]),
        _number(ours and ours["spread_us"]),
        f"<td>{escape(peer[0]) if peer else '—'}</td>",
        _number(peer and peer[1]),
        _ratio_cell(ratio(shape) or math.nan),
        f"<td>{escape(', '.join(words))}</td>",
    )


def _figures_part(subjects: Sequence[Subject]) -> Iterator[str]:
    yield "<h2>Kernels without a GPU</h2>"
    yield (
        "<p>From the assembler and from the simulator; the same in every run, so that any change is"
        ' the work of a commit. <a href="asv/index.html#kernels.sass_instructions">All figures</a>'
        "</p>"
    )
    yield '<table class="figures">'
    titles = (f"#{title}" for _, title in FIGURES)
    yield _head("kernel and target", *titles, "SASS, course", "last regression")
    for subject in subjects:
        known = {**subject.figures, **ratios(subject.figures)}
        yield _row(
            f"<td>{escape(subject.name)}</td>",
            *(_number(known.get(name)) for name, _ in FIGURES),
            f"<td>{sparkline(subject.course, 'machine instructions')}</td>",
            _regression_cell(subject.last_regression, subject.name),
        )
    yield "</table>"


def _itself_part(subjects: Sequence[Subject]) -> Iterator[str]:
    yield "<h2>kdsl itself</h2>"
    yield '<table class="itself">' + _head("subject", "figures", "last regression")
    for subject in subjects:
        words = (f"{name.replace('_', ' ')} {n:,.0f}" for name, n in subject.figures.items())
        yield _row(
            f"<td>{escape(subject.name)}</td>", f"<td>{escape(', '.join(words))}</td>",
            _regression_cell(subject.last_regression, subject.name),
        )  # fmt: skip
    yield "</table>"


# -- cells -----------------------------------------------------------------------------------------
def _head(*titles: str) -> str:
    cells = (
        f'<th class="n">{escape(t[1:])}</th>' if t.startswith("#") else f"<th>{escape(t)}</th>"
        for t in titles
    )
    return _row(*cells)


def _row(*cells: str) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def _number(value: float | None) -> str:
    if value is None:
        return '<td class="n">—</td>'
    text = f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"
    return f'<td class="n">{text}</td>'


def _ratio_cell(value: float) -> str:
    if math.isnan(value):
        return '<td class="n">—</td>'
    word = "good" if value >= 1 else "bad" if value < 0.95 else ""
    return f'<td class="n {word}">{value:.3f}</td>'


def _regression_cell(regression: Regression | None, name: str) -> str:
    if regression is None:
        return "<td><small>none</small></td>"
    return f'<td class="bad">{escape(regression.within(name))}</td>'


def sparkline(values: Iterable[float], about: str) -> str:
    """A course as a small picture: a line, and its last point."""
    course = [value for value in values if math.isfinite(value)]
    if len(course) < 2:
        return "<small>one commit</small>"
    low, high = min(course), max(course)
    step = (WIDTH - 2 * EDGE) / (len(course) - 1)
    room = HEIGHT - 2 * EDGE
    heights = [(value - low) / (high - low) if high > low else 0.5 for value in course]
    points = [(EDGE + i * step, HEIGHT - EDGE - h * room) for i, h in enumerate(heights)]
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    x, y = points[-1]
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img">'
        f"<title>{escape(about)}: {', '.join(f'{v:.4g}' for v in course[-12:])}</title>"
        f'<path d="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="currentColor"/></svg>'
    )
