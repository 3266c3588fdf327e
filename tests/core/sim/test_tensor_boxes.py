"""Boxes of tensor maps, against the definition applied to one element after the other."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kdsl_core.dtypes import DType, bf16, f32, f64, u8
from kdsl_core.ir import Im2col, MapShape, TensorMap
from kdsl_core.sim.tensor_boxes import (
    box_bytes,
    box_counts,
    boxes,
    fill_piece,
    shared_addresses,
    walk_starts,
)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
BASE = 0x7000_0000_0000
LOW = 0x400  # of the shared bytes that the tests look at
DTYPES = (u8, bf16, f32, f64)


def shared_place(address: int, line: int) -> int:
    """Where a swizzle of `line` bytes puts a byte: chunks of a 128-byte row, renumbered."""
    row, inside = divmod(address, 128)
    chunk, byte = divmod(inside, 16)
    many = max(line // 16, 1)
    return row * 128 + (chunk // many * many + (chunk % many ^ row % many)) * 16 + byte


def element_at(tensor_map: TensorMap, memory: Bytes, coordinate: tuple[int, ...]) -> bytes:
    """The bytes of one element, or those that fill in for it."""
    item = tensor_map.shape.dtype.bytes
    if all(0 <= c < n for c, n in zip(coordinate, tensor_map.sizes, strict=True)):
        strides = (item, *tensor_map.strides)
        at = tensor_map.address - BASE + sum(map(int.__mul__, coordinate, strides))
        return memory[at : at + item].tobytes()
    if tensor_map.shape.fill == "nan":
        return np.array(np.nan, tensor_map.shape.dtype.numpy).tobytes()
    return bytes(item)


def tile_coordinates(tensor_map: TensorMap, start: tuple[int, ...]) -> Any:
    """Coordinates of a tile's elements in the order in which they lie in shared memory."""
    shape = tensor_map.shape
    steps = (1, *shape.element_strides[1:]) if shape.element_strides else (1,) * shape.rank
    outer_first = zip(reversed(start), reversed(shape.box), reversed(steps), strict=True)
    for found in itertools.product(*(range(s, s + n, step) for s, n, step in outer_first)):
        yield tuple(reversed(found))


def walk_coordinates(
    tensor_map: TensorMap, start: tuple[int, ...], offsets: tuple[int, ...]
) -> Any:
    """The same of an im2col copy: pixel after pixel, as an odometer turns."""
    shape, walk = tensor_map.shape, tensor_map.shape.im2col
    assert walk is not None
    channel, *pixel = start
    steps = shape.element_strides[1:] or (1,) * (shape.rank - 1)
    for _ in range(walk.pixels):
        moved = [p + o for p, o in zip(pixel[:-1], offsets, strict=True)]
        yield from ((channel + c, *moved, pixel[-1]) for c in range(walk.channels))
        for axis in range(len(pixel) - 1):
            pixel[axis] += steps[axis]
            if pixel[axis] < tensor_map.sizes[axis + 1] + walk.upper[axis]:
                break
            pixel[axis] = walk.lower[axis]
        else:
            pixel[-1] += 1


def expected(tensor_map: TensorMap, memory: Bytes, coordinates: Any, start: int) -> dict[int, int]:
    """Shared byte address → value of a box whose dense image starts at `start`."""
    found, dense = {}, start
    for coordinate in coordinates:
        for byte in element_at(tensor_map, memory, coordinate):
            found[shared_place(dense, tensor_map.shape.swizzle)] = byte
            dense += 1
    return found


def loaded(
    tensor_map: TensorMap, memory: Bytes, starts: Any, to: Any, offsets: Any = None
) -> list[dict[int, int]]:
    """The same for several boxes, from what `boxes` says."""
    cut = boxes(tensor_map, np.array(starts), None if offsets is None else np.array(offsets))
    places = shared_addresses(tensor_map.shape, np.array(to), cut.size)
    found = []
    for source, inside, place in zip(cut.source, cut.inside, places, strict=True):
        one: dict[int, int] = {}
        for s, good, p in zip(source.tolist(), inside.tolist(), place.tolist(), strict=True):
            piece = memory[s - BASE : s - BASE + cut.size] if good else fill_piece(
                tensor_map.shape, cut.size
            )  # fmt: skip
            one |= zip(range(p, p + cut.size), piece.tolist(), strict=True)
        found.append(one)
    return found


