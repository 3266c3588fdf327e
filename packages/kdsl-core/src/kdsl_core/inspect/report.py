"""A kernel's source with what each line costs: the report behind `kdsl inspect`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from kdsl_core import sim
from kdsl_core.errors import ArgumentError
from kdsl_core.inspect.devices import Device, device_of
from kdsl_core.inspect.listings import Listing, ir_by_line, ptx_by_line
from kdsl_core.inspect.roofline import Roofline, amount_text, roofline
from kdsl_core.inspect.sources import Place, functions_around, places_in, text_of
from kdsl_core.ir import target_of
from kdsl_core.lang.arguments import bind
from kdsl_core.lang.kernel import KernelFunction
from kdsl_core.lang.launch import cluster_of, extent
from kdsl_core.lang.simulate import simulate
from kdsl_core.loc import Loc
from kdsl_core.records import dataclass

VIEWS = ("ir", "ptx")


@dataclass(frozen=True)
class Column:
    """A column of counters: the sum of some, and of those that would do, where that is known."""

    title: str
    counters: Callable[[str], bool]
    ideal: str = ""

    def amount(self, counts: Mapping[str, float]) -> float:
        """The number of a line."""
        return sum(amount for name, amount in counts.items() if self.counters(name))

    def excess(self, counts: Mapping[str, float]) -> float:
        """How many times the ideal number it is; 1 where none is known."""
        ideal = counts.get(self.ideal, 0)
        return self.amount(counts) / ideal if ideal else 1.0

    def text(self, counts: Mapping[str, float]) -> str:
        """A cell: "4,096 ×32", or nothing for 0."""
        amount, excess = self.amount(counts), self.excess(counts)
        if not amount:
            return ""
        return amount_text(amount) + (f" ×{excess:.3g}" if excess > 1 else "")


COLUMNS = (
    Column("instr.", "instructions".__eq__),
    Column("sectors", "sectors".__eq__, "ideal_sectors"),
    Column("wavefronts", "wavefronts".__eq__, "ideal_wavefronts"),
    Column("FLOP", lambda name: name.startswith(("flops_", "tensor_flops_"))),
    Column("divergent", "divergent_branches".__eq__),
    Column("waits", lambda name: name.endswith("_waits")),
)


@dataclass(frozen=True)
class Line:
    """A line of source, its counters, and its share of the resource that decides, 0 … 1."""

    number: int
    text: str
    counts: Mapping[str, float] = field(default_factory=dict)
    heat: float = 0.0


@dataclass(frozen=True)
class Source:
    """The functions of one file that have counted lines, each as its lines."""

    file: str
    functions: tuple[tuple[Line, ...], ...]

    @property
    def name(self) -> str:
        """The file without its folder."""
        return os.path.basename(self.file)


@dataclass(frozen=True)
class Report:
    """What a kernel did in the simulator, by line of its source.

    `listings` has for "ir", "ptx" or "sass" the text that each line became; `build` what the
    assembler said of registers and what fits on a multiprocessor, where somebody asked it.
    """

    kernel: str
    launch: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    sources: tuple[Source, ...]
    totals: Mapping[str, float]
    hazards: tuple[sim.Hazard, ...]
    roofline: Roofline
    listings: Mapping[str, Listing] = field(default_factory=dict)
    build: str = ""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in which something was counted."""
        return tuple(column for column in COLUMNS if column.amount(self.totals))

    @property
    def heat_of(self) -> str:
        """The resource of which lines have their share, as their heat."""
        return self.roofline.roofs[0].name if self.roofline.roofs else "nothing"

    def _repr_svg_(self) -> str:
        """The picture that notebooks show: the source with its counters."""
        from kdsl_core.inspect.chart import chart

        return chart(self)

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        line = self.roofline
        return {
            "kernel": self.kernel,
            "launch": self.launch,
            "shared_bytes": self.shared_bytes,
            "build": self.build,
            "totals": dict(self.totals),
            "lines": [
                {"file": source.file, "line": x.number, "heat": x.heat, "counts": dict(x.counts)}
                for source in self.sources
                for function in source.functions
                for x in function
                if x.counts
            ],
            "hazards": [
                {"code": h.code, "message": h.message, "where": h.loc.short() if h.loc else ""}
                for h in self.hazards
            ],
            "roofline": {
                "device": line.device.name,
                "seconds": line.seconds,
                "intensity": line.intensity,
                "busy": line.busy,
                "roofs": [{**asdict(roof), "seconds": roof.seconds} for roof in line.roofs],
            },
            "listings": {
                view: [{"file": f, "line": n, "text": list(t)} for (f, n), t in listing.items()]
                for view, listing in self.listings.items()
            },
        }


def report(
    kernel: KernelFunction,
    *,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    cluster: Any = None,
    device: str | Device = "NVIDIA H200",
    views: Collection[str] = (),
    checks: str | Collection[str] = "all",
) -> Report:
    """Simulate a launch and lay its counters beside the source.

    Hazards are collected, not raised. `device` is the one whose roofs are drawn; `views` are the
    texts to show with each line, "ir" and "ptx".

    Raises: ArgumentError K541 for an unknown device, K542 for an unknown view.
    """
    chosen = device_of(device)
    for view in views:
        if view not in VIEWS:
            raise ArgumentError(
                f"{view!r} is no view of a kernel", code="K542", fix=f"name some of {VIEWS}"
            )
    run = simulate(
        kernel, grid=grid, block=block, cluster=cluster, args=args, kwargs=kwargs,
        checks=checks, on_hazard="collect", footprint=True,
    )  # fmt: skip
    sizes = extent(grid(*args, **(kwargs or {})) if callable(grid) else grid, "grid")
    traced = kernel.trace(
        bind(kernel.signature, args, kwargs or {}),
        extent(block, "block"),
        cluster_of(cluster, sizes),
    )
    file = kernel.__wrapped__.__code__.co_filename
    place = places_in(file)
    roofs = roofline(run.profile.totals, sizes[0] * sizes[1] * sizes[2], chosen)
    made = {
        "ir": lambda: ir_by_line(traced.kernel, place),
        "ptx": lambda: ptx_by_line(traced.kernel, target_of(chosen.target), place),
    }
    return Report(
        kernel=kernel.__name__,
        launch=kernel.keys(*args, block=block, cluster=cluster, **(kwargs or {}))[0],
        grid=sizes,
        threads=traced.kernel.threads,
        shared_bytes=traced.kernel.shared_bytes,
        sources=_sources(run.profile, roofs, file, place),
        totals=run.profile.totals,
        hazards=run.hazards,
        roofline=roofs,
        listings={view: made[view]() for view in views},
    )


def _sources(
    profile: sim.Profile, roofs: Roofline, file: str, place: Callable[[Loc], Place]
) -> tuple[Source, ...]:
    """The kernel's own file first, then the others."""
    counters = roofs.roofs[0].counters if roofs.roofs else ()
    whole = sum(profile.totals.get(name, 0) for name in counters)
    by_file: dict[str, dict[int, Line]] = {file: {}}
    for row in profile.by(place):
        if row.file:
            mine = sum(row.counts.get(name, 0) for name in counters)
            line = Line(
                row.line, text_of(row.file, row.line), row.counts, mine / whole if whole else 0
            )
            by_file.setdefault(row.file, {})[row.line] = line
    return tuple(
        Source(
            name,
            tuple(
                tuple(lines.get(n) or Line(n, text_of(name, n)) for n in range(first, last + 1))
                for first, last in functions_around(name, lines)
            ),
        )
        for name, lines in by_file.items()
    )
