"""kdsl's kernels as torch operators: schema, fake kernels, numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kdsl_fuse as kf
from kdsl_core.errors import FusionError

torch = pytest.importorskip("torch", reason="torch is missing: pip install 'kdsl-fuse[torch]'")
F = torch.nn.functional
X, W, BIAS, SCALE = (torch.linspace(-2, 2, n).view(shape) for n, shape in
                     ((48, (2, 3, 8)), (40, (5, 8)), (5, (5,)), (8, (8,))))  # fmt: skip
CALLS: dict[str, tuple[str, tuple[Any, ...], Callable[[], Any]]] = {
    "linear": ("linear_act", (X, W), lambda: F.linear(X, W)),
    "gelu": ("linear_act", (X, W, BIAS, "gelu"), lambda: F.gelu(F.linear(X, W, BIAS))),
    "rms_norm": ("rms_norm", (X, SCALE, 1e-6), lambda: F.rms_norm(X, (8,), SCALE, 1e-6)),
    "layer_norm": ("layer_norm", (X, SCALE, W[0]), lambda: F.layer_norm(X, (8,), SCALE, W[0])),
}


@pytest.mark.parametrize("name", CALLS)
def test_operators_equal_torch_and_pass_opcheck(name: str) -> None:
    """Schema, fake kernel and dispatch are what torch expects, and numbers are torch's."""
    operator, args, expected = CALLS[name]
    torch.testing.assert_close(getattr(kf.torch_ops, operator)(*args), expected())
    overload = getattr(torch.ops.kdsl, operator).default
    assert set(torch.library.opcheck(overload, args).values()) == {"SUCCESS"}


def test_bfloat16_norm() -> None:
    """bf16 comes back as bf16."""
    x = X.to(torch.bfloat16)
    got = kf.torch_ops.rms_norm(x, SCALE.to(torch.bfloat16))
    torch.testing.assert_close(got, F.rms_norm(x, (8,), SCALE.to(torch.bfloat16), 1e-6))


@pytest.mark.parametrize(
    "call",
    [
        lambda ops: ops.linear_act(X, W.T),
        lambda ops: ops.linear_act(X, W, SCALE),
        lambda ops: ops.linear_act(X, W, BIAS, "softmax"),
        lambda ops: ops.rms_norm(X, BIAS),
    ],
)
def test_bad_arguments(call: Callable[[Any], Any]) -> None:
    """Shapes that do not fit and unknown activations are K983."""
    with pytest.raises(FusionError) as caught:
        call(kf.torch_ops)
    assert caught.value.code == "K983"
