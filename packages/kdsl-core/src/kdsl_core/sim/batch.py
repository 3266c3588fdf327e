"""A batch of blocks in flight: who its threads are, their registers and their shared memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kdsl_core.ir import Kernel
from kdsl_core.ir.protocols import Array, Sum
from kdsl_core.sim.clocks import Clocks
from kdsl_core.sim.groups import LANES
from kdsl_core.sim.no_clocks import NoClocks

SHARED_BASE = 0x400  # not zero, so that a null shared address is found
# In a cluster, shared addresses name their block as well: on hardware by its rank in the top byte,
# which is 0 for the first one; here by rank + 1, so that addresses without it can be told.
RANK_SHIFT = 24
IN_BLOCK = (1 << RANK_SHIFT) - 1
_ALIGN = 128
# Special registers that are sizes along an axis: of the block, the grid and the cluster.
_SIZES: dict[str, Callable[[int, int, int], int]] = {
    "ntid": lambda threads, blocks, size: threads,
    "nctaid": lambda threads, blocks, size: blocks,
    "cluster_nctaid": lambda threads, blocks, size: size,
    "nclusterid": lambda threads, blocks, size: blocks // size,
}


class Batch:
    """Some blocks of the grid that run side by side; warps are rows, block after block.

    Blocks of a cluster stand together, in the order of their ranks. `wgmma` says that there are
    tensor cores to keep clocks of, `ordered` that there are clocks at all.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        blocks: Array,
        *,
        wgmma: bool = False,
        ordered: bool = True,
    ) -> None:
        self.block_dim = kernel.block_dim
        self.grid = grid
        self.blocks = blocks  # linear block numbers
        self.threads = kernel.threads
        self.warps_per_block = -(-kernel.threads // LANES)
        self.rows = blocks.size * self.warps_per_block
        self.cluster_dim = kernel.cluster_dim or (1, 1, 1)
        self.blocks_per_cluster = int(np.prod(self.cluster_dim))
        self.local = np.tile(np.arange(self.warps_per_block), blocks.size)
        self.block_of = np.repeat(np.arange(blocks.size), self.warps_per_block)
        size = self.blocks_per_cluster
        self.first_block = blocks[self.block_of // size * size]  # names the cluster of a row
        tid = self.local[:, None] * LANES + np.arange(LANES)
        self.exist = tid < kernel.threads
        self.alive = self.exist.copy()
        self._tid = tid
        self._special: dict[str, Array] = {}
        self.shared_bytes = kernel.shared_bytes
        self.shared_stride = -(-kernel.shared_bytes // _ALIGN) * _ALIGN
        self.shared = np.zeros(blocks.size * self.shared_stride, np.uint8)
        clocks = Clocks if ordered else NoClocks
        self.clocks = clocks(
            blocks.size, self.warps_per_block, self.blocks_per_cluster, wgmma=wgmma
        )

    def special(self, name: str) -> Array:
        """A special register of all rows, u32, broadcastable to (rows, 32)."""
        found = self._special.get(name)
        if found is None:
            found = self._special[name] = self._special_register(name).astype(np.uint32)
        return found

    def special_sum(self, name: str) -> Sum | None:
        """A special register as a sum, where it is one: "tid.x", of whole warps along x."""
        if name != "tid.x" or self.block_dim[0] % LANES:
            return None
        first = self.local[:, None] * LANES % self.block_dim[0]
        return Sum(first.astype(np.uint32), np.arange(LANES, dtype=np.uint32)[None])

    def _special_register(self, name: str) -> Array:
        if name in ("laneid", "warpid"):
            return np.arange(LANES)[None, :] if name == "laneid" else self.local[:, None]
        if name == "cluster_ctarank":
            return self.block_of[:, None] % self.blocks_per_cluster
        what, axis = name.split(".")
        at = "xyz".index(axis)
        blocks, size = self.grid[at], self.cluster_dim[at]
        if what in _SIZES:
            return np.array([[_SIZES[what](self.block_dim[at], blocks, size)]])
        if what == "tid":
            return self._along(self._tid, self.block_dim, at)
        block = self._along(self.blocks[self.block_of][:, None], self.grid, at)
        return {"ctaid": block, "cluster_ctaid": block % size, "clusterid": block // size}[what]

    @staticmethod
    def _along(number: Array, shape: tuple[int, int, int], at: int) -> Array:
        x, y, _ = shape
        return number % x if at == 0 else number // x % y if at == 1 else number // (x * y)

    def living_blocks(self) -> Array:
        """Which blocks have threads that have not ended, bool (blocks,)."""
        return np.asarray(self.alive.reshape(self.blocks.size, -1).any(axis=1))

    def block_at(self, address: Array, row: Array) -> Array:
        """The block of the batch that shared addresses lie in; the row's where they name none."""
        rank = (address >> RANK_SHIFT) - 1
        mine, size = self.block_of[row], self.blocks_per_cluster
        return np.where((rank >= 0) & (rank < size), mine // size * size + rank, mine)

    def block_coordinate(self, row: int) -> tuple[int, int, int]:
        """(x, y, z) of the block that a row's warp belongs to."""
        return self._coordinate(int(self.blocks[self.block_of[row]]))

    def coordinate_in_cluster(self, first_block: int, rank: int) -> tuple[int, int, int]:
        """(x, y, z) of a block of the cluster whose first block has a linear number."""
        x, y, z = self._coordinate(first_block)
        cx, cy, _ = self.cluster_dim
        return x + rank % cx, y + rank // cx % cy, z + rank // (cx * cy)

    def _coordinate(self, block: int) -> tuple[int, int, int]:
        gx, gy, _ = self.grid
        return block % gx, block // gx % gy, block // (gx * gy)

    def thread_coordinate(self, row: int, lane: int) -> tuple[int, int, int]:
        """(x, y, z) of a thread in its block."""
        return self.thread_at(int(self.local[row]) * LANES + lane)

    def thread_at(self, tid: int) -> tuple[int, int, int]:
        """(x, y, z) of the thread of a block with a linear number."""
        x, y, _ = self.block_dim
        return tid % x, tid // x % y, tid // (x * y)


def in_block(address: Array, rank: Array | int) -> Array:
    """The cluster addresses of the same places in blocks `rank`."""
    return np.asarray((address & IN_BLOCK) | rank + 1 << RANK_SHIFT)


def cluster_order(grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> Array:
    """Linear block numbers (clusters, blocks of a cluster), blocks in the order of their ranks."""
    (gx, gy, gz), (cx, cy, cz) = grid, cluster
    numbers = np.arange(gx * gy * gz).reshape(gz // cz, cz, gy // cy, cy, gx // cx, cx)
    return np.asarray(numbers.transpose(0, 2, 4, 1, 3, 5).reshape(-1, cx * cy * cz))
