"""Fused functions planned for sm_90a: which kernel runs, how it is launched, and what it needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from fuse.numpy_kernel import NumpyGemm
from kdsl_core.dtypes import dtype_of
from kdsl_core.errors import TargetError
from kdsl_fuse import arrays
from kdsl_fuse.kernels import gemm_sm90_model as model
from kdsl_fuse.kernels import gemm_sm90_plan
from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config
from kdsl_fuse.kernels.gemm_sm90_plan import Sm90Plan
from kdsl_fuse.kernels.repitch import addressable_strides
from kdsl_fuse.reference import evaluate

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32


@kf.fuse(target="sm_90a")
def layer(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Bias, GELU and a residual."""
    return kf.gelu(x @ w + b) + r


def numbers(*shape: int, dtype: Any = BF16) -> Any:
    """Uniform numbers in −1 … 1."""
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(dtype)


def dense(m: int = 40, n: int = 24, k: int = 264) -> list[Any]:
    """x, w, a bias and a residual."""
    return [numbers(m, k), numbers(k, n), numbers(n), numbers(m, n)]


def assert_right(fused: Any, *args: Any) -> Any:
    """The result, which is that of the reference within one rounding."""
    result = fused(*args)
    (expected,) = evaluate(fused.graph(*args), args)
    assert result.dtype == expected.dtype
    wide, epsilon = expected.astype(np.float64), float(ml_dtypes.finfo(expected.dtype).eps)
    np.testing.assert_allclose(result.astype(np.float64), wide, rtol=epsilon, atol=2e-4)
    return result


def chosen(monkeypatch: pytest.MonkeyPatch, config: Sm90Config, swap: bool = False) -> Any:
    """Make `config` the choice for every product; the layer without any plan of before."""

    def choose(m: int, n: int, k: int, dtype: Any, result: Any, **chip: Any) -> Sm90Plan:
        return Sm90Plan(model.Problem(m, n, k, dtype.bytes, result.bytes), config, swap, 3)

    monkeypatch.setattr(gemm_sm90_plan, "choose", choose)
    return kf.fuse(target="sm_90a")(layer.function)


@pytest.mark.parametrize(
    ("dtype", "target", "kernel"),
    [
        (BF16, "sm_90a", "gemm_sm90"),
        (F16, "sm_90a", "gemm_sm90"),
        (F32, "sm_90a", "gemm_sm80"),
        (BF16, "sm_90", "gemm_sm80"),
        (BF16, "sm_89", "gemm_sm80"),
        (BF16, "sm_100a", "gemm_sm80"),
    ],
)
def test_target_and_type_decide_the_kernel(dtype: Any, target: str, kernel: str) -> None:
    """`wgmma` where the target has it and the type is one of its own; else what sm_80 has."""
    plan = kf.fuse(target=target)(lambda x, w: x @ w).plan(
        numbers(4, 8, dtype=dtype), numbers(8, 4, dtype=dtype)
    )
    (call,) = plan.calls
    assert (call.name, call.kernel.__name__) == (kernel, kernel)
    assert f"call 0: {kernel}" in plan.explain()
    assert f".target {target}" in call.ptx(target)


def test_numpy_arrays_alone_choose_nothing() -> None:
    """Without a stated target and a GPU, plans are for the oldest target, as ever."""
    (call,) = kf.fuse(layer.function).plan(*dense()).calls
    assert call.name == "gemm_sm80"


def test_a_kernel_of_the_callers_is_taken_everywhere() -> None:
    """`gemm=` replaces the Hopper kernel too."""
    gemm = NumpyGemm()
    kf.fuse(gemm=gemm, target="sm_90a")(layer.function)(*dense())
    assert len(gemm.launches) == 1


def test_the_gpu_tells_the_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    """For CUDA arrays the choice is asked for by the device's name and multiprocessors."""
    device = SimpleNamespace(target="sm_90a", name="NVIDIA H20", multiprocessors=78)
    monkeypatch.setattr(arrays, "gpu_of", lambda array: device)
    plan = kf.fuse(lambda x, w: x @ w).plan(numbers(4096, 64), numbers(64, 4096))
    (call,) = plan.calls
    assert call.name == "gemm_sm90"
    assert call.grid[0] % 78 == 0
    assert "planned for target sm_90a" in plan.explain()


