"""The kernels whose launches are timed, with and without a GPU: sums of small matrices."""

from __future__ import annotations

import kdsl_core as kd

SHAPE, THREADS = (16, 32), 128
M = kd.Tensor["f32", "m n"]


@kd.kernel
def sum_of_two(a: M, b: M, c: M):
    """c = a + b, a column for each thread."""
    n = kd.thread_idx()[0]
    if n < c.shape[1]:
        c[0, n] = a[0, n] + b[0, n]


@kd.kernel
def sum_of_seven(a: M, b: M, c: M, d: M, e: M, f: M, g: M, h: M):
    """h = a + … + g."""
    n = kd.thread_idx()[0]
    if n < h.shape[1]:
        parts = [x[0, n] for x in (a, b, c, d, e, f, g)]
        h[0, n] = sum(parts[1:], parts[0])


KERNELS = {3: sum_of_two, 8: sum_of_seven}  # by arrays
