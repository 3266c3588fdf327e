"""Copies, sums, pointwise functions and reductions of the campaign, on small arrays with edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from kdsl_fuse.kernels import row_programs, rows_plan
from kdsl_fuse.kernels.columns import ColumnsConfig, columns
from kdsl_fuse.kernels.elementwise import ElementwiseConfig, ElementwisePlan, elementwise
from kdsl_fuse.kernels.elementwise import choose as choose_elementwise
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.repitch import repitch, repitch_grid
from kdsl_fuse.kernels.row_programs import REDUCTIONS, RowProgram
from kdsl_fuse.kernels.rows import RowConfig, rows
from kdsl_fuse.kernels.sum_parts import THREADS, SumShares, sum_parts
from mutants.launch import BF16, F16, F32, Launch, biased, both, matrix, nothing, tail_of


# -- copies and sums -------------------------------------------------------------------------------
def _repitch() -> Launch:
    def args() -> tuple[Any, ...]:
        a, b = matrix(0, (5, 73)), matrix(1, (3, 1025))
        into = [np.full((len(x), -(-x.shape[1] // 64) * 64), np.nan, BF16) for x in (a, b)]
        return a, into[0], b, into[1]

    grid = repitch_grid([(5, 73), (3, 1025)], 2)
    return Launch(repitch, grid, 128, args, overlap=True, checks=("all",))  # pads stay as they are


def sums(
    m: int, n: int, contiguous: int, *, parts: int = 3, tail: bool = False, outputs: int = 1
) -> Launch:
    """The sum of parts by `sum_parts`."""

    def args() -> tuple[Any, ...]:
        given = matrix(2, (parts, m, n) if contiguous else (parts, n, m), F32)
        made = [nothing((m, n), BF16, contiguous) for _ in range(outputs)]
        order = (1, 2, 0) if contiguous else (2, 1, 0)
        return given.transpose(order), *made, *(tail_of(m, n, BF16) if tail else ())

    epilogue = both if outputs == 2 else biased if tail else identity
    shares = SumShares.of((m, n), contiguous, parts)
    statics = {"epilogue": epilogue, "outputs": outputs, **shares.statics}
    return Launch(sum_parts, shares.grid, THREADS, args, statics, overlap=True)


# -- pointwise -------------------------------------------------------------------------------------
def mixed(x: Any, y: Any) -> tuple[Any, Any]:
    """Two outputs of operands that are not alike."""
    return 2.0 * x - y, x * y


def pointwise(
    shape: tuple[int, ...],
    second: tuple[int, ...],
    config: ElementwiseConfig,
    *,
    dtype: Any = BF16,
    axes: tuple[int, ...] | None = None,
) -> Launch:
    """Two functions of two operands by `elementwise`; the first operand's `axes` lie otherwise."""

    def args() -> tuple[Any, ...]:
        x, y = matrix(3, shape, dtype), matrix(4, second, dtype)
        x = np.ascontiguousarray(x.transpose(axes)).transpose(np.argsort(axes)) if axes else x
        return nothing(shape, dtype), nothing(shape, F32), x, y

    made = args()
    modes = choose_elementwise(made[:2], made[2:]).modes
    plan = ElementwisePlan(modes, config, 2)
    statics = {"function": mixed, "config": config, "outputs": 2}
    return Launch(
        elementwise, plan.grid, config.threads, lambda: tuple(modes.views(args())), statics,
        overlap=True,
    )  # fmt: skip


# -- rows ------------------------------------------------------------------------------------------
def row_program(name: str, online: bool = False) -> RowProgram:
    """A program by its name."""
    if name == "softmax":
        return row_programs.softmax(fast=False, online=online)
    if name == "cross_entropy":
        return row_programs.cross_entropy(fast=False, ignore_index=-1, online=online)
    if name == "layer_norm":
        return row_programs.norm(
            1e-5, centred=True, bias=True, residual=True, total=True, online=online
        )
    if name == "rms_norm":
        return row_programs.norm(1e-6, centred=False)
    return row_programs.reduction(name)


def row_wise(
    name: str,
    config: RowConfig,
    shape: tuple[int, int],
    *,
    dtype: Any = F32,
    online: bool = False,
) -> Launch:
    """A row-wise program by `rows`."""
    program, (height, length) = row_program(name, online), shape

    def operands() -> list[Any]:
        outputs = [nothing(shape, dtype) for _ in range(program.outputs)]
        outputs += [nothing((height,), F32) for _ in range(program.row_outputs)]
        inputs = [matrix(i, shape, dtype) for i in range(program.inputs)]
        extras = [matrix(5 + i, (length,), dtype) for i in range(program.extras)]
        labels = [np.arange(-1, height - 1) * 7 % length for _ in range(program.row_inputs)]
        for x in labels:
            x[0] = -1  # ignored
        return [*outputs, *inputs, *extras, *labels]

    plan = rows_plan.choose(program, *operands())
    cluster = config.cluster if config.cluster > 1 else None
    return Launch(
        rows, config.grid(height), config.threads,
        lambda: tuple(plan.views(operands())), {"program": program, "config": config}, cluster,
        overlap=True,
    )  # fmt: skip


