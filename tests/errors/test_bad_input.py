"""Bad input of every kind ends in one readable paragraph: where, what with the values, the mend."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.errors import KdslError

HERE = Path(__file__).name
LONGEST = 900  # characters of one paragraph, two source lines and callers included


def raised(kind: type[KdslError], call: Callable[[], Any]) -> Any:
    """The error of a call; it has a code, values, a mend, and no traceback in its text."""
    with pytest.raises(KdslError) as caught:
        call()
    error = caught.value
    assert type(error) is kind, str(error)
    text = str(error)
    assert re.fullmatch(r"K\d{3}", error.code)
    assert error.fix and error.fix in text
    assert "Traceback" not in text and 'File "' not in text and "/kdsl_core/" not in text
    assert not re.search(r"<[^<>]*\b0x", text), "the address of a Python object says nothing"
    assert len(text) < LONGEST, text
    return error


def line_of(function: Any, text: str) -> int:
    """The line of this file, in a kernel, that contains a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    first = function.__wrapped__.__code__.co_firstlineno
    return next(n for n in range(first, len(lines)) if text in lines[n - 1])


def at(error: KdslError, function: Any, text: str) -> None:
    """The error points at the author's line of this file, and shows it with a caret."""
    assert error.loc is not None, str(error)
    assert (Path(error.loc.file).name, error.loc.line) == (HERE, line_of(function, text))
    assert text in str(error) and "^" in str(error)


def paragraph(error: KdslError) -> str:
    """The text for a golden: lines, columns and callers of this file left out, as they move."""
    text = re.sub(rf"{re.escape(HERE)}:\d+(:\d+)?", HERE, str(error))
    lines = [line for line in text.splitlines() if not line.startswith(" called from")]
    return re.sub(r"(?m)^ *\d+ \|", "      |", "\n".join(lines)) + "\n"


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    """Zeros of type f32."""
    return np.zeros(shape, np.float32)


def spec(*shape: int, **facts: Any) -> Any:
    """An f32 array that is described only."""
    return kd.spec("f32", shape, **facts)


# -- launch arguments ----------------------------------------------------------------------------
@kd.kernel
def copies(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]) -> None:
    """One element a thread."""
    i = kd.thread_idx()[0]
    y[i] = x[i]


