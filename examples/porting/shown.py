"""Layouts by name, one a line, to lay beside what CuTe's `print` gives."""

from __future__ import annotations

import kdsl_core as kd


def show(**tensors: kd.Tensor) -> None:
    """Print the layouts of tensors while a kernel is traced."""
    for name, tensor in tensors.items():
        swizzle = f"{tensor.swizzle} o " if tensor.swizzle else ""
        print(f"{name} {swizzle}{tensor.layout}")
