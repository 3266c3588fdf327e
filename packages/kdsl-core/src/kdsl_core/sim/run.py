"""Run a kernel's IR on the simulated GPU."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from kdsl_core.errors import ArgumentError
from kdsl_core.ir import Kernel, Param, TensorMap
from kdsl_core.ir.cost import Cost
from kdsl_core.ir.protocols import Array
from kdsl_core.sim.analysis import analysis
from kdsl_core.sim.batch import Batch, cluster_order
from kdsl_core.sim.counters import Counters
from kdsl_core.sim.global_access import GlobalAccess
from kdsl_core.sim.groups import LANES
from kdsl_core.sim.hazards import Findings, Hazard, checks_of
from kdsl_core.sim.machine import SimMachine
from kdsl_core.sim.memory import Allocation, Buffer, GlobalStore
from kdsl_core.sim.profile import profile_of
from kdsl_core.sim.progress import Progress
from kdsl_core.sim.reporting import Reporter
from kdsl_core.sim.result import Result
from kdsl_core.sim.scheduler import Budget, Scheduler
from kdsl_core.sim.writers import Writers

WARPS_IN_FLIGHT = 1024  # their operands of an instruction still fit in a core's cache
REGISTERS_IN_FLIGHT = 256 << 20  # bytes
SHARED_IN_FLIGHT = 4 << 20  # bytes; their shadow takes up to 256 times as much
UNWATCHED = 4  # times as much of both where nobody looks for hazards of order
_OF_ORDER = ("race", "inflight", "uninit", "proxy", "exited", "barrier")  # found by clocks
MAX_INSTRUCTIONS = 20_000_000

MAP_BASE = 0x6000_0000_0000  # where parameters that are tensor maps have their generic addresses
MAP_BYTES = 128

Given: TypeAlias = "int | float | TensorMap"


def run(
    kernel: Kernel,
    grid: tuple[int, int, int],
    params: Mapping[str, Given],
    buffers: Sequence[Buffer] = (),
    *,
    overlap: Collection[str] = (),
    checks: str | Collection[str] = "all",
    on_hazard: str = "raise",
    order: str = "linear",
    seed: int = 0,
    numerics: Literal["exact", "fast"] = "exact",
    progress: bool | None = None,
    profile: bool = True,
    footprint: bool = False,
    writers: bool = False,
    costs: Callable[[], Sequence[Cost]] | None = None,
    max_instructions: int = MAX_INSTRUCTIONS,
) -> Result:
    """Run every block of the grid and write the buffers' arrays.

    `params` gives each kernel parameter by name, pointers as virtual addresses of `GlobalMemory`;
    tensor maps hold such addresses.
    `overlap` names the arguments that the launch ahead of this one may still use: they must not be
    touched before `wait_for_dependencies`.
    `checks` is "all" or the hazard codes to look for; "unwritten" is one only when it is named.
    `order="shuffle"` varies the order of blocks and warps from `seed`. `numerics="fast"` lets
    tensor-core instructions round like NumPy.
    `profile` counts what accesses move, `footprint` also which sectors are touched at all, and
    `costs` says, when somebody looks, what each instruction of the flat program costs.
    `writers` remembers who wrote each element last; it needs the check "race" or "unwritten".
    `progress` shows a bar after two seconds; None means: on a terminal. A run ends with a hazard
    after `max_instructions`, where one that many warps execute together counts once. Without
    `profile` only executed instructions are counted.

    Raises: HazardError for the first hazard when `on_hazard` is "raise".
    """
    _check_words(on_hazard=on_hazard, order=order, numerics=numerics)
    findings = Findings(checks_of(checks), on_hazard)
    launch = _Launch(kernel, grid, params, buffers, findings, overlap)
    if profile:
        launch.counters.start(footprint=footprint)
    rng = np.random.default_rng(seed) if order == "shuffle" else None
    bar = Progress(kernel.name, int(np.prod(grid)), progress)
    budget = Budget(max_instructions, bar.beat)
    try:
        with np.errstate(all="ignore"):
            for blocks in launch.batches(rng):
                launch.run_batch(blocks, numerics, budget, rng)
                bar.finish_blocks(blocks.size)
        launch.check_outputs()
    finally:
        bar.close()
        launch.store.write_back()
    return launch.result(costs, writers)


_WORDS = {
    "on_hazard": ("raise", "collect"),
    "order": ("linear", "shuffle"),
    "numerics": ("exact", "fast"),
}


def _check_words(**given: str) -> None:
    for name, word in given.items():
        if word not in _WORDS[name]:
            allowed = " or ".join(map(repr, _WORDS[name]))
            raise ArgumentError(
                f"{name} expects {allowed}, got {word!r}", code="K511", fix=f"write {allowed}"
            )


class _Launch:
    """What all batches of one run share."""

    def __init__(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        params: Mapping[str, Given],
        buffers: Sequence[Buffer],
        findings: Findings,
        overlap: Collection[str],
    ) -> None:
        self.kernel = kernel
        self.grid = grid
        self.words, self.maps = _place_maps(params)
        self.known = analysis(kernel)
        self.program = self.known.program
        self.findings = findings
        self.ordered = any(map(findings.wants, _OF_ORDER))
        self.store = GlobalStore(buffers)
        instructions = self.program.instructions
        self.counters = Counters(instructions)
        self.reporter = Reporter(kernel, instructions, self.store, self.findings)
        outputs = [param for param in kernel.params if param.name in self.known.written]
        self.written = tuple(dict.fromkeys(map(_tensor_of, outputs)))
        written = self._allocations(_address(params[param.name]) for param in outputs)
        shared = self._allocations(b.address for b in self.store.buffers if b.name in overlap)
        self.memory = GlobalAccess(self.store, self.reporter, written, shared)

    def _allocations(self, addresses: Iterable[int]) -> list[Allocation]:
        """The allocations that hold some addresses, each once."""
        found = [self.store.find(a, a + 1) for a in addresses]
        return list({id(a): a for a in found if a is not None}.values())

    def check_outputs(self) -> None:
        """Report what of the outputs nobody wrote, where that is asked for."""
        if not self.findings.wants("unwritten"):
            return
        for buffer in (b for b in self.store.buffers if b.name in self.written):
            left = self.memory.unwritten(buffer)
            if left.size:
                first = ", ".join(map(str, left[0].tolist()))
                text = f"{len(left)} of {buffer.array.size} elements of {buffer.name} were never"
                fix = "let some thread write every element, or leave the check out"
                text = f"{text} written, {buffer.name}[{first}] first"
                self.findings.add(Hazard("unwritten", text, self.kernel.loc, fix=fix))

    def result(self, costs: Callable[[], Sequence[Cost]] | None, writers: bool) -> Result:
        """What all batches found and counted."""
        size = [
            " × ".join(str(n) for n in shape if n > 1) or "1"
            for shape in (self.grid, self.kernel.block_dim)
        ]
        return Result(
            f"{self.kernel.name}, {size[0]} block{'s' * (size[0] != '1')} of {size[1]} threads",
            self.written,
            self.findings.hazards,
            self.findings.allowed,
            profile_of(self.counters, costs),
            self._writers() if writers else None,
            partial(self.findings.allowances.unused, self.program.instructions),
        )

    def _writers(self) -> Writers | None:
        """Who wrote what; None where no block ran."""
        batch = self.reporter.batch
        buffers = {buffer.name: buffer for buffer in self.store.buffers}
        instructions = self.program.instructions
        if batch is None:
            return None
        return Writers(self.kernel, instructions, self.memory, buffers, batch)

    def batches(self, rng: np.random.Generator | None) -> list[Array]:
        """Linear block numbers, a batch at a time."""
        clusters = cluster_order(self.grid, self.kernel.cluster_dim or (1, 1, 1))
        if rng is not None:
            clusters = clusters[rng.permutation(len(clusters))]
        warps = -(-self.kernel.threads // LANES)
        more = 1 if self.ordered or self.known.combines else UNWATCHED
        blocks = min(
            more * WARPS_IN_FLIGHT // warps,
            REGISTERS_IN_FLIGHT // (warps * self.known.warp_bytes),
            more * SHARED_IN_FLIGHT // max(self.kernel.shared_bytes, 1),
        )
        at_once = max(blocks // clusters.shape[1], 1)
        return [clusters[i : i + at_once].reshape(-1) for i in range(0, len(clusters), at_once)]

    def run_batch(
        self,
        blocks: Array,
        numerics: Literal["exact", "fast"],
        budget: Budget,
        rng: np.random.Generator | None,
    ) -> None:
        """Run some blocks side by side."""
        wgmma = bool(self.known.watched)
        batch = Batch(self.kernel, self.grid, blocks, wgmma=wgmma, ordered=self.ordered)
        if self.findings.wants("inflight"):
            batch.clocks.loads.follow(self.known.loads)
        self.reporter.batch = batch
        self.memory.begin(batch)
        machine = SimMachine(
            self.kernel, batch, self.memory, self.reporter, self.counters, numerics, self.maps,
            self.known,
        )  # fmt: skip
        for param in self.kernel.params:
            machine.registers.set_uniform(param.value, self.words[param.name])
        Scheduler(self.program, self.known.facts, machine, self.counters, budget, rng).run()


def _tensor_of(param: Param) -> str:
    """The name of the tensor behind a pointer or a tensor map."""
    if param.map is not None:
        return param.map.tensor
    return param.tensor[0] if param.tensor else param.name


def _address(param: Given) -> int:
    """Where the memory lies that a pointer or tensor map names."""
    return param.address if isinstance(param, TensorMap) else int(param)


def _place_maps(
    params: Mapping[str, Given],
) -> tuple[dict[str, int | float], dict[int, TensorMap]]:
    """The words that kernels hold, where a tensor map is its address, and the maps by address."""
    words: dict[str, int | float] = {}
    maps: dict[int, TensorMap] = {}
    for name, given in params.items():
        if isinstance(given, TensorMap):
            words[name] = MAP_BASE + MAP_BYTES * len(maps)
            maps[MAP_BASE + MAP_BYTES * len(maps)] = given
        else:
            words[name] = given
    return words, maps
