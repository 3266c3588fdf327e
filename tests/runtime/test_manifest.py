"""Manifests: what they name, and that they name it exactly."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

import kdsl_core as kd
import kdsl_runtime as kr
from kdsl_core.errors import ArgumentError
from kdsl_core.lang.tensor_class import TensorClass
from kdsl_runtime.manifest.value_text import from_text, to_text
from runtime import served


class Colour(enum.Enum):
    """Something with names."""

    RED = 1


class Pair(NamedTuple):
    """Something with fields."""

    a: int
    b: float


@dataclass(frozen=True)
class Config:
    """Something nested, with a part that makes no difference."""

    tile: tuple[int, ...]
    dtype: Any = kd.f16
    note: str = field(default="", compare=False)


VALUES = [
    None, True, 0, -7, 2**70, "it's", b"\0", 1.0, -0.0, 1e-300, math.inf, -math.inf, (), (1,),
    (1, (2.0, "x")), kd.bf16, Colour.RED, Pair(1, 2.0), Config((1, 2)), served.twice, int, Config,
    kd.Layout((4, 8), (8, 1)), kd.Layout((4, (2, 2))), served.scaled,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_come_back(value: Any) -> None:
    """The text of a trace-time value means that value, with its type and its sign."""
    back = from_text(to_text(value))
    assert (type(back), back) == (type(value), value)
    assert repr(back) == repr(value)


def test_nan_comes_back() -> None:
    """Not a number is not equal to itself, and has a text all the same."""
    assert math.isnan(from_text(to_text(math.nan)))


class Plain:
    """Something without fields."""


@pytest.mark.parametrize(
    "value", [lambda v: v, Plain(), [1], (1, Plain()), frozenset((1,))], ids=range(5)
)
def test_values_without_a_text_are_refused(value: Any) -> None:
    """What no expression means exactly is not written at all."""
    with pytest.raises(ArgumentError) as caught:
        to_text(value)
    assert caught.value.code == "K733"


@pytest.mark.parametrize(
    "text",
    ["1 +", "1 + 1", "x", "os.system('true')", "runtime.served.missing", "[1]", "f(1)", "-x"],
)
def test_other_expressions_are_refused(text: str) -> None:
    """A manifest is no program: only what `to_text` writes is read."""
    with pytest.raises(ArgumentError) as caught:
        from_text(text)
    assert caught.value.code == "K734"


CLASSES = [
    kd.spec("f32", (64, 32)),
    kd.spec("bf16", (63, 32), strides=(1, 64), align=2),
    kd.spec("f16", 7, strides=(0,)),
    kd.spec("f32", (8,), strides=(-4,)),
    kd.spec("f32", (2**33, 2**12)),
    kd.spec("f32", ()),
    kd.spec("f32", (kd.sym("m", divisible_by=8), 4)),
]


@pytest.mark.parametrize("spec", CLASSES)
def test_classes_come_back(spec: Any) -> None:
    """The text of an argument's class holds all of it."""
    (found,) = served.scaled.specialisation(spec, by=1.0, block=32).classes
    assert TensorClass.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "x: f33 (1):(1) align 16", "x: f32 (m%4):() align 16"])
def test_other_classes_are_refused(text: str) -> None:
    """A class that is written wrongly is an error, not another class."""
    with pytest.raises(ArgumentError) as caught:
        TensorClass.parse(text)
    assert caught.value.code == "K735"


def variant(spec: Any = None, target: str = "sm_90a", **options: Any) -> kr.Variant:
    """A variant of `scaled`."""
    spec = kd.spec("f32", 64) if spec is None else spec
    needed = served.scaled.specialisation(spec, by=1.0, **{"block": 32, **options})
    return kr.Variant.of(served.scaled, needed, target)


def test_a_variant_means_its_kernel() -> None:
    """Words to kernel, specialisation and PTX, the same as from the arguments."""
    spec = kd.spec("f16", (64, 4))
    found = variant(spec, block=(32, 2), tiles=served.Tiles((4, 4)))
    assert found.function() is served.scaled
    needed = served.scaled.specialisation(spec, by=1.0, block=(32, 2), tiles=served.Tiles((4, 4)))
    assert found.specialisation() == needed
    direct = served.scaled.module(
        spec, by=1.0, block=(32, 2), tiles=served.Tiles((4, 4)), target="sm_90a"
    )
    assert found.module() == direct


def test_a_manifest_is_a_file_in_order(tmp_path: Any) -> None:
    """Variants come sorted, each once, and the file holds all of them, byte for byte."""
    half = variant(kd.spec("f16", 64), cluster=(2, 1, 1))
    one = kr.Manifest([variant(), half, variant()])
    assert len(one) == 2
    one.save(tmp_path / "a.toml")
    again = kr.Manifest.load(tmp_path / "a.toml")
    assert again == one == kr.Manifest([half, variant()])
    assert again.text() == (tmp_path / "a.toml").read_text()
    assert "cluster = [2, 1, 1]\n" in again.text()
    assert again.text().count("\n\n\n") == 0


def test_merging_keeps_what_was_written_by_hand() -> None:
    """The union; a sample of the first manifest survives."""
    sampled = kr.Variant(**{**vars(variant()), "sample": kr.Sample((1,), {"n": 8}, {"by": 0.5})})
    both = kr.Manifest([sampled]) | kr.Manifest([variant(), variant(target="sm_80")])
    assert [v.target for v in both] == ["sm_80", "sm_90a"]
    assert list(both)[1].sample.sizes == {"n": 8}
    assert "[kernel.sample.sizes]\nn = 8" in both.text()


def test_for_target_takes_what_states_none() -> None:
    """A variant without a target is built for the one that is asked for, others are left out."""
    chosen = kr.Manifest([variant(target=""), variant(target="sm_80")]).for_target("sm_90a")
    assert [v.target for v in chosen] == ["sm_90a"]
    with pytest.raises(ArgumentError) as caught:
        variant(target="").module()
    assert caught.value.code == "K731"


NOT_MANIFESTS = [
    "version = ",
    "version = 2",
    "version = 1\nkernel = 3",
    'version = 1\n[[kernel]]\nkernel = "a:b"',
    'version = 1\n[[kernel]]\nkernel = "a:b"\nblock = "x"',
]


@pytest.mark.parametrize("text", NOT_MANIFESTS)
def test_other_files_are_refused(text: str, tmp_path: Any) -> None:
    """A file that is no manifest is named."""
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(ArgumentError, match=r"m\.toml") as caught:
        kr.Manifest.load(tmp_path / "m.toml")
    assert caught.value.code == "K736"


def test_kernels_without_a_name_are_refused() -> None:
    """A kernel inside a function, another object's name, and a module that is not there."""

    @kd.kernel
    def local(x: kd.Tensor["f32", "n"]):
        x[0] = 1.0

    with pytest.raises(ArgumentError) as caught:
        kr.Variant.of(local, local.specialisation(kd.spec("f32", 4), block=32))
    assert caught.value.code == "K732"
    for name in ("runtime.served:helper", "runtime.served:none", "no.such:kernel", "nonsense name"):
        with pytest.raises(ArgumentError) as caught:
            kr.Variant(name, "sm_80", (), (), (32, 1, 1)).function()
        assert caught.value.code == "K732"
