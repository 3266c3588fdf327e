"""Every error code is raised by a test; these are the codes that the other tests do not name."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdsl_core as kd
from errors.unreachable import UNREACHABLE
from house import census
from kdsl_core.dtypes import boolean, f16, f32, u32, u64
from kdsl_core.errors import KdslError
from kdsl_core.ir import Builder, Const, Kernel, Value, target_of
from kdsl_core.isa import arith, barrier, control, matrix_copy, memory, mma, warp
from kdsl_core.layout import int_tuple, swizzle, tv

Call = Callable[[], Any]


# -- layouts -------------------------------------------------------------------------------------
L = kd.Layout
LAYOUTS: list[tuple[str, Call]] = [
    ("K103", lambda: int_tuple.ceil_div(4, 0)),
    ("K103", lambda: int_tuple.floordiv(4, 0)),
    ("K103", lambda: int_tuple.mod(4, 0)),
    ("K104", lambda: kd.make_ordered_layout((2, 3), (0,))),
    ("K105", lambda: int_tuple.shape_div(6, 4)),
    ("K106", lambda: kd.ScaledBasis(1)),
    ("K121", lambda: kd.ComposedLayout(3, 0, L(4))),
    ("K122", lambda: swizzle.swizzle_from_masks(0b101, 0b10)),
    ("K123", lambda: kd.composition(kd.Swizzle(1, 0, 1), kd.Swizzle(1, 0, 2))),
    ("K130", lambda: kd.get(L((2, 3)), 5)),
    ("K130", lambda: kd.take(L((2, 3)), 1, 4)),
    ("K131", lambda: kd.logical_divide(L(8), (2, 2))),
    ("K133", lambda: kd.zipped_divide(L((8, 8)), (2, None))),
    ("K160", lambda: kd.recast_layout(L(8), 0, 8)),
    ("K163", lambda: kd.recast_layout(kd.ComposedLayout(kd.Swizzle(1, 0, 1), 0, L(12)), 8, 24)),
    ("K172", lambda: tv.holders(L(4))),
]


# -- the IR, written without the language ----------------------------------------------------------
def raw(fill: Callable[[Builder], Any]) -> Call:
    """A call that writes IR by hand."""
    return lambda: fill(Builder(Kernel("by_hand", (32, 1, 1))))


def clustered() -> Any:
    """The check of a kernel with clusters for a chip without."""
    from kdsl_core.passes import check_target

    check_target(Kernel("by_hand", (32, 1, 1), cluster_dim=(2, 1, 1)), target_of("sm_80"))


def verified(fill: Callable[[Builder], Any]) -> Call:
    """A call that writes IR by hand and has it verified."""

    def call() -> None:
        from kdsl_core.passes import verify

        kernel = Kernel("by_hand", (32, 1, 1))
        fill(Builder(kernel))
        verify(kernel)

    return call


def flattened(fill: Callable[[Builder], Any]) -> Call:
    """A call that writes IR by hand and turns its control flow into jumps."""

    def call() -> None:
        from kdsl_core.ir.flat import flatten

        kernel = Kernel("by_hand", (32, 1, 1))
        fill(Builder(kernel))
        flatten(kernel)

    return call


def wrong_types(b: Builder) -> None:
    """An addition of f16 whose operands are truth values."""
    add = arith.INSTRUCTIONS[0]
    operands = tuple(Value(boolean) for _ in add.operands)
    b.append(arith.ArithOp(instruction=add, operands=operands, d=Value(boolean)))


A64, W, X, P = Value(u64), Value(u32), Value(f32), Value(boolean)
IR: list[tuple[str, Call]] = [
    ("K250", raw(wrong_types)),
    ("K270", raw(lambda b: matrix_copy.stmatrix(b, W, (X,)))),
    ("K271", raw(lambda b: matrix_copy.stmatrix(b, W, (W, W, W)))),
    ("K272", raw(lambda b: memory.store(b, "global", A64, (A64,) * 4))),
    ("K273", raw(lambda b: memory.load_into(b, "global", A64, (A64,), pred=P))),
    ("K276", raw(lambda b: mma.mma(b, (16, 8, 4), (f32, f16, f16, f32), (), (), (), ()))),
    ("K403", clustered),
    ("K420", flattened(lambda b: b.append(control.BreakOp()))),
    ("K421", verified(lambda b: b.append(control.BreakOp()))),
    ("K430", raw(lambda b: warp.shuffle(b, "around", W, Const(u32, 1)))),
    ("K431", raw(lambda b: barrier.barrier_sync(b, 1, 48))),
]


# -- the language's host side ----------------------------------------------------------------------
@kd.kernel
def writes(x: kd.Tensor["f32", "n"]) -> None:
    """One element a thread."""
    x[kd.thread_idx()[0]] = 0.0


@kd.kernel
def like_nobody(x: kd.Tensor["=y", "n"]) -> None:
    """Its type is that of no argument."""


def ones() -> np.ndarray[Any, Any]:
    """32 f32."""
    return np.ones(32, np.float32)


def simulated(**options: Any) -> Call:
    """A run in the simulator with some options."""
    return lambda: kd.simulate(writes, grid=1, block=32, **{"args": (ones(),), **options})


HOST: list[tuple[str, Call]] = [
    ("K435", lambda: writes.keys(kd.spec("f32", 32), block=32, cluster=(4, 4))),
    ("K509", simulated(checks=("race", "rase"))),
    ("K511", simulated(order="random")),
    ("K511", simulated(on_hazard="ignore")),
    ("K514", lambda: kd.simulate(writes, grid=1, block=16, args=(ones(),), checks="unwritten")),
    ("K601", lambda: kd.spec("f32", (4, 4), strides=(1,))),
    ("K613", lambda: like_nobody[1, 32](ones())),
    ("K623", simulated(args=(kd.spec("f32", 32),))),
    ("K625", lambda: writes(ones())),
]


@pytest.mark.parametrize(("code", "call"), [*LAYOUTS, *IR, *HOST])
def test_code(code: str, call: Call) -> None:
    """The call is refused with this code, in words."""
    with pytest.raises(KdslError) as caught:
        call()
    assert caught.value.code == code, str(caught.value)
    assert len(caught.value.message.split()) > 3


def test_runtime_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """K602: without kdsl-runtime, what needs it says so, and names what works without."""
    monkeypatch.setitem(sys.modules, "kdsl_runtime", None)
    with pytest.raises(kd.ArgumentError, match=r"K602(?s:.*)kdsl-runtime(?s:.*)NumPy") as caught:
        writes.cubin(kd.spec("f32", 32), target="sm_80", block=32)
    assert caught.value.code == "K602"


# -- the runtime -----------------------------------------------------------------------------------
def program(folder: Path, text: str) -> Path:
    """An executable script."""
    path = folder / "ptxas"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_assemblers_that_are_none(tmp_path: Path) -> None:
    """K703: a program without a version. K710: a file that does not run."""
    from kdsl_runtime.toolchain import open_toolchain

    with pytest.raises(kd.BuildError, match=r"K703(?s:.*)hello"):
        open_toolchain(program(tmp_path, "#!/bin/sh\necho hello\n"))
    with pytest.raises(kd.BuildError, match=r"K710(?s:.*)no_file"):
        open_toolchain(tmp_path / "no_file")


def test_driver_jit_makes_no_cubin() -> None:
    """K708: the driver's compiler gives no machine code that could be kept."""
    from kdsl_runtime.assemble import assemble
    from kdsl_runtime.toolchain import Toolchain

    module = writes.module(kd.spec("f32", 32), target="sm_80", block=32)
    with pytest.raises(kd.BuildError, match=r"K708(?s:.*)writes"):
        assemble(module, "sm_80", Toolchain(None, "13.0", "id", "driver JIT"))


