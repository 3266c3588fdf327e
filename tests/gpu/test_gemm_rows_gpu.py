"""Products whose rows are reduced in their kernel, on a GPU: pattern examples, sizes, plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from fuse.test_fuse_patterns import CASES, arrays_of
from kdsl_fuse.kernels import row_programs as programs
from kdsl_fuse.kernels.gemm_rows_sm90_plan import candidates
from kdsl_runtime import driver

pytestmark = pytest.mark.gpu
EXAMPLES = [
    example
    for name, (_, example) in CASES.items()
    if name.startswith("gemm_rows") and example.target == "sm_90a"
]


@pytest.fixture
def torch() -> Any:
    """PyTorch with a GPU that has `wgmma`."""
    if driver.device(0).target != "sm_90a":
        pytest.skip("needs a GPU of compute capability 9.0")
    return pytest.importorskip("torch")


def on_gpu(torch: Any, array: Any) -> Any:
    """An array of NumPy as a tensor with its type."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).cuda().to(torch.bfloat16)
    return torch.from_numpy(array).cuda()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_are_as_in_the_simulator(torch: Any, example: Any) -> None:
    """What the pattern shows gives the same numbers on both, up to a rounding of the result."""
    args = arrays_of(example)
    fused = kf.fuse(target=example.target)(lambda *args: example.function(kf, *args))
    expected, found = fused(*args), fused(*(on_gpu(torch, x) for x in args))
    several = isinstance(expected, tuple)
    for want, got in zip(*((x if several else (x,)) for x in (expected, found)), strict=True):
        eps = 2.0**-7 if want.dtype.itemsize == 2 else 2.0**-18
        want = want.astype(np.float64)
        np.testing.assert_allclose(got.double().cpu().numpy(), want, rtol=eps, atol=eps / 8)


@pytest.mark.parametrize("sizes", [(8192, 256, 1024), (5000, 200, 264), (300, 9, 40)])
def test_every_plan_is_right(torch: Any, sizes: tuple[int, int, int]) -> None:
    """Softmax and LayerNorm by each of the model's plans against f64."""
    torch.manual_seed(0)
    m, n, k = sizes
    x, w = (torch.randn(shape, device="cuda").bfloat16() for shape in ((m, k), (n, k)))
    w = w / k**0.5
    exact = x.double() @ w.double().T
    wanted = {
        programs.softmax(fast=True): exact.softmax(-1),
        programs.norm(1e-5, centred=True, weight=False): (
            torch.nn.functional.layer_norm(exact, (n,))
        ),
    }
    for plan in candidates(m, n, k, kd.bf16, limit=3):
        for program, want in wanted.items():
            y = torch.full((m, n), torch.nan, device="cuda", dtype=torch.bfloat16)
            plan.run(x, w, y, program=program)
            error = (y.double() - want).abs()
            assert bool((error <= 2.0**-8 * want.abs() + 2.0**-12).all()), str(plan)
