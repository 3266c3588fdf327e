"""The way down: kernels of one's own, replaced calls, and kernels as files."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd
import kdsl_fuse as kf
from fuse.numpy_kernel import NumpyGemm
from kdsl_core.dtypes import f32
from kdsl_core.errors import ArgumentError, FusionError
from kdsl_fuse.patterns.registered import REGISTERED
from kdsl_fuse.reference import evaluate

F32, BF16 = np.float32, ml_dtypes.bfloat16
RNG = np.random.default_rng(5)
X, W, B = (RNG.uniform(-1, 1, shape).astype(F32) for shape in ((8, 16), (16, 12), (12,)))


@kd.kernel
def halves(X: kd.Tensor["f32", "m n"], Y: kd.Tensor["f32", "m n"], factor: kd.Static = 0.5):
    """Y = X · factor, a block for each row and a thread for each column."""
    row, column = kd.block_idx()[0], kd.thread_rank()
    if column < X.shape[1]:
        Y.store((row, column), X.load((row, column)) * factor)


@kd.kernel
def rows_softmax(X: kd.Tensor["f32", "m n"], Y: kd.Tensor["f32", "m n"]):
    """The softmax of each row, a thread for one."""
    row = kd.thread_rank()
    total = kd.as_scalar(0.0, kd.f32)
    for column in kd.range(X.shape[1]):
        total = total + kd.exp(X.load((row, column)))
    for column in kd.range(X.shape[1]):
        Y.store((row, column), kd.exp(X.load((row, column))) / total)


def half_of(shape: tuple[int, ...], **options: Any) -> kf.Launch:
    """A launch of `halves` on a matrix."""
    return kf.Launch(halves, (shape[0],), (32,), (shape, f32), **options)


@pytest.fixture
def registered() -> Iterator[list[Any]]:
    """What a test registers, taken back at its end."""
    before = list(REGISTERED)
    yield REGISTERED
    REGISTERED[:] = before


def test_a_custom_kernel_stands_between_fused_ones() -> None:
    """kf.custom is one call; the products before and behind it are fused as ever."""

    @kf.fuse
    def layer(x: Any, w: Any, b: Any) -> Any:
        y = kf.custom(half_of((8, 12)), kf.relu(x @ w + b))
        return kf.tanh(y.T @ x)

    plan = layer.plan(X, W, B)
    assert [call.name for call in plan.calls] == ["gemm_sm80", "halves", "gemm_sm80"]
    expected = np.tanh((np.maximum(X @ W + B, 0) * 0.5).T @ X)
    np.testing.assert_allclose(layer(X, W, B), expected, rtol=1e-5, atol=1e-5)
    assert "call 1: halves" in plan.explain()
    (reference,) = evaluate(plan.graph, [X, W, B])
    np.testing.assert_allclose(reference, expected, rtol=1e-5, atol=1e-5)


def test_a_custom_kernel_has_statics_and_a_reference() -> None:
    """Statics reach the kernel; a stated reference is used in place of a simulation."""
    launch = half_of((8, 16), statics={"factor": 3.0}, reference=lambda x: x * 3)
    layer = kf.fuse(lambda x: kf.custom(launch, x))
    np.testing.assert_array_equal(layer(X), X * 3)
    np.testing.assert_array_equal(evaluate(layer.graph(X), [X])[0], X * 3)


def test_custom_takes_no_numbers() -> None:
    """A Python number among the arrays is K965."""
    with pytest.raises(FusionError, match="in memory") as caught:
        kf.fuse(lambda x: kf.custom(half_of((8, 16)), x, 2.0))(X)
    assert caught.value.code == "K965"


def choose(x: Any) -> kf.Launch | None:
    """`rows_softmax` for up to 32 rows."""
    return None if x.shape[0] > 32 else kf.Launch(rows_softmax, (1,), (x.shape[0],), (x.shape, f32))


def written_out(x: Any) -> Any:
    """A softmax in small steps."""
    e = kf.exp(x - kf.max(x, -1, keepdims=True))
    return e / kf.sum(e, -1, keepdims=True)


def test_a_registered_kernel_comes_first(registered: list[Any]) -> None:
    """A function describes the sub-graph; what it says is found however it is written."""
    spec = kd.spec("f32", (4, 4))
    layer = kf.fuse(lambda x: written_out(x))
    assert [call.name for call in layer.plan(X).calls] == ["rows"]
    pattern = kf.register(kf.softmax, [spec], choose)
    layer = kf.fuse(layer.function)
    (call,) = layer.plan(X).calls
    assert call.name == "rows_softmax"
    expected = np.exp(X) / np.exp(X).sum(-1, keepdims=True)
    np.testing.assert_allclose(layer(X), expected, rtol=1e-5)
    assert [call.name for call in layer.plan(np.ones((33, 4), F32)).calls] == ["rows"]
    kf.unregister(pattern)
    assert [call.name for call in kf.fuse(layer.function).plan(X).calls] == ["rows"]


def test_a_registered_kernel_leaves_leaks_alone(registered: list[Any]) -> None:
    """A sub-graph whose interior is also returned is no match, as for every pattern."""
    spec = kd.spec("f32", (4, 4))
    kf.register(lambda x: kf.tanh(kf.exp(x)), [spec], choose)

    def leaking(x: Any) -> Any:
        y = kf.exp(x)
        return kf.tanh(y), y

    assert len(kf.fuse(lambda x: kf.tanh(kf.exp(x))).plan(X).calls) == 1
    assert [call.name for call in kf.fuse(leaking).plan(X).calls] == ["elementwise"]


def test_a_registered_kernel_is_preferred(registered: list[Any]) -> None:
    """Where kdsl has a kernel for the same nodes, the caller's is taken."""

    def own(x: Any, w: Any) -> kf.Launch:
        return kf.Launch(halves, (1,), (32,), ((x.shape[0], w.shape[1]), x.dtype))

    layer = kf.fuse(lambda x, w: kf.relu(x @ w) + 1)
    assert layer.plan(X, W).calls[0].name == "gemm_sm80"
    kf.register(lambda x, w: kf.relu(x @ w) + 1, [kd.spec("f32", (4, 4))] * 2, own)
    assert kf.fuse(layer.function).plan(X, W).calls[0].name == "halves"


