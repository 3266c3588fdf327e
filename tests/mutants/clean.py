"""Kernels without a change in configurations and shapes drawn at random: no hazard may be found."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from kdsl_core.errors import HazardError, KdslError
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from mutants.cases import cases
from mutants.launch import BF16, F16, F32, Launch
from mutants.products import sm80, sm90
from mutants.reductions import sums
from mutants.trial import Bench

_HALVES = {BF16: "BF16BF16", F16: "F16F16"}


@dataclass(frozen=True)
class CleanRun:
    """A run of an unchanged kernel: what it was, and what was said of it, "" for nothing."""

    number: int
    name: str
    complaint: str
    seconds: float


def clean(runs: int, processes: int = 2) -> Iterator[CleanRun]:
    """So many runs, always the same ones."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(clean_run, range(runs), chunksize=4)


def clean_run(number: int) -> CleanRun:
    """Draw a launch, run it in order and shuffled, and compare the bits."""
    begun = time.perf_counter()
    rng = random.Random(number)
    name, complaint = "", None
    while complaint is None:
        name, complaint = _tried(rng, number)
    return CleanRun(number, name, complaint, time.perf_counter() - begun)


def _tried(rng: random.Random, seed: int) -> tuple[str, str | None]:
    """What was drawn and what was said of it: "" for nothing, None for what is no kernel."""
    name = "nothing yet"
    try:
        name, launch = _drawn(rng)
        place = Bench(name, launch)
        other = place.run(place.traced, order="shuffle", seed=seed)
    except HazardError as hazard:
        return name, str(hazard)
    except KdslError:
        return name, None
    return name, "" if other == place.right else "other numbers in another order"


def _drawn(rng: random.Random) -> tuple[str, Launch]:
    draw = rng.choices((_drawn_sm90, _drawn_sm80, _drawn_sums, None), (6, 3, 1, 1))[0]
    if draw is None:
        return rng.choice([*cases().items()])
    given = draw(rng)
    make = given.pop("make")
    name = f"{make.__name__}({_shown(given.items())})"
    if make is sm90:
        given["config"] = Sm90Config(**given["config"])
    return name, make(**given)


def _shown(items: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in items)


def _drawn_sm90(rng: random.Random) -> dict[str, Any]:
    pingpong = rng.random() < 0.3
    # Ping-pong skips the stages of whole products: blocks that share one cannot take part.
    peers = 1 if pingpong else rng.choice((1, 1, 1, 2, 4))
    splits = rng.choice((1, 1, 1, 2, 3))
    consumers = 2 if pingpong else rng.choice((1, 2, 2))
    tile = (
        64 * rng.choice((1, 2)) * (1 if pingpong else consumers), 8 * rng.randint(1, 8),
        rng.choice((16, 32, 64)),
    )  # fmt: skip
    majors = (1, 1, 1) if rng.random() < 0.5 else tuple(rng.choice((0, 1)) for _ in range(3))
    if 0 in majors[:2]:  # tiles along M and N are whole swizzled lines
        tile = (tile[0], 64, tile[2])
    config = {
        "tile": tile,
        "stages": rng.randint(2, 4),
        "schedule": "pingpong" if pingpong else "cooperative",
        "consumers": consumers,
        "cluster": (1, 1) if peers > 1 else rng.choice(((1, 1), (1, 1), (2, 1), (1, 2), (2, 2))),
        "peers": peers,
        "splits": 1 if pingpong else splits,
        "registers": rng.choice((None, None, (40, 232))),
    }
    least = peers * config["splits"]
    steps = rng.randint(least, least + 7)
    extra = rng.choice(({}, {"tail": True}, {"outputs": 2}, {"result": F32}))
    if 0 not in majors and config["splits"] == 1 and extra == {} and rng.random() < 0.3:
        extra = {"batch": rng.randint(2, 3)}
    m = rng.randint(1, 2 * tile[0]) if majors[0] else 8 * rng.randint(1, tile[0] // 4)
    n = rng.randint(1, 3 * tile[1]) if majors[1] else 8 * rng.randint(1, tile[1] // 4)
    k = tile[2] * steps - 8 * rng.randint(0, tile[2] // 8 - 1)
    return {
        "make": sm90, "config": config, "sizes": (m, n, k), "majors": majors,
        "dtype": rng.choice((BF16, F16)), "clusters": rng.randint(1, 3), **extra,
    }  # fmt: skip


def _drawn_sm80(rng: random.Random) -> dict[str, Any]:
    dtype = rng.choice((BF16, F16))
    return {
        "make": sm80,
        "atom": f"SM80_16x8x16_F32{_HALVES[dtype]}F32_TN",
        "tile": (16 * rng.choice((2, 4)), 16 * rng.choice((2, 4)), 16 * rng.choice((2, 4))),
        "warps": rng.choice(((1, 1), (1, 2), (2, 1), (2, 2))),
        "sizes": tuple(rng.randint(1, 80) for _ in range(3)),
        "stages": rng.randint(2, 4),
        "dtype": dtype,
        "majors": (rng.choice((0, 1)), rng.choice((0, 1))),
        "tail": rng.random() < 0.5,
    }


def _drawn_sums(rng: random.Random) -> dict[str, Any]:
    return {
        "make": sums, "m": rng.randint(1, 9), "n": rng.randint(1, 600), "contiguous": 1,
        "parts": rng.randint(2, 5), "tail": rng.random() < 0.5,
    }  # fmt: skip
