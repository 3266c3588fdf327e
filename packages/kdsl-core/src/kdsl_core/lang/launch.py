"""A launch: checks the arguments, and runs them where they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import ArgumentError, KdslError, ResourceError
from kdsl_core.ir import target_of
from kdsl_core.ir.target import MAX_THREADS_PER_BLOCK
from kdsl_core.lang.arguments import Bound, bind
from kdsl_core.lang.host import runtime
from kdsl_core.loc import here

if TYPE_CHECKING:
    from kdsl_core.lang.kernel import KernelFunction

Dim3 = tuple[int, int, int]
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_OF_CLUSTER = 8  # blocks that every chip with clusters can run together


def extent(sizes: Any, what: str) -> Dim3:
    """One to three sizes as (x, y, z).

    Raises: ArgumentError K621, ResourceError K404 for a block of too many threads, K435 for a
    cluster of too many blocks.
    """
    given = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    whole = [int(n) for n in given if not isinstance(n, (bool, float))]
    most = _MOST_BLOCKS if what == "grid" else (1024, 1024, 64)
    full = (*whole, 1, 1, 1)[:3]
    fits = len(whole) == len(given) and 1 <= len(whole) <= 3
    if not fits or any(not 1 <= n <= m for n, m in zip(full, most, strict=True)):
        raise ArgumentError(
            f"the {what} is one to three sizes from 1 to {most}, got {sizes!r}",
            code="K621",
            fix="round up: -(-n // tile) blocks cover n elements"
            if what == "grid"
            else "launch more, smaller blocks",
        )
    if what == "block" and math.prod(full) > MAX_THREADS_PER_BLOCK:
        raise ResourceError(
            f"a block has at most {MAX_THREADS_PER_BLOCK} threads, got {sizes!r} = "
            f"{math.prod(full)} threads",
            code="K404",
            fix="launch more, smaller blocks",
        )
    if what == "cluster" and math.prod(full) > _MOST_OF_CLUSTER:
        raise ResourceError(
            f"a cluster has at most {_MOST_OF_CLUSTER} blocks, got {sizes!r} = {math.prod(full)}",
            code="K435",
            fix="launch smaller clusters",
        )
    return full[0], full[1], full[2]


def cluster_of(sizes: Any, grid: Dim3) -> Dim3 | None:
    """The shape of a cluster that the grid is a multiple of; None when there are no clusters.

    Raises: ArgumentError K636 when the grid is none.
    """
    if sizes is None:
        return None
    shape = extent(sizes, "cluster")
    if any(blocks % part for blocks, part in zip(grid, shape, strict=True)):
        raise ArgumentError(
            f"the grid is no whole number of clusters: {grid} blocks, clusters of {shape}",
            code="K636",
            fix="round each size of the grid up to a multiple of the cluster's; blocks with "
            "nothing to do may return",
        )
    return shape


@dataclass(frozen=True)
class Launch:
    """A kernel with its grid and block, waiting for arguments.

    `overlap` lets it start before the launch ahead of it in the stream has ended.
    """

    kernel: KernelFunction
    grid: Any
    block: Any
    cluster: Any = None
    stream: int | None = None
    overlap: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Run on the arguments: in the simulator for NumPy arrays, else on their GPU.

        Raises: ArgumentError for arguments that do not fit, HazardError from the simulator.
        """
        try:
            self._run(args, kwargs)
        except KdslError as error:
            error.loc = error.loc or here(depth=1)
            raise

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = bind(self.kernel.signature, args, kwargs)
        grid = extent(self.grid(*args, **kwargs) if callable(self.grid) else self.grid, "grid")
        if self._device(bound) == "cpu":
            from kdsl_core.lang.simulate import simulate_bound

            block = extent(self.block, "block")
            cluster = cluster_of(self.cluster, grid)
            simulate_bound(self.kernel, grid, block, bound, {"profile": False}, cluster)
        else:
            self._on_gpu(bound, grid)

    def _device(self, bound: Bound) -> str:
        places = {name: facts.device[0] for name, facts in bound.arrays.items()}
        kinds = set(places.values())
        if len(kinds) > 1 or "spec" in kinds:
            listed = ", ".join(f"{name} on {place}" for name, place in places.items())
            raise ArgumentError(
                f"{self.kernel.__name__} needs its arrays in one place, got {listed}",
                code="K622",
                fix="move them: all NumPy arrays for the simulator, all on one GPU otherwise",
            )
        return kinds.pop() if kinds else "cpu"

    def _on_gpu(self, bound: Bound, grid: Dim3) -> None:
        host = runtime("a launch on the GPU")
        device = host.common_device(bound.arrays)[1]
        block = extent(self.block, "block")
        cluster = cluster_of(self.cluster, grid)
        traced = self.kernel.trace(bound, block, cluster)
        loaded = traced.loaded.get(device)
        if loaded is None:
            module = self.kernel.built(traced, target_of(host.driver.device(device).target))
            loaded = traced.loaded[device] = host.load(module, device)
        stream = self.stream
        if stream is None:
            stream = host.launch_stream(bound.arrays.values(), device)
        loaded.launch(grid, block, traced.values(bound), stream, cluster, self.overlap)