def random_map(rng: random.Random, rank: int, dtype: DType, line: int) -> tuple[TensorMap, Bytes]:
    """A map of some sizes, padded strides, box and element strides, and the memory behind it."""
    sizes = [rng.choice([1, 3, 8, 17, 40]) if i == 0 else rng.randint(1, 5) for i in range(rank)]
    strides, end = [], sizes[0] * dtype.bytes
    for size in sizes[1:]:
        strides.append(-(-end // 16) * 16 + rng.choice([0, 16, 48]))
        end = strides[-1] * size
    chunks = rng.choice([1, 2, 4, 8]) if line == 0 else rng.choice([line // 16, line // 32])
    box = (chunks * 16 // dtype.bytes, *(rng.randint(1, 4) for _ in range(rank - 1)))
    steps = tuple(rng.randint(1, 3) for _ in range(rank)) if rng.random() < 0.5 else ()
    fill = "nan" if dtype.is_float and rng.random() < 0.5 else "zeros"
    address = BASE + 16 * rng.randint(0, 3)
    memory = np.frombuffer(rng.randbytes(end + 64), np.uint8)
    shape = MapShape(dtype, box, line, steps, fill)
    return TensorMap(shape, "x", address, tuple(sizes), tuple(strides)), memory


@pytest.mark.parametrize("line", [0, 32, 64, 128])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_tiles(rank: int, line: int) -> None:
    """Every byte of a tile is that of its element, wherever the tile starts in either memory."""
    rng = random.Random(rank * 1000 + line)
    for dtype in DTYPES:
        for _ in range(4):
            tensor_map, memory = random_map(rng, rank, dtype, line)
            starts = [[rng.randint(-6, n + 2) for n in tensor_map.sizes] for _ in range(3)]
            to = [LOW + 128 * rng.randint(0, 20) for _ in starts]
            for found, start, at in zip(
                loaded(tensor_map, memory, starts, to), starts, to, strict=True
            ):
                coordinates = tile_coordinates(tensor_map, tuple(start))
                assert found == expected(tensor_map, memory, coordinates, at)
                assert len(found) == box_bytes(tensor_map.shape)


def random_walk(rng: random.Random, spatial: int) -> tuple[TensorMap, Bytes, list[int], list[int]]:
    """An im2col map of a padded, strided, dilated convolution, and a start and filter offsets."""
    channels = rng.choice([8, 16])
    images, sizes = rng.randint(1, 2), [rng.randint(2, 5) for _ in range(spatial)]
    filters, dilation = [rng.randint(1, 3) for _ in sizes], rng.randint(1, 2)
    pads = [rng.randint(0, (r - 1) * dilation) for r in filters]
    steps = [rng.randint(1, 2) for _ in sizes]
    upper = tuple(p - (r - 1) * dilation for p, r in zip(pads, filters, strict=True))
    upper = tuple(max(u, 1 - n - p) for u, n, p in zip(upper, sizes, pads, strict=True))
    lower = tuple(-p for p in pads)
    walk = Im2col(lower, upper, rng.choice([8, 16]), rng.choice([4, 12, 32]))
    box = (walk.channels, *(1,) * (spatial + 1))
    shape = MapShape(bf16, box, walk.channels * 2, (1, *steps, 1), im2col=walk)
    strides, end = [], channels * 2
    for size in [*sizes, images]:
        strides.append(end)
        end *= size
    start = []
    for n, u, o, step in zip(sizes, upper, lower, steps, strict=True):
        start.append(o + step * rng.randint(0, (n + u - o - 1) // step))
    start = [rng.choice([0, 8]), *start, rng.randint(0, images)]
    offsets = [dilation * rng.randint(0, r - 1) for r in filters]
    tensor_map = TensorMap(shape, "x", BASE, (channels, *sizes, images), tuple(strides))
    return tensor_map, np.frombuffer(rng.randbytes(end), np.uint8), start, offsets


@pytest.mark.parametrize("spatial", [1, 2, 3])
def test_im2col(spatial: int) -> None:
    """An im2col copy visits the pixels of the walk, and fills those outside of the image."""
    rng = random.Random(spatial)
    for _ in range(40):
        tensor_map, memory, start, offsets = random_walk(rng, spatial)
        assert walk_starts(tensor_map, np.array([start])).all()
        (found,) = loaded(tensor_map, memory, [start], [LOW], [offsets])
        coordinates = walk_coordinates(tensor_map, tuple(start), tuple(offsets))
        assert found == expected(tensor_map, memory, coordinates, LOW)


def test_im2col_starts() -> None:
    """Starting pixels between the steps of the walk, or outside of its box, are told apart."""
    walk = Im2col((-1, -1), (-1, -1), 8, 4)
    shape = MapShape(bf16, (8, 1, 1, 1), element_strides=(1, 2, 2, 1), im2col=walk)
    tensor_map = TensorMap(shape, "x", BASE, (8, 6, 6, 2), (16, 96, 576))
    starts = np.array([[0, -1, 3, 0], [0, 0, -1, 0], [0, -1, 5, 0], [0, -3, -1, 1], [8, 1, 1, 9]])
    assert walk_starts(tensor_map, starts).tolist() == [True, False, False, False, True]


def test_pieces_are_as_large_as_edges_allow() -> None:
    """Whole chunks where every edge is one; single elements where a column is odd."""
    shape = MapShape(bf16, (64, 8), 128)
    wide = TensorMap(shape, "x", BASE, (64, 32), (128,))
    assert boxes(wide, np.array([[0, 0], [-8, 3]])).size == 16
    assert boxes(wide, np.array([[0, 0], [3, 0]])).size == 2
    assert boxes(replace(wide, sizes=(60, 32)), np.array([[0, 0]])).size == 8


def test_counts_and_bytes() -> None:
    """A stride thins a box, but not its innermost dimension; a walk has channels and pixels."""
    assert box_counts(MapShape(f32, (8, 7, 4), element_strides=(2, 3, 4))) == (8, 3, 1)
    walk = Im2col((0,), (0,), 64, 128)
    assert box_bytes(MapShape(bf16, (64, 1, 1), 128, im2col=walk)) == 64 * 128 * 2


def test_nan_fill_is_a_nan_of_the_type() -> None:
    """What fills in for floats that are not there reads as NaN."""
    piece = fill_piece(MapShape(bf16, (8,), fill="nan"), 16)
    assert np.isnan(piece.view(ml_dtypes.bfloat16).astype(np.float32)).all()
