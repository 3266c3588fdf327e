"""Kernels for programs without Python: cubin, C header, and a small loader in C."""

from __future__ import annotations

from kdsl_runtime.export.files import export

__all__ = ["export"]
