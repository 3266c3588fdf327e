"""What the kernels of convolutions cost where memory is read: no bank conflicts, whole sectors."""

from __future__ import annotations

import numpy as np

import kdsl_core as kd
from fuse.conv_numbers import operands, unwritten
from kdsl_fuse.kernels import conv_sm80_plan
from kdsl_fuse.kernels.conv_problem import ConvProblem
from kdsl_fuse.kernels.conv_sm80 import conv_sm80
from kdsl_fuse.kernels.conv_sm90 import conv_sm90
from kdsl_fuse.kernels.conv_sm90_plan import plan_of
from kdsl_fuse.kernels.conv_views import filter_matrix, filter_view
from kdsl_fuse.kernels.gemm_sm90 import identity
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.stem_sm90 import StemConfig, stem_sm90
from kdsl_fuse.kernels.stem_sm90_plan import StemPlan

DENSE = ConvProblem(2, 16, 16, 64, 64, (3, 3), padding=(1, 1))
STEM = ConvProblem(2, 32, 48, 3, 64, (7, 7), (2, 2), (3, 3))


def test_windows_by_tma() -> None:
    """Every wavefront and every sector of the Hopper kernel is needed."""
    x, w = operands(DENSE)
    plan = plan_of(DENSE, kd.bf16, None, Sm90Config((64, 128, 64), 3, "pingpong"), True)
    out = unwritten(DENSE).reshape(-1, 64).T
    profile = kd.simulate(
        conv_sm90, grid=2, block=plan.block, args=(x, filter_view(w), out),
        kwargs={"epilogue": identity, **plan.statics},
    ).profile  # fmt: skip
    assert (profile.bank_conflicts, profile.sector_efficiency) == (0, 1.0)


def test_portable_windows() -> None:
    """The same of the portable kernel, whose copies are vectors of 16 bytes."""
    x, w = operands(DENSE)
    plan = conv_sm80_plan.choose(DENSE, kd.bf16)
    profile = kd.simulate(
        conv_sm80, grid=plan.grid, block=plan.block,
        args=(x, filter_matrix(w), unwritten(DENSE).reshape(-1, 64)),
        kwargs={"epilogue": identity, **plan.statics},
    ).profile  # fmt: skip
    assert (profile.bank_conflicts, profile.sector_efficiency) == (0, 1.0)


def test_stems() -> None:
    """Fragments are read from lines without conflicts; lines come and results go by whole sectors.

    Filters alone do not: they are read once for each block.
    """
    x, w = operands(STEM)
    plan = StemPlan(STEM, StemConfig.of(STEM, 2, 3, 2), 2)
    out = plan.oriented(np.empty((2 * 16 * 24, 64), x.dtype))
    profile = kd.simulate(
        stem_sm90, grid=plan.grid, block=plan.block,
        args=(x.reshape(2, 32, -1), w.reshape(64, -1), out),
        kwargs={"epilogue": identity, **plan.statics},
    ).profile  # fmt: skip
    assert profile.bank_conflicts == 0
    for traffic in ("tma_load", "tma_store"):
        wanted = profile.totals[f"{traffic}_ideal_sectors"]
        assert profile.totals[f"{traffic}_sectors"] == wanted > 0
