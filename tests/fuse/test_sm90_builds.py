"""The Hopper GEMM's machine code: no configuration spills or makes the assembler warn."""

from __future__ import annotations

import re

import pytest

from fuse.sm90_configs import BUILDS
from kdsl_fuse.kernels.gemm_sm90 import gemm_sm90
from kdsl_runtime.assemble import assemble

MOST_SHARED = 232_448  # bytes of a block


@pytest.mark.parametrize("name", BUILDS)
def test_builds_are_clean(name: str) -> None:
    """Registers suffice, the wgmma pipeline holds, shared memory fits a multiprocessor."""
    build = BUILDS[name]
    module = gemm_sm90.module(
        *build.specs(),
        target="sm_90a",
        block=build.config.threads,
        cluster=build.cluster,
        epilogue=build.epilogue,
        config=build.config,
    )
    report = assemble(module, "sm_90a").report
    assert report.warnings == ()
    assert (report.spill_stores, report.spill_loads, report.stack) == (0, 0, 0)
    assert report.registers * build.config.threads <= 65_536
    assert module.shared_bytes <= MOST_SHARED
    assert len(re.findall(r"wgmma\.mma_async", module.text)) > 0
    multicast = build.config.cluster != (1, 1)
    assert ("multicast::cluster" in module.text) == multicast
