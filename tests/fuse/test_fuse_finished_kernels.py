"""Gated pairs, batches of products and attention: which kernel a graph gets, and why no other."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from kdsl_core.errors import FusionError
from kdsl_fuse.plan import Plan
from kdsl_fuse.reference import evaluate
from kdsl_runtime.assemble import assemble

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32


def numbers(*shape: int, dtype: Any = BF16) -> Any:
    """Uniform numbers in −1 … 1."""
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(dtype)


def planned(function: Any, *args: Any, target: str = "sm_90a", **options: Any) -> Plan:
    """The plan, once its results in the simulator are those of the reference."""
    fused = kf.fuse(target=target, **options)(function)
    results = fused(*args)
    expected = evaluate(fused.graph(*args), args)
    for got, want in zip(results if len(expected) > 1 else [results], expected, strict=True):
        eps = float(ml_dtypes.finfo(want.dtype).eps)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        got, want = got.astype(np.float64), want.astype(np.float64)
        close = max(eps, 1e-5) * np.abs(want).max()  # values between kernels are rounded as well
        np.testing.assert_allclose(got, want, rtol=eps, atol=close)
    plan: Plan = fused.plan(*args)
    return plan


def names(plan: Plan) -> list[str]:
    """The kernels, in order."""
    return [call.name for call in plan.calls]


def swiglu(x: Any, w: Any, v: Any) -> Any:
    """The gated pair."""
    return kf.silu(x @ w) * (x @ v)


# -- gated pairs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "target", "kernel"),
    [
        (BF16, "sm_90a", "gated_sm90"),
        (F16, "sm_90a", "gated_sm90"),
        (F32, "sm_90a", "gated_sm80"),
        (BF16, "sm_80", "gated_sm80"),
    ],
)
def test_target_and_type_decide_the_gated_kernel(dtype: Any, target: str, kernel: str) -> None:
    """`wgmma` where the target has it; the plan says what the tail takes of both products."""
    x, w, v = (numbers(*shape, dtype=dtype) for shape in ((20, 24), (24, 16), (24, 16)))
    plan = planned(swiglu, x, w, v, target=target)
    assert names(plan) == [kernel]
    (call,) = plan.calls
    assert str(call.epilogue).startswith("def epilogue(acc0: f32, acc1: f32):")
    assert call.kernel.keys(
        *call.arguments(plan.values(x, w, v), np.empty((20, 16), dtype)),
        block=call.block, cluster=call.cluster, **call.statics,
    ) == call.kernel.keys(
        *call.specs(), block=call.block, cluster=call.cluster, **call.statics
    )  # fmt: skip


def test_the_down_projection_follows() -> None:
    """A gated MLP with its residual is two kernels."""
    x, w, v, d = numbers(2, 9, 16), numbers(16, 24), numbers(16, 24), numbers(24, 16)
    plan = planned(lambda x, w, v, d: swiglu(x, w, v) @ d + x, x, w, v, d)
    assert names(plan) == ["gated_sm90", "gemm_sm90"]
    assert "in one kernel with the gate matmul0" in plan.explain()


APART = {
    "another matrix": lambda x, y, w, v: kf.silu(x @ w) * (y @ v),
    "weights that lie otherwise": lambda x, y, w, v: kf.silu(x @ w) * (x @ (v.T.reshape(16, 16)).T),
    "a product that is kept": lambda x, y, w, v: (kf.silu(g := x @ w) * (x @ v), g),
    "no tail of both": lambda x, y, w, v: (kf.silu(x @ w), x @ v),
}


@pytest.mark.parametrize("name", APART)
def test_products_that_stay_apart(name: str) -> None:
    """Without a common matrix, weights alike, and one way out, each product has its kernel."""
    args = [numbers(20, 16, dtype=F16), numbers(20, 16)[::-1].astype(F16)]
    args += [numbers(16, 16, dtype=F16), np.ascontiguousarray(numbers(16, 16, dtype=F16).T)]
    if name == "weights that lie otherwise":
        args[3] = np.ascontiguousarray(args[3].T).T
        function: Any = lambda x, y, w, v: kf.silu(x @ w) * (x @ v)  # noqa: E731 # as the others
    else:
        function = APART[name]
    plan = kf.fuse(target="sm_90a", fallback="numpy")(function).plan(*args)
    assert names(plan).count("gemm_sm90") == 2 and set(names(plan)) <= {"gemm_sm90", "elementwise"}


def test_three_products_make_a_pair_and_one() -> None:
    """Of three products that meet, two share a kernel."""
    x = numbers(10, 16, dtype=F32)
    weights = [numbers(16, 8, dtype=F32) * scale for scale in (1, 2, 3)]

    def mixed(x: Any, a: Any, b: Any, c: Any) -> Any:
        return kf.silu(x @ a) * (x @ b) + x @ c

    plan = planned(mixed, x, *weights, target="sm_80")
    assert sorted(names(plan)) == ["gated_sm80", "gemm_sm80"]


NO_HALVES = {
    "halves that overlap": lambda y: (y[:, :10], y[:, 6:]),
    "three parts": lambda y: (y[:, :5], y[:, 5:10] + y[:, 10:15]),
    "rows": lambda y: (y[:10], y[10:]),
    "every other column": lambda y: (y[:, ::2], y[:, 1::2]),
}


@pytest.mark.parametrize("name", NO_HALVES)
def test_parts_that_are_no_halves(name: str) -> None:
    """Only the left and the right half of all columns make a pair."""

    def layer(x: Any, w: Any) -> Any:
        first, second = NO_HALVES[name](x @ w)
        return kf.silu(first) * second

    plan = kf.fuse(target="sm_90a", fallback="numpy")(layer).plan(numbers(20, 24), numbers(24, 16))
    assert "gated_sm90" not in names(plan)


# -- batches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "target", "kernel"),
    [
        (BF16, "sm_90a", "gemm_sm90"),
        (F32, "sm_90a", "batch_gemm_sm80"),
        (F16, "sm_86", "batch_gemm_sm80"),
    ],
)
def test_batches_with_tails(dtype: Any, target: str, kernel: str) -> None:
    """Batch axes are one mode; the tail reads rows, columns and whole batches."""
    shapes = ((2, 3, 18, 24), (2, 3, 16, 24), (16,), (2, 3, 18, 1), (2, 3, 18, 16))
    args = [numbers(*shape, dtype=dtype) for shape in shapes]

    def layer(x: Any, w: Any, b: Any, c: Any, r: Any) -> Any:
        return kf.relu(x @ kf.transpose(w, (0, 1, 3, 2)) + b) * c - r

    plan = planned(layer, *args, target=target)
    assert names(plan) == [kernel]
    (call,) = plan.calls
    values = plan.values(*args)
    assert call.simulate(values, on_hazard="collect").hazards == ()
    arguments = call.arguments(values, np.empty((2, 3, 18, 16), dtype))
    assert [x.shape for x in arguments] == [tuple(x.shape) for x in call.specs()]
    strides = [tuple(s // x.itemsize for s in x.strides) for x in arguments]
    assert strides == [tuple(x.strides) for x in call.specs()]


def test_large_batches_build_without_spills() -> None:
    """The tail of a batch has registers for what it reads."""
    specs = [kd.spec("bf16", s) for s in ((16, 2048, 1024), (16, 1024, 2048), (2048,))]
    plan = kf.fuse(target="sm_90a")(lambda x, w, b: kf.gelu(x @ w + b)).plan(*specs)
    report = assemble(plan.calls[0].module("sm_90a"), "sm_90a").report
    assert (report.warnings, report.spill_stores, report.stack) == ((), 0, 0)


def test_a_matrix_for_the_whole_batch() -> None:
    """One operand of a batch may be one matrix; TMA cannot repeat it, `cp.async` can."""
    plan = planned(lambda x, w: x @ w, numbers(12, 16), numbers(3, 16, 8))
    assert names(plan) == ["batch_gemm_sm80"]
    plan = planned(lambda x, w: x @ w, numbers(3, 12, 16), numbers(1, 16, 8))
    assert names(plan) == ["gemm_sm90"] and len(plan.calls[0].operands[0].shape) == 2


EJECTED: dict[str, tuple[Any, list[Any]]] = {
    "gated": (swiglu, [numbers(20, 24), numbers(24, 16), numbers(24, 16)]),
    "batch": (lambda x, w: kf.relu(x @ w), [numbers(2, 20, 24), numbers(2, 24, 16)]),
    "attention": (
        lambda q, k, m: kf.attention(q, k, k, m, causal=True),
        [numbers(1, 4, 20, 16), numbers(1, 2, 24, 16), numbers(20, 24)],
    ),
}


@pytest.mark.parametrize(
    "name, target", [*((name, "sm_90a") for name in EJECTED), ("attention", "sm_80")]
)
def test_they_can_be_ejected(name: str, target: str, tmp_path: Path) -> None:
    """The file runs on its own, equals its reference, and gives the same bits in the plan."""
    function, args = EJECTED[name]
    plan = kf.fuse(target=target)(function).plan(*args)
    first = plan.run(*args)
    (path,) = kf.eject(plan, tmp_path)
    runpy.run_path(str(path))["test_kernel"]()
    kf.load(plan, tmp_path)
    assert plan.run(*args).tobytes() == first.tobytes()


def test_weights_as_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A plan that gives the weights the side of the rows is launched, and ejected, as it is."""
    from kdsl_fuse.kernels import gated_sm90_plan

    def swapped(*sizes: Any, extras: bool, **options: Any) -> Any:
        found = gated_sm90_plan.candidates(*sizes, **options)
        return next(plan for plan in found if plan.both.swap)

    monkeypatch.setattr(gated_sm90_plan, "choose", swapped)

    def layer(x: Any, w: Any, v: Any, b: Any) -> Any:
        return kf.silu(x @ w + b) * (x @ v) + x

    args = [numbers(2, 10, 24), numbers(24, 24), numbers(24, 24), numbers(24)]
    plan = planned(layer, *args)
    assert names(plan) == ["gated_sm90"] and plan.calls[0].summary.endswith("swap")
    first = plan.run(*args)
    (path,) = kf.eject(plan, tmp_path)
    runpy.run_path(str(path))["test_kernel"]()
    kf.load(plan, tmp_path)
    assert plan.run(*args).tobytes() == first.tobytes()