def test_a_pattern_object_can_be_registered(registered: list[Any]) -> None:
    """An object with the words of a pattern is tried first; anything else is K964."""
    from kdsl_fuse.patterns import ALL_PATTERNS

    kf.register(ALL_PATTERNS[-1])
    assert kf.fuse(lambda x, w: x @ w).plan(X, W).calls[0].name == "gemm_sm80"
    for wrong in (lambda: kf.register(lambda x: x), lambda: kf.register(None)):
        with pytest.raises(ArgumentError) as caught:
            wrong()
        assert caught.value.code == "K964"


@pytest.mark.parametrize(
    "function", [lambda x: (kf.exp(x), x), lambda x: x, lambda x: x + np.ones(4, F32)]
)
def test_registered_functions_describe_one_kernel(function: Any) -> None:
    """Several results, none computed, and held arrays are K964."""
    with pytest.raises(ArgumentError) as caught:
        kf.register(function, [kd.spec("f32", (4, 4))], choose)
    assert caught.value.code == "K964"


def test_a_call_is_replaced_in_its_plan() -> None:
    """plan.calls[0].replace(kernel) changes what the plan runs; other fields by name."""
    plan = kf.fuse(lambda x, w: x @ w).plan(X, W)
    gemm = NumpyGemm()
    call = plan.calls[0].replace(gemm, grid=(1,))
    assert plan.calls[0] is call
    np.testing.assert_allclose(plan.run(X, W), X @ W, rtol=1e-5, atol=1e-6)
    assert gemm.launches[0]["extent"]["grid"] == (1,)
    with pytest.raises(ArgumentError, match="no colour") as caught:
        call.replace(gemm, colour="red")
    assert caught.value.code == "K963"


