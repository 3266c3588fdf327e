"""Hopper GEMMs ready to launch: configuration, grid, memory, and the order of operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeVar

from kdsl_core.dtypes import DType
from kdsl_core.lang.arguments import facts_of
from kdsl_core.records import dataclass
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels import gemm_sm90_table as table
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity
from kdsl_fuse.kernels.gemm_sm90_config import ROOM, Sm90Config

MULTIPROCESSORS = 132  # of an H100 SXM, an H200 and a GH200
DEVICE = "NVIDIA H200"
NARROW = 64  # rows or columns of products that are bound by reading the other operand


@dataclass(frozen=True)
class Sm90Plan:
    """One way to compute C[m, n] = A[m, k] · W[n, k]ᵀ: `swap` gives W the side of the rows."""

    problem: model.Problem
    config: Sm90Config
    swap: bool = False
    multiprocessors: int = MULTIPROCESSORS

    def __str__(self) -> str:
        c = self.config
        words = ["x".join(map(str, c.tile)), f"s{c.stages}", c.schedule[:4] + str(c.consumers)]
        if c.blocks_together > c.peers:
            words.append(f"c{c.cluster[0]}x{c.cluster[1]}")
        words += [f"p{c.peers}"] * (c.peers > 1) + [f"k{c.splits}"] * (c.splits > 1)
        words += [f"r{c.registers[1]}"] if c.registers else []
        words += [f"{side}:{policy}" for side, policy in zip("ab", c.caches, strict=True) if policy]
        words += [f"f{c.fetch}"] * (c.fetch != Sm90Config.fetch)
        return " ".join([*words, f"g{c.group}", *["swap"] * self.swap])

    @property
    def side(self) -> model.Problem:
        """The product as the kernel sees it."""
        return self.problem.swapped if self.swap else self.problem

    @property
    def cycles(self) -> float:
        """What the model predicts."""
        return model.cycles(self.side, self.config, self.multiprocessors)

    @property
    def tiles(self) -> int:
        """Tiles of C."""
        side, (tile_m, tile_n, _), (cm, cn) = self.side, self.config.tile, self.config.cluster
        rows, columns = -(-side.m // (tile_m * cm)) * cm, -(-side.n // (tile_n * cn)) * cn
        return rows * columns * side.batch

    @property
    def grid(self) -> int:
        """Blocks of the grid: as many as run at a time, or one for each part of a tile."""
        c = self.config
        items = self.tiles * c.peers * c.splits
        room = self.multiprocessors * model.blocks_per_multiprocessor(c, self.problem)
        return min(items, room // c.blocks_together * c.blocks_together)

    @property
    def cluster(self) -> tuple[int, int, int] | None:
        """The cluster's shape."""
        together = self.config.blocks_together
        return (together, 1, 1) if together > 1 else None

    @cached_property
    def launch(self) -> Any:
        """The kernel with grid, block and cluster, waiting for arguments."""
        return self.configured(gemm_sm90)

    def configured(self, kernel: Any) -> Any:
        """A kernel that computes these tiles, with their grid, block and cluster."""
        return kernel.configure(
            grid=self.grid, block=self.config.threads, cluster=self.cluster, overlap=True
        )

    def oriented(self, x: Any) -> Any:
        """An array of C's shape as the kernel sees it."""
        if not self.swap:
            return x
        from kdsl_fuse.arrays import transposed  # whoever only builds meets no array

        return transposed(x)

    def parts(self, a: Any, c: Any) -> Any:
        """Memory for the parts of the sums, for one launch at a time; None where K is whole."""
        if self.config.splits == 1:
            return None
        from kdsl_fuse.kernels.sum_parts import empty_parts  # few products are split

        dtype = model.accumulator(facts_of(a, "A").dtype)
        return empty_parts(self.oriented(c), self.config.splits, dtype)

    def run(
        self,
        a: Any,
        w: Any,
        c: Any,
        *extras: Any,
        epilogue: Callable[..., Any] = identity,
        also: Sequence[Any] = (),
        parts: Any = None,
    ) -> None:
        """C = epilogue(A · Wᵀ, extras…), on the arrays' current stream.

        A batch of products, for which the plan was chosen, lies along mode 2 of all. Extras have
        C's shape, perhaps by broadcasting. An epilogue that gives a tuple writes the outputs in
        `also`, too. Without `parts` new memory is taken for them. Operands that TMA cannot address
        are copied first.
        """
        from kdsl_fuse.kernels.repitch import addressable  # whoever only builds copies nothing

        operands = addressable((w, a) if self.swap else (a, w))
        results = [self.oriented(x) for x in (c, *also)]
        operands_of_tail = [self.oriented(x) for x in extras]
        if self.config.splits == 1:
            self.launch(
                *operands, *results, *operands_of_tail,
                epilogue=epilogue, config=self.config, outputs=len(results),
            )  # fmt: skip
            return
        from kdsl_fuse.kernels.sum_parts import add_up

        parts = self.parts(a, c) if parts is None else parts
        self.launch(*operands, parts, epilogue=identity, config=self.config)
        add_up(parts, results, operands_of_tail, epilogue)


