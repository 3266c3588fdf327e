"""What a run says at its end: one line for each case and one for each set."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

Result = dict[str, Any]
RIVALS = ("torch", "cuBLASLt", "Triton")


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def fastest(result: Result, owner: str) -> tuple[str, float] | None:
    """Name and seconds of the fastest timed side of `owner` and its variants."""
    timed = {
        name: side["median"]
        for name, side in result.get("sides", {}).items()
        if side["owner"].split()[0] == owner and "median" in side
    }
    if not timed:
        return None
    name = min(timed, key=timed.__getitem__)
    return name, timed[name]


def ratio(result: Result) -> float | None:
    """How many times faster kdsl is than the best peer."""
    ours = fastest(result, "kdsl")
    rivals = [side[1] for side in (fastest(result, owner) for owner in RIVALS) if side]
    return min(rivals) / ours[1] if ours and rivals else None


def _cell(side: tuple[str, float] | None, flops: int) -> str:
    if side is None:
        return f"{'—':>17}"
    return f"{1e6 * side[1]:9.1f} µs {1e-12 * flops / side[1]:4.0f}"


def case_line(result: Result) -> str:
    """Microseconds and TFLOP/s of kdsl and its peers, and the ratio to the best of them."""
    if "error" in result:
        return f"{result['name']:<42} failed: {' '.join(result['error'].split())[-100:]}"
    sides = [fastest(result, owner) for owner in ("kdsl", *RIVALS)]
    cells = "  ".join(_cell(side, result["flops"]) for side in sides)
    found = ratio(result)
    verdict = "    —" if found is None else f"{found:5.3f}"
    ours, error = sides[0], ""
    if ours:
        error = f"error {result['sides'][ours[0]]['error']:.1e}"
    elif result["failures"]:
        name, text = list(result["failures"].items())[-1]
        error = f"{name}: {text}"[:120].replace("\n", " ")
    return f"{result['name']:<42} {cells}  {verdict}  {ours[0] if ours else ''} {error}".rstrip()


def set_line(name: str, results: list[Result], copy: float | None) -> str:
    """Geometric mean and worst ratio of a set; of few rows also the share of copy bandwidth."""
    ratios = [found for found in map(ratio, results) if found is not None]
    if not ratios:
        return f"{name:<10} nothing to compare in {len(results)} cases"
    line = (
        f"{name:<10} geomean {geomean(ratios):.3f}  worst {min(ratios):.3f}  "
        f"({len(ratios)} of {len(results)} cases)"
    )
    shares = [share for share in (copy_share(r, copy) for r in results if r["m"] <= 64) if share]
    if name == "decode" and shares:
        line += f"  M ≤ 64: {min(shares):.0%} … {max(shares):.0%} of copy bandwidth"
    return line


def copy_share(result: Result, copy: float | None) -> float | None:
    """Bytes per second of kdsl's best side, as a part of what a device copy moves."""
    ours = fastest(result, "kdsl")
    return result["bytes"] / ours[1] / copy if ours and copy else None


def table(results: list[Result], device: dict[str, str], copy: float | None) -> str:
    """The whole report."""
    lines = [" · ".join(f"{key} {value}" for key, value in device.items())]
    if copy:
        lines.append(f"device copy {1e-12 * copy:.2f} TB/s")
    columns = "  ".join(f"{title:>17}" for title in ("kdsl", *RIVALS))
    lines.append(f"{'µs and TFLOP/s':<42} {columns}  ratio")
    lines += [case_line(result) for result in results]
    for name in dict.fromkeys(result["set"] for result in results):
        lines.append(set_line(name, [r for r in results if r["set"] == name], copy))
    return "\n".join(lines)
