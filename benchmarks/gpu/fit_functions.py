"""Recovers the tables of the multi-function unit from recordings of `record_functions.py`.

    python3 benchmarks/gpu/fit_functions.py recordings

A result says between which two numbers the interpolation's sum was before it was cut off
(`isa/multifunction.py`). For each interval this finds the rows c0, c1, c2 with which every sum is
where it must be; c2 is sought near the least-squares fit, c1 wherever it can be. The table that is
printed says how many intervals have one row only, and how many have the simulator's. No GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from record_functions import recorded
from ulps import Array

from kdsl_core.isa import multifunction as unit
from kdsl_core.isa.multifunction import ONE, Interpolation, parts, place

MANY = 10_000  # sums of an interval, from which the least-squares fit is as good as exact
Sums: TypeAlias = tuple[Array, Array, Array, Array]  # interval, low bits, least and greatest sum


# -- what results say about sums -------------------------------------------------------------------
def of_significand(y: Array, exponent: Array, dropped: int) -> tuple[Array, Array]:
    """Sums from which `dropped` bits are cut off to the significand of y / 2^exponent."""
    least = np.ldexp(y.astype(np.float64), 23 + dropped - exponent).astype(np.int64)
    return least, least + (1 << dropped) - 1


def of_truncated(y: Array, fraction_bits: int) -> tuple[Array, Array]:
    """Numbers in fixed point that are cut off to |y|."""
    ends = np.abs(y).view(np.int32)[:, None] + np.array([0, 1], np.int32)
    scaled = np.ceil(ends.view(np.float32).astype(np.float64) * 2.0**fraction_bits)
    return scaled[:, 0].astype(np.int64), scaled[:, 1].astype(np.int64) - 1


def exp2(x: Array, y: Array) -> Sums:
    """Of arguments from 1 to 2, whose fraction is the table's."""
    exponent, fraction = parts(x)
    return *place(fraction, 6), *of_significand(y, exponent + 1, 15)


def rcp(x: Array, y: Array) -> Sums:
    exponent, fraction = parts(x)
    return *place(fraction, 7), *of_significand(y, -1 - exponent, 16)


def rsqrt(x: Array, y: Array) -> Sums:
    half, fraction, first = unit.halved(x[1:] if x[0] == 1 else x)  # 1 is exact, without the table
    index, low = place(fraction, 6)
    return index + first, low, *of_significand(y[-len(half) :], -1 - half, 16)


def sqrt(x: Array, y: Array) -> Sums:
    half, fraction, first = unit.halved(x)
    index, low = place(fraction, 6)
    return index + first, low, *of_significand(y, half, 17)


def log2(x: Array, y: Array) -> Sums:
    exponent, fraction = parts(x)
    least, greatest = of_truncated(y, 36)
    below = (1 << 36) - 1  # 1 - 2^-36, from which a negative logarithm is counted
    negative = exponent < 0
    first = np.where(negative, below - greatest, least) * 4
    last = np.where(negative, below - least, greatest) * 4 + 3
    index, low = place(fraction, 6)
    keep = x != 1  # whose logarithm is 0, without the table
    return index[keep], low[keep], first[keep], last[keep]


def circular(quarters: Array, y: Array) -> Sums:
    return *place(unit.folded(quarters), 6), *of_truncated(y, 37)


def tanh(x: Array, y: Array) -> Sums:
    exponent, fraction = parts(x)
    binade = exponent - unit.TANH_BINADES
    keep = (binade >= 0) & (binade < len(unit.TANH_FIRST))
    binade, fraction, y = binade[keep], fraction[keep], y[keep]
    index, low = place(fraction, unit.TANH_INDEX_BITS[binade])
    return index + unit.TANH_FIRST[binade], low, *of_truncated(y, 39)


# table → (its place in the unit, files, what a file's results say)
TABLES: dict[str, tuple[Interpolation, tuple[str, ...], Callable[[Array, Array], Sums]]] = {
    "EX2": (unit.EX2, ("exp2-binade0",), exp2),
    "LG2": (unit.LG2, ("log2-binade*",), log2),
    "RCP": (unit.RCP, ("rcp-binade*",), rcp),
    "RSQ": (unit.RSQ, ("rsqrt-binade*",), rsqrt),
    "SQRT": (unit.SQRT, ("sqrt-binade*",), sqrt),
    "SIN": (
        unit.SIN, ("sin-binade*",), lambda x, y: circular(unit.quarters(x), y),
    ),
    "SIN of cos": (
        unit.SIN, ("cos-binade*",), lambda x, y: circular(unit.quarters(x) + ONE, y),
    ),
    "TANH": (unit.TANH, ("tanh-*",), tanh),
}  # fmt: skip


