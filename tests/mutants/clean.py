"""Kernels without a change in configurations and shapes drawn at random: no hazard may be found."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from kdsl_core.errors import HazardError, KdslError
from kdsl_fuse.kernels.attention_problem import AttentionProblem
from kdsl_fuse.kernels.attention_sm80 import Sm80AttentionConfig
from kdsl_fuse.kernels.attention_sm90_config import Sm90AttentionConfig
from kdsl_fuse.kernels.columns import ColumnsConfig
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.rows import RowConfig
from mutants.attentions import attention, attention80
from mutants.cases import cases
from mutants.clean_convolutions import (
    drawn_conv80,
    drawn_conv90,
    drawn_depthwise,
    drawn_depthwise90,
    drawn_grouped,
    drawn_simple,
    drawn_stem,
)
from mutants.launch import BF16, F16, F32, Launch
from mutants.products import pair90, sm80, sm90
from mutants.reductions import column_wise, row_wise, sums
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
    draw = rng.choices(*zip(*_DRAWS.items(), strict=True))[0]
    if draw is None:
        return rng.choice([*cases().items()])
    given = draw(rng)
    make = given.pop("make")
    name = f"{make.__name__}({_shown(given.items())})"
    if isinstance(given.get("config"), dict):
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


def _drawn_pair(rng: random.Random) -> dict[str, Any]:
    given = _drawn_sm90(rng)
    config, (m, n, k) = given["config"], given["sizes"]
    majors = rng.choice(((1, 1), (1, 1), (0, 0), (0, 1), (1, 0)))
    swap, (rows, columns, _) = rng.random() < 0.4, config["tile"]
    if swap:  # rows of both weights
        rows, m, n = 2 * rows, n, m
    else:
        shares = 16 * config["cluster"][0]
        columns = shares * rng.randint(1, 64 // shares) if majors[1] else 128
    config |= {"tile": (rows, columns, 64), "peers": 1, "splits": 1}
    m, n = (x if major else -(-x // 8) * 8 for x, major in zip((m, n), majors, strict=True))
    return {
        "make": pair90, "config": config, "sizes": (m, n, k), "majors": majors,
        "clusters": given["clusters"], "result": rng.choice((BF16, F32)),
        "tail": rng.random() < 0.5, "swap": swap,
    }  # fmt: skip


def _drawn_rows(rng: random.Random) -> dict[str, Any]:
    """Held, streamed or staged rows, some of these through rings.

    Those that are held reach into each thread's last vector, those that are staged into the last
    turn, as plans see to it: before it nobody asks whether a column is inside.
    """
    kind = rng.choice(("held", "held", "streamed", "staged", "ring"))
    lanes = rng.choice((1, 2, 8, 16, 32, 64, 96) if kind == "held" else (32, 64, 96))
    dtype, vectors = rng.choice((F32, BF16)), rng.randint(1, 3)
    copied = kind in ("staged", "ring")
    width = (4 if dtype is F32 else 8) if copied else rng.choice((1, 2, 4))
    cluster = rng.choice((1, 1, 2, 4)) if lanes >= 32 else 1
    groups = max(32 // lanes, 1) * (rng.randint(1, 2) if cluster == 1 and kind == "held" else 1)
    config = RowConfig(
        width, lanes, vectors, groups, rng.randint(1, 2) if kind == "held" else 1, cluster,
        streamed=kind == "streamed", staged=rng.randint(1, 3) if copied else 0,
        early=rng.random() < 0.5, load=rng.choice(("", "cs")), store=rng.choice(("", "cs")),
    )  # fmt: skip
    if kind == "ring":
        config = replace(
            config, groups=rng.randint(1, 3), ring=config.staged + rng.randint(0, 3),
            clusters=rng.randint(1, 3), partial=False,
        )  # fmt: skip
    each = lanes * cluster  # vectors that all threads take at a time
    least = {"held": vectors - 1}.get(kind, vectors * max(config.staged - 1, 0))
    most = vectors * max(config.staged, 1)
    length = width * rng.randint(least * each + 1, most * each)
    names = ("softmax", "cross_entropy", "layer_norm", "rms_norm", "sum", "max")
    return {
        "make": row_wise, "name": rng.choice(names), "config": config,
        "shape": (rng.randint(1, 2 * config.rows + 1 + config.ring), length), "dtype": dtype,
        "online": rng.random() < 0.5,
    }  # fmt: skip


def _drawn_columns(rng: random.Random) -> dict[str, Any]:
    width, parts = rng.choice((1, 2, 4)), rng.randint(1, 3)
    config = ColumnsConfig(
        width, rng.randint(1, 4), parts, rng.choice((8, 16, 32)), rng.choice((4, 8)),
        finished=parts == 1,
    )  # fmt: skip
    shape = rng.randint(parts, 80), width * rng.randint(1, 80)
    name = rng.choice(("sum", "max", "mean"))
    return {"make": column_wise, "name": name, "config": config, "shape": shape}


def _drawn_attention(rng: random.Random) -> dict[str, Any]:
    consumers, key_heads = rng.randint(1, 3), rng.randint(1, 2)
    config = Sm90AttentionConfig(
        16 * rng.randint(1, 4), 16 * rng.randint(1, 4), (rng.randint(1, 3), rng.randint(1, 3)),
        consumers, rng.choice((None, "top-left", "bottom-right")), rng.choice(("bshd", "bhsd")),
        turns=consumers == 2 and rng.random() < 0.7,
        registers=rng.choice((None, (24, 160))),
    )  # fmt: skip
    problem = AttentionProblem(
        rng.randint(1, 2), key_heads * rng.randint(1, 2), key_heads, rng.randint(1, 200),
        rng.randint(1, 150), 8 * rng.randint(1, config.dim // 8),
    )  # fmt: skip
    return {
        "make": attention, "config": config, "problem": problem, "biased": rng.random() < 0.3,
        "blocks": rng.randint(1, 3), "dtype": rng.choice((BF16, F16)),
    }  # fmt: skip


def _drawn_attention80(rng: random.Random) -> dict[str, Any]:
    key_heads = rng.randint(1, 2)
    config = Sm80AttentionConfig(
        16 * rng.randint(1, 6), 16 * rng.randint(1, 4), rng.choice((1, 2, 4)),
        rng.randint(1, 2), rng.randint(2, 5),
        rng.choice((None, "top-left", "bottom-right")), rng.choice(("bshd", "bhsd")),
    )  # fmt: skip
    problem = AttentionProblem(
        rng.randint(1, 2), key_heads * rng.randint(1, 2), key_heads, rng.randint(1, 100),
        rng.randint(1, 150), 8 * rng.randint(1, config.dim // 8),
    )  # fmt: skip
    return {
        "make": attention80, "config": config, "problem": problem, "biased": rng.random() < 0.3,
        "dtype": rng.choice((BF16, F16)),
    }  # fmt: skip


def _drawn_conv90(rng: random.Random) -> dict[str, Any]:
    return drawn_conv90(rng, _drawn_sm90(rng)["config"])


_DRAWS: dict[Any, int] = {  # None: a case of the campaign as it is
    _drawn_sm90: 6, _drawn_sm80: 3, _drawn_pair: 3, _drawn_attention: 3, _drawn_rows: 5,
    _drawn_columns: 1, _drawn_sums: 1, _drawn_conv90: 3, drawn_conv80: 1, drawn_stem: 1,
    drawn_simple: 1, drawn_depthwise90: 2, drawn_depthwise: 1, drawn_grouped: 3, None: 1,
    _drawn_attention80: 2,
}  # fmt: skip
