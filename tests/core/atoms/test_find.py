"""Choosing a matrix atom by chip and types."""

from __future__ import annotations

import pytest

from kdsl_core import atoms
from kdsl_core.atoms import find
from kdsl_core.dtypes import bf16, f32
from kdsl_core.errors import TargetError, TypeMismatch


def test_the_deepest_atom_is_found() -> None:
    """Among fitting atoms the one with the most work wins; `k` narrows the choice."""
    assert find(arch="sm_80", a=bf16) is atoms.SM80_16x8x16_F32BF16BF16F32_TN
    assert find(arch="sm_90a", a="f16", acc="f16") is atoms.SM80_16x8x16_F16F16F16F16_TN
    assert find(arch="sm_80", a="f16", k=8) is atoms.SM80_16x8x8_F32F16F16F32_TN
    assert find(arch="sm_80", a="tf32") is atoms.SM80_16x8x8_F32TF32TF32F32_TN
    assert find(arch="sm_80", a="i8", b="u8", acc="i32") is atoms.SM80_16x8x32_S32S8U8S32_TN
    assert find(arch="sm_80", a=f32, b=f32, acc=f32) is atoms.UNIVERSAL_FMA_F32
    assert find(arch="sm_89", a="e4m3", b="e5m2") is atoms.SM89_16x8x32_F32E4M3E5M2F32_TN


def test_a_chip_without_the_types_is_named() -> None:
    """8-bit floating point before Ada: an error with the atom, the chip and what is near."""
    with pytest.raises(TargetError) as caught:
        find(arch="sm_80", a="e4m3")
    assert caught.value.code == "K440"
    text = str(caught.value)
    assert "SM89_16x8x32_F32E4M3E4M3F32_TN is not on sm_80: it needs sm_89" in text
    assert "nearest on sm_80: SM80_16x8x16_F32" in text


def test_types_without_an_atom_list_the_nearest() -> None:
    """Mixed f16 and bf16 operands have no instruction."""
    with pytest.raises(TypeMismatch) as caught:
        find(arch="sm_90a", a="f16", b="bf16")
    assert caught.value.code == "K245"
    text = str(caught.value)
    assert "A f16, B bf16 and accumulator f32" in text
    assert "SM80_16x8x16_F32" in text
    with pytest.raises(TypeMismatch, match="K 64"):
        find(arch="sm_80", a="f16", k=64)
