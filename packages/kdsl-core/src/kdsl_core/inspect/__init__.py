"""Looking at kernels' parts without running them: pictures, memory traffic, bank conflicts."""

from __future__ import annotations

from kdsl_core.inspect.pictures import show, svg

__all__ = ["show", "svg"]
