"""Codes that a kernel's author meets: each by a small kernel, at the line that is wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core import isa
from kdsl_core.errors import KdslError
from kdsl_core.ir import Const
from kdsl_core.lang import traced
from kdsl_core.lang.tracer import builder

REFUSED: list[tuple[str, Callable[..., Any]]] = []
HAZARDS: list[tuple[str, Callable[..., Any]]] = []


def refused(code: str) -> Callable[[Any], Any]:
    """Collect a function of (x, y, i) that cannot be traced."""
    return lambda function: REFUSED.append((code, function))


def hazard(code: str) -> Callable[[Any], Any]:
    """Collect a function of (x, y, i) in which the simulator finds a hazard."""
    return lambda function: HAZARDS.append((code, function))


@kd.kernel
def runs(x: kd.Tensor["f32", "n"], y: kd.Tensor["i8", "m"], case: kd.Static) -> None:
    """One case, for 64 threads."""
    case(x, y, kd.thread_idx()[0])


# -- refused while tracing -------------------------------------------------------------------------
@refused("K153")
def copies_a_run_time_size(x, y, i):
    kd.copy(x, x)


@refused("K216")
def barrier_of_half_a_warp(x, y, i):
    kd.named_barrier(1, 48)


@refused("K216")
def barrier_beyond_the_last(x, y, i):
    kd.named_barrier(16, 32)


@refused("K218")
def recasts_between_elements(x, y, i):
    kd.recast(kd.local_tile(y, (1,), (1,)), kd.i32, 1)


@refused("K219")
def matrices_of_another_block(x, y, i):
    tile = kd.smem(kd.f16, kd.Layout((8, 32), (32, 1)))
    there, registers = kd.peer(tile, 1), kd.rmem(kd.f16, (8, 32))
    kd.copy(there, registers, atom=kd.atoms.SM75_U32x4_LDSM_N)


@refused("K223")
def matrices_from_shared_to_shared(x, y, i):
    plan = kd.atoms.SM75_U32x4_LDSM_N
    tile = kd.smem(kd.f16, kd.Layout((8, 32), (32, 1)))
    kd.copy(tile, tile, atom=plan)


@refused("K225")
def fragments_of_two_tiles(x, y, i):
    mma = kd.tiled_mma(kd.atoms.SM80_16x8x16_F32BF16BF16F32_TN)
    a, b = mma.make_fragment_A((32, 16)), mma.make_fragment_B((8, 16))
    acc = mma.make_fragment_C((16, 8))
    kd.gemm(mma, a, b, acc)


@refused("K277")
def mbarrier_beyond_the_ring(x, y, i):
    kd.mbarrier(1, count=2)[2].wait(0)


@refused("K278")
def global_memory_of_another_block(x, y, i):
    kd.peer(x, 1)


@refused("K279")
def fence_of_no_space(x, y, i):
    kd.fence_proxy_async("registers")


@refused("K432")
def half_an_mbarrier(x, y, i):
    b = kd.mbarrier()
    isa.mbarrier.wait(builder(), b.address, Const(kd.u32, 0), offset=4)


@refused("K433")
def registers_by_four(x, y, i):
    kd.set_max_registers(244)


@refused("K434")
def arrives_and_expects_at_once(x, y, i):
    two = Const(kd.u32, 2)
    isa.mbarrier.arrive(builder(), kd.mbarrier().address, count=two, expect_bytes=two)


@refused("K274")
def prints_a_value_too_few(x, y, i):
    kd.print("{} and {}", i)


@refused("K275")
def prints_a_half(x, y, i):
    kd.print("{}", x[i].to(kd.f16))


@refused("K326")
def deletes_what_a_loop_carries(x, y, i):
    total = 0.0
    for k in kd.range(4):
        total = total + x[k]
        del total


@refused("K335")
def yields_in_a_lambda(x, y, i):
    return (lambda: (yield i))()


@pytest.mark.parametrize(("code", "function"), REFUSED, ids=lambda v: getattr(v, "__name__", v))
def test_refused(code: str, function: Callable[..., Any]) -> None:
    """The kernel is refused at a line of the function."""
    with pytest.raises(KdslError) as caught:
        runs.ir(kd.spec("f32", 64), kd.spec("i8", 64), kd.func(function), block=64)
    assert caught.value.code == code, str(caught.value)
    located(caught.value, function)


def located(error: KdslError, function: Callable[..., Any]) -> None:
    """The author's line is in this file and in the function."""
    assert error.loc is not None and Path(error.loc.file).name == Path(__file__).name
    code = function.__code__
    last = max(line for _, _, line in code.co_lines() if line is not None)
    assert code.co_firstlineno < error.loc.line <= last, str(error)


# -- found while it runs ---------------------------------------------------------------------------
@hazard("K502")
def reads_before_the_copy_arrived(x, y, i):
    tile = kd.smem(kd.f32, 64)
    one = kd.tiled_copy(kd.atoms.SM80_CP_ASYNC_CACHEALWAYS_U32, kd.f32, kd.Layout(64), kd.Layout(1))
    part = one.get_slice(i)
    kd.copy(part.partition_S(kd.local_tile(x, (64,), (0,))), part.partition_D(tile), atom=one)
    kd.cp_async_commit()
    x[i] = tile[i]


@hazard("K503")
def reads_beyond_the_end(x, y, i):
    x[i] = x[i + 1]


@hazard("K504")
def reads_what_nobody_wrote(x, y, i):
    tile = kd.smem(kd.f32, 64)
    x[i] = tile[i]


@hazard("K505")
def reads_a_word_between_words(x, y, i):
    words = kd.recast(kd.local_tile(y, (1,), (i,)), kd.i32, 1)
    x[i] = words[0].to(kd.f32)


@hazard("K507")
def waits_for_another_number_of_threads(x, y, i):
    if i < 32:
        kd.named_barrier(1, 64).sync()
    else:
        kd.named_barrier(1, 96).sync()


@hazard("K508")
def asserts_what_does_not_hold(x, y, i):
    assert i < 40, "few threads"


@pytest.mark.parametrize(("code", "function"), HAZARDS, ids=lambda v: getattr(v, "__name__", v))
def test_hazard(code: str, function: Callable[..., Any]) -> None:
    """The simulator stops there, and says who did what."""
    x, y = np.ones(64, np.float32), np.zeros(64, np.int8)
    with pytest.raises(kd.HazardError) as caught:
        runs[1, 64](x, y, kd.func(function))
    assert caught.value.code == code, str(caught.value)
    located(caught.value, function)
    assert "thread" in str(caught.value) or "warp" in str(caught.value)


def test_too_many_late_loops(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """K344: each `while` whose test becomes a value late costs a trace; there is an end to it."""
    monkeypatch.setattr(traced, "_MOST_RETRACES", 4)
    loops = [f"    w{k} = 0\n    while w{k} < 3:\n        w{k} = w{k} + i\n" for k in range(6)]
    head = "import kdsl_core as kd\n\n@kd.kernel\ndef many(x: kd.Tensor['f32', 'n']):\n"
    file = tmp_path / "many_loops.py"
    file.write_text(head + "    i = kd.thread_idx()[0]\n" + "".join(loops))
    found = importlib.util.spec_from_file_location("many_loops", file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    with pytest.raises(kd.StagingError, match=r"many_loops\.py(?s:.*)K344(?s:.*)more than 4 "):
        module.many.ir(kd.spec("f32", 32), block=32)
