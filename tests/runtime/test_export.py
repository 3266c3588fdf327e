"""Exported kernels: C code that compiles, and hands a driver what a launch from Python would."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import kdsl_core as kd
import kdsl_fuse as kf
import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.arguments import bind
from kdsl_runtime.cli import main
from kdsl_runtime.export import export
from kdsl_runtime.parameters import ParameterBlock
from runtime import served

C_FILES = Path(__file__).parent / "c"
REAL = [Path(path).parent for path in sorted(glob.glob("/usr/local/cuda*/include/cuda.h"))[:1]]
CUDA_H = [C_FILES / "stub", *REAL]

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler here")

MAIN = """\
#include "{name}.h"
#include <stdio.h>

int main(void) {{
    kdsl_kernel kernel;
    const unsigned grid[3] = {{{grid}}};
    {name}_args args = {{{args}}};
    int code = {name}_load(&kernel, "{name}.cubin");
    if (code == 0) code = {name}_launch(&kernel, grid, (CUstream)(uintptr_t)9, &args);
    if (code == 0) code = kdsl_unload(&kernel);
    printf("%d %s\\n", code, code == 0 ? "" : kdsl_error(code));
    return 0;
}}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of this test."""
    monkeypatch.setenv("KDSL_CACHE_DIR", str(tmp_path / "cache"))


def gcc(*words: object) -> None:
    """Compile, with every warning an error."""
    argv = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(folder: Path, include: Path, text: str, sizes: list[int]) -> list[str]:
    """The lines that the fake driver and a program print."""
    (folder / "main.c").write_text(text)
    driver = ("-shared", "-fPIC", "-o", folder / "libcuda.so.1", C_FILES / "fake_driver.c")
    gcc(f"-I{include}", *driver)
    sources = (folder / "main.c", folder / "kdsl_loader.c")
    gcc(f"-I{include}", f"-I{folder}", "-o", folder / "main", *sources, "-ldl", "-lpthread")
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "KDSL_SIZES": ",".join(map(str, sizes))}
    done = subprocess.run(
        ["./main"], cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def one_launch(name: str, args: dict[str, Any], grid: str = "1, 1, 1") -> str:
    """A program that loads a kernel, launches it once and unloads it."""
    given = ", ".join(f".{field} = {value}" for field, value in args.items())
    return MAIN.format(name=name, args=given, grid=grid)


def values_of(variant: kr.Variant, *args: Any, **statics: Any) -> tuple[Any, list[Any]]:
    """The trace of a variant and its parameters' values for a call."""
    kernel = variant.function()
    traced = kernel.traced(variant.specialisation())
    return traced, traced.values(bind(kernel.signature, args, statics))


def packed(variant: kr.Variant, values: list[Any]) -> list[str]:
    """The bytes of each parameter but the tensor maps, as a launch from Python packs them."""
    params = [p for p in variant.module().params if p[1].name != "tensor_map"]
    return [ParameterBlock([p]).pack([v]).hex() for p, v in zip(params, values, strict=False)]


X = kd.spec("f32", (64, 32), strides=(32, 1))


def scaled(**options: Any) -> kr.Variant:
    """A variant of `scaled`."""
    needed = served.scaled.specialisation(X, by=1.0, block=32, **options)
    return kr.Variant.of(served.scaled, needed, "sm_90a")


@pytest.mark.parametrize("include", CUDA_H, ids=["stub", "cuda"][: len(CUDA_H)])
def test_a_launch_from_c_is_one_from_python(include: Path, tmp_path: Path) -> None:
    """Cubin, entry, grid, block, cluster, stream and every parameter's bytes arrive."""
    variant = scaled(cluster=2)
    export([variant], tmp_path)
    _, values = values_of(variant, X, by=0.5)
    names = [name for name, _ in variant.module().params]
    program = one_launch("scaled", dict(zip(names, values, strict=True)), "4, 2, 1")
    sizes = [dtype.bytes for _, dtype in variant.module().params]
    load, function, launched, params, unload, end = run(tmp_path, include, program, sizes)
    assert load == f"load {(tmp_path / 'scaled.cubin').read_bytes()[:16].hex()}"
    assert (function, unload, end) == ("function 1 scaled", "unload 1", "0 ")
    assert launched == ("launch 2 grid 4 2 1 block 32 1 1 shared 0 stream 9 attribute 4 2 1 1")
    assert params.split()[1:] == packed(variant, values)