@kf.fuse
def tail(x: Any, w: Any, b: Any, r: Any) -> Any:
    """Every kind of operator that an epilogue prints."""
    y = kf.gelu(x @ w + b) * kf.sigmoid(r) - kf.rsqrt(abs(r) + 1)
    y = kf.where((y > b) & ~(r < 0), y, -y / 2) + kf.cast(r, "f32") * float("1e-3")
    return kf.clip(y, -2, 2) ** 2 + kf.exp(-kf.erf(y)) * kf.maximum(y, 0.25)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_ejected_files_run_and_come_back(tmp_path: Path, target: str, dtype: Any) -> None:
    """Each file checks itself, as a script and as a test, and gives the plan's bits back in it."""
    args = [x.astype(dtype) for x in (X, W, B, RNG.uniform(-1, 1, (8, 12)))]
    fused = kf.fuse(target=target)(tail.function)
    plan = fused.plan(*args)
    before = plan.run(*args)
    (path,) = kf.eject(plan, tmp_path)
    text = path.read_text()
    assert "from kdsl_fuse.kernels" not in text, "the file holds all that it runs"
    assert "def epilogue(acc, x0, x1):" in text
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    name = plan.calls[0].name
    assert done.stdout.rstrip().endswith(f"{name}: equals its reference")
    kf.load(plan, tmp_path)
    assert plan.calls[0].kernel.staged.function.__module__.startswith("call_0_")
    assert plan.run(*args).tobytes() == before.tobytes()
    broken = text.replace("+ v", "- v", 1)
    assert broken != text
    path.write_text(broken)
    kf.load(plan, tmp_path)
    assert plan.run(*args).tobytes() != before.tobytes()


def test_ejected_files_notice_a_mistake(tmp_path: Path) -> None:
    """An edit that changes the numbers is K968."""
    plan = kf.fuse(lambda x, w: kf.relu(x @ w) * 0.5).plan(X, W)
    (path,) = kf.eject(plan, tmp_path)
    path.write_text(path.read_text().replace("* 0.5", "* 0.75", 1))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "K968" in done.stderr


def test_what_cannot_be_ejected(tmp_path: Path) -> None:
    """A kernel of the caller's is K967, other calls can be named; no file at all is K969."""
    plan = kf.fuse(lambda x, w: kf.custom(half_of((8, 12)), x @ w)).plan(X, W)
    with pytest.raises(ArgumentError, match="a file of yours") as caught:
        kf.eject(plan, tmp_path)
    assert caught.value.code == "K967"
    with pytest.raises(ArgumentError, match=r"call_0_gemm_sm80\.py") as caught:
        kf.load(plan, tmp_path)
    assert caught.value.code == "K969"
    assert [path.name for path in kf.eject(plan, tmp_path, calls=[0])] == ["call_0_gemm_sm80.py"]
    kf.load(plan, tmp_path)
    np.testing.assert_allclose(plan.run(X, W), X @ W / 2, rtol=1e-5, atol=1e-6)


def test_kernels_without_a_source_cannot_be_ejected(tmp_path: Path) -> None:
    """A kernel inside a function, one that is none of the language, a static: K967 says which."""

    @kd.kernel
    def local(X: kd.Tensor["f32", "m k"], W: kd.Tensor["f32", "n k"], Y: kd.Tensor["f32", "m n"]):
        """Nothing."""

    class Odd:
        """A trace-time argument that no expression gives."""

        def __repr__(self) -> str:
            return "<odd>"

    for change, told in (
        ({"kernel": local, "statics": {}}, "no name of a module"),
        ({"kernel": NumpyGemm()}, "no kernel of the language"),
        ({"kernel": halves, "statics": {"factor": Odd()}}, "<odd> has no source"),
    ):
        plan = kf.fuse(lambda x, w: x @ w).plan(X, W)
        plan.calls[0].replace(change.pop("kernel"), **change)
        with pytest.raises(ArgumentError, match=told) as caught:
            kf.eject(plan, tmp_path)
        assert caught.value.code == "K967"


