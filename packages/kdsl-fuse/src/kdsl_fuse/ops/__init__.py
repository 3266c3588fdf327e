"""Every operator that a graph may hold: one explicit tuple, one declaration each."""

from __future__ import annotations

from kdsl_core.errors import FusionError
from kdsl_core.loc import Loc
from kdsl_fuse.ops.activations import ACTIVATIONS
from kdsl_fuse.ops.attention import ATTENTION
from kdsl_fuse.ops.custom import CUSTOM
from kdsl_fuse.ops.declare import OpDef
from kdsl_fuse.ops.normalization import NORMALIZATION
from kdsl_fuse.ops.pointwise import POINTWISE
from kdsl_fuse.ops.reductions import REDUCTIONS
from kdsl_fuse.ops.shapes import SHAPES
from kdsl_fuse.ops.structural import STRUCTURAL
from kdsl_fuse.ops.windows import WINDOWS

ALL_OPS: tuple[OpDef, ...] = (
    *STRUCTURAL,
    *SHAPES,
    *POINTWISE,
    *ACTIVATIONS,
    *REDUCTIONS,
    *NORMALIZATION,
    *ATTENTION,
    *WINDOWS,
    *CUSTOM,
)
_BY_NAME = {op.name: op for op in ALL_OPS}


def op_named(name: str, loc: Loc | None = None) -> OpDef:
    """The declaration of an operator.

    Raises: FusionError K917 for a name that `ALL_OPS` lacks.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    known = ", ".join(sorted(_BY_NAME))
    raise FusionError(
        f"{name} is not an operator of kdsl_fuse", code="K917", loc=loc, fix=f"use one of {known}"
    )
