"""`@kd.struct`: state of a kernel in an object, whose fields are register variables."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, TypeVar, dataclass_transform

from kdsl_core.dtypes import BY_NAME, DType
from kdsl_core.errors import StagingError
from kdsl_core.ir import Var
from kdsl_core.isa import register
from kdsl_core.lang.merge import fitted, is_number, same, spelled
from kdsl_core.lang.regions import open_regions
from kdsl_core.lang.scalar import Scalar
from kdsl_core.lang.tracer import builder, is_tracing
from kdsl_core.loc import here

T = TypeVar("T")
FIELDS = "__kdsl_fields__"


class _Register:
    """A field annotated with a dtype: a register variable of each instance."""

    def __init__(self, name: str, dtype: DType) -> None:
        self._name = name
        self._dtype = dtype

    def __get__(self, obj: Any, owner: type) -> Any:
        if obj is None:
            return self
        held = obj.__dict__[self._name]
        return Scalar(register.snapshot(builder(), held)) if isinstance(held, Var) else held

    def __set__(self, obj: Any, value: Any) -> None:
        if not is_tracing():
            obj.__dict__[self._name] = value
            return
        known = isinstance(value, Scalar) or is_number(value)
        operand = fitted(value, self._dtype) if known else None
        if operand is None:
            raise StagingError(
                f"the field {self._name} of {type(obj).__name__} is {self._dtype}, got "
                f"{spelled(value)}",
                code="K346",
                loc=here(),
                fix=f"convert it: x.to(kd.{self._dtype})",
            )
        held = obj.__dict__.get(self._name)
        if not isinstance(held, Var):
            held = obj.__dict__[self._name] = builder().var(self._dtype, self._name)
        register.assign(builder(), held, operand)


class _Fixed:
    """Any other field: a Python object that kernel control flow may not change."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, obj: Any, owner: type) -> Any:
        return self if obj is None else obj.__dict__[self._name]

    def __set__(self, obj: Any, value: Any) -> None:
        held = obj.__dict__.get(self._name, value)
        if open_regions() and self._name in obj.__dict__ and not same(held, value):
            raise StagingError(
                f"the field {self._name} of {type(obj).__name__} holds a Python object and is "
                "changed in kernel control flow: that would happen once, while tracing",
                code="K347",
                loc=here(),
                fix="annotate the field with a dtype (kd.i32) to keep it in a register",
            )
        obj.__dict__[self._name] = value


@dataclass_transform(eq_default=False)
def struct(cls: type[T]) -> type[T]:
    """A dataclass whose fields annotated with a dtype are register variables.

    Reading such a field gives its value now; assigning it, also inside loops and branches of the
    kernel, writes the register. Other fields hold Python objects and stay as they are there.
    """
    made = dataclasses.dataclass(eq=False)(cls)
    space = vars(sys.modules.get(cls.__module__, object))
    names = []
    for field in dataclasses.fields(made):  # type: ignore[arg-type] # it is a dataclass by now
        kind = _evaluated(field.type, dict(space))
        is_register = isinstance(kind, DType)
        setattr(
            made, field.name, _Register(field.name, kind) if is_register else _Fixed(field.name)
        )
        names.append(field.name)
    setattr(made, FIELDS, tuple(names))
    return made


def _evaluated(annotation: Any, space: dict[str, Any]) -> Any:
    """What an annotation that is text means; the text itself where its names are local."""
    if not isinstance(annotation, str):
        return annotation
    plain = annotation.rpartition(".")[2]
    if plain in BY_NAME:
        return BY_NAME[plain]
    try:
        return eval(annotation, space)
    except NameError:
        return annotation