def test_plan_tells_the_configuration() -> None:
    """`explain` and `str` name kernel, grid and configuration; the call has the same as values."""
    args = dense()
    plan = layer.plan(*args)
    (call,) = plan.calls
    tile = "x".join(map(str, call.config.tile))
    assert call.summary.startswith(f"{tile} s{call.config.stages} ")
    assert call.block == (call.config.threads,)
    line = f"call 0: gemm_sm90[grid {call.grid}, block {call.block}], config {call.summary}"
    assert line in plan.explain().splitlines()
    assert f"= gemm_sm90[grid {call.grid}, block {call.block}](x[40, 264]" in str(plan)
    assert f"config {call.summary}\n" in str(plan)


CONFIGS = {
    "cooperative": Sm90Config((128, 24, 64), 3),
    "pingpong": Sm90Config((64, 16, 64), 3, "pingpong"),
    "cluster": Sm90Config((128, 16, 64), 3, cluster=(1, 2)),
    "k shared by two": Sm90Config((64, 16, 64), 3, consumers=1, peers=2),
    "k split in memory": Sm90Config((64, 24, 64), 3, consumers=1, splits=2),
}


@pytest.mark.parametrize("swap", [False, True], ids=["straight", "swapped"])
@pytest.mark.parametrize("name", CONFIGS)
def test_launch_facts(name: str, swap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """run, simulate, specs and module are of one kernel, whatever the launch needs."""
    args = dense(m=72)
    fused = chosen(monkeypatch, CONFIGS[name], swap)
    plan = fused.plan(*args)
    (call,) = plan.calls
    values = plan.values(*args)
    once = assert_right(fused, *args)
    again = call.simulate(values, on_hazard="collect", order="shuffle", seed=3)
    assert again.hazards == ()
    c = again.outputs[len(call.operands)]
    assert (c.T if swap else c).tobytes() == once.tobytes()
    launch = {"block": call.block, "cluster": call.cluster, **call.statics}
    arguments = call.arguments(values, np.empty((72, 24), BF16))
    assert call.kernel.keys(*arguments, **launch) == call.kernel.keys(*call.specs(), **launch)
    assert call.transposed == swap
    assert "wgmma" in call.ptx("sm_90a")
    with pytest.raises(TargetError) as caught:
        call.ptx("sm_80")
    assert caught.value.code == "K402"


def test_clusters_share_every_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster is kept whatever the operands' major orders are and whatever the tail reads."""
    config = Sm90Config((128, 16, 64), 3, cluster=(1, 2))
    monkeypatch.setattr(gemm_sm90_plan, "choose", lambda *args, **chip: plan_of(args, config))
    x, w, b, r = dense()
    turned = np.ascontiguousarray(w.T).T

    def cluster(function: Any, *args: Any) -> tuple[int, int]:
        (call,) = kf.fuse(target="sm_90a")(function).plan(*args).calls
        found: tuple[int, int] = call.config.cluster
        return found

    assert cluster(lambda x, w, b: x @ w + b, x, turned, b) == (1, 2)
    assert cluster(lambda x, w, b: x @ w + b, x, w, b) == (1, 2)
    assert cluster(lambda x, w, r: x @ w + r, x, turned, r) == (1, 2)
    for weights in (w, turned):
        assert_right(kf.fuse(target="sm_90a")(lambda x, w, b, r: x @ w + b + r), x, weights, b, r)


def plan_of(sizes: tuple[Any, ...], config: Sm90Config) -> Sm90Plan:
    """A plan as `choose` would give it."""
    m, n, k, dtype, result = sizes
    return Sm90Plan(model.Problem(m, n, k, dtype.bytes, result.bytes), config)


@pytest.mark.parametrize("swap", [False, True], ids=["straight", "swapped"])
@pytest.mark.parametrize("m, n, k", [(9, 7, 5), (66, 12, 70), (1, 1, 1)])
def test_pitches_that_tma_cannot_take(
    m: int, n: int, k: int, swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operands in either order with any pitch are copied, and specs tell the copies' strides."""
    fused = chosen(monkeypatch, CONFIGS["cooperative"], swap)
    x, w, b, r = dense(m, n, k)
    for args in ((x, w, b, r), (x.T.copy().T, w.T.copy().T, b, r[:, :1])):
        assert_right(fused, *args)
        plan = fused.plan(*args)
        (call,) = plan.calls
        arguments = call.arguments(plan.values(*args), np.empty((m, n), BF16))
        found = [tuple(step // 2 for step in x.strides) for x in arguments[:2]]
        assert found == [spec.strides for spec in call.specs()[:2]]
        assert all(16 * (step * 2 // 16) == step * 2 for pair in found for step in pair if step > 1)


def test_addresses_and_broadcasts_that_tma_cannot_take() -> None:
    """A slice that starts off a multiple of 16 bytes, and a row that stands for all."""
    _, w, b, r = dense(40, 24, 64)
    assert_right(layer, numbers(40, 72)[:, 3:67], w, b, r)
    assert_right(layer, np.broadcast_to(numbers(1, 64), (40, 64)), w, b, r)
    assert addressable_strides((40, 64), (0, 1), 2) == (64, 1)
    assert addressable_strides((40, 64), (1, 48), 2) == (1, 48)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_results_of_32_bits(dtype: Any) -> None:
    """f32 results are stored from f32 accumulators without a rounding between."""
    fused = kf.fuse(target="sm_90a")(lambda x, w: kf.cast(x @ w, "f32"))
    x, w = numbers(40, 64, dtype=dtype), numbers(64, 24, dtype=dtype)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(fused(x, w), exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("swap", [False, True], ids=["straight", "swapped"])
@pytest.mark.parametrize("name", ["i8", "i16", "i32", "u8", "u16", "u32", "boolean"])
def test_integers_and_truth_values_are_loaded(
    name: str, swap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extras of every type that a tail may load, as matrix, row and column."""
    chosen(monkeypatch, CONFIGS["cooperative"], swap)
    x, w, *_ = dense()
    whole = np.random.default_rng(2).integers(0, 2, (40, 24)).astype(dtype_of(name).numpy)

    @kf.fuse(target="sm_90a")
    def selecting(x: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
        masks = (a, b, c) if name == "boolean" else (a > 0, b > 0, c > 0)
        y = kf.where(masks[0], kf.where(masks[1] | masks[2], x @ w, 0.5), -2)
        return kf.cast(y + kf.cast(a, "bf16"), "bf16")

    args = (x, w, whole, whole[0], whole[:, :1])
    assert len(selecting.plan(*args).calls) == 1
    assert_right(selecting, *args)


def test_tails_that_read_a_matrix_get_registers() -> None:
    """Where accumulators fill a thread, consumers take the producer's registers for the tail."""
    specs = [kd.spec("bf16", shape) for shape in ((4096, 4096), (4096, 4096), (4096,))]
    matrix = kd.spec("bf16", (4096, 4096))
    (call,) = layer.plan(*specs, matrix).calls
    (plain,) = kf.fuse(target="sm_90a")(lambda x, w, b: kf.gelu(x @ w + b)).plan(*specs).calls
    assert (call.config.registers, plain.config.registers) == ((40, 232), None)
    assert (call.config.threads, call.config.tile) == (384, (128, 128, 64))
    assert "setmaxnreg" in call.ptx("sm_90a")


def test_a_second_run_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is made once for a signature, and the launch is configured once."""
    args = dense()
    fused = kf.fuse(target="sm_90a")(layer.function)
    first = fused(*args)
    monkeypatch.delattr(gemm_sm90_plan, "choose")
    assert fused(*args).tobytes() == first.tobytes()
    (call,) = fused.plan(*args).calls
    assert call.launch is call.launch
