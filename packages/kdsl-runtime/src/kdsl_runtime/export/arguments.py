"""A kernel's parameters as fields of a C structure, and the facts that they must have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kdsl_core.dtypes import DType
from kdsl_core.lang.parameter_values import Origin
from kdsl_core.lang.tensor_class import TensorClass
from kdsl_core.lang.traced import Traced

# Types that C lacks travel as their bits.
C_TYPES = {
    "f64": "double", "f32": "float", "tf32": "float", "f16": "uint16_t", "bf16": "uint16_t",
    "e4m3": "uint8_t", "e5m2": "uint8_t", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t",
    "i8": "int8_t", "u64": "uint64_t", "u32": "uint32_t", "u16": "uint16_t", "u8": "uint8_t",
}  # fmt: skip


@dataclass(frozen=True)
class Field:
    """One parameter: its C type and name, what it means, and what C may check of it."""

    type: str
    name: str
    meaning: str
    check: str

    @property
    def declaration(self) -> str:
        """The line in the structure."""
        return f"    {self.type} {self.name}; /* {self.meaning} */"


def fields(traced: Traced) -> list[Field]:
    """The parameters in order, without the tensor maps, which are made of the others."""
    classes = {c.name: c for c in traced.specialisation.classes}
    pairs = zip(traced.kernel.params, traced.origins, strict=True)
    return [
        _field(param.name, param.value.dtype, origin, classes)
        for param, origin in pairs
        if param.map is None
    ]


def _field(name: str, dtype: DType, origin: Origin, classes: dict[str, TensorClass]) -> Field:
    kind, of, *mode = origin
    spelled = C_TYPES[dtype.name]
    if kind == "scalar":
        return Field(spelled, name, str(dtype), "")
    tensor = classes[of]
    if kind == "pointer":
        return _number(spelled, name, f"address of {of} on the device", tensor.align)
    if kind == "size":
        _, divisor = tensor.sizes[mode[0]]
        return _number(spelled, name, f"size {mode[0]} of {of}", divisor, ">= 0")
    sign, divisor = tensor.strides[mode[0]]
    meaning = f"stride {mode[0]} of {of} in elements"
    return _number(spelled, name, meaning, divisor, "> 0" if sign == "+" else "< 0")


def _number(spelled: str, name: str, meaning: str, divisor: int, bound: str = "") -> Field:
    multiple = f", a multiple of {divisor}" if divisor > 1 else ""
    checks = [f"args->{name} {bound}"] if bound else []
    checks += [f"args->{name} % {divisor} == 0"] if divisor > 1 else []
    return Field(spelled, name, f"{meaning}{multiple}", " && ".join(checks))


def reach_checks(classes: Sequence[TensorClass]) -> Iterator[str]:
    """For each tensor whose offsets the kernel computes in 32 bits, that they fit."""
    for tensor in classes:
        if not tensor.wide and tensor.sizes:
            modes = zip(tensor.sizes, tensor.strides, strict=True)
            terms = [_end(tensor.name, mode, *facts) for mode, facts in enumerate(modes)]
            yield f"{' + '.join(terms)} <= INT32_MAX"


def _end(tensor: str, mode: int, size: tuple[str, int], stride: tuple[str, int]) -> str:
    (name, fixed), (sign, step) = size, stride
    extent = f"args->{name}" if name else str(fixed)
    pitch = f"args->{tensor}_stride{mode}" if sign else str(step)
    return f"((int64_t){extent} - 1) * {'-' if sign == '-' else ''}(int64_t){pitch}"
