"""kd.gemm for warp groups: the code it becomes, and the operands it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

import kdsl_core as kd
from kdsl_core.errors import KdslError

K_TILE = 64


@kd.kernel
def main_loop(c: kd.Tensor["f32", "128 256"], tiles: kd.i32, majors: kd.Static):
    """Four stages of 128 × 256 × 64, two warp groups."""
    mma = kd.tiled_mma(
        kd.atoms.wgmma(256, kd.bf16, a_major=majors[0], b_major=majors[1]), warps=(2, 1)
    )
    a = kd.smem(kd.bf16, kd.atoms.shared_operand(kd.bf16, (128, 64), major=majors[0], stages=4))
    b = kd.smem(kd.bf16, kd.atoms.shared_operand(kd.bf16, (256, 64), major=majors[1], stages=4))
    view = mma.get_slice(kd.thread_rank())
    left, right = view.partition_A(a), view.partition_B(b)
    acc = mma.make_fragment_C((128, 256))
    for k in kd.range(tiles):
        kd.wgmma_fence()
        kd.gemm(mma, left[..., k % 4], right[..., k % 4], acc, accumulate=k > 0)
        kd.wgmma_commit()
        kd.wgmma_wait(0)
    kd.copy(acc, view.partition_C(c))


def lines(kernel: Any, *args: Any, **statics: Any) -> list[str]:
    """The PTX of a kernel of 256 threads, register lists left out."""
    text = kernel.module(*args, target="sm_90a", block=256, **statics).text
    return [re.sub(r"\{[^}]*\}", "D", line.strip()) for line in text.splitlines()]


@pytest.mark.parametrize(
    ("majors", "steps", "flags"), [("KK", (2, 2), "0, 0"), (("MN", "MN"), (128, 128), "1, 1")]
)
def test_a_k_tile_is_four_wgmma_and_constant_steps(majors: Any, steps: Any, flags: str) -> None:
    """Descriptors are made before the loop; in it they move by the stage and by constants."""
    text = lines(main_loop, kd.spec("f32", (128, 256)), 3, majors=majors)
    fence, commit = (
        text.index("wgmma.fence.sync.aligned;"),
        text.index("wgmma.commit_group.sync.aligned;"),
    )
    body = text[fence:commit]
    starts = [line for line in body if line.startswith("wgmma.mma_async")]
    assert len(starts) == 4
    assert all(line.endswith(f"1, 1, {flags};") for line in starts)
    assert starts[0].startswith("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 D, %rd")
    between = body[body.index(starts[0]) + 1 :]
    moves = [line for line in between if not line.startswith("wgmma")]
    immediates = [re.fullmatch(r"add\.u64 %rd\d+, %rd\d+, (\d+);", line) for line in moves]
    found = [int(match[1]) for match in immediates if match]
    assert found == [step * k for k in (1, 2, 3) for step in steps] and len(moves) == len(found)
    assert not any(line.startswith("or.b64") for line in body)
    assert sum(line.startswith("or.b64") for line in text) == 2


def test_the_descriptor_of_a_swizzled_k_major_tile() -> None:
    """Layout code 1, SBO 1024 and an LBO of one unit: 0x4000004000010000."""
    text = lines(main_loop, kd.spec("f32", (128, 256)), 3, majors="KK")
    constants = [line.rpartition(", ")[2] for line in text if line.startswith("or.b64")]
    assert constants == [f"{0x4000004000010000};"] * 2


@kd.kernel
def one_product(c: kd.Tensor["f32", "m"], change: kd.Static):
    """One product of 64 × 64 × 64 whose parts a test exchanges."""
    parts = Parts()
    change(parts)
    view = parts.mma.get_slice(kd.thread_rank() % 128)
    a = view.partition_A(parts.a)
    b = view.partition_B(parts.b)
    acc = parts.mma.make_fragment_C((64, 64))
    kd.wgmma_fence()
    kd.gemm(parts.mma, parts.left(a), b, acc, accumulate=parts.accumulate)
    kd.wgmma_commit()
    kd.wgmma_wait(0)
    c[kd.thread_rank()] = acc[0]


class Parts:
    """What a right product is made of."""

    def __init__(self) -> None:
        self.mma = kd.tiled_mma(kd.atoms.wgmma(64, kd.f16))
        self.a = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (128, 64), stages=2))[..., 0]
        self.a = self.a.tile((64, 64), (0, 0))
        self.b = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (64, 64)))[..., 0]
        self.left = lambda a: a
        self.accumulate: Any = False


def nothing(parts: Parts) -> None:
    """Leave the product right."""


def starts_inside_an_atom(parts: Parts) -> None:
    """Row 4 is no multiple of 8."""
    parts.b = parts.b.with_layout(parts.b.layout, 4 * 64)


def is_badly_aligned(parts: Parts) -> None:
    """128 bytes are too few for a swizzle's period."""
    parts.a = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (64, 64)), align=128)[..., 0]