# -- attention ------------------------------------------------------------------------------


def test_merged_heads_are_stored_in_order() -> None:
    """Heads are read through strides and stored where the next product reads them."""
    x, w, wo = numbers(2, 10, 16), numbers(16, 48), numbers(16, 16)

    def layer(x: Any, w: Any, wo: Any) -> Any:
        q, k, v = (
            kf.transpose(part.reshape(2, 10, 2, 8), (0, 2, 1, 3))
            for part in kf.split(x @ w, [16, 32], -1)
        )
        mixed = kf.attention(q, k, v, causal=True)
        return kf.transpose(mixed, (0, 2, 1, 3)).reshape(2, 10, 16) @ wo + x

    plan = planned(layer, x, w, wo)
    assert names(plan) == ["gemm_sm90", "attention_sm90", "gemm_sm90"]
    attention = plan.calls[1]
    assert attention.output.op.name == "Reshape"
    assert attention.seen[0].strides == (160, 8, 16, 1)
    assert attention.config.mask == "top-left"


@pytest.mark.parametrize("target", ("sm_80", "sm_89", "sm_90", "sm_100a", "sm_120"))
def test_attention_without_wgmma(target: str) -> None:
    """Every other target since sm_80 has a kernel, of which one summary says what it is."""
    q, k = numbers(2, 4, 20, 40), numbers(2, 2, 24, 40)
    plan = planned(lambda q, k: kf.attention(q, k, k, causal=True), q, k, target=target)
    assert names(plan) == ["attention_sm80"]
    assert plan.calls[0].summary == "64x64x64 s4 4 warps top-left" and not plan.calls[0].overlap


