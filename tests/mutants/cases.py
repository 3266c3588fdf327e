"""All kernels of the campaign with the launches that they are tried in: small, with every edge."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from mutants.attentions import attentions
from mutants.channelwise import channelwise
from mutants.convolutions import convolutions
from mutants.launch import BF16, F32, Launch, matrix, nothing
from mutants.products import ampere, gated_pairs, hopper
from mutants.products_of_rows import products_of_rows
from mutants.reductions import row_kernels
from mutants.separable import separables

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


# -- examples --------------------------------------------------------------------------------------
@cache
def example(name: str) -> dict[str, Any]:
    """What an example's file defines."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def _examples() -> dict[str, Launch]:
    gemm, turned = example("hopper_gemm"), example("tma_transpose")

    def product(m: int, n: int, k: int) -> Callable[[], tuple[Any, ...]]:
        return lambda: (matrix(0, (m, k)), matrix(1, (n, k)), nothing((m, n)))

    def square(rows: int, columns: int, dtype: Any) -> Callable[[], tuple[Any, ...]]:
        return lambda: (matrix(0, (rows, columns), dtype), nothing((columns, rows), dtype))

    return {
        "examples/vector_add": Launch(
            example("vector_add")["scaled_add"], 3, 128,
            lambda: (*(matrix(i, (300,), F32) for i in range(2)), nothing((300,), F32), 0.5),
        ),
        "examples/transpose": Launch(
            example("transpose")["transpose"], (2, 2), 256, square(40, 50, F32)
        ),
        "examples/softmax": Launch(
            example("softmax")["softmax"], 2, 128,
            lambda: (matrix(0, (6, 77), F32), nothing((6, 77), F32)),
        ),
        "examples/matmul": Launch(example("matmul")["matmul"], (1, 1), 128, product(64, 64, 96)),
        "examples/tma_transpose": Launch(
            turned["transpose"], (2, 2), turned["WARPS"] * 32, square(72, 72, BF16)
        ),
        "examples/hopper by hand": Launch(
            gemm["by_hand"], (1, 1), gemm["THREADS"], product(100, 56, 456)
        ),
        "examples/hopper with collectives": Launch(
            gemm["with_collectives"], (1, 1), gemm["THREADS"], product(100, 56, 456)
        ),
    }  # fmt: skip


@cache
def cases() -> dict[str, Launch]:
    """Every kernel that is mutated, by name."""
    return {
        **ampere(), **hopper(), **gated_pairs(), **products_of_rows(), **row_kernels(),
        **attentions(), **convolutions(), **channelwise(), **separables(), **_examples(),
    }  # fmt: skip
