"""The machine's wgmma: matrices in shared memory, registers in flight, groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir import Reg
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.access import Access
from kdsl_core.sim.accumulators import Spread
from kdsl_core.sim.clocks import GROUP_WARPS
from kdsl_core.sim.descriptors import from_chunks
from kdsl_core.sim.machine_base import MachineBase
from kdsl_core.sim.matrix_operands import MatrixOperands, matrix_operands
from kdsl_core.sim.tensor_boxes import CHUNK
from kdsl_core.sim.traffic import WAVEFRONT

_REMEMBERED = 64


class MatrixPart(MachineBase):
    """What the tensor core does for warp groups."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._waiting = np.zeros(self.batch.rows, bool)

    def matrix_rows(
        self, descriptor: Array, first: int, rows: int, depth: int, dtype: DType, major: str
    ) -> tuple[Array, Array]:
        self._count_passes(rows * depth * dtype.bytes)
        operand = first, rows, depth, dtype.bytes, major
        wanted = self._operand(descriptor, operand)
        data = self._read_chunks(wanted)
        return from_chunks(data, dtype.numpy, major), wanted.which

    def _operand(
        self, descriptor: Array, operand: tuple[int, int, int, int, str]
    ) -> MatrixOperands:
        """Which matrices warps read; a loop asks again, and so does the next launch."""
        group, known, plain = self.group, self._known.matrices, self._plain
        key = operand, plain is None, group.key, descriptor[:, 0].tobytes()
        found = known.get(key)
        if found is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            block = self.batch.block_of[group.index]
            found = known[key] = matrix_operands(descriptor[:, 0], block, operand, plain)
        return found

    def _count_passes(self, operand_bytes: int) -> None:
        """A warp group reads an operand once, and the layouts that it takes have no conflicts."""
        for measure in ("wavefronts", "ideal_wavefronts"):
            self.count(("wgmma", measure), operand_bytes / WAVEFRONT / GROUP_WARPS)

    def _read_chunks(self, wanted: MatrixOperands) -> Array:
        """Bytes (n, …, 16) of distinct matrices; every warp that wants them is a reader."""
        index, kind = self.group.index, wanted.kind
        self.flights.open[index] = True
        if self._plain is not None and wanted.chunk is not None:
            return self._plain.get_chunks(wanted.chunk[kind], index[wanted.first])
        shape, address = wanted.address.shape[1:], wanted.address.reshape(len(wanted.address), -1)
        data = self._shared.fetch(self._chunks(index[wanted.first], address[kind]))
        if self._shared.shadow:
            group = np.repeat(self.flights.committed[index], address.shape[1])
            every = self._chunks(index, address[kind[wanted.which]])
            self._shared.start_read(every, group, matrix=True)
        return data.reshape(-1, *shape, CHUNK)

    def _chunks(self, rows: Array, address: Array) -> Access:
        """The access of some warps to their chunks, whose addresses are (warps, chunks)."""
        return Access(
            address.reshape(-1), np.repeat(rows, address.shape[1]),
            np.zeros(address.size, np.int64), CHUNK, self.pc, (1, address.size), None,
            whole_warp=True,
        )  # fmt: skip

    def warpgroup_matrices(self, registers: tuple[Reg, ...]) -> Any:
        return self.registers.matrices(registers, self.group)

    def warpgroup_write(self, registers: tuple[Reg, ...], matrices: Any, spread: Spread) -> None:
        self._check_fence(registers)
        self.registers.write_matrices(registers, matrices, spread, self.group)
        if self._check_flights:
            self.flights.use(registers, self.group.index, self.pc, writes=True)

    def warpgroup_uses(self, registers: tuple[Reg, ...]) -> None:
        if not self._check_flights:
            return
        for reg in registers:
            if self.flights.written(reg):
                self._check_flight(reg, "multiplies")
        self._check_fence(registers)
        self.flights.use(registers, self.group.index, self.pc, writes=False)

    def _check_fence(self, registers: tuple[Reg, ...]) -> None:
        late = self.flights.unfenced(registers, self.group.index) if self._check_flights else None
        if late is None:
            return
        which, pc = late
        self.reporter.at_thread(
            "inflight",
            self.pc,
            int(self.group.index[which.argmax()]),
            0,
            "starts a wgmma without wgmma.fence "
            + ("before it" if pc is None else "since another instruction wrote its registers"),
            fix="kd.wgmma_fence() after the last write to accumulators or A registers",
            other_loc=None if pc is None else self.reporter.loc(pc),
            other_did="written",
        )

    def warpgroup_fence(self) -> None:
        self.flights.fence(self.group.index)

    def warpgroup_commit(self) -> None:
        index = self.group.index
        self.flights.commit(index)
        if self._waiting.any():
            rows = np.nonzero(self._waiting)[0]
            self._waiting[rows] = False
            self.freed.append(("warp group", rows))

    def warpgroup_wait(self, pending: int) -> None:
        """A wgmma is done when all warps of its warp group have started it, and not before."""
        flights, index = self.flights, self.group.index
        behind = self._slowest()[index] < flights.committed[index] - pending
        self._waiting[index] = behind
        self.hold("warp group", behind, again=True)
        ready = index[~behind]
        flights.wait(ready, pending)
        self.batch.clocks.finish_wgmma(ready, flights.finished[ready])

    def _slowest(self) -> Array:
        """How many groups of wgmma all living warps of each warp's warp group have committed."""
        batch, committed = self.batch, self.flights.committed
        if (committed == committed[0]).all():
            return committed
        group = batch.block_of * batch.warps_per_block + batch.local // GROUP_WARPS
        alive = batch.alive.any(axis=1)
        least = np.full(batch.rows, np.iinfo(np.int64).max)
        np.minimum.at(least, group[alive], committed[alive])
        return np.asarray(least[group])
