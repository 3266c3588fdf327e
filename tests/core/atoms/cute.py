"""Records of the CuTe C++ headers about atoms and their tilings, run through kdsl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kdsl_core.atoms as atoms
from core.layout.golden import decode, encode
from kdsl_core.atoms import CopyAtom, MmaAtom, TiledCopy, TiledMma
from kdsl_core.dtypes import DType, f64, u8, u16, u32
from kdsl_core.layout import ComposedLayout, Layout, product

GOLDEN = Path(__file__).parents[2] / "golden" / "atoms"
OF_BITS: dict[int, DType] = {8: u8, 16: u16, 32: u32, 64: f64}
COPY_NAMES = {
    **{f"UniversalCopy<uint{n}_t>": f"UNIVERSAL_COPY_{n}" for n in (8, 16, 32, 64, 128)},
    **{
        f"SM80_CP_ASYNC_{policy}<uint{n}_t>": f"SM80_CP_ASYNC_{policy}_U{n}"
        for n in (32, 64, 128)
        for policy in ("CACHEALWAYS", "CACHEGLOBAL", "CACHEALWAYS_ZFILL", "CACHEGLOBAL_ZFILL")
    },
}


def records(name: str) -> list[dict[str, Any]]:
    """The records of one file."""
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


def cute_name(record: dict[str, Any]) -> str:
    """The name of a traits record with its template arguments."""
    name, *majors = record["args"]
    return name + (f"<{','.join(majors[0])}>" if majors else "")


def mma_of_record(record: dict[str, Any]) -> MmaAtom:
    """An atom with the layouts of a traits record; types only have the right width."""
    traits = record["result"]
    types = [OF_BITS[bits] for bits in traits["bits_DABC"]]
    layouts = [decode(traits[key]) for key in ("ThrID", "ALayout", "BLayout", "CLayout")]
    return MmaAtom(cute_name(record), tuple(traits["Shape_MNK"]), *types, *layouts, mnemonic="")


def _left_out() -> dict[str, MmaAtom]:
    """Atoms that the tilings use and the traits file leaves out."""
    row = Layout(((4, 8), 1), ((8, 1), 0))
    f64_c = Layout(((4, 8), 2), ((16, 1), 8))
    f64_atom = MmaAtom("", (8, 8, 4), f64, f64, f64, f64, WARP, row, row, f64_c, mnemonic="")
    a = Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 8, 512)))
    b = Layout((128, (64, 16)), (0, (1, 64)))
    c = Layout(((4, 8, 4), (2, 2, 8)), ((128, 1, 16), (64, 8, 512)))
    group = Layout(128, 1)
    wgmma = MmaAtom("", (64, 64, 16), u32, u16, u16, u32, group, a, b, c, mnemonic="")
    return {
        "SM80_8x8x4_F64F64F64F64_TN": f64_atom,
        "SM90_64x64x16_F32F16F16_RS<K,K>": wgmma,
    }


WARP = Layout(32, 1)
LEFT_OUT = _left_out()
FOREIGN = {cute_name(r): r for r in records("mma_traits")}


def mma_atom(name: str) -> MmaAtom:
    """kdsl's atom of a CuTe name, or one made from CuTe's record where kdsl has none."""
    own = {"UniversalFMA<float>": "UNIVERSAL_FMA_F32"}.get(name, name)
    found = getattr(atoms, own, None)
    if isinstance(found, MmaAtom):
        return found
    return LEFT_OUT[name] if name in LEFT_OUT else mma_of_record(FOREIGN[name])


def copy_atom(name: str) -> CopyAtom | None:
    """kdsl's atom of a CuTe name; None where kdsl has none."""
    return getattr(atoms, COPY_NAMES.get(name, name), None)


def tiled_mma_of(atom: str, thr: Any, perm: Any) -> TiledMma:
    """The tiled mma of a record's arguments."""
    return TiledMma(mma_atom(atom), decode(thr), decode(perm))


def tiled_copy_of(how: str, op: str, bits: int, *args: Any) -> TiledCopy:
    """The tiled copy of a record's arguments."""
    atom, dtype = copy_atom(op), OF_BITS[bits]
    assert atom is not None, op
    if how == "make_tiled_copy":
        return atoms.make_tiled_copy(atom, dtype, decode(args[0]), decode(args[1]))
    make = getattr(atoms, how)
    made: TiledCopy = make(atom, tiled_mma_of(*args), dtype)
    return made


def values(layout: Any, offset: Any = 0) -> list[Any]:
    """What a layout gives at every index, `offset` further."""
    assert isinstance(layout, (Layout, ComposedLayout)), layout
    return [encode(layout(i)) + encode(offset) for i in range(product(layout.shape))]


def tiled_mma_results(record: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """(kdsl's answer, C++'s answer) for what a tiled mma record holds."""
    atom, thr, perm, *rest = record["args"]
    mma, result = tiled_mma_of(atom, thr, perm), record["result"]
    name = record["op"].removeprefix("tiled_mma_")
    if name == "tiled_mma":
        yield mma.size, result["size"]
        yield mma.tile_shape, decode(result["tile_mnk"])
        yield mma.thr_layout_vmnk, decode(result["thr_layout_vmnk"])
        for x in "ABC":
            yield getattr(mma, f"tv_layout_{x}"), decode(result[f"layout{x}_TV"])
    elif name in ("partition_A", "partition_B", "partition_C"):
        yield getattr(mma.get_slice(rest[1]), name)(decode(rest[0])), decode(result)
    else:
        yield getattr(mma, name)(decode(rest[0])), decode(result)


def tiled_copy_results(record: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """(kdsl's answer, C++'s answer) for what a tiled copy record holds."""
    args, result = record["args"], record["result"]
    count = 5 if args[0] == "make_tiled_copy" else 6
    copy = tiled_copy_of(*args[:count])
    if record["op"] == "tiled_copy":
        yield copy.size, result["size"]
        yield copy.tile_shape, decode(result["Tiler_MN"])
        yield copy.tv_layout, decode(result["TiledLayout_TV"])
        yield copy.tv_layout_S, decode(result["layoutS_TV"])
        yield copy.tv_layout_D, decode(result["layoutD_TV"])
    else:
        layout, thread = map(decode, args[count:])
        one = copy.get_slice(thread)
        yield copy.tidfrg_S(layout), decode(result["tidfrg_S"])
        yield copy.tidfrg_D(layout), decode(result["tidfrg_D"])
        yield one.partition_S(layout), decode(result["S"])
        yield one.partition_D(layout), decode(result["D"])