def ejected_and_loaded(plan: kf.Plan, args: list[Any], folder: Path) -> list[str]:
    """The texts of a plan's files, after each passed its test and the plan ran them."""
    before = plan.run(*args)
    texts = []
    for path in kf.eject(plan, folder):
        runpy.run_path(str(path))["test_kernel"]()
        texts.append(path.read_text())
    kf.load(plan, folder)
    for kept, got in zip(*map(in_a_tuple, (before, plan.run(*args))), strict=True):
        assert kept.tobytes() == got.tobytes()
    return texts


def in_a_tuple(results: Any) -> tuple[Any, ...]:
    """The results of a plan, one or several."""
    return results if isinstance(results, tuple) else (results,)


def test_a_registered_kernel_is_ejected(tmp_path: Path, registered: list[Any]) -> None:
    """A kernel with a source goes to a file; what it stands for is the reference."""
    kf.register(kf.softmax, [kd.spec("f32", (4, 4))], choose)
    plan = kf.fuse(lambda x: kf.softmax(x)).plan(X)
    (text,) = ejected_and_loaded(plan, [X], tmp_path)
    assert "def rows_softmax(" in text and "softmax(x, axis=1)" in text


def test_several_launches_are_ejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K split through memory, a tall reduction, copies ahead: one file with all launches."""
    from kdsl_fuse.kernels import gemm_sm90_model as model
    from kdsl_fuse.kernels import gemm_sm90_plan
    from kdsl_fuse.kernels.gemm_sm90_config import Sm90Config

    config = Sm90Config((64, 24, 64), 3, consumers=1, splits=2)

    def choose(m: int, n: int, k: int, dtype: Any, result: Any, **_: Any) -> Any:
        problem = model.Problem(m, n, k, dtype.bytes, result.bytes)
        return gemm_sm90_plan.Sm90Plan(problem, config, False, 3)

    monkeypatch.setattr(gemm_sm90_plan, "choose", choose)
    args = [RNG.uniform(-1, 1, shape).astype(np.float16) for shape in ((64, 250), (250, 24))]
    fused = kf.fuse(target="sm_90a")(lambda x, w: kf.relu(kf.sum(x, 1, keepdims=True) + x @ w))
    plan = fused.plan(*args)
    texts = ejected_and_loaded(plan, args, tmp_path)
    split = next(text for text in texts if "kernel=gemm_sm90" in text)
    kernels = [line.strip() for line in split.splitlines() if line.strip().startswith("kernel=")]
    assert kernels == ["kernel=repitch,", "kernel=gemm_sm90,", "kernel=sum_parts,"]
    call = next(call for call in plan.calls if call.name == "gemm_sm90")
    assert len(call.needs()) == 3 and ".entry gemm_sm90" in call.ptx("sm_90a")
    assert call.simulate(plan.values(*args) | intermediate(plan, args)).hazards == ()
    statics = {"epilogue": kf.Tail(extras=("f16",)), "config": None}
    call.replace(NumpyGemm(), grid=(1,), statics=statics)
    assert call.run(plan.values(*args) | intermediate(plan, args)).shape == (64, 24)


def intermediate(plan: kf.Plan, args: list[Any]) -> dict[str, Any]:
    """What the first call of a plan stores."""
    first = plan.calls[0]
    return {first.output.name: first.run(plan.values(*args))}


def test_joined_products_are_ejected(tmp_path: Path) -> None:
    """Several products of one matrix are one file, with a reference of all of them."""
    args = [RNG.uniform(-1, 1, s).astype(BF16) for s in ((64, 32), *((32, 16),) * 3, (16,))]
    fused = kf.fuse(target="sm_90a")(lambda x, q, k, v, b: tuple(x @ w + b for w in (q, k, v)))
    (text,) = ejected_and_loaded(fused.plan(*args), args, tmp_path)
    assert "kernel=products_sm90" in text and text.count(" @ ") == 3
