"""The kernels that compute a matrix product with a tail, and which of them a product gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kdsl_core.dtypes import DType, bf16, f16
from kdsl_core.ir.target import target_of
from kdsl_core.isa.wgmma_shapes import NEED
from kdsl_fuse.calls import KernelCall, Needed, Operand, Preparation
from kdsl_fuse.graph import Node
from kdsl_fuse.patterns.base import Chip, Options
from kdsl_fuse.patterns.folds import Fold, as_rows
from kdsl_fuse.patterns.split_call import SplitCall
from kdsl_fuse.strided import Strided
from kdsl_fuse.tail import Tail

if TYPE_CHECKING:
    from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
    from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan

TMA_BYTES = 16  # that starts and strides are to be multiples of
MOST_ACCUMULATORS = 96  # of a thread, beside which a tail has registers enough


@dataclass(frozen=True, eq=False)
class Gemm:
    """output = tail(A · Bᵀ, extras…) for A (m, k) and B (n, k), whatever computes it.

    A batch of products lies along mode 2 of all, as `fold` sees values of the output's shape.
    """

    a: Operand
    b: Operand
    extras: tuple[Operand, ...]
    output: Node
    tail: Tail
    fold: Fold = as_rows

    @property
    def batch(self) -> int:
        """How many products there are."""
        return self.a.shape[2] if self.is_batch else 1

    @property
    def is_batch(self) -> bool:
        """Whether operands have a mode for the batch."""
        return len(self.a.shape) == 3

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    @property
    def seen(self) -> tuple[Strided, ...]:
        """The layout in which a kernel sees the output, where it is no matrix of itself."""
        layout = self.fold(Strided.dense(self.output.shape))
        return () if self.output.rank == 2 or layout is None else (layout,)

    @property
    def dtype(self) -> DType:
        """The type of A and B."""
        return self.a.dtype


class GemmFamily(Protocol):
    """A kernel in all its configurations."""

    def takes(self, gemm: Gemm, options: Options) -> bool:
        """Whether it computes this product on this target."""

    def call(self, gemm: Gemm, options: Options) -> KernelCall:
        """The launch that computes it."""


def call_of(gemm: Gemm, options: Options) -> KernelCall:
    """The launch of the fastest kernel that takes the product."""
    return next(family for family in FAMILIES if family.takes(gemm, options)).call(gemm, options)


class Sm80Family:
    """`kernels/gemm_sm80.py`, or the caller's kernel in its place: every type and target."""

    def takes(self, gemm: Gemm, options: Options) -> bool:
        """Always: the pattern's guards refuse what it cannot compute."""
        return True

    def call(self, gemm: Gemm, options: Options) -> KernelCall:
        """A launch with one block for each tile."""
        from kdsl_fuse.kernels import gemm_sm80

        kernels = options.gemm or gemm_sm80
        config, grid, block = kernels.plan_gemm(
            *gemm.sizes, gemm.dtype, target=options.target, f32_precision=options.f32_precision
        )
        kernel, grid = kernels.gemm_sm80, _extent(grid)
        if gemm.is_batch:
            kernel, grid = gemm_sm80.batch_gemm_sm80, (grid[0], 1, gemm.batch)
        return KernelCall(
            name="batch_gemm_sm80" if gemm.is_batch else "gemm_sm80",
            kernel=kernel,
            grid=grid,
            block=_extent(block),
            operands=(gemm.a, gemm.b),
            extras=gemm.extras,
            outputs=(gemm.output,),
            seen=gemm.seen,
            statics={"epilogue": gemm.tail, "config": config},
            summary=str(config),
        )