WRONG = {
    "x": 4097, "x_size0": -4, "x_size1": 31, "x_stride0": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", [*WRONG, "x_size0 and x_stride0"])
def test_arguments_without_their_facts_are_refused(name: str, tmp_path: Path) -> None:
    """An address, size or stride that breaks a promise, or a tensor that is too large."""
    export([scaled()], tmp_path)
    given = {"x": 4096, "x_size0": 64, "x_size1": 32, "x_stride0": 32, "by": 1.0}
    changed = {name: WRONG[name]} if name in WRONG else {"x_size0": 2**16, "x_stride0": 2**16}
    lines = run(tmp_path, CUDA_H[0], one_launch("scaled", {**given, **changed}), [8])
    assert lines[-1].startswith("-3 an argument lacks a fact")
    assert not any(line.startswith("launch") for line in lines)


# The driver's numbers for what these maps hold.
_BF16, _SWIZZLES, _L2_256B = 9, {0: 0, 32: 1, 64: 2, 128: 3}, 3


@kf.fuse(target="sm_90a")
def product(a: Any, b: Any) -> Any:
    """A matrix product, which uses TMA."""
    return a @ b


@pytest.mark.parametrize("include", CUDA_H, ids=["stub", "cuda"][: len(CUDA_H)])
def test_tensor_maps_are_made_in_c(include: Path, tmp_path: Path) -> None:
    """Each map is encoded with the numbers that a launch from Python encodes."""
    specs = [kd.spec("bf16", (512, 256)), kd.spec("bf16", (256, 384))]
    (call,) = product.plan(*specs).calls
    (variant,) = product.plan(*specs).manifest()
    export([variant], tmp_path)
    traced, values = values_of(variant, *call.specs(), **call.statics)
    count = len(traced.maps)
    names = [p.name for p in traced.kernel.params][:-count]
    program = one_launch("gemm_sm90", dict(zip(names, values[:-count], strict=True)))
    sizes = [p.value.dtype.bytes for p in traced.kernel.params[:-count]] + [128] * count
    lines = run(tmp_path, include, program, sizes)
    told = [line for line in lines if line.startswith("map")]
    assert count >= 2 and len(told) == count
    for line, described in zip(told, values[-count:], strict=True):
        facts = line.split()[1:]
        wanted = [
            _BF16,
            described.shape.rank,
            described.address,
            "sizes",
            *described.sizes,
            "strides",
            *described.strides,
        ]
        wanted += ["box", *described.shape.box, "steps", *described.shape.element_strides]
        wanted += ["words", 0, _SWIZZLES[described.shape.swizzle], _L2_256B, 0]
        assert facts == list(map(str, wanted))
    (params,) = (line for line in lines if line.startswith("params"))
    assert params.split()[1:] == [*packed(variant, values), *["ab" * 128] * count]
    shared = variant.module().shared_bytes
    assert f"attribute 2 8 {shared}" in lines


FAILING = """\
#include "kdsl_loader.h"
#include <stdio.h>

int main(void) {
    kdsl_kernel kernel;
    int code = kdsl_load_file(&kernel, "missing.cubin", "k", 0);
    printf("%d %s\\n", code, kdsl_error(code));
    code = kdsl_load_file(&kernel, "scaled.cubin", "refused", 0);
    printf("%d %s\\n", code, kdsl_error(code));
    printf("%s\\n", kdsl_error(777));
    return 0;
}
"""


def test_errors_of_the_loader(tmp_path: Path) -> None:
    """A missing file, a refusal of the driver, whose module is given back, and unknown codes."""
    export([scaled()], tmp_path)
    lines = run(tmp_path, CUDA_H[0], FAILING, [8])
    assert lines[0] == "-2 the cubin cannot be read"
    assert lines[2:] == [
        "function 1 refused",
        "unload 1",
        "1 said the driver",
        "an error without a description",
    ]


def test_windows_are_refused(tmp_path: Path) -> None:
    """A tensor map that walks windows is not made in C, and nothing of it is written."""
    needed = served.walked.specialisation(kd.spec("bf16", (2, 14, 14, 128)), block=32)
    with pytest.raises(ArgumentError, match="tensor map of x walks windows") as caught:
        export([kr.Variant.of(served.walked, needed, "sm_90a")], tmp_path / "out")
    assert caught.value.code == "K745"
    assert list((tmp_path / "out").iterdir()) == []


def test_export_on_the_command_line(tmp_path: Path) -> None:
    """A manifest's kernels, or some of them; several variants of one have numbers."""
    manifest, output = tmp_path / "m.toml", tmp_path / "out"
    spec = kd.spec("i32", 64)
    copied = kr.Variant.of(
        served.copied, served.copied.specialisation(spec, spec, block=32), "sm_90a"
    )
    kr.Manifest([scaled(), scaled(tiles=5), copied]).save(manifest)

    def command(*words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["export", str(manifest), *words, "-o", str(output)])
        assert result.exit_code == code, result.output
        return str(result.output)

    command()
    names = sorted(path.name for path in output.iterdir())
    assert sum(name.startswith("scaled_") for name in names) == 4
    assert {"copied.h", "copied.cubin", "kdsl_loader.c", "kdsl_loader.h"} <= set(names)
    assert command("runtime.served:copied").split()[0].endswith("copied.cubin")
    assert "does not name a:b" in command("a:b", code=1)