# -- rows ------------------------------------------------------------------------------------------
def merged(sums: list[Sums]) -> Iterator[tuple[int, Array, Array, Array]]:
    """(interval, low, least, greatest) with every low once, and all that is known of its sum."""
    interval, low, least, greatest = (np.concatenate(part) for part in zip(*sums, strict=True))
    key = interval.astype(np.int64) << unit.LOW_BITS | low
    order = np.argsort(key, kind="stable")
    once, start = np.unique(key[order], return_index=True)
    least = np.maximum.reduceat(least[order], start)
    greatest = np.minimum.reduceat(greatest[order], start)
    ends = np.flatnonzero(np.diff(once >> unit.LOW_BITS)) + 1
    for at in np.split(np.arange(len(once)), ends):
        yield int(once[at[0]] >> unit.LOW_BITS), once[at] & 0x1FFFF, least[at], greatest[at]


def rows(table: Interpolation, low: Array, least: Array, greatest: Array) -> set[tuple[int, ...]]:
    """Every (c0, c1, c2) that puts all sums between their ends."""
    square = unit.squares()[low].astype(np.int64) << table.square_shift
    terms = np.stack([np.ones(len(low)), low, square], 1)
    weight = 1 / (greatest - least + 1.0)
    middle = (least + greatest) / 2 * weight
    _, near_c1, near_c2 = np.linalg.lstsq(terms * weight[:, None], middle, rcond=None)[0]
    slope = np.polyfit(low, square, 1)[0]
    span = 8 if len(low) >= MANY else 60
    found = set()
    for c2 in range(round(near_c2) - span, round(near_c2) + span + 1):
        start = round(near_c1 + (near_c2 - c2) * slope)
        ends = least - c2 * square, greatest - c2 * square
        for c1, lowest, highest in constants(start, low, *ends):
            first = -((table.bias - lowest) >> table.c0_shift)
            last = highest - table.bias >> table.c0_shift
            found |= {(c0, c1, c2) for c0 in range(first, last + 1)}
    return found


def constants(
    start: int, low: Array, least: Array, greatest: Array
) -> Iterator[tuple[int, int, int]]:
    """(c1, lowest, highest constant term) of each c1 that has one; the room is concave in c1."""
    known: dict[int, tuple[int, int]] = {}

    def room(c1: int) -> int:
        if c1 not in known:
            known[c1] = int((least - c1 * low).max()), int((greatest - c1 * low).min())
        return known[c1][1] - known[c1][0]

    left, right = start - 64, start + 64
    while left < right:
        middle = (left + right) // 2
        left, right = (middle + 1, right) if room(middle) < room(middle + 1) else (left, middle)
    for step in (1, -1):
        c1 = left if step == 1 else left - 1
        while room(c1) >= 0:
            yield c1, *known[c1]
            c1 += step


def line(folder: Path, name: str) -> tuple[str, bool]:
    """A table's line, and whether the recordings have the simulator's rows and no others."""
    table, patterns, meaning = TABLES[name]
    paths = sorted(path for pattern in patterns for path in folder.glob(f"{pattern}.npz"))
    sums = [meaning(*recorded(path)) for path in paths]
    model = np.array(table.text.split(), int).reshape(-1, 3).tolist()
    found = {n: rows(table, *ends) for n, *ends in merged(sums)}
    only = sum(len(some) == 1 for some in found.values())
    same = sum(tuple(model[n]) in some for n, some in found.items())
    results = sum(len(part[0]) for part in sums)
    text = f"{name:<10} {results:>9} results, {len(found):>3} of {len(model):>3} intervals: "
    return text + f"{only:>3} with one row only, {same:>3} with the simulator's", same == len(found)


def main(arguments: list[str]) -> None:
    """Print a line for each table."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("folder", type=Path)
    words.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    options = words.parse_args(arguments)
    agree = True
    for name in options.tables:
        text, same = line(options.folder, name)
        print(text, flush=True)
        agree &= same
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