class OnGpu:
    """What a CUDA array of 32 f32 shows of itself, with no GPU behind it."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        place = (0x7F0000000000, False)
        return {"shape": (32,), "typestr": "<f4", "data": place, "version": 3}


def between_elements() -> np.ndarray[Any, Any]:
    """32 f32 whose address is no multiple of 4."""
    memory = np.zeros(32 * 4 + 8, np.int8)
    start = 1 if memory.ctypes.data % 4 == 0 else 2
    return np.frombuffer(memory.data, np.float32, 32, start)


def torn() -> np.ndarray[Any, Any]:
    """32 f32 that lie five bytes apart."""
    return np.zeros(32, np.dtype([("v", np.float32), ("gap", np.int8)]))["v"]


ARGUMENTS: list[tuple[str, str, tuple[str, ...], Callable[[], Any]]] = [
    ("wrong_dtype", "K608", ("y", "f32", "f64"), lambda: np.zeros(32)),
    ("unknown_dtype", "K201", ("complex128",), lambda: np.zeros(32, complex)),
    ("wrong_rank", "K609", ("y", "('n',)", "(4, 8)"), lambda: numbers(4, 8)),
    ("wrong_size", "K611", ("n is 32 in x", "31 in y"), lambda: numbers(31)),
    ("wrong_device", "K622", ("x on cpu", "y on cuda"), OnGpu),
    ("wrong_stride", "K605", ("y", "(5,) bytes", "4 bytes"), torn),
    ("wrong_alignment", "K612", ("y", "no multiple", "4 bytes"), between_elements),
    ("no_array", "K604", ("y", "list", "[1.0]"), lambda: [1.0]),
]


@pytest.mark.parametrize(
    ("name", "code", "values", "make"), ARGUMENTS, ids=[row[0] for row in ARGUMENTS]
)
def test_argument(name: str, code: str, values: tuple[str, ...], make: Callable[[], Any]) -> None:
    """A launch argument that does not fit is named with what it is and what it should be."""
    kind = kd.TypeMismatch if code == "K201" else kd.ArgumentError
    error = raised(kind, lambda: copies[1, 32](numbers(32), make()))
    assert error.code == code, str(error)
    for value in values:
        assert value in error.message
    assert error.loc is not None and Path(error.loc.file).name == HERE
    assert "copies[1, 32](numbers(32), make())" in str(error)


@pytest.mark.parametrize("name", ["wrong_dtype", "wrong_size", "wrong_device"])
def test_argument_golden(name: str, golden: Callable[[str, str], None]) -> None:
    """The whole text of a few argument errors."""
    make = next(row[3] for row in ARGUMENTS if row[0] == name)
    error = raised(kd.ArgumentError, lambda: copies[1, 32](numbers(32), make()))
    golden(f"errors/{name}.txt", paragraph(error))


def test_no_driver_for_cuda_arguments(
    monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    """CUDA arrays on a machine without a driver: the error says what is missing and what works."""
    from kdsl_runtime import driver

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    driver.require_driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    error = raised(kd.DriverError, lambda: copies[1, 32](OnGpu(), OnGpu()))
    assert error.code == "K801"
    assert "libcuda.so.1" in error.message and "NumPy" in error.fix
    assert Path(error.loc.file).name == HERE
    golden("errors/no_driver.txt", paragraph(error))


def test_no_device_for_cuda_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that sees no GPU: its answer, and how to make one visible."""
    from kdsl_runtime import driver

    answer = SimpleNamespace(name="CUDA_ERROR_NO_DEVICE")
    bindings = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        cuInit=lambda flags: (answer,),
        cuGetErrorString=lambda code: (0, b"no CUDA-capable device is detected"),
    )
    driver.require_driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    error = raised(kd.DriverError, lambda: copies[1, 32](OnGpu(), OnGpu()))
    assert error.code == "K803"
    assert "no CUDA-capable device" in error.message and "CUDA_VISIBLE_DEVICES" in error.fix


@pytest.mark.parametrize(
    ("block", "kind", "code"),
    [((64, 32), kd.ResourceError, "K404"), (2048, kd.ArgumentError, "K621")],
)
def test_too_many_threads(block: Any, kind: type[KdslError], code: str) -> None:
    """A block that no GPU takes is refused by the simulator and the compiler alike."""
    x = numbers(4096)
    for call in (
        lambda: copies[1, block](x, x),
        lambda: copies.ptx(spec(4096), spec(4096), target="sm_80", block=block),
    ):
        error = raised(kind, call)
        assert error.code == code
        assert "1024" in error.message and "2048" in error.message


# -- the assembler -------------------------------------------------------------------------------
def test_assembler_named_but_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    """KDSL_PTXAS that names no program is not replaced in silence."""
    monkeypatch.setenv("KDSL_PTXAS", "/no/such/ptxas")
    error = raised(
        kd.BuildError, lambda: copies.cubin(spec(32), spec(32), target="sm_80", block=32)
    )
    assert error.code == "K702"
    assert "'/no/such/ptxas'" in error.message and "KDSL_PTXAS" in error.fix
    golden("errors/no_such_ptxas.txt", paragraph(error))


