"""A day of the service: some requests, what was asked for, and which kernels that needs."""

from __future__ import annotations

import numpy as np
import transposes

import kdsl_runtime as kr

with kr.record("manifest.toml", target="sm_90a") as recording:
    for m, n in 3 * [(128, 192)] + [(64, 64)]:
        x = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
        assert (transposes.answer(x) == x.T).all()
for problem, count in transposes.SEEN.most_common():
    print(f"{count} × {problem}")
