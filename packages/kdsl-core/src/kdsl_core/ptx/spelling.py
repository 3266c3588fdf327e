"""How PTX spells constants, register names, identifiers and strings."""

from __future__ import annotations

import re

import numpy as np

from kdsl_core.dtypes import DType
from kdsl_core.ir import Const

# register class → (prefix of its registers, type of its declaration)
REGISTER_CLASSES = {
    "pred": ("%p", "pred"),
    "b16": ("%h", "b16"),
    "b32": ("%r", "b32"),
    "b64": ("%rd", "b64"),
    "f32": ("%f", "f32"),
    "f64": ("%fd", "f64"),
}


def identifier(name: str) -> str:
    """A name with what PTX does not allow in one replaced by underscores."""
    clean = re.sub(r"[^A-Za-z0-9_$]", "_", name)
    return clean if clean[:1].isalpha() else f"_{clean}"


def bits_of(const: Const) -> int:
    """The bits of a constant as an unsigned integer."""
    raw = np.array(const.value).astype(const.dtype.numpy).tobytes()
    return int.from_bytes(raw, "little")


def immediate(const: Const) -> str | None:
    """The constant as PTX allows it inside an instruction; None when it needs a register."""
    dtype = const.dtype
    if dtype.is_int:
        return str(const.value)
    if dtype.reg == "f32":
        return f"0f{bits_of(const):08X}"
    if dtype.reg == "f64":
        return f"0d{bits_of(const):016X}"
    if dtype.reg == "b32":  # tf32
        return f"0x{bits_of(const):08X}"
    return None


def parameter_type(dtype: DType) -> str:
    """The type of a kernel parameter; truth values are bytes."""
    return f"u{dtype.bytes * 8}" if dtype.reg in ("pred", "b64") else f"b{dtype.bits}"


def string_bytes(text: str) -> str:
    """A zero-terminated string as an initialiser."""
    data = [*text.encode("utf-8"), 0]
    return f"[{len(data)}] = {{{', '.join(map(str, data))}}}"