# -- columns ---------------------------------------------------------------------------------------
def column_wise(
    name: str, config: ColumnsConfig, shape: tuple[int, int], *, dtype: Any = BF16
) -> Launch:
    """A reduction over the first axis by `columns`."""
    blocks = -(-shape[1] // (config.lanes * config.width)), config.parts
    statics = {"count": shape[0], "reduction": REDUCTIONS[name], "config": config}
    return Launch(
        columns, blocks, config.threads,
        lambda: (matrix(6, shape, dtype), nothing((config.parts, shape[1]), F32)), statics,
        overlap=True,
    )  # fmt: skip


def row_kernels() -> dict[str, Launch]:
    """The kernels of this file."""
    return _element_wise() | _held_rows() | _long_rows() | _columns()


def _element_wise() -> dict[str, Launch]:
    """Copies, sums of parts and pointwise functions."""
    lines, flat = ElementwiseConfig(4, 2, threads=32), ElementwiseConfig(1, 3, threads=32)
    return {
        "repitch": _repitch(),
        "sum_parts/rows, tail": sums(3, 520, 1, tail=True),
        "sum_parts/columns, two outputs": sums(135, 3, 0, outputs=2),
        "sum_parts/groups of threads": sums(5, 136, 1, parts=9),
        "elementwise/a row for all": pointwise((5, 68), (68,), lines),
        "elementwise/flat": pointwise((7, 16), (7, 16), flat, dtype=F16),
        "elementwise/another order": pointwise(
            (3, 5, 8), (5, 1), ElementwiseConfig(1, 1, threads=64, wide=True), axes=(2, 0, 1)
        ),
    }


def _held_rows() -> dict[str, Launch]:
    """Rows in registers."""
    return {
        "rows/a lane": row_wise("rms_norm", RowConfig(1, 1, 5, groups=32), (35, 5)),
        "rows/part of a warp": row_wise(
            "layer_norm", RowConfig(8, 2, 3, groups=16, together=2), (37, 40), dtype=BF16
        ),
        "rows/warp": row_wise("softmax", RowConfig(2, 32, 2, groups=2), (5, 120), online=True),
        "rows/two warps": row_wise("layer_norm", RowConfig(4, 64, 1, groups=2), (3, 200)),
        "rows/two warps, two rows": row_wise(
            "layer_norm", RowConfig(4, 64, 1, groups=2, together=2), (5, 200)
        ),
        "rows/three warps": row_wise(
            "softmax", RowConfig(8, 96, 1, groups=2, early=False), (3, 600), dtype=BF16
        ),
        "rows/cluster": row_wise("cross_entropy", RowConfig(8, 32, 1, cluster=2), (3, 360)),
        "rows/cluster of three warps": row_wise(
            "layer_norm", RowConfig(4, 96, 1, cluster=4), (2, 1208), dtype=F16
        ),
    }


def _long_rows() -> dict[str, Launch]:
    """Rows that are streamed, staged, or come through rings."""
    return {
        "rows/streamed": row_wise("max", RowConfig(4, 64, 1, streamed=True), (2, 516)),
        "rows/streamed by a cluster": row_wise(
            "softmax", RowConfig(2, 32, 1, cluster=2, streamed=True), (2, 270)
        ),
        "rows/staged": row_wise("softmax", RowConfig(4, 64, 1, partial=False, staged=2), (2, 400)),
        "rows/staged, two inputs": row_wise(
            "layer_norm",
            RowConfig(8, 32, 2, partial=False, staged=2, load="cs"),
            (2, 784),
            dtype=BF16,
        ),
        "rows/staged, the end apart": row_wise(
            "layer_norm", RowConfig(2, 32, 1, partial=False, staged=4), (2, 200), online=True
        ),
        "rows/staged by a cluster": row_wise(
            "cross_entropy",
            RowConfig(4, 32, 1, partial=False, cluster=2, staged=2),
            (3, 296),
            online=True,
        ),
        "rows/staged and kept": row_wise(
            "layer_norm",
            RowConfig(8, 32, 1, partial=False, staged=1, kept=1, resident=2),
            (2, 456),
            dtype=BF16,
            online=True,
        ),
        "rows/staged and kept by a cluster of three": row_wise(
            "layer_norm",
            RowConfig(8, 32, 1, partial=False, cluster=3, staged=1, kept=2, resident=3),
            (2, 2104),
            dtype=BF16,
            online=True,
        ),
        "rows/ring of two groups": row_wise(
            "layer_norm",
            RowConfig(4, 64, 1, groups=2, partial=False, staged=2, ring=5, clusters=1, load="cs"),
            (11, 456),
            dtype=BF16,
        ),
        "rows/ring of a cluster": row_wise(
            "softmax",
            RowConfig(4, 32, 1, partial=False, cluster=2, staged=2, ring=3, clusters=1, resident=2),
            (5, 360),
            online=True,
        ),
        "rows/ring of a cluster, losses": row_wise(
            "cross_entropy",
            RowConfig(4, 32, 1, groups=2, partial=False, cluster=2, staged=2, ring=3, clusters=1),
            (7, 360),
        ),
    }


def _columns() -> dict[str, Launch]:
    """Reductions over the first axis."""
    return {
        "columns/parts": column_wise(
            "sum", ColumnsConfig(8, 2, parts=2, depth=4, finished=False), (35, 264)
        ),
        "columns/whole": column_wise("mean", ColumnsConfig(2, 1, depth=2), (9, 70)),
        "columns/of parts": column_wise(
            "max", ColumnsConfig(1, 2, lanes=16, depth=2, first=False), (5, 19), dtype=F32
        ),
    }