class Sm90Family:
    """`kernels/gemm_sm90.py`: f16 and bf16 on targets that have `wgmma`."""

    def takes(self, gemm: Gemm, options: Options) -> bool:
        """Whether the target has the instruction, the instruction the type, and TMA the batch."""
        if options.gemm is not None or not has_wgmma(gemm.dtype, options.target):
            return False
        return not gemm.is_batch or (is_addressable(gemm.a) and is_addressable(gemm.b))

    def call(self, gemm: Gemm, options: Options) -> KernelCall:
        """A launch of a persistent grid, by the plan chosen for the sizes."""
        from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90, identity

        plan = self.plan(gemm, options.chip)
        common: dict[str, Any] = {
            "name": "gemm_sm90",
            "kernel": gemm_sm90,
            "grid": _extent(plan.grid),
            "block": _extent(plan.config.threads),
            "operands": _in_order(gemm, plan),
            "extras": gemm.extras,
            "outputs": (gemm.output,),
            "seen": gemm.seen,
            "summary": str(plan),
            "cluster": plan.cluster,
            "overlap": True,
            "transposed": plan.swap,
            "preparation": Addressable(),
        }
        if plan.config.splits == 1:
            statics = {"epilogue": gemm.tail, "config": plan.config}
            return KernelCall(**common, statics=statics)
        statics = {"epilogue": identity, "config": plan.config}
        return SplitCall(**common, statics=statics, tail=gemm.tail)

    def plan(self, gemm: Gemm, chip: Chip | None) -> Sm90Plan:
        """The plan that is fastest for the sizes, as far as strides and tail allow it."""
        from kdsl_fuse.kernels.gemm_sm90_plan import DEVICE, MULTIPROCESSORS, choose

        chip = chip or Chip(DEVICE, MULTIPROCESSORS)
        plan = choose(
            *gemm.sizes, gemm.dtype, gemm.output.dtype,
            device=chip.name, multiprocessors=chip.multiprocessors, tail=bool(gemm.tail.steps),
            batch=gemm.batch,
        )  # fmt: skip
        return replace(plan, config=_with_room(plan.config, gemm))


def has_wgmma(dtype: DType, target: str) -> bool:
    """Whether a target multiplies this type with `wgmma`."""
    return dtype in (f16, bf16) and NEED.missing(target_of(target)) is None


def is_addressable(read: Operand) -> bool:
    """Whether TMA can take a view as it is, where values are at multiples of 16 bytes."""
    from kdsl_fuse.kernels.repitch import addressable_strides

    strides = addressable_strides(read.shape, read.strides, read.dtype.bytes, read.align)
    return strides == read.strides and read.align % TMA_BYTES == 0


class Addressable(Preparation):
    """Copies of operands whose pitch or address TMA cannot take."""

    def operands(self, views: Sequence[Any]) -> Sequence[Any]:
        """The views, those with another pitch or address than TMA takes in copies."""
        from kdsl_fuse.kernels.repitch import addressable

        return addressable(views)

    def spec(self, read: Operand) -> Any:
        """The operand, or its copy."""
        import kdsl_core as kd
        from kdsl_fuse.kernels.repitch import addressable_strides

        strides = addressable_strides(read.shape, read.strides, read.dtype.bytes, read.align)
        return kd.spec(read.dtype, read.shape, strides=strides)

    def needs(self, reads: Sequence[Operand]) -> list[Needed]:
        """`repitch` for the operands that are copied."""
        from kdsl_fuse.kernels.repitch import THREADS, copied_specs, repitch

        specs = copied_specs(reads)
        return [(repitch, repitch.specialisation(*specs, block=THREADS))] if specs else []


def _in_order(gemm: Gemm, plan: Sm90Plan) -> tuple[Operand, Operand]:
    return (gemm.b, gemm.a) if plan.swap else (gemm.a, gemm.b)


def _with_room(config: Sm90Config, gemm: Gemm) -> Sm90Config:
    """The plan's configuration, or one whose threads have registers for what the tail reads."""
    from kdsl_fuse.kernels.gemm_sm90_config import ROOM

    if gemm.is_batch and gemm.extras and config.pingpong and config.registers is None:
        config = replace(config, registers=ROOM)  # the place of a batch takes some, too
    reads_matrix = any(0 not in extra.strides[:2] for extra in gemm.extras)
    if not (reads_matrix and _fills_threads(config)):
        return config
    by_rows = (128, 128, config.tile[2])
    return replace(config, tile=by_rows, schedule="cooperative", stages=4, registers=ROOM)


def _fills_threads(config: Sm90Config) -> bool:
    """Whether accumulators leave a thread of 168 registers little for matrices that a tail reads.

    Producers can then give theirs, where results go out by TMA and extras are read ahead.
    """
    alone = config.peers == config.splits == 1
    return alone and config.consumers == 2 and config.accumulators >= MOST_ACCUMULATORS


FAMILIES: tuple[GemmFamily, ...] = (Sm90Family(), Sm80Family())  # the fastest first


def _extent(sizes: int | Sequence[int]) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(sizes)
