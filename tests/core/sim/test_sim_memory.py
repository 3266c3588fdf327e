"""Virtual addresses: views, guard gaps, coordinates, and what is written back."""

from __future__ import annotations

import numpy as np
import pytest

from kdsl_core.dtypes import dtype_of, f32
from kdsl_core.sim import Buffer, GlobalMemory
from kdsl_core.sim.memory import GlobalStore, gather, scatter


def test_addresses_are_aligned_and_apart() -> None:
    """Each array starts at a multiple of 256, far from the others."""
    memory = GlobalMemory()
    arrays = [np.zeros(n, np.float32) for n in (1, 1000, 3)]
    addresses = [memory.add(f"x{i}", array, f32) for i, array in enumerate(arrays)]
    assert all(address % 256 == 0 for address in addresses)
    ends = [b.span[1] for b in memory.buffers]
    assert all(start - end >= 1 << 20 for end, start in zip(ends, addresses[1:], strict=False))


def test_views_keep_their_distance() -> None:
    """Views of one array have its addresses, also reversed and transposed ones."""
    memory = GlobalMemory()
    base = np.zeros((8, 16), np.float32)
    start = memory.add("base", base, f32)
    assert memory.add("row", base[3, 5:], f32) == start + (3 * 16 + 5) * 4
    assert memory.add("back", base[::-1], f32) == start + 7 * 16 * 4
    assert memory.add("t", base.T, f32) == start
    assert len(GlobalStore(memory.buffers).allocations) == 1


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)])
def test_coordinates(shape: tuple[int, ...]) -> None:
    """Every byte of every element leads back to the element, whatever the strides."""
    for array in (np.zeros(shape, np.uint16), np.zeros(shape, np.uint16).T):
        buffer = Buffer("x", array, dtype_of(array.dtype), 4096)
        for crd in np.ndindex(array.shape):
            offset = sum(c * s for c, s in zip(crd, array.strides, strict=True))
            assert buffer.coordinate(4096 + offset) == crd
            assert buffer.coordinate(4096 + offset + 1) == crd


def test_bytes_between_elements_belong_to_none() -> None:
    """A strided view has gaps."""
    view = np.zeros(8, np.uint16)[::2]
    assert Buffer("x", view, dtype_of(view.dtype), 0).coordinate(2) is None


def test_empty_arrays_have_no_bytes() -> None:
    """An array of no elements is a valid argument that nothing may access."""
    memory = GlobalMemory()
    address = memory.add("x", np.zeros((0, 4), np.float32), f32)
    assert GlobalStore(memory.buffers).find(address, address + 1) is None


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 6])
@pytest.mark.parametrize("shift", [0, 1])
def test_gather_and_scatter(size: int, shift: int) -> None:
    """Bytes at aligned and crooked offsets are read and written alike."""
    rng = np.random.default_rng(size)
    data = rng.integers(0, 256, 512).astype(np.uint8)
    offset = rng.permutation(20)[:12] * 16 + shift
    want = np.stack([data[o : o + size] for o in offset])
    np.testing.assert_array_equal(gather(data, offset, size), want)
    copy = np.zeros_like(data)
    scatter(copy, offset, want)
    np.testing.assert_array_equal(gather(copy, offset, size), want)
    assert np.count_nonzero(copy) <= want.size
