"""Clusters: blocks that run at the same time, wait for each other and see each other's memory."""

from __future__ import annotations

import math
from typing import Any

from kdsl_core.dtypes import i32, u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.isa import cluster, convert, special
from kdsl_core.lang.engine import Pointer
from kdsl_core.lang.scalar import Scalar, as_scalar
from kdsl_core.lang.tensor import Tensor
from kdsl_core.lang.tracer import builder, current
from kdsl_core.lang.words import block_idx
from kdsl_core.loc import here


def cluster_dim() -> tuple[int, int, int]:
    """Blocks of a cluster along each axis: known while tracing, (1, 1, 1) without clusters."""
    return current().kernel.cluster_dim or (1, 1, 1)


def cluster_idx() -> tuple[Any, Any, Any]:
    """The cluster's index in the grid, (x, y, z): that of the block, counted in clusters."""
    (x, y, z), (nx, ny, nz) = block_idx(), cluster_dim()
    return x // nx, y // ny, z // nz


def cluster_rank() -> Scalar:
    """The block's linear index in its cluster, x fastest."""
    blocks = math.prod(cluster_dim())
    if blocks == 1:
        return as_scalar(0)
    b = builder()
    rank = convert.bitcast(b, special.special(b, "cluster_ctarank"), i32)
    return Scalar(rank, nonneg=True, bound=blocks)


def cluster_arrive(relaxed: bool = False) -> None:
    """Arrive at the cluster's barrier and go on; every thread of the cluster does.

    Threads: converged in each warp.
    Memory: unless `relaxed`, what this thread did before is visible to those who wait.
    """
    cluster.arrive(builder(), release=not relaxed)


def cluster_wait() -> None:
    """Wait until every thread of the cluster has arrived.

    Threads: converged in each warp.
    """
    cluster.wait(builder())


def cluster_sync() -> None:
    """Wait for every thread of the cluster; orders their memory accesses.

    Threads: converged in each warp.
    """
    cluster_arrive()
    cluster_wait()


def peer(tensor: Tensor, rank: Any) -> Tensor:
    """The same shared tensor in the cluster's block number `rank`.

    Memory: both blocks must be running; `cluster_sync` before the first access and at the end.
    """
    engine = tensor.engine
    if not isinstance(engine, Pointer) or engine.space != "shared":
        raise TypeMismatch(
            f"blocks of a cluster see each other's shared memory, got {tensor!r}",
            code="K278",
            loc=here(),
            fix="pass a tensor that kd.smem made, or a view of one",
        )
    number = as_scalar(rank, u32).operand
    address = cluster.map_address(builder(), engine.address, number)
    there = Pointer("cluster", address, engine.align, engine.name)
    return Tensor(there, tensor.layout, tensor.dtype, tensor.offset, tensor.swizzle)
