"""The addresses of a layout, tiled copy or tiled mma: one row for each warp-wide instruction."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from kdsl_core.atoms import CopyAtom, Operand, TiledCopy, TiledMma
from kdsl_core.dtypes import DType, dtype_of
from kdsl_core.errors import LayoutError
from kdsl_core.inspect.elements import Subject, elements, extents, offsets_in
from kdsl_core.ir.protocols import Array
from kdsl_core.layout import AnyLayout, ComposedLayout, Layout
from kdsl_core.records import dataclass

Op: TypeAlias = Literal["ld", "st", "ldmatrix", "stmatrix"]

LOADS = ("ld", "ldmatrix")
WARP = 32
ROW_BYTES = 16  # of a matrix load or store
WIDTHS = (16, 8, 4, 2, 1)
_PERIOD = 128  # bytes after which banks and sectors repeat


@dataclass(frozen=True)
class Access:
    """Threads that together read or write what a layout says, with one kind of instruction.

    `subject` is a (thread, value) ↦ index layout, a tiled copy, or a tiled mma that reads its
    `operand`. `op` is "ld", "st", "ldmatrix" or "stmatrix"; a tiled copy's own instruction where
    left out, else "ld". Loads use the source side of a copy and stores its destination side.
    `width` is what one thread moves at once; the widest that all addresses allow where left out,
    and no wider than the instruction of a tiled copy.

    Units: `width` in bytes.
    """

    subject: Subject
    op: Op | None = None
    width: int | None = None
    operand: Operand = "A"


@dataclass(frozen=True, eq=False)
class Requests:
    """Warp-wide instructions: int64 byte addresses (instructions, lanes), and which lanes are on.

    `warp` and `value` (instructions,) say who issues each, and for which of its values on.
    """

    op: Op
    width: int
    address: Array
    active: Array | None
    warp: Array
    value: Array


def requests_of(
    access: Access, memory: AnyLayout | None, dtype: DType | None, start: int, space: str
) -> Requests:
    """The instructions of an access to `memory`, in the order in which the warps issue them.

    Without a memory layout, a (thread, value) layout maps to offsets in elements.
    Units: `start` in bytes, where element 0 lies.
    Raises: LayoutError when the access and the memory do not fit together.
    """
    op = access.op or _own_op(access.subject, space)
    index = elements(access.subject, access.operand, op in LOADS, memory)
    element = dtype or element_type(access)
    return address_requests(access, op, offsets_in(memory, index), element, start)


def address_requests(
    access: Access, op: Op, offset: Array, dtype: DType, start: int = 0
) -> Requests:
    """The instructions for offsets in elements (threads, values)."""
    address = start + offset * dtype.bytes
    address = address - min(int(address.min()) // _PERIOD * _PERIOD, 0)
    width = _width(access, op, address, dtype)
    per = max(width // dtype.bytes, 1)
    first = np.ascontiguousarray(address[:, ::per])
    lanes, active = _warps(first, _lanes(access, op))
    warps, values = lanes.shape[0], lanes.shape[2]
    return Requests(
        op,
        width,
        lanes.transpose(2, 0, 1).reshape(values * warps, -1),
        None if active is None else np.tile(active, (values, 1)),
        np.tile(np.arange(warps), values),
        np.repeat(np.arange(values) * per, warps),
    )


def _warps(first: Array, lanes: int) -> tuple[Array, Array | None]:
    """(threads, values) as (warps, lanes, values), and which lanes are on where not all are."""
    threads, values = first.shape
    if lanes < WARP and threads >= WARP:  # the further lanes' addresses are not used
        return first.reshape(-1, WARP, values)[:, :lanes], None
    warps = -(-threads // lanes)
    padded = np.full((warps * lanes, values), first[0, 0])
    padded[:threads] = first
    active = np.arange(warps * lanes).reshape(warps, lanes) < threads
    return padded.reshape(warps, lanes, values), None if active.all() else active


def _lanes(access: Access, op: Op) -> int:
    """How many lanes of a warp give addresses: a matrix instruction needs 8 for each matrix."""
    if op in ("ld", "st"):
        return WARP
    if isinstance(access.subject, TiledCopy) and access.subject.atom.matrices:
        return 8 * access.subject.atom.matrices
    threads = 0 if isinstance(access.subject, TiledCopy | TiledMma) else extents(access.subject)[0]
    return threads if threads in (8, 16) else WARP


def _width(access: Access, op: Op, address: Array, dtype: DType) -> int:
    matrix = op in ("ldmatrix", "stmatrix")
    width = ROW_BYTES if matrix else access.width
    if width is not None:
        # A matrix access may name nothing but the start of each row.
        if not (matrix and address.shape[1] == 1 and not (address % ROW_BYTES).any()):
            _require_width(address, width, dtype)
        return width
    limit = access.subject.atom.bytes if isinstance(access.subject, TiledCopy) else max(WIDTHS)
    for width in WIDTHS:
        if width <= max(limit, dtype.bytes) and _fits(address, width, dtype):
            return width
    _require_width(address, dtype.bytes, dtype)
    return dtype.bytes


def _require_width(address: Array, width: int, dtype: DType) -> None:
    if width not in WIDTHS or not _fits(address, width, dtype):
        raise LayoutError(
            f"no access of {width} bytes fits: each {width // dtype.bytes or 1} values of"
            f" {dtype} in turn must be neighbours and start at a multiple of {width} bytes,"
            " and some do not",
            code="K187",
            fix="ask for a narrower width, or order the values along memory",
        )


def _fits(address: Array, width: int, dtype: DType) -> bool:
    """Whether accesses of `width` bytes cover the values, in order and aligned."""
    per = width // dtype.bytes
    if per < 1 or address.shape[1] % per:
        return False
    runs = address.reshape(address.shape[0], -1, per)
    together = runs == runs[:, :, :1] + np.arange(per) * dtype.bytes
    return bool(together.all()) and not (runs[:, :, 0] % width).any()


# -- what is left out ----------------------------------------------------------------------------
def _own_op(subject: Subject, space: str) -> Op:
    """The instruction of a tiled copy's atom on one side; plain loads for all else."""
    if not isinstance(subject, TiledCopy):
        return "ld"
    kinds: dict[str, Op] = {"ldmatrix": "ldmatrix", "stmatrix": "stmatrix"}
    if subject.atom.kind == "cp.async" and space == "shared":
        return "st"
    return kinds.get(subject.atom.kind, "ld")


