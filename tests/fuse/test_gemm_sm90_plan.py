"""Plans of the Hopper GEMM: the model, the dispatch table, configurations, grids, parts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.dtypes import dtype_of
from kdsl_core.errors import ArgumentError, CacheError, ResourceError
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels import gemm_sm90_plan as plans
from kdsl_fuse.kernels import gemm_sm90_table as table
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, choose, parse, problem_of
from kdsl_fuse.kernels.repitch import LINE_BYTES, addressable

RESULTS = Path(__file__).parents[2] / "results" / "gpu" / "gemm_sm90-tuning-h200.json"
MULTIPROCESSORS = plans.MULTIPROCESSORS
SHAPES = (  # large, narrow either way, deep, odd, tiny
    (4096, 4096, 4096),
    (16, 6144, 4096),
    (8192, 48, 512),
    (128, 128, 65536),
    (1023, 1025, 1027),
    (1, 1, 1),
)


# -- the model -------------------------------------------------------------------------------------
def regrets() -> list[float]:
    """Of each recorded product: the time of the model's first plan over the fastest plan's."""
    found = []
    for product in json.loads(RESULTS.read_text())["products"]:
        if "note" in product:
            continue
        problem = problem_of(product["m"], product["n"], product["k"], kd.bf16)
        guesses = {}
        for text in product["us"]:
            config, swap = parse(text)
            side = problem.swapped if swap else problem
            guesses[text] = model.cycles(side, config, MULTIPROCESSORS)
        first = min(guesses, key=guesses.__getitem__)
        found.append(product["us"][first] / min(product["us"].values()))
    return found


def test_model_chooses_well_among_what_was_measured() -> None:
    """The first plan is 5 % slower than the fastest one at most on average, 20 % at worst."""
    found = regrets()
    assert len(found) >= 45
    assert math.exp(sum(map(math.log, found)) / len(found)) <= 1.05
    assert max(found) <= 1.2


@pytest.mark.parametrize("m, n, k", SHAPES)
def test_every_candidate_fits(m: int, n: int, k: int) -> None:
    """Shared memory and registers suffice, and every part of K has tiles."""
    problem = problem_of(m, n, k, kd.bf16)
    ranked = model.rank(problem, MULTIPROCESSORS)
    assert ranked
    for cycles, _, config in ranked:
        assert math.isfinite(cycles) and cycles > 0
        assert model.shared_bytes(config, problem) <= model.SHARED_BYTES
        accumulators = math.prod(config.tile[:2]) // (config.readers * 128)
        assert accumulators <= 128
        assert -(-k // config.tile[2]) >= config.peers * config.splits


@pytest.mark.parametrize("text", ("128x256x64 s4 coop2 g8", "64x64x64 s12 coop1 p2 k2 g8",
                                  "128x128x64 s6 ping2 c2x1 g8"))  # fmt: skip
def test_more_is_never_cheaper(text: str) -> None:
    """More rows, columns, depth or matrices cost no less with the same configuration.

    Steps are large ones: within a wave of tiles the room for the next launch shrinks in little
    steps that this does not look at.
    """
    config, _ = parse(text)
    base = model.Problem(2048, 2048, 1024)
    for name in ("m", "n", "k", "batch"):
        sizes = [getattr(base, name) * factor for factor in (1, 2, 3, 4, 8, 16)]
        times = [
            model.cycles(replace(base, **{name: size}), config, MULTIPROCESSORS) for size in sizes
        ]
        assert times == sorted(times)


def test_deeper_products_never_get_faster() -> None:
    """The model's best time grows with K, in steps of a tile's depth."""
    times = [
        model.rank(model.Problem(256, 512, k), MULTIPROCESSORS)[0][0] for k in range(64, 2048, 320)
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("tokens", (1, 8, 17, 40))
def test_narrow_products_swap(tokens: int) -> None:
    """Few tokens take the columns' side, just as wide as needed, and weights the rows."""
    first = plans.candidates(tokens, 6144, 4096, kd.bf16, limit=1)[0]
    assert first.swap
    assert first.config.tile[1] == -(-tokens // 8) * 8


def test_deep_products_are_split() -> None:
    """A product with few tiles and much depth shares its K among blocks."""
    config = plans.candidates(128, 128, 65536, kd.bf16, limit=1)[0].config
    assert config.peers * config.splits >= 8


def test_room_of_a_block_matches_the_kernel() -> None:
    """The shared memory that the model counts is no less than what the kernel asks for."""
    for text in ("128x128x64 s3 coop2 g8", "64x64x64 s4 coop1 p2 k2 g8", "64x48x64 s4 ping2 g8"):
        config, _ = parse(text)
        problem = problem_of(4096, 4096, 4096, kd.bf16)
        assert shared_bytes_of_kernel(config) <= model.shared_bytes(config, problem)


def build(config: Sm90Config, dtype: str = "bf16", **options: Any) -> Any:
    """The kernel's module for square matrices."""
    matrices = [kd.spec(dtype, (4096, 4096))] * 3
    if config.splits > 1:
        strides = (4096, 1, 4096 * 4096)
        matrices[2] = kd.spec("f32", (4096, 4096, config.splits), strides=strides)
    plan = Sm90Plan(problem_of(4096, 4096, 4096, dtype_of(dtype)), config)
    return gemm_sm90.module(
        *matrices, target="sm_90a", block=config.threads, cluster=plan.cluster,
        epilogue=identity, config=config, **options,
    )  # fmt: skip


def shared_bytes_of_kernel(config: Sm90Config) -> int:
    """The shared memory of the built kernel."""
    return int(build(config).shared_bytes)


# -- the table -------------------------------------------------------------------------------------
def entries() -> list[table.Entry]:
    """The entries of the H200's table."""
    return list(table.read_table(table.path_of(plans.DEVICE)).values())


def test_listed_shapes_take_their_entry() -> None:
    """A listed product gets the entry's plan, every time, and in f16 too."""
    assert len(entries()) >= 40
    for entry in entries():
        key = entry.key
        sizes, tail = (key.m, key.n, key.k), bool(key.tail)
        plan = choose(*sizes, dtype_of(key.dtype), dtype_of(key.result), tail=tail)
        assert (plan.config, plan.swap) == (entry.config, entry.swap)
        assert plan == choose(*sizes, dtype_of(key.dtype), dtype_of(key.result), tail=tail)
        if (key.dtype, key.result) == ("bf16", "bf16"):
            assert choose(*sizes, kd.f16, tail=tail).config == plan.config


def test_recorded_products_are_listed() -> None:
    """Every product of the tuning data has an entry."""
    listed = {entry.key for entry in entries()}
    for product in json.loads(RESULTS.read_text())["products"]:
        types = product.get("dtype", "bf16"), product.get("result", "bf16")
        assert table.Key(product["m"], product["n"], product["k"], *types) in listed


@pytest.mark.parametrize("options", ({"device": "NVIDIA H100 PCIe"}, {"multiprocessors": 114},
                                     {"batch": 2}))  # fmt: skip
def test_others_take_the_models_first(options: dict[str, Any]) -> None:
    """What no entry is for gets the model's first plan, the same every time."""
    plan = choose(2048, 2048, 2048, kd.bf16, **options)
    options.pop("device", None)
    assert plan == plans.candidates(2048, 2048, 2048, kd.bf16, limit=1, **options)[0]
    assert choose(300, 200, 100, kd.bf16) == choose(300, 200, 100, kd.bf16)


def test_entries_survive_the_file(tmp_path: Path) -> None:
    """An entry is read as it was written."""
    config = Sm90Config((128, 128, 64), 3, "pingpong", cluster=(2, 1), registers=(40, 232))
    entry = table.Entry(table.Key(1, 2, 3, "bf16", "bf16"), config, True, 1.5)
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"entries": [entry.record()]}))
    assert table.read_table(path) == {entry.key: entry}


