"""Every instruction of the tensor cores on every kind of numbers, as recorded on an H200."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from core.isa.ways import WAYS, only
from scripts import scripts

GOLDEN = Path(__file__).parents[2] / "golden" / "tensor_core" / "h200_kinds.npz"


@pytest.fixture(scope="module")
def tools() -> Iterator[SimpleNamespace]:
    """The scripts that recorded it."""
    with scripts("gpu", "tensor_core_inputs", "record_tensor_core") as found:
        yield found


@pytest.fixture(scope="module", params=WAYS)
def checks(tools: Any, request: pytest.FixtureRequest) -> Any:
    """How the model compares, group by group, once for each way of a sum."""
    with only(request.param):
        return tools.record_tensor_core.checks(GOLDEN)


def test_every_bit_of_every_group(checks: Any) -> None:
    """No output differs, payloads of NaN included."""
    assert [str(row) for row in checks if row.differ or row.nan_bits] == []
    assert sum(row.outputs for row in checks) == 241_408


def test_every_group_is_there(tools: Any, checks: Any) -> None:
    """All instructions and kinds that the script asks have outputs."""
    options = tools.record_tensor_core.parser().parse_args([])
    asked = {(atom.name, kind) for atom, kind, _ in tools.record_tensor_core.asked(options)}
    assert {(row.instruction, row.kind) for row in checks if row.outputs} == asked


def test_recorded_outputs_reach_the_ends_of_the_types(tools: Any) -> None:
    """Finite operands gave infinities and largest numbers, others NaN, of f32 and f16."""
    atoms, seen = tools.tensor_core_inputs.atoms(), Counter[tuple[str, str, str]]()
    with np.load(GOLDEN) as recorded:
        for key in recorded.files:
            name, kind, matrix = key.split("/")
            dtype = atoms[name].d
            if matrix == "D" and dtype.is_float:
                d = recorded[key].view(dtype.numpy)
                seen[dtype.name, kind, "infinite"] += int(np.isinf(d).sum())
                seen[dtype.name, kind, "NaN"] += int(np.isnan(d).sum())
                seen[dtype.name, kind, "top"] += int((np.abs(d) == np.finfo(d.dtype).max).sum())
    for name in ("f32", "f16"):
        for kind in ("overflow", "finite bits", "at the top"):
            assert seen[name, kind, "infinite"] > 200 and not seen[name, kind, "NaN"]
        assert seen[name, "at the top", "top"] > 50
        assert seen[name, "nans", "NaN"] > 1000 and seen[name, "infinities", "NaN"] > 20