def test_repeated_keys() -> None:
    """TMA cannot repeat heads of keys, `cp.async` can."""
    keys = np.broadcast_to(numbers(1, 1, 8, 16), (1, 2, 8, 16))
    plan = planned(lambda q, k: kf.attention(q, k, k), numbers(1, 2, 8, 16), keys)
    assert names(plan) == ["attention_sm80"]


def test_heads_that_are_kept_as_well() -> None:
    """Where the turned heads are returned too, what merges them is a launch of its own."""

    def layer(q: Any, k: Any) -> Any:
        turned = kf.transpose(kf.attention(q, k, k), (0, 2, 1, 3))
        return turned.reshape(1, 9, 16), turned

    plan = kf.fuse(target="sm_90a")(layer).plan(numbers(1, 2, 9, 8), numbers(1, 2, 12, 8))
    assert [call.output.op.name for call in plan.calls] == ["Attention", "Reshape"]


def test_the_chip_decides_the_grid() -> None:
    """Attention and gated pairs are planned for as many multiprocessors as the GPU has."""
    from kdsl_fuse.patterns import Options
    from kdsl_fuse.patterns.base import Chip
    from kdsl_fuse.plan import make_plan

    heads, matrix = kd.spec("bf16", (8, 16, 512, 64)), kd.spec("bf16", (4096, 4096))
    options = Options(target="sm_90a", chip=Chip("NVIDIA H20", 78))
    for function, specs in ((kf.attention, [heads] * 3), (swiglu, [matrix] * 3)):
        (call,) = make_plan(kf.fuse(function).graph(*specs), options).calls
        assert call.grid == (78,)