GOOD = {"m": 64, "n": 64, "k": 64, "dtype": "bf16", "result": "bf16", "us": 1.0}
SPOILT = {
    "no JSON": "entries",
    "no entries": "{}",
    "no configuration": json.dumps({"entries": [GOOD]}),
    "unknown field": json.dumps({"entries": [{**GOOD, "config": {"tile": [64, 8, 64], "a": 1}}]}),
    "refused tile": json.dumps(
        {"entries": [{**GOOD, "config": {"tile": [96, 8, 64], "stages": 3}}]}
    ),
    "too large": json.dumps(
        {"entries": [{**GOOD, "config": {"tile": [128, 256, 64], "stages": 9}}]}
    ),
    "unknown type": json.dumps(
        {"entries": [{**GOOD, "dtype": "b16", "config": {"tile": [128, 8, 64], "stages": 3}}]}
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_bad_tables_are_refused(name: str, tmp_path: Path) -> None:
    """A table that cannot be used is named, with the entry; a missing one is empty."""
    path = tmp_path / "gemm_sm90-broken.json"
    assert table.read_table(tmp_path / "missing.json") == {}
    path.write_text(SPOILT[name])
    with pytest.raises(CacheError) as caught:
        table.read_table(path)
    assert caught.value.code == "K761"
    assert str(path) in caught.value.message
    assert ("entry 0" in caught.value.message) == (name not in ("no JSON", "no entries"))


def test_texts_of_plans_are_read_back() -> None:
    """`parse` is the inverse of `str`."""
    problem = problem_of(512, 512, 4096, kd.bf16)
    for swap, config in [(swap, config) for _, swap, config in model.rank(problem, 132)[:200]]:
        assert parse(str(Sm90Plan(problem, config, swap))) == (config, swap)
    for options in (
        {"cluster": (2, 1), "registers": (40, 232), "group": 4},
        {"caches": ("evict_first", None), "fetch": 128},
        {"caches": ("evict_last", "evict_first"), "fetch": 0},
    ):
        config = Sm90Config((128, 64, 64), 4, **options)
        assert parse(str(Sm90Plan(problem, config, True))) == (config, True)


# -- configurations that cannot be -----------------------------------------------------------------
TILE = (128, 64, 64)
REFUSED = {
    "M for one group of two": ("K935", {"tile": (64, 64, 64)}),
    "M between": ("K935", {"tile": (96, 64, 64), "consumers": 1}),
    "N no multiple of 8": ("K935", {"tile": (128, 60, 64)}),
    "N too wide": ("K935", {"tile": (128, 264, 64)}),
    "K no multiple of 16": ("K935", {"tile": (128, 64, 40)}),
    "nothing": ("K935", {"tile": (128, 0, 64)}),
    "unknown schedule": ("K936", {"schedule": "stream"}),
    "pingpong of three": ("K936", {"schedule": "pingpong", "consumers": 3}),
    "pingpong and splits": ("K936", {"schedule": "pingpong", "splits": 2}),
    "no consumers": ("K936", {"consumers": 0}),
    "one stage": ("K937", {"stages": 1}),
    "no split": ("K937", {"splits": 0}),
    "too many blocks": ("K938", {"cluster": (4, 4)}),
    "too many peers": ("K938", {"peers": 16}),
    "three peers": ("K938", {"peers": 3}),
    "cluster and peers": ("K938", {"cluster": (2, 1), "peers": 2}),
    "slices of 4 rows": ("K938", {"tile": (128, 72, 64), "cluster": (2, 1)}),
    "slices of a third": ("K938", {"cluster": (3, 1)}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_configurations_are_refused(name: str) -> None:
    """What cannot be is refused when it is written down, with what was got."""
    code, fields = REFUSED[name]
    with pytest.raises(ArgumentError) as caught:
        Sm90Config(**{"tile": TILE, "stages": 3, **fields})
    assert caught.value.code == code
    assert "got" in caught.value.message and caught.value.fix


@pytest.mark.parametrize("config, code", (
    (Sm90Config((128, 256, 64), 6), "K405"),  # shared memory
    (Sm90Config((256, 256, 64), 2), "K447"),  # accumulators of a thread
    (Sm90Config((256, 192, 64), 3, consumers=4), "K446"),  # registers of 544 threads
))  # fmt: skip
def test_too_much_for_the_chip_is_refused(config: Sm90Config, code: str) -> None:
    """What exceeds shared memory or registers is refused at a line of the kernel, with numbers."""
    with pytest.raises(ResourceError) as caught:
        build(config)
    assert caught.value.code == code
    assert caught.value.loc is not None
    assert any(character.isdigit() for character in caught.value.message)


def test_splits_of_batches_are_refused() -> None:
    """Parts of K are where a batch would be."""
    config, _ = parse("64x64x64 s4 coop1 k2 g8")
    batch = kd.spec("bf16", (64, 256, 3), strides=(256, 1, 64 * 256))
    with pytest.raises(ArgumentError) as caught:
        gemm_sm90.module(
            batch, batch, batch, target="sm_90a", block=config.threads,
            epilogue=identity, config=config,
        )  # fmt: skip
    assert caught.value.code == "K939"


# -- grids, parts of sums, copies ------------------------------------------------------------------
def plan_of(text: str, m: int, n: int, k: int) -> Sm90Plan:
    """A plan by its text."""
    return Sm90Plan(problem_of(m, n, k, kd.bf16), *parse(text))


@pytest.mark.parametrize("text, sizes, grid, cluster", (
    ("128x256x64 s4 coop2 g8", (8192, 8192, 64), 132, None),  # as many as run at a time
    ("128x256x64 s4 coop2 g8", (1024, 1024, 64), 32, None),  # one for each tile
    ("128x256x64 s4 coop2 g8 swap", (100, 1000, 64), 8, None),  # 8 × 1 tiles, of Cᵀ
    ("128x128x64 s6 ping2 c2x1 g8", (384, 128, 64), 4, (2, 1, 1)),  # whole clusters
    ("64x64x64 s12 coop1 p4 g8", (64, 128, 4096), 8, (4, 1, 1)),  # each K shared by four
    ("64x32x128 s8 coop1 k16 g8", (64, 64, 65536), 32, None),  # 16 parts of 2 tiles
))  # fmt: skip
def test_grids(
    text: str, sizes: tuple[int, int, int], grid: int, cluster: tuple[int, int, int] | None
) -> None:
    """Blocks for each tile and part of K, no more than run at a time, in whole clusters."""
    plan = plan_of(text, *sizes)
    assert (plan.grid, plan.cluster) == (grid, cluster)


def test_parts() -> None:
    """Parts of the sums lie as C does, in the accumulator's type; without splits there are none."""
    a, c = np.zeros((200, 64), np.float16), np.zeros((200, 100), np.float16)
    assert plan_of("128x64x64 s4 coop2 g8", 200, 100, 4096).parts(a, c) is None
    plan = plan_of("128x64x64 s4 coop2 p2 k3 g8", 200, 100, 4096)
    parts = plan.parts(a, c)
    assert (parts.dtype, parts.shape, parts.strides) == (np.float32, (200, 100, 3), (400, 4, 80000))
    parts = replace(plan, swap=True).parts(np.zeros((200, 64), np.int8), c)
    assert (parts.dtype, parts.shape, parts.strides) == (np.int32, (100, 200, 3), (4, 400, 80000))


@pytest.mark.parametrize("contiguous", (1, 0))
def test_copies_to_another_pitch(contiguous: int) -> None:
    """A pitch that TMA cannot take becomes whole lines; values stay, a good one is not copied."""
    rng = np.random.default_rng(0)
    odd = rng.standard_normal((5, 77)).astype(ml_dtypes.bfloat16)
    good = rng.standard_normal((5, 72)).astype(ml_dtypes.bfloat16)
    if not contiguous:
        odd, good = odd.T, good.T
    copied, same = addressable((odd, good))
    assert same is good
    assert copied is not odd and copied.shape == odd.shape
    assert copied.tobytes() == odd.tobytes()
    assert max(copied.strides) % LINE_BYTES == 0 and min(copied.strides) == 2


@pytest.mark.parametrize("m, n, k, batch", ((64, 64, 1024, 3), (72, 40, 136, 4), (200, 136, 64, 2)))
def test_batches_by_plan(m: int, n: int, k: int, batch: int) -> None:
    """The plan of a batch keeps K whole in memory and computes every product."""
    rng = np.random.default_rng(9)
    a, w = (
        rng.standard_normal((batch, rows, k)).astype(ml_dtypes.bfloat16).transpose(1, 2, 0)
        for rows in (m, n)
    )
    c = np.full((batch, m, n), np.nan, ml_dtypes.bfloat16).transpose(1, 2, 0)
    found = plans.candidates(m, n, k, kd.bf16, batch=batch)
    assert all(plan.config.splits == 1 and not plan.swap for plan in found)
    choose(m, n, k, kd.bf16, batch=batch).run(a, w, c)
    for i in range(batch):
        exact = a[:, :, i].astype(np.float64) @ w[:, :, i].astype(np.float64).T
        error = np.abs(c[:, :, i].astype(np.float64) - exact)
        assert error.max() <= 2**-8 * np.abs(exact).max()


def test_batches_that_tma_cannot_take() -> None:
    """A batch with odd pitches is refused, for no copy of matrices mends it."""
    a = np.zeros((2, 8, 9), np.float16).transpose(1, 2, 0)
    c = np.zeros((2, 8, 8), np.float16).transpose(1, 2, 0)
    with pytest.raises(kd.ArgumentError) as caught:
        choose(8, 8, 9, kd.f16, batch=2).run(a, a, c)
    assert caught.value.code == "K941"
