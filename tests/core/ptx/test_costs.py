"""What PTX instructions cost: a pipe for each that can be printed, and their arithmetic."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gpu.agreement.cases import CASES
from gpu.agreement.rows import Everything, rows
from kdsl_core.errors import VerifyError
from kdsl_core.ir import Kernel, target_of
from kdsl_core.isa.wgmma_shapes import TYPES, shape_of
from kdsl_core.ptx.costs import PIPES, cost_of, costs, pipe_of

NEWEST = target_of("sm_90a")


@pytest.mark.parametrize(
    ("text", "pipe"),
    [
        ("add.s32 %r1, %r2, %r3;", "alu"),
        ("add.rn.f32 %f1, %f2, %f3;", "fma"),
        ("add.rn.f64 %fd1, %fd2, %fd3;", "fp64"),
        ("mad.lo.s32 %r1, %r2, %r3, %r4;", "fma"),
        ("ex2.approx.f32 %f1, %f2;", "xu"),
        ("cvt.rn.bf16x2.f32 %r1, %f1, %f2;", "alu"),
        ("cvt.rn.f32.s32 %f1, %r1;", "xu"),
        ("cvt.rmi.f32.f32 %f1, %f2;", "xu"),
        ("cvt.u32.u16 %r1, %h1;", "alu"),
        ("@!%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];", "lsu"),
        ("ld.param.b64 %rd1, [f_param_0];", ""),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16;", "lsu"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile [%r1], [%rd1];", "tma"),
        ("@!%p1 bra $L_end_0;", "cbu"),
        ("bar.sync 0;", "adu"),
        ("ret;", "cbu"),
        ("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {};", "tensor_op_imma"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {};", "tensor_op_hmma"),
        ("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {};", "tensor_op_gmma"),
    ],
)
def test_pipes(text: str, pipe: str) -> None:
    """Each kind of instruction is executed by the pipe that the profiler counts it in."""
    counted = [name for name in cost_of(text).warp if name.startswith("pipe_")]
    assert counted == ([f"pipe_{pipe}"] if pipe else [])


@pytest.mark.parametrize(
    ("text", "lane", "warp"),
    [
        ("fma.rn.f32 a, b, c, d;", {"flops_f32": 2, "thread_ffma": 1}, {}),
        ("sub.rn.f32 a, b, c;", {"flops_f32": 1, "thread_fadd": 1}, {}),
        ("mul.rn.bf16x2 a, b, c;", {"flops_bf16": 2}, {}),
        ("fma.rn.f16x2 a, b, c, d;", {"flops_f16": 4}, {}),
        ("min.f32 a, b, c;", {}, {}),
        ("mul.lo.s32 a, b, c;", {}, {}),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {};",
            {},
            {"tensor_flops_bf16": 2 * 16 * 8 * 16},
        ),
        (
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {};",
            {},
            {"tensor_flops_bf16": 2 * 16 * 128 * 16},
        ),
        ("bar.sync 0;", {}, {"barrier_waits": 1}),
        ("barrier.cluster.wait.acquire.aligned;", {}, {"cluster_waits": 1}),
    ],
)
def test_operations(text: str, lane: dict[str, float], warp: dict[str, float]) -> None:
    """Floating-point operations per lane, those of the tensor core per warp, and waits."""
    found = cost_of(text)
    assert found.lane == lane
    assert {name: n for name, n in found.warp.items() if not name.startswith("pipe_")} == warp


def kernels() -> list[Any]:
    """Kernels that print every regular instruction, and every family of the others."""
    regular = pytest.param(lambda: Everything(rows(NEWEST)).kernel, id="regular")
    return [regular, *(pytest.param(partial(CASES[name].kernel, name), id=name) for name in CASES)]


@pytest.mark.parametrize("build", kernels())
def test_every_printed_instruction_has_a_pipe(build: Any) -> None:
    """Whatever the emitter prints is known, and there is a cost for each instruction."""
    kernel: Kernel = build()
    found = costs(kernel)
    assert len(found) >= len(kernel.body.ops)
    pipes = {name.removeprefix("pipe_") for cost in found for name in cost.warp if "pipe" in name}
    assert pipes and pipes <= {*PIPES.values(), "fp64", "tensor_op_imma"}


@pytest.mark.parametrize("types", TYPES, ids=lambda types: "-".join(map(str, types)))
def test_wgmma_operations(types: Any) -> None:
    """The operations of a warp are a quarter of the warp group's, named by A's type."""
    shape = shape_of(32, *types)
    name = f"tensor_flops_{shape.a.ptx}"
    assert cost_of(f"{shape.text} {{}};").warp[name] == 2 * 16 * shape.n * shape.k


def test_an_unknown_instruction_is_refused() -> None:
    """An instruction without an entry is an error that says where to add it."""
    with pytest.raises(VerifyError, match="K540") as caught:
        pipe_of("tcgen05.mma.cta_group::1")
    assert "costs.py" in str(caught.value)