def test_no_assembler_at_all(
    monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    """Nothing in the five places and no driver: the error lists where it looked."""
    from kdsl_runtime import toolchain

    monkeypatch.delenv("KDSL_PTXAS", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolchain, "package_folders", lambda name: [])
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    monkeypatch.setattr(toolchain, "driver_version", lambda: None)
    toolchain._searched.cache_clear()
    error = raised(
        kd.BuildError, lambda: copies.cubin(spec(32), spec(32), target="sm_80", block=32)
    )
    toolchain._searched.cache_clear()
    assert error.code == "K701"
    assert "PATH" in error.message and "kdsl-runtime[ptxas]" in error.fix
    golden("errors/no_ptxas.txt", paragraph(error))


# -- the target ----------------------------------------------------------------------------------
@kd.kernel
def hoards(x: kd.Tensor["f32", "n"]) -> None:
    """More shared memory than sm_80 has, and no more than sm_90 has."""
    tile = kd.smem(kd.f32, (50, 1024), name="tile")
    sums = kd.smem(kd.f32, 4, name="sums")
    i = kd.thread_idx()[0]
    tile[i, 0] = x[i]
    sums[0] = 0.0
    x[i] = tile[i, 0]


def test_too_much_shared_memory(golden: Callable[[str, str], None]) -> None:
    """The largest allocation's line, all sizes and the limit; a larger target takes it."""
    error = raised(kd.ResourceError, lambda: hoards.ptx(spec(32), target="sm_80", block=32))
    assert error.code == "K405"
    at(error, hoards, "kd.smem(kd.f32, (50, 1024)")
    for value in ("hoards", "204816 bytes", "sm_80", "166912"):
        assert value in error.message
    assert any(f"sums of {HERE}:{line_of(hoards, 'sums = ')}" in note for note in error.notes)
    assert hoards.ptx(spec(32), target="sm_90a", block=32)
    golden("errors/too_much_shared_memory.txt", paragraph(error))


@kd.kernel
def multiplies_fp8(x: kd.Tensor["f32", "n"]) -> None:
    """One fp8 instruction, which came with sm_89."""
    mma = kd.tiled_mma(kd.atoms.SM89_16x8x32_F32E4M3E4M3F32_TN)
    a = mma.make_fragment_A((16, 32)).fill(0.0)
    b = mma.make_fragment_B((8, 32)).fill(0.0)
    acc = mma.make_fragment_C((16, 8)).fill(0.0)
    kd.gemm(mma, a, b, acc)
    x[kd.thread_idx()[0]] = acc[0]


@kd.kernel
def stores_matrices(x: kd.Tensor["f16", "n"]) -> None:
    """`stmatrix`, which came with sm_90."""
    mma = kd.tiled_mma(kd.atoms.SM80_16x8x16_F16F16F16F16_TN, permutation=(16, 16))
    acc = mma.make_fragment_C((16, 16)).fill(0.0)
    tile = kd.smem(kd.f16, kd.Layout((16, 16), (16, 1)), name="tile")
    plan = kd.tiled_copy_C(kd.atoms.SM90_U32x4_STSM_N, mma, kd.f16)
    part = plan.get_slice(kd.thread_idx()[0])
    kd.copy(part.retile(acc), part.partition_D(tile), atom=plan)
    kd.sync_threads()
    x[kd.thread_idx()[0]] = tile[kd.thread_idx()[0] // 2, 0]


LACKING = [
    (multiplies_fp8, "f32", "kd.gemm(mma, a, b, acc)", "mma.sync.m16n8k32", "sm_89", ["sm_80"]),
    (stores_matrices, "f16", "kd.copy(part", "stmatrix", "sm_90", ["sm_80", "sm_89"]),
]


@pytest.mark.parametrize(
    ("kernel", "dtype", "text", "instruction", "first", "targets"), LACKING, ids=["fp8", "stmatrix"]
)
def test_target_lacks_an_instruction(
    kernel: Any,
    dtype: str,
    text: str,
    instruction: str,
    first: str,
    targets: list[str],
    golden: Callable[[str, str], None],
) -> None:
    """The instruction and the target are named, at the line; a newer one builds."""
    x = kd.spec(dtype, 32)
    for target in targets:
        error = raised(kd.TargetError, partial(kernel.ptx, x, target=target, block=32))
        assert error.code == "K402"
        assert instruction in error.message and f"on {target}" in error.message
        assert first in error.message
        at(error, kernel, text)
    assert instruction in kernel.ptx(x, target=first, block=32).replace(".aligned", "")
    error = raised(kd.TargetError, lambda: kernel.ptx(x, target="sm_80", block=32))
    golden(f"errors/no_{instruction.partition('.')[0]}_on_sm_80.txt", paragraph(error))


def test_unknown_target() -> None:
    """A target that kdsl does not know is answered with those that it knows."""
    error = raised(kd.TargetError, lambda: copies.ptx(spec(32), spec(32), target="sm_75", block=32))
    assert error.code == "K401"
    assert "'sm_75'" in error.message and "sm_80" in error.fix


# -- the kernel's own text -----------------------------------------------------------------------
@kd.kernel
def indexes_registers(x: kd.Tensor["f32", "n"]) -> None:
    """Registers have no addresses."""
    r = kd.rmem(kd.f32, 4).fill(0.0)
    i = kd.thread_idx()[0]
    x[i] = r[i % 4]


@kd.kernel
def breaks_unrolled(x: kd.Tensor["f32", "n"]) -> None:
    """A loop that Python unrolls cannot be left by a condition of the kernel."""
    i = kd.thread_idx()[0]
    for k in range(4):
        if i > k:
            break
        x[i] = 1.0


@kd.kernel
def fills_a_list(x: kd.Tensor["f32", "n"]) -> None:
    """A list would be filled once, while tracing."""
    i = kd.thread_idx()[0]
    found = []
    for k in kd.range(4):
        found.append(x[i + k])


@kd.kernel
def joins_two_types(x: kd.Tensor["f32", "n"]) -> None:
    """A variable has one type behind a branch."""
    i = kd.thread_idx()[0]
    value = i
    if i > 3:
        value = x[i]
    x[i] = value + 0.0


@kd.kernel
def demands_vectors(x: kd.Tensor["f32", "n"]) -> None:
    """Accesses of 16 bytes, which the arguments may not allow."""
    r = kd.rmem(kd.f32, 4)
    kd.copy(kd.local_tile(x, (4,), (0,)), r, vector=16)


TEXTS: list[tuple[Any, type[KdslError], str, str, tuple[str, ...]]] = [
    (indexes_registers, kd.StagingError, "K311", "r[i % 4]", ("register f32 4:1", "i32")),
    (breaks_unrolled, kd.StagingError, "K327", "            break", ()),
    (fills_a_list, kd.StagingError, "K338", "found.append", ("list",)),
    (joins_two_types, kd.StagingError, "K323", "if i > 3:", ("i32", "f32")),
    (demands_vectors, kd.TypeMismatch, "K221", "vector=16", ("16 bytes", "aligned to 4")),
]


@pytest.mark.parametrize(
    ("kernel", "kind", "code", "text", "values"), TEXTS, ids=[row[0].__name__ for row in TEXTS]
)
def test_kernel_text(
    kernel: Any,
    kind: type[KdslError],
    code: str,
    text: str,
    values: tuple[str, ...],
    golden: Callable[[str, str], None],
) -> None:
    """What a kernel cannot say is refused at its line, with the types involved."""
    error = raised(kind, lambda: kernel.ir(spec(32, align=4), block=32))
    assert error.code == code, str(error)
    at(error, kernel, text)
    for value in values:
        assert value in str(error)
    golden(f"errors/{kernel.__name__}.txt", paragraph(error))


@kd.kernel
def composes_badly(x: kd.Tensor["f32", "n"]) -> None:
    """A layout that does not exist."""
    layout = kd.composition(kd.Layout((4, 6), (6, 1)), kd.Layout(8, 3))
    x[0] = float(kd.size(layout))


def test_layout_errors_know_the_line(golden: Callable[[str, str], None]) -> None:
    """Layouts know nothing of kernels; inside of one, their errors point at its line."""
    error = raised(kd.LayoutError, lambda: composes_badly.ir(spec(32), block=32))
    at(error, composes_badly, "kd.composition")
    golden("errors/composes_badly.txt", paragraph(error))


def test_vector_over_strides() -> None:
    """A stride that is no 1 allows no vectors, whatever the alignment."""
    error = raised(kd.TypeMismatch, lambda: demands_vectors.ir(spec(32, strides=(2,)), block=32))
    assert error.code == "K221" and "contiguous runs of 1 × 4 bytes" in error.message


def test_errors_can_be_printed_without_the_source(tmp_path: Path) -> None:
    """A kernel whose file is gone still gives a paragraph, without the line."""
    file = tmp_path / "gone.py"
    file.write_text(
        "import kdsl_core as kd\n"
        "@kd.kernel\n"
        "def k(x: kd.Tensor['f32', 'n']):\n"
        "    x[kd.rmem(kd.f32, 4)[kd.thread_idx()[0]]] = 0.0\n"
    )
    space: dict[str, Any] = {"__name__": "gone"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    os.unlink(file)
    with pytest.raises(KdslError) as caught:
        space["k"].ir(spec(32), block=32)
    assert caught.value.code in ("K311", "K320")
