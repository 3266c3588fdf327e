"""What a running kernel asks of the launcher: registers for its warps, and overlap with others."""

from __future__ import annotations

from kdsl_core.errors import VerifyError
from kdsl_core.ir import Builder, Effect, Machine, Need, Op, PtxWriter
from kdsl_core.records import dataclass

REGISTER_COUNTS = range(24, 257, 8)


@dataclass(frozen=True, kw_only=True, eq=False)
class SetMaxRegistersOp(Op):
    """Give registers back, or wait for more, so that each thread has `count`.

    Threads: all warps of a warp group, converged.
    Source: PTX ISA 9.0 `setmaxnreg`.
    """

    count: int
    increase: bool

    NAME = "launch.set_max_registers"

    @property
    def effects(self) -> Effect:
        return Effect.OBSERVABLE | Effect.CONVERGED

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(8, 0), only=(90,))

    def verify(self) -> None:
        if self.count not in REGISTER_COUNTS:
            raise VerifyError(
                f"{self.name}: registers per thread are a multiple of 8 from "
                f"{REGISTER_COUNTS[0]} to {REGISTER_COUNTS[-1]}, got {self.count}",
                code="K433",
                loc=self.loc,
                fix="round it down to a multiple of 8",
            )

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"setmaxnreg.{'inc' if self.increase else 'dec'}.sync.aligned.u32 {self.count}")

    def simulate(self, m: Machine) -> None:
        m.set_max_registers(self.count, increase=self.increase)


@dataclass(frozen=True, kw_only=True, eq=False)
class _DependencyOp(Op):
    """An edge between a kernel and those before and after it."""

    @property
    def effects(self) -> Effect:
        return Effect.SYNC

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(7, 8))

    def simulate(self, m: Machine) -> None:
        """Nothing by itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class WaitForDependenciesOp(_DependencyOp):
    """Wait until the kernels that this one was launched behind have ended.

    Memory: what they wrote is visible.
    Source: PTX ISA 9.0 `griddepcontrol.wait`.
    """

    NAME = "launch.wait_for_dependencies"

    def ptx(self, w: PtxWriter) -> None:
        w.emit("griddepcontrol.wait")

    def simulate(self, m: Machine) -> None:
        m.wait_for_dependencies()


@dataclass(frozen=True, kw_only=True, eq=False)
class LaunchDependentsOp(_DependencyOp):
    """Let the kernels behind this one start, once every block has said so or ended.

    Source: PTX ISA 9.0 `griddepcontrol.launch_dependents`.
    """

    NAME = "launch.launch_dependents"

    def ptx(self, w: PtxWriter) -> None:
        w.emit("griddepcontrol.launch_dependents")


def set_max_registers(b: Builder, count: int, increase: bool) -> None:
    """Change the registers that each thread of a warp group has."""
    b.append(SetMaxRegistersOp(loc=b.loc(), count=count, increase=increase))


def wait_for_dependencies(b: Builder) -> None:
    """Wait until the kernels before this one have ended."""
    b.append(WaitForDependenciesOp(loc=b.loc()))


def launch_dependents(b: Builder) -> None:
    """Let the kernels after this one start."""
    b.append(LaunchDependentsOp(loc=b.loc()))


OPS: tuple[type[Op], ...] = (SetMaxRegistersOp, WaitForDependenciesOp, LaunchDependentsOp)