def is_row_major(parts: Parts) -> None:
    """A plain matrix is no canonical form."""
    parts.a = kd.smem(kd.f16, kd.Layout((64, 64), (64, 1)))


def is_transposed(parts: Parts) -> None:
    """The atom reads K-major, the operand is MN-major."""
    parts.b = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (64, 64), major="MN"))[..., 0]


def has_another_type(parts: Parts) -> None:
    """f16 is not bf16."""
    parts.b = kd.smem(kd.bf16, kd.atoms.shared_operand(kd.bf16, (64, 64)))[..., 0]


def is_in_registers(parts: Parts) -> None:
    """The atom wants A in shared memory."""
    registers = kd.tiled_mma(kd.atoms.wgmma(64, kd.f16, a_from="registers"))
    parts.left = lambda a: registers.make_fragment_A((64, 64))


def has_a_stage_left(parts: Parts) -> None:
    """A partition of all stages has four modes."""
    parts.a = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (64, 64), stages=2))


def is_too_short(parts: Parts) -> None:
    """A has half the depth of B."""
    parts.a = kd.smem(kd.f16, kd.atoms.shared_operand(kd.f16, (64, 32)))[..., 0]


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (starts_inside_an_atom, "K443", "starts 512 bytes from an address known to be"),
        (is_badly_aligned, "K443", "a multiple of 128; with spans of 128 bytes"),
        (is_row_major, "K442", "no K-major operand of wgmma: with no swizzle"),
        (is_transposed, "K442", "no K-major operand of wgmma: with a swizzle of 128 bytes"),
        (has_another_type, "K224", "takes b as f16 in shared memory"),
        (is_in_registers, "K224", "takes a as f16 in shared memory"),
        (has_a_stage_left, "K225", "do not fit together"),
        (is_too_short, "K225", "do not fit together"),
    ],
)
def test_operands_that_are_refused(change: Any, code: str, text: str) -> None:
    """Every refusal has a code, numbers and the author's line."""
    assert any(
        "m64n64k16" in line for line in lines(one_product, kd.spec("f32", (256,)), change=nothing)
    )
    with pytest.raises(KdslError, match=text) as caught:
        lines(one_product, kd.spec("f32", (256,)), change=change)
    assert caught.value.code == code
    assert caught.value.loc is not None and caught.value.loc.file == __file__


@kd.kernel
def warp_product(c: kd.Tensor["f32", "m"], sure: kd.Static):
    """A register product that should replace its accumulators."""
    mma = kd.tiled_mma(kd.atoms.SM80_16x8x16_F32F16F16F32_TN)
    a, b = mma.make_fragment_A((16, 16)).fill(1.0), mma.make_fragment_B((8, 16)).fill(1.0)
    acc = mma.make_fragment_C((16, 8)).fill(5.0)
    kd.gemm(mma, a, b, acc, accumulate=False if sure else kd.thread_rank() < 5)
    c[kd.thread_rank()] = acc[0]


def test_a_register_product_may_replace_but_not_choose_at_run_time() -> None:
    """accumulate=False clears first; a run-time choice belongs to wgmma."""
    text = lines(warp_product, kd.spec("f32", (256,)), sure=True)
    assert "mov.f32 %f1, 0f00000000;" in text
    with pytest.raises(KdslError, match="known at run time only") as caught:
        lines(warp_product, kd.spec("f32", (256,)), sure=False)
    assert caught.value.code == "K449"
