"""What a program needs to be built: variants of kernels, and the file that lists them."""

from __future__ import annotations

from kdsl_runtime.manifest.file import Manifest
from kdsl_runtime.manifest.variant import Sample, Variant

__all__ = ["Manifest", "Sample", "Variant"]
