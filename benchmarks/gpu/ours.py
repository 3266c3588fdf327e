"""The ways that kdsl can compute a case, the one it would choose first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from operands import Buffers
from peers import at
from shapes import Case
from timing import Launch

import kdsl_core as kd
from kdsl_fuse.kernels.gemm_sm80 import gemm_sm80, plan_gemm
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan, choose, parse, problem_of
from kdsl_fuse.kernels.gemm_sm90_plan import candidates as sm90_candidates

DTYPES = {"bf16": kd.bf16, "f16": kd.f16, "e4m3": kd.e4m3, "i8": kd.i8}
RESULTS = {**DTYPES, "e4m3": kd.bf16, "i8": kd.i32}
SQRT_2_OVER_PI = 0.7978845608028654


def identity(acc: Any) -> Any:
    """C = A · Wᵀ."""
    return acc


def gelu(x: Any) -> Any:
    """GELU by the tanh formula, which is cuBLASLt's."""
    inner = x * kd.fma(0.044715 * SQRT_2_OVER_PI, x * x, SQRT_2_OVER_PI)
    half = 0.5 * x
    return kd.fma(half, kd.tanh(inner, approx=True), half)


def add_bias(acc: Any, bias: Any) -> Any:
    """C = A · Wᵀ + bias."""
    return acc + bias.to(kd.f32)


def gelu_of_biased(acc: Any, bias: Any) -> Any:
    """C = gelu(A · Wᵀ + bias)."""
    return gelu(acc + bias.to(kd.f32))


def scaled(acc: Any, scale_a: Any, scale_w: Any) -> Any:
    """C = A · Wᵀ · scales, one for each tensor."""
    return acc * (scale_a * scale_w)


def epilogue_of(case: Case) -> Callable[..., Any]:
    """The kernel's tail; its extras are `Buffers.extras`."""
    if case.dtype == "e4m3":
        return scaled
    return {"none": identity, "gelu": gelu, "bias": add_bias, "gelu+bias": gelu_of_biased}[
        case.epilogue
    ]


def candidates(
    case: Case, sets: list[Buffers], limit: int = 12, stated: Sequence[str] = ()
) -> dict[str, Launch]:
    """Launches by the name of their configuration, best guess first, then the plans `stated`.

    Without those the model's next guesses, up to `limit`, and the kernel for sm_80.
    """
    types = DTYPES[case.dtype], RESULTS[case.dtype]
    first = choose(*case.shape, *types, tail=case.epilogue != "none")
    if stated:
        problem = problem_of(*case.shape, *types)
        plans = [first, *(Sm90Plan(problem, *parse(text)) for text in stated)]
        return {f"sm90 {plan}": _sm90(plan, case, sets) for plan in plans}
    found = sm90_candidates(
        *case.shape, *types, limit=limit,
        multiprocessors=torch.cuda.get_device_properties(0).multi_processor_count,
    )  # fmt: skip
    launches = {f"sm90 {plan}": _sm90(plan, case, sets) for plan in [first, *found]}
    if case.dtype in ("bf16", "f16"):
        launches["sm80"] = _sm80(case, sets)
    return launches


def _sm90(plan: Sm90Plan, case: Case, sets: list[Buffers]) -> Launch:
    epilogue, parts = epilogue_of(case), plan.parts(sets[0].a, sets[0].c)

    def launch(i: int) -> None:
        b = at(sets, i)
        plan.run(b.a, b.w, b.c, *b.extras, epilogue=epilogue, parts=parts)

    return launch


def _sm80(case: Case, sets: list[Buffers]) -> Launch:
    config, grid, block = plan_gemm(*case.shape, DTYPES[case.dtype], target="sm_90a")
    kernel, epilogue = gemm_sm80[grid, block], epilogue_of(case)

    def launch(i: int) -> None:
        b = at(sets, i)
        kernel(b.a, b.w, b.c, *b.extras, epilogue=epilogue, config=config)

    return launch
