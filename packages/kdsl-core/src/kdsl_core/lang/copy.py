"""Copies between tensors, through whichever instruction the atom names or the layouts allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from kdsl_core import dtypes as dt
from kdsl_core.atoms import CopyAtom, TiledCopy
from kdsl_core.dtypes import DType
from kdsl_core.errors import LayoutError, TypeMismatch
from kdsl_core.ir import Const, Operand, Var
from kdsl_core.isa import async_copy, compare, convert, matrix_copy, register
from kdsl_core.isa import memory as isa_memory
from kdsl_core.isa.matrix_copy import ROW_BYTES
from kdsl_core.lang.engine import (
    MAX_VECTOR_BYTES,
    Pointer,
    Registers,
    assign_word,
    load_words,
    pack_words,
    store_words,
    unpack_words,
)
from kdsl_core.lang.scalar import as_scalar
from kdsl_core.lang.tensor import Tensor, operand_of
from kdsl_core.lang.tracer import builder
from kdsl_core.layout import Layout, flatten, is_static, size, wrap
from kdsl_core.loc import here

_WORD_BYTES = 4  # what one lane holds of a matrix
Predicate = Any  # None, a truth value, or a function of the index of a vector's first element


def copy(
    source: Tensor,
    destination: Tensor,
    *,
    atom: CopyAtom | TiledCopy | None = None,
    pred: Predicate = None,
    valid: Callable[[int], Any] | None = None,
    vector: int | None = None,
) -> None:
    """Copy every element of `source` to the element of `destination` with the same index.

    Shapes: equal sizes; `atom` partitions have their values in mode 0.
    Units: `vector` in bytes: the least width that every access must have. `valid` (for cp.async)
    gives, for the index of a vector's first element, how many of its elements to read.
    Threads: each thread copies its own part; matrix loads need the converged warp.
    Memory: asynchronous atoms complete at `cp_async_wait`; where `pred` is false, nothing is read
    and the destination gets zeros (global destinations stay untouched).
    Raises: LayoutError for unequal sizes, TypeMismatch for unequal types or a width that
    layout and alignment do not allow.
    """
    if isinstance(atom, TiledCopy):
        atom = atom.atom
    _check(source, destination, atom)
    kind = "universal" if atom is None else atom.kind
    if kind == "cp.async":
        assert atom is not None
        _copy_async(source, destination, atom, pred, valid)
    elif kind == "ldmatrix":
        assert atom is not None
        _load_matrices(source, destination, atom)
    elif kind == "stmatrix":
        assert atom is not None
        _store_matrices(source, destination, atom)
    else:
        _copy_plain(source, destination, pred, vector)


def copy_if(pred: Predicate, source: Tensor, destination: Tensor, **options: Any) -> None:
    """`copy` with its predicate first: a truth value, a register tensor of them, or a function of
    the index of each vector's first element.
    """
    copy(source, destination, pred=pred, **options)


def prefetch(tensor: Tensor, coord: Any, level: str = "L2") -> None:
    """Bring the cache line of an element of global memory to `level` ("L1" or "L2"), no more.

    Source: PTX `prefetch.global`.
    """
    place = tensor.place(coord)
    isa_memory.prefetch(builder(), place.address, place.offset, level)


def _check(source: Tensor, destination: Tensor, atom: CopyAtom | None) -> None:
    if source.dtype is not destination.dtype:
        raise TypeMismatch(
            f"copy needs one dtype: the source is {source!r}, the destination {destination!r}",
            code="K220",
            loc=here(),
            fix="convert elements first, or kd.recast one of the views",
        )
    for tensor in (source, destination):
        if tensor.space == "cluster" and atom is not None and atom.kind != "universal":
            raise TypeMismatch(
                f"{atom.name} reaches the block's own shared memory only, got {tensor!r}",
                code="K219",
                loc=here(),
                fix="leave out atom= for tensors of other blocks",
            )
    counts = size(source.layout), size(destination.layout)
    if all(isinstance(count, int) for count in counts) and not _same_size(*counts, atom):
        raise LayoutError(
            f"copy needs equal sizes: the source {source!r} has {counts[0]} elements, the "
            f"destination {destination!r} has {counts[1]}",
            code="K152",
            loc=here(),
            fix="partition both with the same tiled copy",
        )


def _same_size(source: int, destination: int, atom: CopyAtom | None) -> bool:
    """Whether every element has its place; a lane's row counts as a whole for matrix atoms.

    Each lane names a row of 16 bytes, and only the rows of the first 8 · matrices lanes are moved.
    """
    if atom is None or not atom.matrices:
        return source == destination
    rows, held = (source, destination) if atom.kind == "ldmatrix" else (destination, source)
    return rows * atom.matrices == held * 4


def contiguous_run(layout: Layout) -> int:
    """How many elements from index 0 on follow one another in memory."""
    run = 1
    for extent, step in _flat_modes(layout):
        if not isinstance(extent, int):
            break
        if extent == 1:
            continue
        if not isinstance(step, int) or step != run:
            break
        run *= extent
    return run


def _flat_modes(layout: Layout) -> Iterator[tuple[Any, Any]]:
    """(extent, stride) of each unnested mode, first mode first."""
    flat = flatten(layout)
    return zip(wrap(flat.shape), wrap(flat.stride), strict=True)


def _static_size(tensor: Tensor) -> int:
    count = size(tensor.layout)
    if not isinstance(count, int):
        raise LayoutError(
            f"a copy is unrolled, so its size must be static, got {tensor!r}",
            code="K153",
            loc=here(),
            fix="copy a tile of static shape, and use predicates for what hangs over",
        )
    return count


# -- plain loads and stores --------------------------------------------------------------------
def _copy_plain(source: Tensor, destination: Tensor, pred: Predicate, vector: int | None) -> None:
    count = _static_size(source)
    run = _vector_elements(source, destination)
    _demand_width(source, destination, run, vector)
    for index in range(0, count, run):
        guard = _guard(pred, index)
        words, per = _read(source, index, run, guard)
        _write(destination, index, words, per, guard if destination.space == "global" else None)


def _vector_elements(source: Tensor, destination: Tensor) -> int:
    """The widest access, in elements, that both layouts and alignments allow."""
    run = math.gcd(contiguous_run(source.layout), contiguous_run(destination.layout))
    size_bytes = source.dtype.bytes
    run = math.gcd(run, MAX_VECTOR_BYTES // size_bytes)
    for tensor in (source, destination):
        if isinstance(tensor.engine, Pointer):
            run = math.gcd(run, max(_alignment(tensor, run) // size_bytes, 1))
            if tensor.swizzle is not None:
                run = math.gcd(run, 1 << tensor.swizzle.base)
    return run


def _alignment(tensor: Tensor, run: int) -> int:
    """Bytes by which the start of every vector of `run` elements is aligned."""
    align = tensor.place(0).align
    for extent, step in _flat_modes(tensor.layout):
        if extent == 1 or (isinstance(step, int) and step < run):
            continue
        divisor = step if isinstance(step, int) else step.divisor
        align = math.gcd(align, divisor * tensor.dtype.bytes)
    return align


def _provable(tensor: Tensor) -> str:
    run = contiguous_run(tensor.layout)
    text = f"{tensor!r} has contiguous runs of {run} × {tensor.dtype.bytes} bytes"
    if isinstance(tensor.engine, Pointer):
        text += f", aligned to {_alignment(tensor, run)}"
    return text


def _demand_width(source: Tensor, destination: Tensor, run: int, vector: int | None) -> None:
    width = run * source.dtype.bytes
    if vector is None or width >= vector:
        return
    raise TypeMismatch(
        f"accesses of {vector} bytes were asked for, but only {width} are proven possible: the "
        f"source {_provable(source)}, the destination {_provable(destination)}",
        code="K221",
        loc=here(),
        fix="make the innermost mode contiguous and aligned on both sides, or ask for less",
    )


def _read(
    tensor: Tensor, index: int, count: int, guard: Operand | None
) -> tuple[list[Operand], int]:
    """`count` elements as register words, and how many elements a word holds."""
    if isinstance(tensor.engine, Pointer):
        place = tensor.place(index)
        return load_words(place, tensor.space, tensor.dtype, count, guard)
    engine = tensor.engine
    assert isinstance(engine, Registers)
    first, per = tensor.index(index), engine.per_variable
    if first % per == 0 and count % per == 0:
        words = engine.variables[first // per : (first + count) // per]
        return list(words), per
    return [engine.read(tensor.index(index + i)).operand for i in range(count)], 1


def _write(
    tensor: Tensor, index: int, words: list[Operand], per: int, guard: Operand | None
) -> None:
    if isinstance(tensor.engine, Pointer):
        place = tensor.place(index)
        if per > 1 and place.align % 4:
            scalars = unpack_words(words, tensor.dtype, per)
            words, per = pack_words(scalars, 1), 1
        store_words(place, tensor.space, words, per * tensor.dtype.bytes, guard)
        return
    engine = tensor.engine
    assert isinstance(engine, Registers)
    first, held = tensor.index(index), engine.per_variable
    if per == held and first % held == 0:
        for offset, word in enumerate(words):
            assign_word(engine.variables[first // held + offset], word)
        return
    for offset, scalar in enumerate(unpack_words(words, tensor.dtype, per)):
        engine.write(tensor.index(index + offset), scalar)


def _guard(pred: Predicate, index: int) -> Operand | None:
    if isinstance(pred, Tensor):
        pred = pred[index]
    elif callable(pred):
        pred = pred(index)
    return operand_of(pred)


# -- cp.async ----------------------------------------------------------------------------------
def _copy_async(
    source: Tensor,
    destination: Tensor,
    atom: CopyAtom,
    pred: Predicate,
    valid: Callable[[int], Any] | None,
) -> None:
    width = atom.bytes
    for index in range(0, _static_size(source), width // source.dtype.bytes):
        start, end = source.place(index), destination.place(index)
        _require_aligned(source, start.align, width)
        _require_aligned(destination, end.align, width)
        async_copy.cp_async(
            builder(),
            end.address,
            start.address,
            width,
            dst_offset=end.offset,
            src_offset=start.offset,
            source_bytes=_source_bytes(source.dtype, width, pred, valid, index),
            cache="cg" if width == 16 else "ca",
        )


def _source_bytes(
    dtype: DType, width: int, pred: Predicate, valid: Callable[[int], Any] | None, index: int
) -> Operand | None:
    """How many bytes to read, the rest of the vector being zeros; None for all."""
    if valid is not None:
        return (as_scalar(valid(index)) * dtype.bytes).to(dt.u32).operand
    guard = _guard(pred, index)
    if guard is None:
        return None
    return compare.select(builder(), guard, Const(dt.u32, width), Const(dt.u32, 0))


def _require_aligned(tensor: Tensor, align: int, width: int) -> None:
    if align % width:
        raise TypeMismatch(
            f"an access of {width} bytes needs addresses divisible by {width}, but {tensor!r} is "
            f"only known to be aligned to {align}",
            code="K222",
            loc=here(),
            fix="use a narrower copy atom, or tensors whose strides are divisible by the width",
        )


# -- ldmatrix and stmatrix ---------------------------------------------------------------------
def _load_matrices(source: Tensor, destination: Tensor, atom: CopyAtom) -> None:
    for address, words in _matrix_steps(source, destination, atom):
        matrix_copy.ldmatrix(
            builder(), address.address, words, transposed=atom.transposed, offset=address.offset
        )


def _store_matrices(source: Tensor, destination: Tensor, atom: CopyAtom) -> None:
    for address, words in _matrix_steps(destination, source, atom):
        matrix_copy.stmatrix(
            builder(), address.address, words, transposed=atom.transposed, offset=address.offset
        )


def _matrix_steps(
    memory: Tensor, registers: Tensor, atom: CopyAtom
) -> list[tuple[Any, tuple[Var, ...]]]:
    """One (place, register words) for each call of a matrix atom: its values come first."""
    engine = registers.engine
    if not isinstance(engine, Registers):
        raise TypeMismatch(
            f"{atom.name} moves between shared memory and registers, got {registers!r}",
            code="K223",
            loc=here(),
        )
    held = atom.matrices * _WORD_BYTES // registers.dtype.bytes
    row = ROW_BYTES // memory.dtype.bytes
    per = engine.per_variable
    steps = []
    for rest in range(size(registers.layout) // held):
        place = memory.place(rest * row)
        _require_aligned(memory, place.align, ROW_BYTES)
        words = tuple(
            engine.variables[registers.index(rest * held + value) // per]
            for value in range(0, held, per)
        )
        steps.append((place, words))
    return steps


def convert_fragment(source: Tensor, destination: Tensor) -> None:
    """Convert register elements to the destination's type, pairs at a time where packed."""
    b = builder()
    engine = destination.engine
    assert isinstance(engine, Registers)
    count = _static_size(source)
    if engine.per_variable == 2 and source.dtype is dt.f32 and is_static(destination.layout):
        for index in range(0, count, 2):
            low, high = source[index], source[index + 1]
            word = convert.convert_pack(b, low.operand, high.operand, destination.dtype)
            register.assign(b, engine.variables[destination.index(index) // 2], word)
        return
    for index in range(count):
        destination[index] = source[index].to(destination.dtype)
