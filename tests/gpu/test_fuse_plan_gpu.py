"""Plans on a GPU: shared memory between launches, views with offsets, and capture as a whole."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_fuse as kf
from fuse.test_fuse_patterns import CASES, graph_of, options_of
from kdsl_core.lang.launch import Launch
from kdsl_fuse.plan import make_plan
from kdsl_runtime import driver
from kdsl_runtime.device_array import to_device

pytestmark = pytest.mark.gpu


@pytest.fixture
def torch() -> Any:
    """PyTorch with its GPU."""
    return pytest.importorskip("torch")


def network(x: Any, w: Any, b: Any) -> Any:
    """Six layers, so that places are used again, and a view with an offset at each end."""
    x = x[:, 1:]
    for _ in range(5):
        x = kf.gelu(x @ w + b) * 0.5 + x
    return (kf.relu(x @ w)).T[1:], x


def expected(torch: Any, x: Any, w: Any, b: Any) -> tuple[Any, Any]:
    """The same in f32."""
    x, w, b = (v.float() for v in (x[:, 1:], w, b))
    for _ in range(5):
        x = torch.nn.functional.gelu(x @ w + b) * 0.5 + x
    return torch.relu(x @ w).T[1:], x


def arguments(torch: Any, rows: int, size: int, dtype: Any) -> list[Any]:
    """x, w, b of moderate size; x has one column more than the network reads."""
    shapes = ((rows, size + 1), (size, size), (size,))
    return [torch.randn(shape, device="cuda", dtype=dtype) * size**-0.5 for shape in shapes]


@pytest.mark.parametrize("rows", [1, 64, 300])
@pytest.mark.parametrize("size", [128, 200])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_reused_memory_and_views(torch: Any, rows: int, size: int, name: str) -> None:
    """Results are those of torch, run after run; only views and two results leave."""
    args = arguments(torch, rows, size, getattr(torch, name))
    fused = kf.fuse(network)
    memory = fused.plan(*args).memory
    assert 0 < memory.peak_bytes < memory.unshared_bytes
    first = fused(*args)
    for got, want in zip(first, expected(torch, *args), strict=True):
        torch.testing.assert_close(got.float(), want, rtol=0.03, atol=0.03)
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(fused(*args), first, strict=True))


@pytest.mark.parametrize("sizes", [(64, 512, 128), (8, 8192, 64), (33, 100, 37)])
def test_a_replay_gives_what_a_run_gives(
    torch: Any, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int]
) -> None:
    """New tensors through bound launches: products whole, split, and of copies that TMA takes."""
    m, k, n = sizes
    fused = kf.fuse(lambda x, w, b: (kf.gelu(x @ w + b), kf.sum(x @ w, axis=0)))

    def arguments() -> list[Any]:
        shapes = ((m, k), (k, n), (n,))
        return [torch.randn(s, device="cuda", dtype=torch.float16) * k**-0.25 for s in shapes]

    plan = fused.plan(*arguments())
    plan(*arguments())
    given = [arguments() for _ in range(4)]
    with monkeypatch.context() as patch:
        patch.setattr(Launch, "__call__", lambda *args, **kwargs: pytest.fail("no replay"))
        replayed = [plan(*args) for args in given]
    for args, found in zip(given, replayed, strict=True):
        for got, want in zip(found, fused.plan(*args)(*args), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("rows", [8, 300])
def test_a_captured_plan_replays(torch: Any, rows: int) -> None:
    """One graph gives what the plan gives, for new inputs at each call."""
    args = arguments(torch, rows, 128, torch.bfloat16)
    fused = kf.fuse(network)
    captured = fused.plan(*args).capture(*args)
    for factor in (1.0, -0.5, 2.0):
        given = [args[0] * factor, *args[1:]]
        results = captured(*given)
        for got, want in zip(results, fused(*given), strict=True):
            assert torch.equal(got, want)


def test_device_arrays_share_memory_too() -> None:
    """Arrays of kdsl's own go through the same places."""
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(-0.3, 0.3, (64, 64)).astype(np.float32) for _ in range(2))
    chain = kf.fuse(lambda x, w: kf.relu(kf.relu(kf.relu(x @ w) @ w) @ w))
    result = chain(to_device(x), to_device(w)).read()
    np.testing.assert_allclose(result, chain(x, w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_ejected_files_run_on_the_gpu(tmp_path: Path, target: str) -> None:
    """Each file's check runs there, and its clock tells a time."""
    args = [np.ones(shape, ml_dtypes.bfloat16) for shape in ((256, 512), (512, 384), (384,))]
    plan = kf.fuse(target=target)(lambda x, w, b: kf.gelu(x @ w + b)).plan(*args)
    for path in kf.eject(plan, tmp_path):
        spec = importlib.util.spec_from_file_location(f"{path.stem}_{target}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        module.EJECTED.check()
        assert module.EJECTED.microseconds(20) > 0


@pytest.mark.parametrize("name", {pattern.name: name for name, (pattern, _) in CASES.items()})
def test_ejected_examples_are_right_on_the_gpu(tmp_path: Path, name: str) -> None:
    """The file of an example of each pattern passes its test there."""
    example = next(example for pattern, example in CASES.values() if pattern.name == name)
    if example.target == "sm_90a" and driver.device(0).target != "sm_90a":
        pytest.skip("needs a GPU of compute capability 9.0")
    (path,) = kf.eject(make_plan(graph_of(example), options_of(example)), tmp_path)
    runpy.run_path(str(path))["test_kernel"]()
