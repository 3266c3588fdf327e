"""What one access of a group of warps moves: sectors of global, wavefronts of shared memory."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir.protocols import Array

SECTOR = 32  # bytes that global memory moves at once
LINE = 128  # bytes of a line of the L1 cache, which has one tag
BANKS = 32
BANK_BYTES = 4
WAVEFRONT = BANKS * BANK_BYTES  # bytes of a pass without bank conflicts


def count_sectors(address: Array, active: Array | None, size: int) -> tuple[int, int, int, int]:
    """(requests, sectors, least sectors for the distinct bytes, bytes asked for) of one access.

    Shapes: `address` int64 (W, n), `active` bool (W, n) or None for all.
    """
    lanes = np.full(address.shape, True) if active is None else active
    lanes_per_warp = lanes.sum(axis=1)
    touched = _touched(address, lanes, size, SECTOR)
    distinct = _distinct(address[:, :, None], lanes) * size
    return (
        int((lanes_per_warp > 0).sum()),
        touched,
        int((-(-distinct // SECTOR)).sum()),
        int(lanes_per_warp.sum()) * size,
    )


def count_tag_requests(address: Array, active: Array | None, size: int) -> int:
    """The lines that each warp touches in one access: the L1 cache looks up a tag for each."""
    lanes = np.full(address.shape, True) if active is None else active
    return _touched(address, lanes, size, LINE)


def _touched(address: Array, lanes: Array, size: int, unit: int) -> int:
    """How many pieces of `unit` bytes the lanes of each warp touch, summed over the warps."""
    first = address[:, :, None] // unit + np.arange(-(-size // unit))
    last = (address[:, :, None] + size - 1) // unit
    pieces = np.concatenate([np.minimum(first, last), last], axis=2)
    return int(_distinct(pieces, lanes).sum())


def _distinct(values: Array, active: Array) -> Array:
    """How many distinct values each warp's active lanes have, (W,); values are (W, n, parts)."""
    rows = np.where(active[:, :, None], values, -1).reshape(values.shape[0], -1)
    rows = np.sort(rows, axis=1)
    new = np.ones(rows.shape, bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.asarray((new & (rows >= 0)).sum(axis=1))


def count_wavefronts(
    address: Array, active: Array | None, size: int, *, in_turn: bool = False
) -> tuple[int, int]:
    """(wavefronts, wavefronts without bank conflicts) of one shared-memory access.

    A wavefront moves one word from each of 32 banks; lanes that want the same word share it, but
    take it `in_turn` where they update it. Eight-byte accesses take half a warp at a time,
    sixteen-byte ones (and matrix rows) a quarter.
    """
    words = max(size // BANK_BYTES, 1)
    lanes = np.full(address.shape, True) if active is None else active
    per_phase = min(address.shape[1], BANKS // words)
    word = address[:, :, None] // BANK_BYTES + np.arange(words)
    word = np.where(lanes[:, :, None], word, -1).reshape(-1, per_phase * words)
    word = np.sort(word, axis=1)
    new = word >= 0
    if not in_turn:
        new[:, 1:] &= word[:, 1:] != word[:, :-1]
    phase, at = np.nonzero(new)
    bank = word[phase, at] % BANKS
    load = np.bincount(phase * BANKS + bank, minlength=word.shape[0] * BANKS)
    worst = load.reshape(-1, BANKS).max(axis=1)
    return int(worst.sum()), int((worst > 0).sum())
