"""The two ways of a tensor core's sums: NumPy's, and the compiled loop of `kdsl-core[fast]`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf

import pytest

from kdsl_core.isa import tensor_core_sums
from kdsl_core.isa.compiled_sums import CompiledSums

_HERE = find_spec("numba") is not None
NUMBA = pytest.mark.skipif(not _HERE, reason="numba is missing: pip install 'kdsl-core[fast]'")
WAYS = ["NumPy", *["numba"] * _HERE]  # tests that are for numba alone say what is missing


@contextmanager
def only(way: str) -> Iterator[None]:
    """Let sums be computed one way, from the first one on."""
    compiled = CompiledSums(after=inf if way == "NumPy" else 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_core_sums, "COMPILED", compiled)
        yield
