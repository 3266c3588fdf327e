"""Small PTX kernels and stand-ins for the assembler."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kdsl_core import dtypes as dt
from kdsl_core.dtypes import DType

ADD_ONE = """\
.version {version}
.target {target}
.address_size 64
.visible .entry add_one(.param .u64 data, .param .u32 count, .param .f32 amount)
.reqntid {threads}, 1, 1
{{
  .reg .pred %p<2>;
  .reg .b64 %rd<4>;
  .reg .b32 %r<6>;
  .reg .f32 %f<4>;
  ld.param.u64 %rd1, [data];
  ld.param.u32 %r1, [count];
  ld.param.f32 %f1, [amount];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r2, {threads}, %r3;
  setp.ge.u32 %p1, %r4, %r1;
  @%p1 bra done;
  mul.wide.u32 %rd2, %r4, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.f32 %f2, [%rd3];
  add.rn.f32 %f3, %f2, %f1;
  st.global.f32 [%rd3], %f3;
done:
  ret;
}}
"""


@dataclass(frozen=True)
class Module:
    """The same fields as the core's PtxModule."""

    text: str
    entry: str = "add_one"
    target: str = "sm_80"
    shared_bytes: int = 0
    threads: int = 64
    params: tuple[tuple[str, DType], ...] = (
        ("data", dt.u64),
        ("count", dt.u32),
        ("amount", dt.f32),
    )
    ptx_version: tuple[int, int] = (8, 0)


@pytest.fixture
def add_one() -> Callable[..., Module]:
    """Makes a module that adds `amount` to `count` floats at `data`."""

    def make(target: str = "sm_80", threads: int = 64, shared_bytes: int = 0) -> Module:
        text = ADD_ONE.format(version="8.0", target=target, threads=threads)
        return Module(text, target=target, threads=threads, shared_bytes=shared_bytes)

    return make


@pytest.fixture
def fake_ptxas(tmp_path: Path) -> Callable[..., Path]:
    """Makes a program that answers --version as ptxas does and runs `body` otherwise."""

    def make(body: str = "exit 0", version: str = "V13.0.88", name: str = "ptxas") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        asked = f'if [ "$1" = --version ]; then echo "Cuda compilation tools, {version}"; exit; fi'
        path.write_text(f"#!/bin/sh\n{asked}\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


# A fake assembler's script that writes four bytes to what follows -o.
WRITE_CUBIN = 'while [ "$1" != -o ]; do shift; done; printf CUBE > "$2"'


@pytest.fixture
def write_cubin() -> str:
    """The body of a fake ptxas that makes a cubin of four bytes."""
    return WRITE_CUBIN
