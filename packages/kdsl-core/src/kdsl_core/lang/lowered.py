"""A kernel as PTX with what a launch fills in; and the same as JSON, for a later process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kdsl_core.dtypes import ALL_DTYPES, DType, tensor_map
from kdsl_core.ir import Param, Value
from kdsl_core.lang.arguments import Bound
from kdsl_core.lang.parameter_values import MapEvaluator, Origin, values_of
from kdsl_core.ptx import PtxModule

if TYPE_CHECKING:
    from kdsl_core.lang.traced import Traced

_DTYPES = {dtype.name: dtype for dtype in (*ALL_DTYPES, tensor_map)}


@dataclass(eq=False)
class Lowered:
    """PTX for one target, and where the values of its parameters come from at a launch.

    `loaded` holds what a GPU runs, by device; `maps` computes the tensor maps, which are the last
    parameters, from the others.
    """

    module: PtxModule
    origins: Sequence[Origin]
    maps: Sequence[MapEvaluator] = ()
    loaded: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, module: PtxModule, traced: Traced) -> Lowered:
        """The PTX of a trace."""
        return cls(module, traced.origins, traced.maps)

    def values(self, bound: Bound) -> list[Any]:
        """The parameters' values for a call: numbers, then `ir.TensorMap`s.

        Raises: ArgumentError K630 … K635 for arrays that the TMA unit cannot describe.
        """
        return values_of(self.origins, self.maps, bound)

    def facts(self) -> dict[str, Any] | None:
        """All but the text, as JSON values; None when a tensor map cannot be written so."""
        from kdsl_core.lang.map_json import Unportable, map_to_json

        module = self.module
        plain = self.origins[: len(self.origins) - len(self.maps)]
        try:
            maps = [map_to_json(evaluator.spec, evaluator.params) for evaluator in self.maps]
        except Unportable:
            return None
        return {
            "entry": module.entry,
            "target": module.target,
            "shared_bytes": module.shared_bytes,
            "threads": module.threads,
            "params": [[name, dtype.name] for name, dtype in module.params],
            "ptx_version": list(module.ptx_version),
            "origins": [list(origin) for origin in plain],
            "maps": maps,
        }

    @classmethod
    def from_facts(cls, text: str, facts: dict[str, Any]) -> Lowered:
        """What `facts` described, with its PTX `text`."""
        from kdsl_core.lang.map_json import map_from_json

        params = tuple((name, _DTYPES[dtype]) for name, dtype in facts["params"])
        module = PtxModule(
            text=text,
            entry=facts["entry"],
            target=facts["target"],
            shared_bytes=facts["shared_bytes"],
            threads=facts["threads"],
            params=params,
            ptx_version=tuple(facts["ptx_version"]),
        )
        values = _values(params)
        specs = [map_from_json(stated, values) for stated in facts["maps"]]
        origins = [tuple(origin) for origin in facts["origins"]]
        origins += [("tensor_map", spec) for spec in specs]
        return cls(module, origins, [MapEvaluator(spec, values) for spec in specs])


def _values(params: Sequence[tuple[str, DType]]) -> list[Param]:
    return [Param(name, Value(dtype, None, name)) for name, dtype in params]
