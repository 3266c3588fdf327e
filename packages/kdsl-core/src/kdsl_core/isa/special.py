"""Special registers: which thread of which block this is."""

from __future__ import annotations

from kdsl_core.dtypes import u32
from kdsl_core.errors import TypeMismatch
from kdsl_core.ir import Builder, Const, Machine, Need, Op, Operand, PtxWriter, Value
from kdsl_core.ir.target import BASELINE
from kdsl_core.isa.arith import binary
from kdsl_core.records import dataclass

_AXES = "xyz"
_CLUSTER = ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")
NAMES = (
    *(f"{base}.{axis}" for base in ("tid", "ntid", "ctaid", "nctaid", *_CLUSTER) for axis in _AXES),
    "cluster_ctarank",
    "laneid",
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SpecialOp(Op):
    """Read a special register, a u32 that never changes while a thread runs."""

    register: str
    d: Value

    NAME = "special.read"
    WRITES = ("d",)

    @property
    def need(self) -> Need:
        return Need(sm=90, ptx=(7, 8)) if "cluster" in self.register else BASELINE

    def verify(self) -> None:
        if self.register not in NAMES or self.d.dtype != u32:
            raise TypeMismatch(
                f"{self.register!r} into {self.d.dtype}: expected a u32 and one of "
                f"{', '.join(NAMES)}",
                code="K252",
                loc=self.loc,
            )

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"mov.u32 {w.reg(self.d)}, %{self.register}")

    def simulate(self, m: Machine) -> None:
        known = m.special_sum(self.register)
        if known is None:
            m.write(self.d, m.special(self.register))
        else:
            m.write_sum(self.d, known)


def special(b: Builder, name: str) -> Operand:
    """A special register as u32: "tid.x", "ntid.y", "ctaid.z", "nctaid.x", "laneid", "warpid", …

    "warpid" is the warp's index in its block, computed from the thread's: PTX's own `%warpid` may
    change while a thread runs. What the block's shape decides is a constant.
    """
    if name == "warpid":
        return binary(b, "shr", _linear_thread(b), Const(u32, 5))
    base, _, axis = name.partition(".")
    if base in ("tid", "ntid") and axis in _AXES:
        size = b.kernel.block_dim[_AXES.index(axis)]
        if base == "ntid":
            return Const(u32, size)
        if size == 1:
            return Const(u32, 0)
    return b.share(SpecialOp(register=name, d=b.value(u32, name), loc=b.loc())).d


def _linear_thread(b: Builder) -> Operand:
    """The thread's index in its block, x fastest."""
    linear: Operand = Const(u32, 0)
    for axis in reversed(_AXES):
        linear = binary(b, "mul", linear, special(b, f"ntid.{axis}"))
        linear = binary(b, "add", linear, special(b, f"tid.{axis}"))
    return linear


OPS = (SpecialOp,)
