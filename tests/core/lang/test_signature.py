"""Arguments are checked against the signature at every launch, before anything runs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd


@kd.kernel
def many(
    a: kd.Tensor["f16|bf16|f32", "m n"],
    b: kd.Tensor["=a", "n 4"],
    c: kd.Tensor,
    alpha: kd.f32,
    count: kd.i32 = 3,
    flag: kd.boolean = False,
    tile: kd.Static = (2, 2),
) -> None:
    """Every kind of parameter."""
    if flag:
        c[0, 0] = a[0, 0].to(kd.f32) * alpha + b[0, 3].to(kd.f32) + count + tile[0]


def _arrays(dtype: Any = np.float32) -> list[Any]:
    return [np.ones((3, 5), dtype), np.ones((5, 4), dtype), np.zeros((2, 2), np.float32)]


def test_all_kinds_of_arguments_arrive() -> None:
    """Tensors, numbers, truth values, defaults and trace-time values reach the kernel."""
    a, b, c = _arrays()
    many[1, 32](a, b, c, 2.5, flag=True)
    assert c[0, 0] == 2.5 + 1 + 3 + 2
    many[1, 32](a, b, c, 2, 10, True, tile=(5, 5))
    assert c[0, 0] == 2 + 1 + 10 + 5
    many[1, 32](a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16), c, 1.0, flag=True)
    assert c[0, 0] == 1 + 1 + 3 + 2


WRONG: list[tuple[str, str, Any]] = [
    (
        "K608",
        "a: expected elements of type f16 or bf16 or f32, got f64",
        lambda a, b, c: (a.astype(float), b, c, 1.0),
    ),
    (
        "K608",
        "b: expected elements of type f32, as a, got f16",
        lambda a, b, c: (a, b.astype(np.float16), c, 1.0),
    ),
    (
        "K609",
        r"a: expected 2 modes \('m', 'n'\), got shape \(15,\)",
        lambda a, b, c: (a.ravel(), b, c, 1.0),
    ),
    (
        "K610",
        r"b: expected the sizes \('n', 4\), got \(5, 3\)",
        lambda a, b, c: (a, b[:, :3], c, 1.0),
    ),
    ("K611", "n is 5 in a and 4 in b", lambda a, b, c: (a, b[:4], c, 1.0)),
    ("K603", "alpha is missing", lambda a, b, c: (a, b, c)),
    ("K603", "one too many", lambda a, b, c: (a, b, c, 1.0, 1, True, (1,), 9)),
    ("K604", "c: expected an array, got int 7", lambda a, b, c: (a, b, 7, 1.0)),
    ("K604", "c: expected an array, got NoneType None", lambda a, b, c: (a, b, None, 1.0)),
    ("K607", "alpha: expected a number that fits f32, got str", lambda a, b, c: (a, b, c, "x")),
    (
        "K607",
        "count: expected a number that fits i32, got int 2147483648",
        lambda a, b, c: (a, b, c, 1.0, 2**31),
    ),
    (
        "K607",
        "count: expected a number that fits i32, got float",
        lambda a, b, c: (a, b, c, 1.0, 1.5),
    ),
    (
        "K607",
        "flag: expected a number that fits boolean, got int 1",
        lambda a, b, c: (a, b, c, 1.0, 1, 1),
    ),
    (
        "K606",
        "tile: a kd.Static argument .* must be hashable, got list",
        lambda a, b, c: (a, b, c, 1.0, 1, True, [1]),
    ),
    (
        "K605",
        "c: strides of .* bytes are no whole number of elements",
        lambda a, b, c: (a, b, _torn(), 1.0),
    ),
]


def _torn() -> Any:
    rows = np.zeros(4, np.dtype([("v", np.float32), ("pad", np.int8)]))
    return rows["v"]


@pytest.mark.parametrize(("code", "text", "change"), WRONG)
def test_wrong_arguments_are_named(code: str, text: str, change: Any) -> None:
    """The message names the argument, what was expected and what was got; nothing runs."""
    a, b, c = _arrays()
    with pytest.raises(kd.ArgumentError, match=rf"(?s){code}.*{text}"):
        many[1, 32](*change(a, b, c))
    assert not c.any()


def test_address_must_fit_the_elements() -> None:
    """An address between elements is refused."""
    shifted = np.zeros(17, np.int8)[1:].view(np.int8)[:16]
    odd = np.frombuffer(shifted.data, np.float32)
    if odd.ctypes.data % 4 == 0:
        odd = np.frombuffer(np.zeros(18, np.int8)[2:].data, np.float32)
    a, b, _ = _arrays()
    with pytest.raises(kd.ArgumentError, match="K612"):
        many[1, 32](a, b, odd.reshape(2, 2), 1.0)


def test_checks_run_at_every_launch() -> None:
    """A second call with a wrong size is refused though the first was right."""
    a, b, c = _arrays()
    launch = many[1, 32]
    launch(a, b, c, 1.0)
    with pytest.raises(kd.ArgumentError, match="K611"):
        launch(a, b[:3], c, 1.0)


@kd.kernel
def sums(out: kd.Tensor["f32", "n"], *extras: kd.Tensor["f32", "n"]) -> None:
    """Add any number of tensors."""
    i = kd.thread_idx()[0]
    total = 0.0
    for extra in extras:
        total = total + extra[i]
    out[i] = kd.as_scalar(total)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_variadic_tensors(count: int) -> None:
    """`*extras` takes any number of tensors, checked like the others."""
    arrays = [np.full(32, k + 1, np.float32) for k in range(count)]
    out = np.full(32, -1, np.float32)
    sums[1, 32](out, *arrays)
    assert (out == count * (count + 1) // 2).all()
    with pytest.raises(kd.ArgumentError, match="K611"):
        sums[1, 32](out, *arrays, np.zeros(31, np.float32))


BAD_SIGNATURES = [
    ("K341", lambda: kd.Tensor["f31", "n"]),
    ("K342", lambda: kd.Tensor["f32", "n+1"]),
    ("K343", lambda: kd.kernel(_annotated_int)),
    ("K343", lambda: kd.kernel(_with_keywords)),
    ("K339", lambda: kd.kernel(3)),
]


def _annotated_int(x: int) -> None: ...


def _with_keywords(**options: kd.Static) -> None: ...


@pytest.mark.parametrize(("code", "make"), BAD_SIGNATURES)
def test_bad_signatures(code: str, make: Any) -> None:
    """A signature that means nothing is refused where it is written."""
    with pytest.raises(kd.StagingError, match=code):
        make()


LAUNCHES: list[tuple[str, Any]] = [
    ("K620", lambda k: k[1]),
    ("K621", lambda k: k[0, 32](*_arrays(), 1.0)),
    ("K621", lambda k: k[1, 2048](*_arrays(), 1.0)),
    ("K621", lambda k: k[1, (1, 2, 3, 4)](*_arrays(), 1.0)),
    ("K621", lambda k: k[1.5, 32](*_arrays(), 1.0)),
    ("K622", lambda k: k[1, 32](kd.spec("f32", (3, 5)), *_arrays()[1:], 1.0)),
]


@pytest.mark.parametrize(("code", "call"), LAUNCHES)
def test_bad_launches(code: str, call: Any) -> None:
    """Grid, block and place of the arrays are checked."""
    with pytest.raises(kd.ArgumentError, match=code):
        call(many)


def test_grid_from_the_arguments() -> None:
    """A grid may be computed from the arguments."""
    out = np.zeros(100, np.int32)

    @kd.kernel
    def fill(x: kd.Tensor["i32", "n"]) -> None:
        i = kd.block_idx()[0] * 32 + kd.thread_idx()[0]
        if i < kd.size(x):
            x[i] = i

    fill[lambda x: -(-len(x) // 32), 32](out)
    assert out.tolist() == list(range(100))
    out[:] = 0
    fill.configure(grid=4, block=32)(out)
    assert out.tolist() == list(range(100))
