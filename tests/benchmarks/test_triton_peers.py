"""Triton's sides of the GPU benchmarks, with stand-ins for Triton: grids and arguments.

The kernels themselves run where Triton is, and are checked there like every other side.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import BENCHMARKS, scripts

torch = pytest.importorskip("torch")
KERNELS = {
    "triton_products": ("product", "gated_product"),
    "triton_rows": ("softmax_held", "softmax_looped", "rms_norm_held", "rms_norm_looped"),
    "triton_attention": ("forward",),
}
OPTIONS = {"num_warps", "num_stages"}  # of Triton's launches, beside the kernel's own arguments


class Trouble(Exception):
    """What Triton's compiler raises."""


class Kernel:
    """Takes launches as a kernel of Triton does, and keeps grids and arguments by name."""

    def __init__(self, parameters: list[str]) -> None:
        self.parameters, self.launches = parameters, []
        self.problem: Exception | None = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*given: Any, **named: Any) -> None:
            if self.problem:
                raise self.problem
            found = dict(zip(self.parameters, given, strict=False)) | named
            assert len(given) + len(named) == len(found), "an argument came twice"
            assert set(self.parameters) == set(found) - OPTIONS
            self.launches.append((grid, found))

        return launch


def parameters(module: str) -> dict[str, list[str]]:
    """The kernels of a file and the names of their parameters, without importing it."""
    tree = ast.parse((BENCHMARKS / "gpu" / f"{module}.py").read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return {f.name: [a.arg for a in f.args.args] for f in functions if f.name[0] != "_"}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with stand-ins, on a GPU of four multiprocessors."""
    with scripts("gpu", "triton_peers") as found:
        module = found.triton_peers
        for name in KERNELS:
            kernels = {kernel: Kernel(words) for kernel, words in parameters(name).items()}
            monkeypatch.setattr(module, name, SimpleNamespace(**kernels), raising=False)
        described = SimpleNamespace(from_tensor=lambda tensor, block: (tuple(tensor.shape), block))
        monkeypatch.setattr(module, "TensorDescriptor", described, raising=False)
        monkeypatch.setattr(module, "TritonError", Trouble, raising=False)
        monkeypatch.setattr(module, "PRESENT", True)
        chip = SimpleNamespace(multi_processor_count=4)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
        yield module


def case(m: int, n: int, k: int, dtype: str = "bf16", epilogue: str = "none") -> Any:
    """A product."""
    return SimpleNamespace(m=m, n=n, k=k, shape=(m, n, k), dtype=dtype, epilogue=epilogue)


def buffers(m: int, n: int, k: int, bias: bool = False) -> Any:
    """Its operands."""
    a, w, c = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((m, k), (n, k), (m, n)))
    return SimpleNamespace(a=a, w=w, c=c, bias=c[0] if bias else None)


def test_every_kernel_is_known() -> None:
    """The files hold the kernels that are launched, each one `triton.jit`."""
    for module, names in KERNELS.items():
        assert set(names) == set(parameters(module))
        tree = ast.parse((BENCHMARKS / "gpu" / f"{module}.py").read_text(encoding="utf-8"))
        marks = [
            ast.unparse(f.decorator_list[0]) for f in tree.body if hasattr(f, "decorator_list")
        ]
        assert all(mark.startswith("triton.jit") for mark in marks)


@pytest.mark.parametrize(("m", "tiles"), [(1, 5), (64, 3), (65, 4)])
def test_products(peers: Any, m: int, tiles: int) -> None:
    """A program for each tile, and once more for each multiprocessor where there are fewer."""
    sets = [buffers(m, 520, 64, bias=True), buffers(m, 520, 64, bias=True)]
    found = peers.products(case(m, 520, 64, epilogue="gelu+bias"), sets)
    assert len({name.removesuffix(" persistent") for name in found}) == tiles
    assert all(name.startswith("Triton ") for name in found)
    kernel = peers.triton_products.product
    for name, launch in found.items():
        assert launch(3) is sets[1].c
        (grid,), given = kernel.launches[-1]
        bm, bn, bk = (given[f"BLOCK_{axis}"] for axis in "MNK")
        assert given["a"] == ((m, 64), [bm, bk]) and given["w"] == ((520, 64), [bn, bk])
        assert given["c"] == ((m, 520), [bm, bn]) and given["bias"] is sets[1].bias
        assert given["BIAS"] and given["GELU"]
        programs = -(-m // bm) * -(-520 // bn)
        assert grid == (4 if name.endswith("persistent") else programs)


def test_products_that_descriptors_cannot_take(peers: Any) -> None:
    """Rows of other than whole 16 bytes, 8-bit types, and a machine without Triton have no side."""
    for wrong in (case(64, 60, 64), case(64, 64, 12), case(64, 64, 64, "e4m3")):
        assert peers.products(wrong, []) == {}
    peers.PRESENT = False
    assert peers.products(case(64, 64, 64), []) == {} and peers.gated(64, 64, 64, "swiglu") == {}
    assert peers.rows("softmax", [], 1e-5) == {}


def test_gated_products(peers: Any) -> None:
    """Both weights in tiles of one shape; the result is what the set keeps."""
    x, c = torch.zeros(130, 64), torch.zeros(130, 256)
    given = SimpleNamespace(x=x, gate=torch.zeros(256, 64), up=torch.ones(256, 64), c=c)
    found = peers.gated(130, 256, 64, "geglu")
    assert len(found) >= len(peers.GATED_LARGE)
    for launch in found.values():
        assert launch(given) is c
        _, named = peers.triton_products.gated_product.launches[-1]
        assert named["gate"] == named["up"] and named["ACT"] == "geglu"
        assert (named["m"], named["n"], named["k"]) == (130, 256, 64)


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_attention(peers: Any, dim: int) -> None:
    """A program for some queries of a head; scores are scaled for powers of two."""
    sizes = {"batch": 2, "heads": 6, "key_heads": 2, "queries": 300, "keys": 77, "dim": dim}
    q, k = torch.zeros(2, 300, 6, dim), torch.zeros(2, 77, 2, dim)
    found = peers.attention(SimpleNamespace(**sizes), True)
    assert len(found) == 2
    for launch in found.values():
        assert launch(SimpleNamespace(q=q, k=k, v=k, out=q)) is q
        grid, named = peers.triton_attention.forward.launches[-1]
        assert grid == (-(-300 // named["QUERIES"]), 12) and named["shared"] == 3
        assert named["scale"] == pytest.approx(1.4426950408889634 / dim**0.5)
        assert named["k"] == ((2, 77, 2, dim), [1, named["KEYS"], 1, dim])
    assert peers.attention(SimpleNamespace(**sizes | {"dim": 80}), True) == {}


@pytest.mark.parametrize(("columns", "held"), [(128, True), (3000, True), (40000, False)])
@pytest.mark.parametrize("op", ["softmax", "rms_norm"])
def test_rows(peers: Any, op: str, columns: int, held: bool) -> None:
    """Rows that fit into a block are held, several short ones a program; others are read twice."""
    x = torch.zeros(70, columns)
    inputs = [x] if op == "softmax" else [x, x[0]]
    y = torch.zeros_like(x)
    found = peers.rows(op, [([y], inputs)], 1e-5)
    assert len(found) == 2
    for launch in found.values():
        assert launch(0) is y
        kernel = getattr(peers.triton_rows, f"{op}_{'held' if held else 'looped'}")
        (grid,), named = kernel.launches[-1]
        assert grid == -(-70 // named.get("ROWS", 1))
        assert named["BLOCK"] & (named["BLOCK"] - 1) == 0
        assert not held or columns <= named["BLOCK"] < 2 * columns
    assert peers.rows("sum", [], 1e-5) == {}


def test_what_the_compiler_refuses(peers: Any) -> None:
    """Triton's errors become ones that a benchmark leaves a side out for."""
    peers.triton_products.product.problem = Trouble("out of resources")
    found = peers.products(case(64, 64, 64), [buffers(64, 64, 64)])
    with pytest.raises(RuntimeError, match="Triton: out of resources"):
        next(iter(found.values()))(0)
