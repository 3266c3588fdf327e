"""Kernels that do exactly one access, and the rules of memory in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.sim.author import Author
from kdsl_core import dtypes as dt
from kdsl_core.ir import Const
from kdsl_core.isa import memory
from kdsl_core.isa.matrix_copy import ldmatrix, stmatrix

BYTES = 1 << 14  # of memory that the accesses may reach


def addresses(layout: Any, threads: int, values: int, size: int) -> np.ndarray[Any, Any]:
    """Byte addresses (threads, values) of a (thread, value) layout, one call at a time."""
    return np.array([[layout((t, v)) * size for v in range(values)] for t in range(threads)])


def totals(space: str, op: str, table: np.ndarray[Any, Any], width: int) -> dict[str, float]:
    """What the simulator counts for threads that access the addresses (threads, calls) of a table.

    The kernel reads each address from the table; what that costs is counted alone and taken off.
    """
    base, full = (_run(space, op, table, width, access) for access in (False, True))
    return {name: full[name] - base.get(name, 0) for name in full}


def _run(
    space: str, op: str, table: np.ndarray[Any, Any], width: int, access: bool
) -> dict[str, float]:
    threads, calls = table.shape
    a = Author(threads, where="u32", data="u8")
    base = a.shared("s", BYTES) if space == "shared" else None
    for call in range(calls):
        place = a.do("add", a.do("mul", a.tid, calls), call)
        offset = a.get("global", a.address("where", place, 4))
        if access and base is not None:
            _shared_access(a, op, a.do("add", base, offset), width)
        elif access:
            _plain_access(a, op, "global", a.address("data", offset, 1), width)
    where, data = table.astype(np.uint32).ravel(), np.zeros(BYTES, np.uint8)
    profile = a.run(where=where, data=data)(checks=()).profile
    return dict(profile.totals)


def _shared_access(a: Author, op: str, address: Any, width: int) -> None:
    if op == "ldmatrix":
        count = width // 16  # the width says how many matrices
        ldmatrix(a.b, address, tuple(a.b.value(dt.u32) for _ in range(count)))
    elif op == "stmatrix":
        stmatrix(a.b, address, (Const(dt.u32, 0),) * (width // 16))
    else:
        _plain_access(a, op, "shared", address, width)


def _plain_access(a: Author, op: str, space: str, address: Any, width: int) -> None:
    element = {1: dt.u8, 2: dt.u16}.get(width, dt.u32)
    vector = max(width // 4, 1)
    if op == "ld":
        memory.load(a.b, space, address, element, vector=vector)
    else:
        memory.store(a.b, space, address, (Const(element, 0),) * vector)


def wavefronts_in_words(
    rows: np.ndarray[Any, Any], width: int, op: str = ""
) -> tuple[int, int, int]:
    """(wavefronts, ideal, ways): per 128 bytes of a warp, the most words wanted from one bank.

    Loads take 256 bytes at a time where lanes share what they read in pairs.
    """
    found = []
    for row in rows:
        together = 128 // max(width, 4)
        for start in range(0, row.size, together):
            other = start ^ together  # where the half begins that may come along
            lanes = [*range(start, start + together), *range(other, other + together)]
            if op == "ld" and width > 4 and _share_in_pairs(row, lanes):
                if other < start:
                    continue
            else:
                lanes = lanes[:together]
            words = {
                (int(row[lane]) + byte) // 4
                for lane in lanes
                if lane < row.size
                for byte in range(0, width, 4)
            }
            banks = [word % 32 for word in words]
            found.append(max(map(banks.count, banks), default=0))
    return sum(found), sum(map(bool, found)), max(found)


def _share_in_pairs(row: np.ndarray[Any, Any], lanes: list[int]) -> bool:
    """Whether each lane reads what the lane beside it reads, or each what that two further does."""
    return any(
        all(max(lane, lane ^ step) >= row.size or row[lane] == row[lane ^ step] for lane in lanes)
        for step in (1, 2)
    )


def sectors_in_words(rows: np.ndarray[Any, Any], width: int) -> int:
    """Distinct 32-byte sectors that each row of addresses touches, summed over the rows."""
    return sum(len({(int(a) + b) // 32 for a in row for b in range(width)}) for row in rows)


def warp_rows(first: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Addresses (threads, calls) as one row for each warp and call."""
    return [
        first[warp : warp + 32, call]
        for call in range(first.shape[1])
        for warp in range(0, first.shape[0], 32)
    ]
