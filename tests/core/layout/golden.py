"""Golden records of the layout algebra: decoding, and the kdsl call for each C++ operation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kdsl_core.layout as kl
from core.layout.dynamic import Dyn
from kdsl_core.layout import ComposedLayout, Layout, ScaledBasis, Swizzle

COPIED = Path(__file__).parents[2] / "golden" / "layout"
SHARED = Path(__file__).parents[4] / "shared" / "golden" / "public"


def decode(x: Any) -> Any:
    """The kdsl value of a JSON value of a record."""
    if isinstance(x, list):
        return tuple([decode(item) for item in x])
    if not isinstance(x, dict):
        return x
    if "dyn" in x:
        return Dyn(x["dyn"])
    if "basis" in x:
        return ScaledBasis(x["value"], *x["basis"]) if x["basis"] else x["value"]
    if "layout" in x:
        return ComposedLayout(Swizzle(*x["swizzle"]), decode(x["offset"]), decode(x["layout"]))
    if "swizzle" in x:
        return Swizzle(*x["swizzle"])
    if "compose" in x:
        return ("compose", *map(decode, x["compose"]))
    return Layout.of(decode(x["shape"]), decode(x["stride"]))


def encode(x: Any) -> Any:
    """A value as nested tuples of static numbers, so that results compare by value and form."""
    if isinstance(x, (tuple, list)):
        return tuple([encode(item) for item in x])
    if isinstance(x, Dyn):
        return x.value
    if isinstance(x, Layout):
        return ("layout", encode(x.shape), encode(x.stride))
    if isinstance(x, ComposedLayout):
        return ("composed", encode(x.outer), encode(x.offset), encode(x.inner))
    if isinstance(x, ScaledBasis):
        return ("basis", encode(x.value), x.path)
    return x


def records(name: str, folder: Path) -> Iterator[dict[str, Any]]:
    """The records of one file."""
    for line in (folder / f"{name}.jsonl").read_text().splitlines():
        yield json.loads(line)


def run_record(record: dict[str, Any]) -> Any:
    """What kdsl answers to a record."""
    args = [decode(a) for a in record["args"]]
    return CALLS[record["op"]](*args)


def _pad(op: Callable[..., Layout]) -> Callable[..., Layout]:
    return lambda x, n, *extra: op(x, *extra, up_to=n)


def _idx2crd(index: Any, *shape_stride: Any) -> Any:
    return kl.idx2crd(index, *shape_stride)


def _tile_to_mma_shape(atom: Layout, tile: Any, order: Any = None) -> Layout:
    """An atom over ((m, k), tiles of M, tiles of K, ...), as ((m, k), tiles ...)."""
    whole = (*zip(tile[0], tile[1:3], strict=True), *tile[3:])
    return kl.tiled_divide(kl.tile_to_shape(atom, whole, order), kl.product_each(tile[0]))


def _layout_call(layout: Any, coord: Any) -> Any:
    return layout(coord)


CALLS: dict[str, Callable[..., Any]] = {
    name: getattr(kl, name)
    for name in [
        "append",
        "coalesce",
        "coshape",
        "cosize",
        "complement",
        "composition",
        "blocked_product",
        "colex_less",
        "compatible",
        "congruent",
        "crd2crd",
        "crd2idx",
        "ceil_div",
        "depth",
        "dice",
        "domain_distribute",
        "downcast",
        "elem_less",
        "elem_scale",
        "evenly_divides",
        "filter_zeros",
        "flat_divide",
        "flat_product",
        "flatten",
        "inner_product",
        "left_inverse",
        "lex_less",
        "logical_divide",
        "logical_product",
        "make_fragment_like",
        "make_identity_layout",
        "make_layout",
        "make_layout_left",
        "make_layout_like",
        "make_layout_right",
        "make_ordered_layout",
        "max_alignment",
        "max_common_layout",
        "max_common_vector",
        "nullspace",
        "prepend",
        "product",
        "product_each",
        "product_like",
        "raked_product",
        "rank",
        "recast_layout",
        "replace",
        "right_inverse",
        "round_up",
        "select",
        "shape_div",
        "size",
        "slice_and_offset",
        "take",
        "tile_to_shape",
        "tiled_divide",
        "tiled_product",
        "unflatten",
        "upcast",
        "weakly_congruent",
        "zipped_divide",
        "zipped_product",
    ]
}
CALLS |= {
    "append_n": _pad(kl.append),
    "prepend_n": _pad(kl.prepend),
    "filter": kl.filter_layout,
    "group": kl.group_modes,
    "get": lambda layout, path: kl.get(layout, *path),
    "with_shape": lambda layout, shape: kl.composition(layout, Layout(shape)),
    "slice": kl.slice_,
    "idx2crd": _idx2crd,
    "tile_to_mma_shape": _tile_to_mma_shape,
    "get_hier_coord": kl.get_hier_coord,
    "get_1d_coord": kl.get_1d_coord,
    "get_flat_coord": kl.get_flat_coord,
    "layout_call": _layout_call,
    "swizzle_apply": lambda sw, xs: tuple([sw(x) for x in xs]),
    "eval": lambda layout: tuple([layout(i) for i in range(kl.size(layout))]),
}
