"""The sums of `launch_path.py` in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_of_two(a, b, c, m, n, BLOCK: tl.constexpr):
    """c = a + b, a column for each thread."""
    i = tl.arange(0, BLOCK)
    here = i < n
    tl.store(c + i, tl.load(a + i, here) + tl.load(b + i, here), here)


@triton.jit
def sum_of_seven(a, b, c, d, e, f, g, h, m, n, BLOCK: tl.constexpr):
    """h = a + … + g."""
    i = tl.arange(0, BLOCK)
    here = i < n
    total = tl.load(a + i, here) + tl.load(b + i, here) + tl.load(c + i, here)
    total += tl.load(d + i, here) + tl.load(e + i, here) + tl.load(f + i, here)
    tl.store(h + i, total + tl.load(g + i, here), here)


BY_COUNT = {3: sum_of_two, 8: sum_of_seven}
