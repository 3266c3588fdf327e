"""One operation, one place: all of them are in ALL_OPS, and each has all its meanings."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter

from house import census
from kdsl_core import isa
from kdsl_core.ir.op import Op

OF_EXTRAS = {"kdsl_core.isa.tensor_core_loop"}  # modules that define no operation


def defined_ops() -> set[type[Op]]:
    """The operations that the modules of kdsl_core.isa define; a leading `_` marks a base."""
    for module in pkgutil.walk_packages(isa.__path__, "kdsl_core.isa."):
        if module.name not in OF_EXTRAS:
            importlib.import_module(module.name)
    found: set[type[Op]] = set()
    waiting: list[type[Op]] = [Op]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        found.update(op for op in below if op.__module__.startswith("kdsl_core.isa"))
    return {op for op in found if not op.__name__.startswith("_") and (op.NAME or is_leaf(op))}


def is_leaf(op: type[Op]) -> bool:
    """Whether no operation refines it."""
    return not op.__subclasses__()


def test_all_ops_is_complete() -> None:
    """No operation is defined and left out, and none is listed that is not defined there."""
    listed = set(isa.ALL_OPS)
    census.expect_none(sorted(op.__qualname__ for op in defined_ops() ^ listed))


def test_all_ops_lists_each_once() -> None:
    """ALL_OPS has no duplicates."""
    census.expect_none(op.__name__ for op, n in Counter(isa.ALL_OPS).items() if n > 1)


def test_each_op_states_its_meanings() -> None:
    """Each operation prints PTX and runs in the simulator, or is control flow that is flattened."""
    lacking = [
        f"{op.__name__}.{rule}"
        for op in isa.ALL_OPS
        if op.lower is Op.lower
        for rule in ("ptx", "simulate")
        if getattr(op, rule) is getattr(Op, rule)
    ]
    census.expect_none(lacking)


def test_each_op_with_operands_states_its_type_rule() -> None:
    """An operation that reads or writes registers checks their types."""
    lacking = [
        op.__name__ for op in isa.ALL_OPS if (op.READS or op.WRITES) and op.verify is Op.verify
    ]
    census.expect_none(lacking)
