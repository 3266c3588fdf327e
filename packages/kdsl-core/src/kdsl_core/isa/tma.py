"""Tensor copies by the TMA unit: boxes of up to five dimensions that a tensor map describes.

One thread starts a copy; coordinates name the box's first element, innermost dimension first. What
lies outside of the tensor is read as zero and never written.
"""

from __future__ import annotations

from typing import ClassVar

from kdsl_core.dtypes import i32, u16, u64
from kdsl_core.errors import VerifyError
from kdsl_core.ir import Array, Builder, Effect, Machine, Need, Op, Operand, PtxWriter
from kdsl_core.ir.tensor_map import MAX_RANK
from kdsl_core.isa.bulk import bulk_load, bulk_send, bulk_store
from kdsl_core.isa.bulk_groups import HOPPER, commit, wait
from kdsl_core.isa.cache_policy import cache_hint, expect_policy, policy
from kdsl_core.isa.operands import (
    address_text,
    condition_lanes,
    expect_address,
    expect_choice,
    expect_condition,
    expect_type,
    guard,
    lane_addresses,
    lanes,
)
from kdsl_core.records import dataclass

REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
IM2COL_RANKS = range(3, MAX_RANK + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _TensorOp(Op):
    """An operation on the box at `coordinates` of the tensor behind a map."""

    tensor_map: Operand
    coordinates: tuple[Operand, ...]

    READS: ClassVar[tuple[str, ...]] = ("tensor_map", "coordinates")

    @property
    def need(self) -> Need:
        return HOPPER

    def verify(self) -> None:
        expect_type(self, "a tensor map", self.tensor_map, (u64,))
        if not 1 <= len(self.coordinates) <= MAX_RANK:
            raise VerifyError(
                f"{self.name}: a tensor map has 1 to {MAX_RANK} dimensions, got "
                f"{len(self.coordinates)} coordinates",
                code="K450",
                loc=self.loc,
                fix="pass one coordinate for each dimension, innermost first",
            )
        for coordinate in self.coordinates:
            expect_type(self, "a coordinate", coordinate, (i32,))

    @property
    def dimensions(self) -> str:
        """The qualifier that names the rank."""
        return f"{len(self.coordinates)}d"

    def box(self, w: PtxWriter) -> str:
        """The map and the coordinates in brackets."""
        at = ", ".join(map(w.reg, self.coordinates))
        return f"[{w.reg(self.tensor_map)}, {{{at}}}]"

    def where(self, m: Machine) -> tuple[Array, list[Array]]:
        """The map and the coordinates in each lane."""
        return lanes(m, self.tensor_map), [lanes(m, at) for at in self.coordinates]


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorLoadOp(_TensorOp):
    """Copy a box from global to shared memory in the background.

    `multicast` is a mask of blocks of the cluster that all receive it, at their own `destination`
    and `barrier`; `offsets`, if any, are those of im2col.

    Memory: complete at the mbarrier, which counts the bytes; visible to whoever waits there.
    Source: PTX ISA 9.0 `cp.async.bulk.tensor`.
    """

    destination: Operand
    barrier: Operand
    destination_offset: int = 0
    barrier_offset: int = 0
    multicast: Operand | None = None
    policy: Operand | None = None
    offsets: tuple[Operand, ...] = ()
    pred: Operand | None = None

    NAME = "tma.load"
    READS = (
        "tensor_map", "coordinates", "destination", "barrier", "multicast", "policy", "offsets",
        "pred",
    )  # fmt: skip
    COMPLETES = ("barrier",)

    @property
    def effects(self) -> Effect:
        return Effect.READS_GLOBAL | Effect.WRITES_SHARED | Effect.SYNC

    def verify(self) -> None:
        super().verify()
        expect_address(self, "shared", self.destination)
        expect_address(self, "shared", self.barrier)
        if self.multicast is not None:
            expect_type(self, "the mask of blocks", self.multicast, (u16,))
        expect_policy(self, self.policy)
        if self.pred is not None:
            expect_condition(self, self.pred)
        if self.offsets:
            self._verify_im2col()

    def _verify_im2col(self) -> None:
        rank = len(self.coordinates)
        if rank not in IM2COL_RANKS or len(self.offsets) != rank - 2:
            raise VerifyError(
                f"{self.name}: im2col takes 3 to {MAX_RANK} coordinates (channel, pixel …, image) "
                f"and one offset for each but the first and the last, got {rank} coordinates and "
                f"{len(self.offsets)} offsets",
                code="K451",
                loc=self.loc,
                fix="pass the filter's position along each spatial dimension, innermost first",
            )
        for offset in self.offsets:
            expect_type(self, "an im2col offset", offset, (u16,))

    def ptx(self, w: PtxWriter) -> None:
        hint, policy = cache_hint(w, self.policy)
        mode = "im2col" if self.offsets else "tile"
        multicast = ".multicast::cluster" if self.multicast is not None else ""
        rest = f", {{{', '.join(map(w.reg, self.offsets))}}}" if self.offsets else ""
        if self.multicast is not None:
            rest += f", {w.reg(self.multicast)}"
        destination = address_text(w, self.destination, self.destination_offset)
        barrier = address_text(w, self.barrier, self.barrier_offset)
        w.emit(
            f"{guard(w, self.pred)}cp.async.bulk.tensor.{self.dimensions}.shared::cluster.global."
            f"{mode}.mbarrier::complete_tx::bytes{multicast}{hint} "
            f"{destination}, {self.box(w)}, {barrier}{rest}{policy}"
        )

    def simulate(self, m: Machine) -> None:
        tensor_map, coordinates = self.where(m)
        m.tensor_load(
            tensor_map,
            coordinates,
            lane_addresses(m, self.destination, self.destination_offset),
            lane_addresses(m, self.barrier, self.barrier_offset),
            multicast=None if self.multicast is None else lanes(m, self.multicast),
            offsets=tuple(lanes(m, offset) for offset in self.offsets),
            where=condition_lanes(m, self.pred),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorStoreOp(_TensorOp):
    """Copy a box from shared to global memory, or combine it with what is there (`reduce`).

    Memory: belongs to the thread's open bulk group; `commit` closes it and `wait` waits.
    Source: PTX ISA 9.0 `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor`.
    """

    source: Operand
    source_offset: int = 0
    reduce: str | None = None
    policy: Operand | None = None

    NAME = "tma.store"
    READS = ("tensor_map", "coordinates", "source", "policy")

    @property
    def effects(self) -> Effect:
        return Effect.READS_SHARED | Effect.WRITES_GLOBAL

    def verify(self) -> None:
        super().verify()
        expect_address(self, "shared", self.source)
        expect_policy(self, self.policy)
        if self.reduce is not None:
            expect_choice(self, "the reduction", self.reduce, REDUCTIONS)

    def ptx(self, w: PtxWriter) -> None:
        hint, policy = cache_hint(w, self.policy)
        start, how = "cp", ""
        if self.reduce is not None:
            start, how = "cp.reduce", f".{self.reduce}"
        source = address_text(w, self.source, self.source_offset)
        w.emit(
            f"{start}.async.bulk.tensor.{self.dimensions}.global.shared::cta{how}.tile.bulk_group"
            f"{hint} {self.box(w)}, {source}{policy}"
        )

    def simulate(self, m: Machine) -> None:
        source = lane_addresses(m, self.source, self.source_offset)
        m.tensor_store(*self.where(m), source, reduce=self.reduce)


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorPrefetchOp(_TensorOp):
    """Bring a box into L2. Source: PTX ISA 9.0 `cp.async.bulk.prefetch.tensor`."""

    NAME = "tma.prefetch"

    @property
    def effects(self) -> Effect:
        return Effect.READS_GLOBAL | Effect.OBSERVABLE

    def ptx(self, w: PtxWriter) -> None:
        kind = f"cp.async.bulk.prefetch.tensor.{self.dimensions}.L2.global.tile"
        w.emit(f"{kind} {self.box(w)}")

    def simulate(self, m: Machine) -> None:
        m.tensor_prefetch(*self.where(m))


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefetchMapOp(Op):
    """Bring a tensor map itself to the TMA unit's cache. Source: PTX ISA 9.0 `prefetch`."""

    tensor_map: Operand

    NAME = "tma.prefetch_map"
    READS = ("tensor_map",)

    @property
    def effects(self) -> Effect:
        return Effect.OBSERVABLE

    @property
    def need(self) -> Need:
        return HOPPER

    def verify(self) -> None:
        expect_type(self, "a tensor map", self.tensor_map, (u64,))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"prefetch.tensormap [{w.reg(self.tensor_map)}]")

    def simulate(self, m: Machine) -> None:
        m.count("tensor_map_prefetch")


def load(
    b: Builder,
    tensor_map: Operand,
    coordinates: tuple[Operand, ...],
    destination: Operand,
    barrier: Operand,
    *,
    destination_offset: int = 0,
    barrier_offset: int = 0,
    multicast: Operand | None = None,
    policy: Operand | None = None,
    offsets: tuple[Operand, ...] = (),
    pred: Operand | None = None,
) -> None:
    """Start copying a box to shared memory; its bytes complete at the mbarrier."""
    b.append(
        TensorLoadOp(
            loc=b.loc(), tensor_map=tensor_map, coordinates=coordinates, destination=destination,
            barrier=barrier, destination_offset=destination_offset, barrier_offset=barrier_offset,
            multicast=multicast, policy=policy, offsets=offsets, pred=pred,
        )
    )  # fmt: skip


def store(
    b: Builder,
    tensor_map: Operand,
    coordinates: tuple[Operand, ...],
    source: Operand,
    source_offset: int = 0,
    *,
    reduce: str | None = None,
    policy: Operand | None = None,
) -> None:
    """Start copying a box to global memory, in the thread's open bulk group."""
    b.append(
        TensorStoreOp(
            loc=b.loc(), tensor_map=tensor_map, coordinates=coordinates, source=source,
            source_offset=source_offset, reduce=reduce, policy=policy,
        )
    )  # fmt: skip


def prefetch(b: Builder, tensor_map: Operand, coordinates: tuple[Operand, ...]) -> None:
    """Bring a box into L2."""
    b.append(TensorPrefetchOp(loc=b.loc(), tensor_map=tensor_map, coordinates=coordinates))


def prefetch_map(b: Builder, tensor_map: Operand) -> None:
    """Bring a tensor map to the TMA unit's cache."""
    b.append(PrefetchMapOp(loc=b.loc(), tensor_map=tensor_map))


__all__ = [
    "bulk_load",
    "bulk_send",
    "bulk_store",
    "commit",
    "load",
    "policy",
    "prefetch",
    "prefetch_map",
    "store",
    "wait",
]

OPS: tuple[type[Op], ...] = (TensorLoadOp, TensorStoreOp, TensorPrefetchOp, PrefetchMapOp)
