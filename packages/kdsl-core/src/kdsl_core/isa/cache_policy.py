"""How long L2 is to keep what loads, bulk copies and tensor copies move."""

from __future__ import annotations

from kdsl_core.dtypes import u64
from kdsl_core.ir import Builder, Const, Machine, Need, Op, Operand, PtxWriter, Value
from kdsl_core.isa.operands import expect_choice, expect_type
from kdsl_core.records import dataclass

POLICIES = ("evict_first", "evict_last", "evict_normal", "evict_unchanged")


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyOp(Op):
    """How long L2 is to keep what is moved. Source: PTX ISA 9.0 `createpolicy`."""

    kind: str
    d: Value

    NAME = "cache.policy"
    WRITES = ("d",)

    @property
    def need(self) -> Need:
        return Need(sm=80, ptx=(7, 4))

    def verify(self) -> None:
        expect_choice(self, "the cache policy", self.kind, POLICIES)
        expect_type(self, "a cache policy", self.d, (u64,))

    def ptx(self, w: PtxWriter) -> None:
        w.emit(f"createpolicy.fractional.L2::{self.kind}.b64 {w.reg(self.d)}, 1.0")

    def simulate(self, m: Machine) -> None:
        m.write(self.d, Const(u64, POLICIES.index(self.kind)).array())


def expect_policy(op: Op, policy: Operand | None) -> None:
    """Check the type of an optional cache policy."""
    if policy is not None:
        expect_type(op, "a cache policy", policy, (u64,))


def cache_hint(w: PtxWriter, policy: Operand | None) -> tuple[str, str]:
    """The qualifier and the last operand of a load or copy with a cache policy."""
    return ("", "") if policy is None else (".L2::cache_hint", f", {w.reg(policy)}")


def policy(b: Builder, kind: str) -> Operand:
    """The cache policy of that name; equal ones are shared."""
    return b.share(PolicyOp(loc=b.loc(), kind=kind, d=b.value(u64))).d


OPS: tuple[type[Op], ...] = (PolicyOp,)
