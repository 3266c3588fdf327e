"""What the hardware would count, per instruction and per source line."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from kdsl_core.ir.flat import Instruction
from kdsl_core.ir.protocols import Array

SECTOR = 32  # bytes that global memory moves at once
_BANKS = 32
_BANK_BYTES = 4
_REMEMBERED = 8192
COLUMNS = (
    "instructions",
    "requests",
    "sectors",
    "ideal_sectors",
    "bytes",
    "wavefronts",
    "ideal_wavefronts",
    "branches",
    "divergent_branches",
)


def count_sectors(address: Array, active: Array | None, size: int) -> tuple[int, int, int, int]:
    """(requests, sectors, least sectors for the distinct bytes, bytes asked for) of one access.

    Shapes: `address` int64 (W, n), `active` bool (W, n) or None for all.
    """
    lanes = np.full(address.shape, True) if active is None else active
    lanes_per_warp = lanes.sum(axis=1)
    first = address[:, :, None] // SECTOR + np.arange(-(-size // SECTOR))
    last = (address[:, :, None] + size - 1) // SECTOR
    sectors = np.concatenate([np.minimum(first, last), last], axis=2)
    touched = _distinct(sectors, lanes)
    distinct = _distinct(address[:, :, None], lanes) * size
    return (
        int((lanes_per_warp > 0).sum()),
        int(touched.sum()),
        int((-(-distinct // SECTOR)).sum()),
        int(lanes_per_warp.sum()) * size,
    )


def _distinct(values: Array, active: Array) -> Array:
    """How many distinct values each warp's active lanes have, (W,); values are (W, n, parts)."""
    rows = np.where(active[:, :, None], values, -1).reshape(values.shape[0], -1)
    rows = np.sort(rows, axis=1)
    new = np.ones(rows.shape, bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.asarray((new & (rows >= 0)).sum(axis=1))


def count_wavefronts(address: Array, active: Array | None, size: int) -> tuple[int, int]:
    """(wavefronts, wavefronts without bank conflicts) of one shared-memory access.

    A wavefront moves one word from each of 32 banks; lanes that want the same word share it.
    Eight-byte accesses take half a warp at a time, sixteen-byte ones (and matrix rows) a quarter.
    """
    words = max(size // _BANK_BYTES, 1)
    lanes = np.full(address.shape, True) if active is None else active
    per_phase = min(address.shape[1], 32 // words)
    word = address[:, :, None] // _BANK_BYTES + np.arange(words)
    word = np.where(lanes[:, :, None], word, -1).reshape(-1, per_phase * words)
    word = np.sort(word, axis=1)
    new = word >= 0
    new[:, 1:] &= word[:, 1:] != word[:, :-1]
    phase, at = np.nonzero(new)
    bank = word[phase, at] % _BANKS
    load = np.bincount(phase * _BANKS + bank, minlength=word.shape[0] * _BANKS)
    worst = load.reshape(-1, _BANKS).max(axis=1)
    return int(worst.sum()), int((worst > 0).sum())


class Counters:
    """Counts per instruction of a flat program; repeated address patterns are counted once."""

    def __init__(self, instructions: list[Instruction], enabled: bool) -> None:
        self.enabled = enabled
        self._instructions = instructions
        self.counts: list[dict[str, float]] = [defaultdict(float) for _ in instructions]
        self.steps = [0] * len(instructions)
        self._sectors: dict[bytes, tuple[int, ...]] = {}
        self._wavefronts: dict[bytes, tuple[int, ...]] = {}

    def add(self, pc: int, what: str, amount: float) -> None:
        """Add to a named counter of an instruction."""
        self.counts[pc][what] += amount

    def global_access(self, pc: int, address: Array, active: Array | None, size: int) -> None:
        """Count a global access of `size` bytes at int64 addresses (W, n)."""
        key, relative = _pattern(address, active, size, SECTOR)
        found: tuple[int, ...] | None = self._sectors.get(key)
        if found is None:
            found = count_sectors(relative, active, size)
            _remember(self._sectors, key, found)
        row = self.counts[pc]
        row["requests"] += found[0]
        row["sectors"] += found[1]
        row["ideal_sectors"] += found[2]
        row["bytes"] += found[3]

    def shared_access(self, pc: int, address: Array, active: Array | None, size: int) -> None:
        """Count a shared access of `size` bytes at int64 addresses (W, n)."""
        key, relative = _pattern(address, active, size, _BANKS * _BANK_BYTES)
        found: tuple[int, ...] | None = self._wavefronts.get(key)
        if found is None:
            found = count_wavefronts(relative, active, size)
            _remember(self._wavefronts, key, found)
        row = self.counts[pc]
        row["wavefronts"] += found[0]
        row["ideal_wavefronts"] += found[1]


def _pattern(address: Array, active: Array | None, size: int, unit: int) -> tuple[bytes, Array]:
    base = int(address.min()) // unit * unit
    relative = np.ascontiguousarray(address - base)
    mask = b"" if active is None else np.packbits(active).tobytes()
    return b"%d %d %d " % (size, *address.shape) + mask + relative.tobytes(), relative


def _remember(memory: dict[bytes, tuple[int, ...]], key: bytes, found: tuple[int, ...]) -> None:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[key] = found


@dataclass(frozen=True)
class LineCounts:
    """The counters of one source line."""

    file: str
    line: int
    counts: dict[str, float]

    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.counts.get(name, 0)


class Profile:
    """Counters of a run: per source line, and in total.

    Instructions count warps; requests are warp-wide global accesses; sectors are 32 bytes;
    wavefronts are passes through shared memory, `ideal_wavefronts` those without conflicts.
    """

    def __init__(self, lines: tuple[LineCounts, ...]) -> None:
        self.lines = lines
        self.totals: dict[str, float] = defaultdict(float)
        for line in lines:
            for name, amount in line.counts.items():
                self.totals[name] += amount

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts beyond those that conflict-free accesses would take."""
        return int(self.totals["wavefronts"] - self.totals["ideal_wavefronts"])

    @property
    def sector_efficiency(self) -> float:
        """Least sectors for the distinct bytes asked for ÷ sectors moved; 1 for no traffic."""
        moved = self.totals["sectors"]
        return self.totals["ideal_sectors"] / moved if moved else 1.0

    def at(self, line: int) -> dict[str, float]:
        """The summed counters of a line number, over files."""
        found: dict[str, float] = defaultdict(float)
        for row in self.lines:
            if row.line == line:
                for name, amount in row.counts.items():
                    found[name] += amount
        return found

    def __str__(self) -> str:
        used = [name for name in COLUMNS if self.totals[name]]
        used += sorted(name for name in self.totals if name not in COLUMNS)
        rows = [["line", *(name.replace("_", " ") for name in used)]]
        for line in self.lines:
            where = f"{os.path.basename(line.file)}:{line.line}" if line.file else "(no line)"
            rows.append([where, *(_number(line.counts.get(name, 0)) for name in used)])
        rows.append(["total", *(_number(self.totals[name]) for name in used)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0])]
                + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
            ).rstrip()
            for row in rows
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def profile_of(counters: Counters) -> Profile:
    """The counters summed per source line, in file and line order."""
    rows: dict[tuple[str, int], dict[str, float]] = {}
    for index, instruction in enumerate(counters._instructions):
        counts = dict(counters.counts[index])
        if counters.steps[index]:
            counts["instructions"] = counters.steps[index]
        if not counts:
            continue
        op = getattr(instruction, "op", instruction)
        loc = getattr(op, "loc", None)
        row = rows.setdefault((loc.file, loc.line) if loc else ("", 0), defaultdict(float))
        for name, amount in counts.items():
            row[name] += amount
    return Profile(tuple(LineCounts(*key, dict(rows[key])) for key in sorted(rows)))
