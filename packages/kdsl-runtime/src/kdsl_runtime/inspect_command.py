"""`kdsl inspect`: a kernel's source with what each line costs, from a run in the simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kdsl_core.inspect import Report, report
from kdsl_core.lang.kernel import KernelFunction
from kdsl_runtime import recipe


def inspect(
    target: str,
    specs: tuple[str, ...],
    statics: tuple[str, ...],
    seed: int,
    device: str,
    views: tuple[str, ...],
    sass: bool,
    build: bool,
    as_json: bool,
    html: Path | None,
    svg: Path | None,
    **sizes: str | None,
) -> None:
    """Run a kernel in the simulator and print its source with the counters of each line."""
    path, _, name = target.partition(":")
    module = recipe.load(Path(path))
    kernel = recipe.find(module, name)
    given = {what: recipe.sizes_of(text) for what, text in sizes.items()}
    arguments = recipe.arguments_of(specs, statics, seed)
    launch = recipe.launch_of(module, kernel, given, arguments)
    found = report(kernel, **launch, device=device, views=dict.fromkeys(views))
    if build or sass:
        found = with_build(found, kernel, launch, sass)
    _write(found, html, svg)
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    elif not (html or svg):
        from kdsl_runtime.report_table import show

        show(found)


def _write(found: Report, html: Path | None, svg: Path | None) -> None:
    if html is not None:
        from kdsl_core.inspect.page import page

        html.write_text(page(found), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)
    if svg is not None:
        from kdsl_core.inspect.chart import chart

        svg.write_text(chart(found), encoding="utf-8")
        click.echo(f"wrote {svg}", err=True)


def with_build(
    found: Report, kernel: KernelFunction, launch: Mapping[str, Any], sass: bool
) -> Report:
    """The report with what the assembler says, and with the machine code of each line.

    Raises: BuildError K701 without an assembler, K754 without a disassembler.
    """
    from kdsl_runtime.assemble import AssembleOptions, assemble
    from kdsl_runtime.disassembly import sass_by_line

    device = found.roofline.device
    module = kernel.module(
        *launch["args"],
        target=device.target,
        block=launch["block"],
        cluster=launch.get("cluster"),
        lines=True,
        **launch.get("kwargs", {}),
    )
    cubin = assemble(module, device.target, options=AssembleOptions(line_info=True))
    used = cubin.report
    blocks, limit = device.occupancy(used.registers, found.threads, found.shared_bytes)
    text = (
        f"ptxas for {device.target}: {used.registers} registers, "
        f"{used.spill_stores + used.spill_loads} bytes of spills; {blocks} blocks of "
        f"{found.threads} threads fit on a multiprocessor (limit: {limit})"
    )
    listings = dict(found.listings)
    if sass:
        own = {source.name: source.file for source in found.sources}
        listings["sass"] = {
            (own.get(Path(file).name, file), line): texts
            for (file, line), texts in sass_by_line(cubin.data).items()
        }
    return replace(found, build=text, listings=listings)
