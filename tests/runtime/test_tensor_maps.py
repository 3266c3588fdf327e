"""Encoding tensor maps, with a driver that writes down what it is asked for."""

from __future__ import annotations

import enum
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kdsl_core import dtypes as dt
from kdsl_core.errors import ArgumentError, DriverError
from kdsl_core.ir import Im2col, MapShape, TensorMap
from kdsl_runtime import driver, tensor_maps
from kdsl_runtime.parameters import ParameterBlock
from kdsl_runtime.tensor_maps import encoded


class _Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Names:
    """An enumeration of the driver whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        return name


class EncodingDriver(SimpleNamespace):
    """The encoders: they keep their arguments and number the maps that they make."""

    def __init__(self, answer: _Result = _Result.CUDA_SUCCESS) -> None:
        kinds = ("DataType", "Interleave", "Swizzle", "L2promotion", "FloatOOBfill")
        super().__init__(
            CUresult=_Result,
            cuuint32_t=int,
            cuuint64_t=int,
            calls=[],
            answer=answer,
            **{f"CUtensorMap{kind}": Names() for kind in kinds},
        )

    def _encode(self, *arguments):
        self.calls.append(arguments)
        made = SimpleNamespace(opaque=[len(self.calls)] * 16)
        return (self.answer, made)

    cuTensorMapEncodeTiled = _encode
    cuTensorMapEncodeIm2col = _encode


@pytest.fixture
def fake(monkeypatch):
    """The driver, with nothing encoded so far."""
    bindings = EncodingDriver()
    monkeypatch.setattr(driver, "require_driver", lambda: bindings)
    encoded.cache_clear()
    yield bindings
    encoded.cache_clear()


TILED = TensorMap(MapShape(dt.bf16, (64, 128), 128), "x", 4096, (512, 300), (1024,))
WALK = Im2col((-1, -1), (-1, -1), 64, 128)
CONV = TensorMap(
    MapShape(dt.f16, (64, 1, 1, 1), 128, (1, 2, 2, 1), im2col=WALK),
    "image",
    256,
    (64, 14, 14, 8),
    (128, 1792, 25088),
)


def test_tiled_maps_are_encoded_once(fake):
    """Everything reaches the driver in its order; an equal map costs no second call."""
    assert encoded(TILED) == struct.pack("<16Q", *[1] * 16)
    assert encoded(replace(TILED)) == encoded(TILED)
    assert encoded(replace(TILED, address=8192)) == struct.pack("<16Q", *[2] * 16)
    assert fake.calls[0] == (
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
        2,
        4096,
        [512, 300],
        [1024],
        [64, 128],
        [1, 1],
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_256B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    )
    assert len(fake.calls) == 2


def test_im2col_maps(fake):
    """Corners, channels and pixels take the box's place."""
    encoded(CONV)
    assert fake.calls[0][:10] == (
        "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
        4,
        256,
        [64, 14, 14, 8],
        [128, 1792, 25088],
        [-1, -1],
        [-1, -1],
        64,
        128,
        [1, 2, 2, 1],
    )


@pytest.mark.parametrize("dtype", dt.ALL_DTYPES, ids=str)
def test_every_type_has_a_name(fake, dtype):
    """The driver's type has as many bytes as ours."""
    encoded(TensorMap(MapShape(dtype, (16,)), "x", 0, (16,), ()))
    ((word, *_),) = fake.calls
    digits = "".join(filter(str.isdigit, word.removeprefix("CU_TENSOR_MAP_DATA_TYPE_")))
    assert int(digits) == dtype.bytes * 8


BAD = [
    ("K631", TILED, {"address": 4104}, "0x1008, which is no multiple of 16"),
    ("K632", TILED, {"sizes": (512, 0)}, "dimension 1 .* is 0"),
    ("K632", TILED, {"sizes": (2**32 + 1, 1)}, "dimension 0"),
    ("K633", TILED, {"strides": (1030,)}, "1030 bytes"),
    ("K633", TILED, {"strides": (1 << 40,)}, "from 0 to 2"),
    ("K630", TILED, {"sizes": (512,)}, "1 to 5 dimensions"),
    ("K634", TILED, {"shape": MapShape(dt.bf16, (64, 257), 128)}, "257 elements in dimension 1"),
    ("K634", TILED, {"shape": MapShape(dt.bf16, (128, 8), 128)}, "256 bytes"),
    ("K634", TILED, {"shape": MapShape(dt.bf16, (4, 8))}, "8 bytes"),
    ("K634", TILED, {"shape": MapShape(dt.bf16, (8, 8), 16)}, "swizzle of 16"),
    ("K634", TILED, {"shape": MapShape(dt.bf16, (8, 8), 0, (1, 9))}, "element strides"),
    ("K638", TILED, {"shape": replace(TILED.shape, promotion=512)}, "l2_promotion .* 512"),
    ("K638", TILED, {"shape": replace(TILED.shape, fill="ones")}, "'ones'"),
    ("K635", CONV, {"shape": replace(CONV.shape, im2col=replace(WALK, lower=(-129, 0)))}, "-129"),
    ("K635", CONV, {"shape": replace(CONV.shape, im2col=replace(WALK, upper=(0,)))}, "4 dim"),
    ("K635", CONV, {"shape": replace(CONV.shape, im2col=replace(WALK, pixels=1025))}, "1025"),
]


@pytest.mark.parametrize(("code", "good", "change", "says"), BAD)
def test_limits_are_checked_before_the_driver_is_asked(fake, code, good, change, says):
    """A refusal names the argument, the numbers and the way out."""
    with pytest.raises(ArgumentError, match=says) as caught:
        encoded(replace(good, **change))
    assert caught.value.code == code and caught.value.fix and not fake.calls


def test_refusals_of_the_driver(fake):
    """What the driver refuses nevertheless is an error with everything it was told."""
    fake.answer = _Result.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DriverError, match="tensor map of x") as caught:
        encoded(TILED)
    assert caught.value.code == "K805"


def test_cache_is_bounded():
    """Old maps are forgotten."""
    assert encoded.cache_info().maxsize == tensor_maps._MOST_KEPT


def test_maps_among_scalars(fake):
    """128 bytes at a multiple of 64, wherever scalars stand before and behind."""
    block = ParameterBlock(
        [("n", dt.i32), ("m", dt.tensor_map), ("h", dt.f16), ("o", dt.tensor_map)]
    )
    assert block.offsets == (0, 64, 192, 256) and block.size == 384
    data = block.pack([7, TILED, 1.5, CONV])
    assert struct.unpack_from("<i", data, 0) == (7,) and struct.unpack_from("<e", data, 192) == (
        1.5,
    )
    assert data[64:192] == encoded(TILED) and data[256:384] == encoded(CONV)
    with pytest.raises(ArgumentError, match="m: expected a value of type tensor_map, got 3") as bad:
        block.pack([7, 3, 1.5, CONV])
    assert bad.value.code == "K653"