def parse(text: str) -> tuple[Sm90Config, bool]:
    """Configuration and swap of a plan's text, `str(plan)`."""
    tile, stages, schedule, *words = text.split()
    fields: dict[str, Any] = {}
    policies = dict(word.split(":") for word in words if ":" in word)
    for word in (word for word in words if ":" not in word):
        name, value = _FIELDS[word[0]], word[1:]
        if name == "cluster":
            fields[name] = tuple(int(n) for n in value.split("x"))
        elif name == "registers":
            fields[name] = (ROOM[0], int(value))
        elif name != "swap":
            fields[name] = int(value)
    config = Sm90Config(
        tuple(int(n) for n in tile.split("x")), int(stages[1:]),
        {"coop": "cooperative", "ping": "pingpong"}[schedule[:4]], int(schedule[4:]),
        caches=(policies.get("a"), policies.get("b")), **fields,
    )  # fmt: skip
    return config, "swap" in words


_FIELDS = {
    "c": "cluster", "p": "peers", "k": "splits", "r": "registers", "g": "group", "s": "swap",
    "f": "fetch",
}  # fmt: skip


def problem_of(
    m: int, n: int, k: int, dtype: DType, result: DType | None = None, batch: int = 1
) -> model.Problem:
    """The product for the model; results are of `dtype` where `result` names no other."""
    stored = result or dtype
    by_tma = n * stored.bytes % 16 == 0
    return model.Problem(m, n, k, dtype.bytes, stored.bytes, batch, by_tma)


def choose(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    result: DType | None = None,
    *,
    batch: int = 1,
    multiprocessors: int = MULTIPROCESSORS,
    device: str = DEVICE,
    tail: bool = False,
) -> Sm90Plan:
    """The plan that was fastest when these sizes were measured, or else the model's first one.

    With a `tail` to compute for every element, warp groups of large products take turns where
    nothing was measured with one.
    Raises: CacheError (K761) where a table of the device cannot be used.
    """
    problem = problem_of(m, n, k, dtype, result, batch)

    def measured(tail: bool) -> Sm90Plan | None:
        if batch != 1 or multiprocessors != MULTIPROCESSORS:
            return None
        entry = table.find(device, table.Key.of(m, n, k, dtype, result or dtype, tail))
        return entry and Sm90Plan(problem, entry.config, entry.swap, multiprocessors)

    if tail and (found := measured(tail=True)):
        return found
    found = measured(tail=False) or _first(m, n, k, dtype, result, batch, multiprocessors)
    return by_turns(found) if tail else found


def explain(
    m: int, n: int, k: int, dtype: DType, result: DType | None = None, *, device: str = DEVICE
) -> str:
    """Which plan `choose` finds for one product, from which table or why from the model."""

    def first() -> dict[str, Any]:
        plan = _first(m, n, k, dtype, result, 1, MULTIPROCESSORS)
        return table.options_of(plan.config, plan.swap)

    key = table.Key.of(m, n, k, dtype, result or dtype)
    return table.DISPATCH.explain(device, key.problem, first)


