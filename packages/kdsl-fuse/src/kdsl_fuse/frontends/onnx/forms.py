"""What the meanings of ONNX's operators share: types, and refusals of forms that there are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kdsl_core.errors import FusionError
from kdsl_fuse.frontends.traced import TracedArray
from kdsl_fuse.origin import author_loc

Inputs = Sequence[Any]
Attributes = Mapping[str, Any]
Meaning = Callable[[Inputs, Attributes], Any]


def only(condition: bool, what: str) -> None:
    """Refuse all other forms of an operator (K985)."""
    if not condition:
        raise FusionError(
            f"from_onnx takes {what}",
            code="K985",
            loc=author_loc(),
            fix="export the model in this form, or simplify it with onnxsim or onnxruntime",
        )


def whole(value: Any, what: str) -> tuple[int, ...]:
    """Numbers that decide shapes: they must be known when the model is traced."""
    only(not isinstance(value, TracedArray), f"{what} that no input decides")
    return tuple(int(x) for x in np.ravel(value))


def get(inputs: Inputs, index: int) -> Any:
    """An input; None where it is left out."""
    return inputs[index] if index < len(inputs) else None
