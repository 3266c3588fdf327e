"""A batch of blocks in flight: who its threads are, their registers and their shared memory."""

from __future__ import annotations

import numpy as np

from kdsl_core.ir import Kernel
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.clocks import Clocks
from kdsl_core.sim.groups import LANES

SHARED_BASE = 0x400  # not zero, so that a null shared address is found
_ALIGN = 128


class Batch:
    """Some blocks of the grid that run side by side; warps are rows, block after block."""

    def __init__(
        self, kernel: Kernel, grid: tuple[int, int, int], blocks: Array, initial: int = 0
    ) -> None:
        self.block_dim = kernel.block_dim
        self.grid = grid
        self.blocks = blocks  # linear block numbers
        self.threads = kernel.threads
        self.warps_per_block = -(-kernel.threads // LANES)
        self.rows = blocks.size * self.warps_per_block
        self.local = np.tile(np.arange(self.warps_per_block), blocks.size)
        self.block_of = np.repeat(np.arange(blocks.size), self.warps_per_block)
        tid = self.local[:, None] * LANES + np.arange(LANES)
        self.exist = tid < kernel.threads
        self.alive = self.exist.copy()
        self.special = self._special_registers(tid)
        self.shared_bytes = kernel.shared_bytes
        self.shared_stride = -(-kernel.shared_bytes // _ALIGN) * _ALIGN
        self.shared = np.full(blocks.size * self.shared_stride, initial, np.uint8)
        self.clocks = Clocks(blocks.size, self.warps_per_block)

    def _special_registers(self, tid: Array) -> dict[str, Array]:
        x, y, _ = self.block_dim
        gx, gy, _ = self.grid
        block = self.blocks[self.block_of][:, None]
        found = {
            "tid.x": tid % x,
            "tid.y": tid // x % y,
            "tid.z": tid // (x * y),
            "ctaid.x": block % gx,
            "ctaid.y": block // gx % gy,
            "ctaid.z": block // (gx * gy),
            "laneid": np.arange(LANES)[None, :],
            "warpid": self.local[:, None],
        }
        for axis, size, count in zip("xyz", self.block_dim, self.grid, strict=True):
            found[f"ntid.{axis}"] = np.array([[size]])
            found[f"nctaid.{axis}"] = np.array([[count]])
        return {name: value.astype(np.uint32) for name, value in found.items()}

    def block_coordinate(self, row: int) -> tuple[int, int, int]:
        """(x, y, z) of the block that a row's warp belongs to."""
        block = int(self.blocks[self.block_of[row]])
        gx, gy, _ = self.grid
        return block % gx, block // gx % gy, block // (gx * gy)

    def thread_coordinate(self, row: int, lane: int) -> tuple[int, int, int]:
        """(x, y, z) of a thread in its block."""
        tid = int(self.local[row]) * LANES + lane
        x, y, _ = self.block_dim
        return tid % x, tid // x % y, tid // (x * y)