Q = (1, 2, 8, 16)
REFUSALS: dict[str, tuple[str, Any, list[Any], str]] = {
    "f32": ("KF-DTYPE", kf.attention, [numbers(*Q, dtype=F32)] * 3, "sm_90a"),
    "target": ("KF-TARGET", kf.attention, [numbers(*Q)] * 3, "sm_75"),
    "long heads": ("KF-SHAPE", kf.attention, [numbers(1, 2, 8, 264)] * 3, "sm_90a"),
    "odd heads": ("KF-SHAPE", kf.attention, [numbers(1, 2, 8, 12)] * 3, "sm_90a"),
    "unlike values": (
        "KF-SHAPE", kf.attention, [numbers(*Q), numbers(*Q), numbers(1, 2, 8, 8)], "sm_90a",
    ),
    "negative scale": (
        "KF-SHAPE", lambda q: kf.attention(q, q, q, scale=-1.0), [numbers(*Q)], "sm_90a",
    ),
    "rank": ("KF-RANK", kf.attention, [numbers(1, 1, 2, 8, 16)] * 3, "sm_90a"),
    "turned": ("KF-LAYOUT", kf.attention, [numbers(1, 2, 16, 16).swapaxes(2, 3)] * 3, "sm_90a"),
    "odd start": (
        "KF-LAYOUT", lambda q: kf.attention(*[q[..., 3:19]] * 3), [numbers(1, 2, 8, 24)], "sm_90a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_attention_that_is_refused(name: str) -> None:
    """What the kernel cannot compute has its code and a mend."""
    code, function, args, target = REFUSALS[name]
    with pytest.raises(FusionError, match=f"(?s){code}.*fix: ") as caught:
        kf.fuse(target=target)(lambda *x: function(*x)).plan(*args)
    assert caught.value.code == "K909"
