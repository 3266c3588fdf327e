"""Plans tell what they will build, and a run builds nothing else."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_fuse as kf
import kdsl_runtime as kr
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels import gemm_sm90_plan
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan


def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Bias, ReLU and a residual."""
    return kf.relu(x @ w + b) + r


def dense(m: int, n: int, k: int) -> list[Any]:
    """x, w, a bias and a residual, of small whole numbers."""
    shapes = ((m, k), (k, n), (n,), (m, n))
    return [np.ones(shape, ml_dtypes.bfloat16) for shape in shapes]


SPLIT = Sm90Config((64, 32, 64), 2, consumers=1, splits=2)
PLAIN = Sm90Config((64, 32, 64), 2, consumers=1)


@pytest.mark.parametrize(
    ("target", "config", "sizes", "kernels"),
    [
        ("sm_80", None, (40, 24, 64), ["gemm_sm80"]),
        ("sm_90a", PLAIN, (40, 24, 136), ["gemm_sm90"]),
        ("sm_90a", PLAIN, (40, 27, 133), ["gemm_sm90", "repitch"]),
        ("sm_90a", SPLIT, (40, 24, 264), ["gemm_sm90", "sum_parts"]),
    ],
)
def test_a_plan_names_all_that_its_run_launches(
    target: str, config: Any, sizes: Any, kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of a plan is what a recording of its run finds, copies and sums included."""

    def choose(m: int, n: int, k: int, dtype: Any, result: Any, **chip: Any) -> Sm90Plan:
        return Sm90Plan(model.Problem(m, n, k, dtype.bytes, result.bytes), config, False, 3)

    monkeypatch.setattr(gemm_sm90_plan, "choose", choose)
    arrays = dense(*sizes)
    plan = kf.fuse(target=target)(layer).plan(*arrays)
    with kr.record(target=target) as recording:
        plan.run(*arrays)
    assert plan.manifest() == recording.manifest()
    assert sorted(v.kernel.rpartition(":")[2] for v in plan.manifest()) == kernels
    keys = plan.keys()
    assert sorted(key.partition("[")[0] for key in keys) == kernels
    assert all(v.module().target == target for v in plan.manifest())


@pytest.mark.parametrize(
    ("target", "start", "kernels"),
    [
        ("sm_80", 1, ["gemm_sm80"]),
        ("sm_80", 8, ["gemm_sm80"]),
        ("sm_90a", 4, ["gemm_sm90", "repitch"]),
        ("sm_90a", 8, ["gemm_sm90"]),
    ],
)
def test_views_with_an_offset_are_named_too(target: str, start: int, kernels: list[str]) -> None:
    """Parts of operands, bias and residual have the alignment of their first element."""
    x, w, *_ = dense(40, 24, 64 + start)
    wide, w = np.ones((40, 24 + start), x.dtype), w[start:].copy()
    longer = np.ones(24 + start, x.dtype)

    def parts(x: Any, w: Any, b: Any, r: Any) -> Any:
        return layer(x[:, start:], w, b[start:], r[:, start:])

    arrays = [x[:, : 64 + start], w, longer, wide]
    plan = kf.fuse(target=target)(parts).plan(*arrays)
    with kr.record(target=target) as recording:
        plan.run(*arrays)
    assert plan.manifest() == recording.manifest()
    assert sorted(v.kernel.rpartition(":")[2] for v in plan.manifest()) == kernels
