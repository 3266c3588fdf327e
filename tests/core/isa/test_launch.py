"""Register counts of warp groups, and kernels that overlap."""

from __future__ import annotations

import pytest

from core.isa.warps import Bench, ptx_of
from kdsl_core.errors import VerifyError
from kdsl_core.ir import Effect, target_of
from kdsl_core.isa import launch


def test_text() -> None:
    """Each is spelled as PTX does, and asks the machine for what it means."""
    bench = Bench(1)
    launch.set_max_registers(bench.b, 40, increase=False)
    launch.set_max_registers(bench.b, 232, increase=True)
    launch.wait_for_dependencies(bench.b)
    launch.launch_dependents(bench.b)
    assert ptx_of(bench.kernel.body) == [
        "setmaxnreg.dec.sync.aligned.u32 40",
        "setmaxnreg.inc.sync.aligned.u32 232",
        "griddepcontrol.wait",
        "griddepcontrol.launch_dependents",
    ]
    assert bench.run().asked == [
        ("set_max_registers", 40, False),
        ("set_max_registers", 232, True),
        ("wait_for_dependencies",),
    ]


def test_effects_and_targets() -> None:
    """Registers move between converged warps of sm_90a; any Hopper lets kernels overlap."""
    bench = Bench(1)
    launch.set_max_registers(bench.b, 24, increase=False)
    launch.wait_for_dependencies(bench.b)
    registers, dependencies = bench.kernel.body.ops
    assert registers.effects == Effect.OBSERVABLE | Effect.CONVERGED
    assert dependencies.effects == Effect.SYNC
    assert registers.need.missing(target_of("sm_90")) == "it exists on sm_90a only"
    assert registers.need.missing(target_of("sm_90a")) is None
    assert dependencies.need.missing(target_of("sm_89")) == "it needs sm_90 or newer"


@pytest.mark.parametrize("count", [16, 244, 264])
def test_register_counts(count: int) -> None:
    """K433: counts are multiples of 8 from 24 to 256."""
    with pytest.raises(VerifyError, match=f"multiple of 8 from 24 to 256, got {count}") as caught:
        launch.set_max_registers(Bench(1).b, count, increase=True)
    assert caught.value.code == "K433"
