"""A kernel as PTX with what a launch fills in; and the same as JSON, for a later process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from kdsl_core import ir
from kdsl_core.dtypes import ALL_DTYPES, DType, tensor_map
from kdsl_core.lang.arguments import Bound
from kdsl_core.lang.parameter_values import Evaluator, MapEvaluator, Origin, ProductMap, values_of
from kdsl_core.lang.product_maps import Unportable, product_from_json, product_of, product_to_json
from kdsl_core.ptx import PtxModule
from kdsl_core.records import dataclass

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
    maps: Sequence[Evaluator] = ()
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
        module = self.module
        plain = self.origins[: len(self.origins) - len(self.maps)]
        try:
            maps = [_stated(evaluator) for evaluator in self.maps]
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
        maps = [_map(stated, params) for stated in facts["maps"]]
        origins = [tuple(origin) for origin in facts["origins"]]
        return cls(module, [*origins, *[("tensor_map",) for _ in maps]], maps)


def _stated(map: Evaluator) -> dict[str, Any]:
    product = map if isinstance(map, ProductMap) else product_of(map.spec, map.params)
    if product is not None:
        return product_to_json(product)
    from kdsl_core.lang.map_json import map_to_json

    assert isinstance(map, MapEvaluator)
    return map_to_json(map.spec, map.params)


def _map(stated: dict[str, Any], params: Sequence[tuple[str, DType]]) -> Evaluator:
    if "terms" in stated:
        return product_from_json(stated)
    from kdsl_core.lang.map_json import map_from_json  # with the instructions of its program

    values = [ir.Param(name, ir.Value(dtype, None, name)) for name, dtype in params]
    return MapEvaluator(map_from_json(stated, values), values)
