"""Who wrote an element last: block, warp, lane, line, and the element of registers it came from."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kdsl_core as kd


@kd.kernel
def spread(y: kd.Tensor["f32|f16|bf16", "n"], kind: kd.Static = "held"):
    """Each thread writes four elements out of registers."""
    held = kd.rmem(kd.f32 if kind == "converted" else y.dtype, 4, name="held")
    held.fill(1.0)
    first = kd.block_idx()[0] * 256 + 4 * kd.thread_rank()
    if kind == "scaled":
        factor = y.shape[0].to(kd.f32)
        for i in range(4):
            y[first + i] = (factor * held[i].to(kd.f32)).to(y.dtype)
    elif kind == "converted":
        for i in range(4):
            y[first + i] = held[i].to(y.dtype)
    else:
        kd.copy(held, kd.local_tile(y, (4,), (first // 4,)))


def written(kernel: Any, grid: Any, block: int, *args: Any, **options: Any) -> Any:
    """The writers of a launch."""
    return kd.simulate(kernel, grid=grid, block=block, args=args, writers=True, **options).writers


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("kind", ["held", "converted", "scaled"])
def test_each_element_has_its_thread_and_register(dtype: Any, kind: str) -> None:
    """Vectors, packed words, conversions and arithmetic are followed to the registers."""
    y = np.zeros(600, dtype)  # the last elements are nobody's
    writers = written(spread, 2, 64, y, kwargs={"kind": kind})
    np.testing.assert_array_equal(writers.blocks("y")[:512], np.arange(512) // 256)
    assert (writers.blocks("y")[512:] == -1).all() and writers.of("y", (512,)) is None
    for at in (0, 5, 130, 255, 259, 511):
        writer = writers.of("y", (at,))
        warp, lane = divmod(at % 256 // 4, 32)
        assert (writer.who.block, writer.who.warp, writer.who.lane) == (
            (at // 256, 0, 0),
            warp,
            lane,
        )
        assert writer.register == f"held[{at % 4}]"
        assert writer.loc.author.file == __file__


@kd.kernel
def rows_by_tma(y: kd.Tensor["f32", "m n"]):
    """Each block of a pair stores a row that it has in shared memory."""
    tile = kd.smem(kd.f32, kd.make_layout_right((1, 64)), name="tile")
    store = kd.tma_store(y, tile, (1, 64))
    tile[0, kd.thread_rank()] = 1.0
    kd.fence_proxy_async()
    kd.sync_threads()
    if kd.thread_rank() == 0:
        store(tile, (kd.block_idx()[0], 0))
        kd.tma_store_commit()
        kd.tma_store_wait(0)


def test_transfers_and_clusters_have_writers() -> None:
    """A bulk store is its thread's, from no register; blocks of a cluster are told apart."""
    y = np.zeros((4, 64), np.float32)
    writers = written(rows_by_tma, 4, 64, y, cluster=2)
    np.testing.assert_array_equal(writers.blocks("y"), np.arange(4)[:, None] + 0 * y)
    writer = writers.of("y", (3, 9))
    assert (writer.who.block, writer.who.rank, writer.who.thread) == ((3, 0, 0), 1, (0, 0, 0))
    assert writer.register == ""


def test_writers_are_kept_on_request_only() -> None:
    """Without it a result does not hold the shadow of memory."""
    y = np.zeros(256, np.float32)
    assert kd.simulate(spread, grid=1, block=64, args=(y,)).writers is None


def test_without_the_check_of_races_nothing_is_remembered() -> None:
    """No element has a writer."""
    writers = written(spread, 1, 64, np.zeros(256, np.float32), checks=("oob",))
    assert (writers.blocks("y") == -1).all() and writers.of("y", (0,)) is None