def by_turns(plan: Sm90Plan) -> Sm90Plan:
    """The plan, or one whose tails are computed while the tensor cores work on the next tile.

    Where each multiprocessor gets several tiles, that hides the tail: on an H200 GEMM + bias + GELU
    was 3 to 18 % faster so than with any other configuration.
    """
    side = plan.side
    if not side.by_tma:
        return plan
    configs = (model.fit(config, side, 1) for config in _turns(side.element_bytes))
    plans = [replace(plan, config=config) for config in configs if config is not None]
    several = [turns for turns in plans if turns.tiles >= 2 * plan.multiprocessors]
    return min(several, key=_turn_products, default=plan)


def _turns(element_bytes: int) -> Iterator[Sm90Config]:
    """What warp groups that take turns may compute; tiles of 192 need the producer's registers."""
    depth = 128 // element_bytes
    yield Sm90Config((128, 128, depth), 2, "pingpong")
    for tile in ((128, 192, depth), (192, 128, depth)):
        yield Sm90Config(tile, 2, "pingpong", registers=ROOM)


def _turn_products(plan: Sm90Plan) -> float:
    """Products and idle places of a multiprocessor, as five fused layers measured them on an H200.

    Beginning a tile costs as much as 1.5 million products; wide tiles run at a lower clock.
    """
    c, k = plan.config, plan.problem.k
    waves = -(-plan.tiles // plan.multiprocessors)
    return waves * (c.tile[0] * c.tile[1] * k + 1.5e6) * (1.025 if c.registers else 1.0)


@lru_cache(maxsize=1024)
def _first(
    m: int, n: int, k: int, dtype: DType, result: DType | None, batch: int, multiprocessors: int
) -> Sm90Plan:
    sizes = {"batch": batch, "multiprocessors": multiprocessors}
    plan = candidates(m, n, k, dtype, result, **sizes, limit=1)[0]
    return streaming(plan) if min(m, n) <= NARROW else plan


def streaming(plan: Sm90Plan) -> Sm90Plan:
    """The plan for a product that reading its wide operand once bounds: L2 need not keep it.

    On an H200 that was 1 to 4 % faster for products of up to `NARROW` rows or columns.
    """
    once = ("evict_first", None) if plan.side.m > plan.side.n else (None, "evict_first")
    return replace(plan, config=replace(plan.config, caches=once, fetch=128))


def candidates(
    m: int,
    n: int,
    k: int,
    dtype: DType,
    result: DType | None = None,
    *,
    batch: int = 1,
    multiprocessors: int = MULTIPROCESSORS,
    limit: int = 12,
) -> list[Sm90Plan]:
    """The plans that the model finds fastest, fastest first."""
    problem = problem_of(m, n, k, dtype, result, batch)
    return deepest_rings(ranked(problem, multiprocessors), limit)


def ranked(problem: model.Problem, multiprocessors: int) -> Iterator[Sm90Plan]:
    """Every plan for a product, in the model's order."""
    for _, swap, config in model.rank(problem, multiprocessors):
        yield Sm90Plan(problem, config, swap, multiprocessors)


class Configured(Protocol):
    """A plan with a configuration."""

    @property
    def config(self) -> Sm90Config:
        """How blocks compute their tiles."""


P = TypeVar("P", bound=Configured)


def deepest_rings(plans: Iterable[P], limit: int | None = None) -> list[P]:
    """The first `limit` plans whose configurations differ in more than the depth of the ring.

    Of alike ones the first stays: in the model's order the deepest ring, and one order of operands.
    """
    found: dict[Sm90Config, P] = {}
    for plan in plans:
        if len(found) == limit:
            break
        found.setdefault(replace(plan.config, stages=2), plan)
    return list(found.values())