def element_type(access: Access) -> DType:
    """The type that a tiled copy moves or a tiled mma multiplies.

    Raises: LayoutError for a layout, which has none.
    """
    subject = access.subject
    if isinstance(subject, TiledCopy):
        return subject.dtype
    if isinstance(subject, TiledMma):
        return subject.atom.dtype(access.operand)
    raise LayoutError(
        f"{subject} counts elements, and their type is not given",
        code="K189",
        fix="pass the dtype, like bank_conflicts(layout, kd.bf16)",
    )


def sort_arguments(memory: Any, dtype: Any) -> tuple[AnyLayout | None, DType | None]:
    """(memory, dtype) of a call that may leave the memory out: ``f(layout, kd.bf16)``."""
    if memory is not None and not isinstance(memory, Layout | ComposedLayout):
        memory, dtype = None, memory
    return memory, None if dtype is None else dtype_of(dtype)


def as_access(
    subject: Subject | Access, op: Op | None, width: int | None, operand: Operand
) -> Access:
    """An access as it is, or what the arguments of a call say of one.

    Raises: LayoutError for what moves nothing.
    """
    if isinstance(subject, Access):
        return subject
    if isinstance(subject, Layout | ComposedLayout | TiledCopy | TiledMma):
        return Access(subject, op, width, operand)
    hint = "tile the atom first: kd.tiled_copy(…)" if isinstance(subject, CopyAtom) else None
    raise LayoutError(
        "expected a (thread, value) layout, a tiled copy or a tiled mma, got"
        f" {type(subject).__name__}",
        code="K187",
        fix=hint or "give a layout that maps (thread, value) to offsets",
    )
