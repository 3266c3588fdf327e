"""Products of the campaign whose rows are reduced before they leave, on either machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import kdsl_core as kd
from kdsl_fuse.kernels import row_programs as programs
from kdsl_fuse.kernels.gemm_rows_sm80 import access_width, gemm_rows_sm80
from kdsl_fuse.kernels.gemm_rows_sm90 import gemm_rows_sm90
from kdsl_fuse.kernels.gemm_sm80 import GemmConfig
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from mutants.launch import BF16, F32, Launch, matrix, nothing, with_infinity


def centred(value: Any, extras: Any, stats: Any) -> Any:
    """Two outputs: the scaled distance from the largest value, and the value."""
    return (value - stats[0]) * extras[0], value


def of_row(stats: Any, labels: Any, picked: Any) -> Any:
    """A row's own result: of its label, of the value that it names and of the largest one."""
    return (picked * stats[0] + labels[0].to(kd.f32),)


def named(label: Any, columns: Any, exists: Any) -> Any:
    """Which labels name a column."""
    return exists & (label >= 0) & (label < columns)


EVERYTHING = programs.RowProgram(
    (programs.Extreme(),), programs.add, centred, of_row, named,
    inputs=2, extras=1, row_inputs=1, outputs=2, row_outputs=1,
)  # fmt: skip
"""A program with all parts that there are: a residual in front, a weight behind, labels."""
SOFTMAX = programs.softmax(fast=True)


def _operands(
    program: programs.RowProgram, sizes: tuple[int, int, int], dtype: Any, result: Any
) -> Callable[[], tuple[Any, ...]]:
    """A, B and what the program reads and writes, anew each time."""
    m, n, k = sizes

    def args() -> tuple[Any, ...]:
        outputs = [nothing((m, n), result) for _ in range(program.outputs)]
        rows = [nothing((m,), F32) for _ in range(program.row_outputs)]
        inputs = [matrix(2 + i, (m, n), F32) for i in range(program.inputs - 1)]
        extras = [np.broadcast_to(matrix(5, (n,), F32), (m, n)) for _ in range(program.extras)]
        labels = [np.arange(m, dtype=np.int32) * 5 % (n + 2) - 1 for _ in range(program.row_inputs)]
        a, b = with_infinity(matrix(0, (m, k), dtype)), matrix(1, (n, k), dtype)
        return a, b, *outputs, *rows, *inputs, *extras, *labels

    return args


def rows80(
    atom: str,
    tile: tuple[int, int, int],
    warps: tuple[int, int],
    sizes: tuple[int, int, int],
    program: programs.RowProgram = SOFTMAX,
    *,
    stages: int = 3,
    dtype: Any = BF16,
    result: Any = BF16,
) -> Launch:
    """A product by `gemm_rows_sm80`."""
    config, args = GemmConfig(atom, tile, warps, stages), _operands(program, sizes, dtype, result)
    width = access_width([x for x in args()[2:] if x.ndim == 2], sizes[1])
    statics = {"program": program, "config": config, "columns": sizes[1], "width": width}
    return Launch(gemm_rows_sm80, -(-sizes[0] // tile[0]), config.threads, args, statics)


def rows90(
    config: Sm90Config,
    sizes: tuple[int, int, int],
    program: programs.RowProgram = SOFTMAX,
    *,
    clusters: int = 1,
    result: Any = BF16,
) -> Launch:
    """A product by `gemm_rows_sm90`; few `clusters`, so that each has several tiles."""
    together = config.blocks_together
    return Launch(
        gemm_rows_sm90, clusters * together, config.threads,
        _operands(program, sizes, BF16, result),
        {"program": program, "config": config, "columns": sizes[1]},
        (together, 1, 1) if together > 1 else None, overlap=True,
    )  # fmt: skip


def products_of_rows() -> dict[str, Launch]:
    """The kernels of this file; the main loop's names are those of `products`."""
    atom = "SM80_16x8x16_F32BF16BF16F32_TN"
    one = Sm90Config((64, 32, 32), 2, consumers=1)
    return {
        "sm80/rows": rows80(atom, (32, 32, 32), (2, 2), (40, 24, 136)),
        "sm80/rows, all parts": rows80(
            atom, (32, 64, 32), (2, 2), (38, 39, 72), EVERYTHING, result=F32
        ),
        "sm80/rows, f32": rows80(
            "UNIVERSAL_FMA_F32", (16, 32, 16), (8, 8), (20, 32, 72), dtype=F32, result=F32
        ),
        "sm90/one group, rows": rows90(one, (136, 24, 72)),
        "sm90/one group, all parts of rows": rows90(one, (72, 28, 72), EVERYTHING, result=F32),
        "sm90/two blocks of rows, reduced": rows90(Sm90Config((256, 16, 32), 2), (300, 16, 136)),
        "sm90/pingpong, rows": rows90(
            Sm90Config((64, 16, 32), 2, "pingpong"), (200, 16, 136), EVERYTHING
        ),
        "sm90/cluster of rows, reduced": rows90(replace(one, cluster=(2, 1)), (136, 32, 72)),
    }  # fmt: skip
