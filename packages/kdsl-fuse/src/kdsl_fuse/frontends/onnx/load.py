"""`kf.from_onnx`: an ONNX model as a function like those of `@kf.fuse`."""

from __future__ import annotations

import inspect
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kdsl_core.errors import FusionError
from kdsl_fuse.frontends.onnx.operators import MEANING, known_type
from kdsl_fuse.frontends.python import Fused, fuse
from kdsl_fuse.frontends.traced import TracedArray
from kdsl_fuse.origin import Place, author_loc, written_at
from kdsl_fuse.required import required

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

OPSETS = range(13, 27)  # from 13 on axes are inputs, and Softmax works along one axis
CONVERTED = range(7, 13)  # which onnx itself brings to 13
_OWN = ("", "ai.onnx")


def from_onnx(
    model: str | os.PathLike[str] | ModelProto,
    *,
    fallback: str | None = None,
    target: str | None = None,
    f32_precision: str = "ieee",
) -> Fused:
    """A model, or the file that holds it, as a function of its inputs, in the model's order.

    What it returns is like a function of `@kf.fuse`, whose options it takes: it plans for each
    signature, and has `.plan`, `.graph` and all else. Initialisers are constants; sizes that the
    model leaves open come with the arrays. Several results are a tuple.

    Raises: FusionError K984 for operators that kdsl does not have, by name and count; K986 for an
    opset outside 7 to 26, of which onnx converts those before 13; K987 without the package
    onnx (extra `[onnx]`).
    """
    required("onnx", "onnx")
    loaded = _Model(model)
    decorate = fuse(fallback=fallback, target=target, f32_precision=f32_precision)
    return decorate(loaded.function())


class _Model:
    """A checked model, and how to record it."""

    def __init__(self, model: Any) -> None:
        import onnx
        import onnx.inliner

        self.path = "model" if isinstance(model, onnx.ModelProto) else os.fspath(model)
        proto = onnx.load(model) if isinstance(model, str | os.PathLike) else model
        self.proto = _up_to_date(onnx.inliner.inline_local_functions(proto))
        self.graph = self.proto.graph
        self._check_opset()
        self._check_operators()
        to_array = onnx.numpy_helper.to_array
        self.constants = {x.name: to_array(x) for x in self.graph.initializer}
        self.inputs = [x for x in self.graph.input if x.name not in self.constants]

    def _check_opset(self) -> None:
        versions = [x.version for x in self.proto.opset_import if x.domain in _OWN]
        if any(version not in OPSETS for version in versions):
            raise FusionError(
                f"{self.path} is written for opset {versions[0]}, from_onnx reads "
                f"{CONVERTED.start} to {OPSETS.stop - 1}",
                code="K986",
                loc=author_loc(),
                fix="onnx.version_converter.convert_version(model, 21), or export it anew",
            )

    def _check_operators(self) -> None:
        names = (f"{x.domain}::{x.op_type}" if x.domain not in _OWN else x.op_type
                 for x in self.graph.node)  # fmt: skip
        counts = Counter(name for name in names if name not in MEANING and name != "Constant")
        if counts:
            each = ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in counts.most_common())
            raise FusionError(
                f"{sum(counts.values())} of {len(self.graph.node)} operators of {self.path} are "
                f"none of kdsl's: {each}",
                code="K984",
                loc=author_loc(),
                fix="split the model there: onnx.utils.extract_model",
            )

    def function(self) -> Any:
        """The model as a Python function for `kf.fuse`."""

        def run(*arrays: Any) -> Any:
            return self.record(arrays)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = _identifiers([x.name for x in self.inputs])
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        vars(run)["__signature__"] = signature
        run.__name__ = run.__qualname__ = _identifiers([self.graph.name or "model"])[0]
        run.__doc__ = self.graph.doc_string or f"The ONNX model {self.path}."
        return run

    def record(self, arrays: Sequence[Any]) -> Any:
        """Record all nodes on traced arrays."""
        for info, array in zip(self.inputs, arrays, strict=True):
            self._check_input(info, array)
        known: dict[str, Any] = {"": None, **self.constants}
        known |= {info.name: array for info, array in zip(self.inputs, arrays, strict=True)}
        for node in self.graph.node:
            name = node.name or f"{node.op_type} → {node.output[0]}"
            with written_at(Place((), "", name, self.path)):
                known |= zip(node.output, self._results(node, known), strict=False)
        results = [known[x.name] for x in self.graph.output]
        return results[0] if len(results) == 1 else tuple(results)

    def _results(self, node: NodeProto, known: Mapping[str, Any]) -> Sequence[Any]:
        import onnx

        inputs = [known[name] for name in node.input]
        if not any(isinstance(x, TracedArray) for x in inputs):
            return self._computed(node, inputs)
        attributes = {x.name: onnx.helper.get_attribute_value(x) for x in node.attribute}
        result = MEANING[node.op_type](inputs, attributes)
        return result if isinstance(result, tuple | list) else (result,)

    def _computed(self, node: NodeProto, inputs: Sequence[Any]) -> Sequence[Any]:
        """Values that no input decides: sizes, mostly."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        held = [onnx.helper.make_empty_tensor_value_info(x) for x in (*node.input, *node.output)]
        split = len(node.input)
        given = [x for x in held[:split] if x.name]
        graph = onnx.helper.make_graph([node], "constants", given, held[split:])
        alone = onnx.helper.make_model(graph, opset_imports=self.proto.opset_import)
        values = {name: x for name, x in zip(node.input, inputs, strict=True) if name}
        results: Sequence[Any] = ReferenceEvaluator(alone).run(None, values)
        return results

    def _check_input(self, info: ValueInfoProto, array: TracedArray) -> None:
        declared = info.type.tensor_type
        dtype = known_type(declared.elem_type)
        dims = [d.dim_value if d.dim_value > 0 else None for d in declared.shape.dim]
        fits = dtype is array.dtype
        if declared.HasField("shape"):
            fits = fits and len(dims) == array.ndim
            fits = fits and all(d in (None, n) for d, n in zip(dims, array.shape, strict=True))
        if not fits:
            sizes = ", ".join("?" if d is None else str(d) for d in dims)
            raise FusionError(
                f"{self.path} declares its input {info.name} as {dtype}[{sizes}], got "
                f"{array.dtype}{list(array.shape)}",
                code="K988",
                loc=author_loc(),
                fix="pass arrays of the declared types; open sizes are shown as ?",
            )


def _up_to_date(proto: ModelProto) -> ModelProto:
    """The model for opset 13, where it is written for an older one that onnx can convert."""
    import onnx.version_converter

    versions = [x.version for x in proto.opset_import if x.domain in _OWN]
    if all(version in CONVERTED for version in versions):
        return onnx.version_converter.convert_version(proto, OPSETS.start)
    return proto


def _identifiers(names: Sequence[str]) -> list[str]:
    """Different Python names as near as possible to these."""
    found: list[str] = []
    for name in names:
        word = re.sub(r"\W", "_", name)
        word = f"_{word}" if not word or word[0].isdigit() else word
        while word in found:
            word += "_"
        found.append(word)
    return found
