"""Clusters of blocks: their barrier, and addresses in the shared memory of another block."""

from __future__ import annotations

from kdsl_core.dtypes import u32
from kdsl_core.ir import Builder, Effect, Machine, Need, Op, Operand, PtxWriter, Value
from kdsl_core.isa.operands import expect_address, expect_type, in_register, lanes
from kdsl_core.records import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class MapAddressOp(Op):
    """The address, for the whole cluster, of a shared address in its block number `rank`.

    Source: PTX ISA 9.0 `mapa`.
    """

    dst: Value
    address: Operand
    rank: Operand

    NAME = "cluster.map_address"
    READS = ("address", "rank")
    WRITES = ("dst",)

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(7, 8))

    def verify(self) -> None:
        expect_address(self, "shared", self.address)
        expect_type(self, "the rank", self.rank, (u32,))
        expect_type(self, "the result", self.dst, (u32,))

    def ptx(self, w: PtxWriter) -> None:
        address = in_register(w, self.address, "b32")
        w.emit(f"mapa.shared::cluster.u32 {w.reg(self.dst)}, {address}, {w.reg(self.rank)}")

    def simulate(self, m: Machine) -> None:
        m.write(self.dst, m.cluster_address(lanes(m, self.address), lanes(m, self.rank)))


@dataclass(frozen=True, kw_only=True, eq=False)
class _ClusterBarrierOp(Op):
    """One half of the cluster's barrier; every thread of the cluster takes part in both."""

    @property
    def effects(self) -> Effect:
        return Effect.SYNC | Effect.CONVERGED

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(8, 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterArriveOp(_ClusterBarrierOp):
    """Arrive at the cluster's barrier without waiting.

    Threads: all lanes of a warp together.
    Memory: with `release`, accesses before it are visible to those who wait.
    Source: PTX ISA 9.0 `barrier.cluster.arrive`.
    """

    release: bool = True

    NAME = "cluster.arrive"

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"barrier.cluster.arrive.{'release' if self.release else 'relaxed'}.aligned")

    def simulate(self, m: Machine) -> None:
        m.cluster_arrive(release=self.release)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterWaitOp(_ClusterBarrierOp):
    """Wait until every thread of the cluster has arrived.

    Threads: all lanes of a warp together.
    Memory: what was released on arrival is visible.
    Source: PTX ISA 9.0 `barrier.cluster.wait`.
    """

    NAME = "cluster.wait"

    def ptx(self, w: PtxWriter) -> None:
        w.emit("barrier.cluster.wait.acquire.aligned")

    def simulate(self, m: Machine) -> None:
        m.cluster_wait(acquire=True)


def map_address(b: Builder, address: Operand, rank: Operand) -> Value:
    """The address, for the whole cluster, of a shared address in block `rank`."""
    return b.share(MapAddressOp(loc=b.loc(), dst=b.value(u32), address=address, rank=rank)).dst


def arrive(b: Builder, release: bool = True) -> None:
    """Arrive at the cluster's barrier and go on."""
    b.append(ClusterArriveOp(loc=b.loc(), release=release))


def wait(b: Builder) -> None:
    """Wait for every thread of the cluster."""
    b.append(ClusterWaitOp(loc=b.loc()))


OPS: tuple[type[Op], ...] = (MapAddressOp, ClusterArriveOp, ClusterWaitOp)