def test_blocks_that_do_not_fit() -> None:
    """K480: an unknown target. K482: shared memory beyond the target's."""
    from dataclasses import replace

    from kdsl_runtime.resources import check_block, shared_limit_bytes

    with pytest.raises(kd.TargetError, match=r"K480(?s:.*)sm_52"):
        shared_limit_bytes("sm_52")
    module = writes.module(kd.spec("f32", 32), target="sm_80", block=32)
    with pytest.raises(kd.ResourceError, match=r"K482(?s:.*)200000"):
        check_block(replace(module, shared_bytes=200_000), "sm_80")


def test_cache_entries_and_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """K726: a changed byte. K727: a bound that is no number. K728: no folder to be had."""
    from kdsl_runtime import cli_cache
    from kdsl_runtime.cache.entry import Entry, decode, encode
    from kdsl_runtime.cache.layers import max_bytes

    data = bytearray(encode("key", Entry({"kind": "cubin"}, b"machine code")))
    assert decode(bytes(data), "key").payload == b"machine code"
    data[-40] ^= 1
    with pytest.raises(kd.CacheError, match="K726"):
        decode(bytes(data), "key")
    with pytest.raises(kd.CacheError, match=r"K727(?s:.*)'2 GiB'"):
        max_bytes({"KDSL_CACHE_MIB": "2 GiB"})
    for name in ("KDSL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(kd.CacheError, match="K728"):
        cli_cache._open_cache(None)


def test_device_array_takes_its_own_shape() -> None:
    """K657: refused before anything is copied."""
    from kdsl_runtime.device_array import DeviceArray

    array = object.__new__(DeviceArray)  # no memory behind it, there may be no GPU
    array.shape, array.dtype, array.index = (4, 8), f32, 0
    with pytest.raises(kd.ArgumentError, match=r"K657(?s:.*)\(4, 8\)(?s:.*)\(8, 4\)"):
        array.write(np.zeros((8, 4), np.float32))


# -- no code without a test ------------------------------------------------------------------------
@cache
def existing() -> frozenset[str]:
    """The codes in the packages."""
    return frozenset(census.error_codes())


@cache
def named() -> frozenset[str]:
    """The codes that some test names."""
    files = [p for p in (census.ROOT / "tests").rglob("*.py") if p.name != "unreachable.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return frozenset(match[0] for match in re.finditer(rf"\b(?:{census.CODE.pattern})\b", text))


def test_every_code_is_tested_or_listed() -> None:
    """A new code needs a test that names it, or a reason in `unreachable.py`."""
    census.expect_none(sorted(existing() - named() - set(UNREACHABLE)))


def test_the_list_is_up_to_date() -> None:
    """What is listed exists, has a reason, and is tested nowhere."""
    census.expect_none(code for code in UNREACHABLE if code not in existing() or code in named())
    assert all(len(reason.split()) > 4 for reason in UNREACHABLE.values())
