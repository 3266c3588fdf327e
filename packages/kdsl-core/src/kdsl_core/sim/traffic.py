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
    address: Array,
    active: Array | None,
    size: int,
    *,
    in_turn: bool = False,
    merged: bool = False,
) -> tuple[int, int]:
    """(wavefronts, wavefronts without bank conflicts) of one shared-memory access.

    A wavefront moves one word from each of 32 banks; lanes that want the same word share it, but
    take it `in_turn` where they update it. Eight-byte accesses take half a warp at a time,
    sixteen-byte ones (and matrix rows) a quarter: `merged` ones of loads twice as much, where lanes
    share what they read in pairs.
    """
    words = max(size // BANK_BYTES, 1)
    lanes = np.full(address.shape, True) if active is None else active
    per_phase = min(address.shape[1], BANKS // words)
    word = address[:, :, None] // BANK_BYTES + np.arange(words)
    word = np.where(lanes[:, :, None], word, -1)
    if merged and 1 < words and 2 * per_phase <= address.shape[1]:
        paired = _in_pairs(np.where(lanes, address, -1).reshape(-1, 2 * per_phase))
        word = word.reshape(paired.size, -1)
        parts = [word[paired], word[~paired].reshape(-1, per_phase * words)]
    else:
        parts = [word.reshape(-1, per_phase * words)]
    counts = [_passes(part, in_turn) for part in parts if part.size]
    return sum(found for found, _ in counts), sum(least for _, least in counts)


def _in_pairs(address: Array) -> Array:
    """Whether all lanes of a row have the address of the lane beside them, or all of that two away.

    Lanes without one (-1) go with any.
    """
    found = np.zeros(address.shape[0], bool)
    for step in (1, 2):
        other = address[:, np.arange(address.shape[1]) ^ step]
        found |= ((address == other) | (address < 0) | (other < 0)).all(axis=1)
    return found


def _passes(word: Array, in_turn: bool) -> tuple[int, int]:
    """The same for phases, the rows of `word`, in which -1 is no word."""
    word = np.sort(word, axis=1)
    new = word >= 0
    if not in_turn:
        new[:, 1:] &= word[:, 1:] != word[:, :-1]
    phase, at = np.nonzero(new)
    bank = word[phase, at] % BANKS
    load = np.bincount(phase * BANKS + bank, minlength=word.shape[0] * BANKS)
    worst = load.reshape(-1, BANKS).max(axis=1)
    return int(worst.sum()), int((worst > 0).sum())
