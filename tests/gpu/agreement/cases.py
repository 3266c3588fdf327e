"""One case for each instruction family that is not regular: what its kernel does and writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from gpu.agreement.programs import WORDS, Case, Parts
from kdsl_core.dtypes import ALL_DTYPES, DType, boolean, e4m3, f32, f64, i8, i32, i64, u8, u32
from kdsl_core.ir import Block, Const, Operand
from kdsl_core.isa import bulk, cluster, mbarrier
from kdsl_core.isa.arith import binary
from kdsl_core.isa.async_copy import cp_async, cp_async_commit, cp_async_wait
from kdsl_core.isa.atomic import ATOMICS, atomic, reduce
from kdsl_core.isa.barrier import barrier_sync, fence, fence_proxy, sync_warp
from kdsl_core.isa.compare import compare, select
from kdsl_core.isa.control import IfOp, assert_that
from kdsl_core.isa.convert import bitcast, convert
from kdsl_core.isa.matrix_copy import ldmatrix, stmatrix
from kdsl_core.isa.memory import load, prefetch, shared_address, store
from kdsl_core.isa.mma import MMA_SHAPES, MmaShape, mma
from kdsl_core.isa.register import declare
from kdsl_core.isa.special import NAMES, special
from kdsl_core.isa.warp import SHUFFLES, ballot, elect, match, reduce_sync, shuffle, vote

WARP_OPS = ("add", "min", "max", "and", "or", "xor")


def shuffles(p: Parts) -> None:
    """Every mode and width, by the lane's own distance."""
    distance = binary(p.b, "and", p.words[0], Const(u32, 31))
    p.out(*(shuffle(p.b, m, p.words[1], distance, width=w) for m in SHUFFLES for w in (32, 8, 4)))
    wide = shuffle(p.b, "bfly", convert(p.b, p.words[2], i64), Const(u32, 3))
    p.out(wide, at=64)


def lanes_together(p: Parts, mask: Const) -> list[Operand]:
    """Votes, elections, matches and reductions of the lanes that a mask names."""
    b, odd = p.b, compare(p.b, "lt", p.words[0], Const(u32, 1 << 31))
    small = binary(b, "and", p.words[1], Const(u32, 3))
    signed = bitcast(b, p.words[2], i32)
    flags = [
        *(vote(b, mode, compare(b, "lt", small, Const(u32, 4)), mask) for mode in ("all", "any")),
        *(vote(b, mode, compare(b, "eq", p.words[0], p.words[1]), mask) for mode in ("all", "any")),
        elect(b, mask),
    ]
    return [
        ballot(b, odd, mask),
        match(b, small, mask),
        match(b, convert(b, small, i64), mask),
        *(reduce_sync(b, op, p.words[3], mask) for op in WARP_OPS),
        *(reduce_sync(b, op, signed, mask) for op in ("add", "min", "max")),
        shuffle(b, "bfly", p.words[4], Const(u32, 1), mask),
        *(select(b, flag, Const(u32, 1), Const(u32, 0)) for flag in flags),
    ]


def votes(p: Parts) -> None:
    """All lanes of a warp."""
    p.out(*lanes_together(p, Const(u32, 0xFFFFFFFF)))


def when(p: Parts, condition: Operand) -> AbstractContextManager[Block]:
    """What follows is done by lanes whose condition holds."""
    return p.b.inside(p.b.append(IfOp(loc=p.b.loc(), condition=condition)).then)


def parted(p: Parts) -> None:
    """Twenty lanes of a warp work together in a branch, the others in another."""
    early = compare(p.b, "lt", p.lane, Const(u32, 20))
    late = compare(p.b, "ge", p.lane, Const(u32, 20))
    with when(p, early):
        p.out(*lanes_together(p, Const(u32, 0x000FFFFF)))
        sync_warp(p.b, Const(u32, 0x000FFFFF))
    with when(p, late):
        p.out(*lanes_together(p, Const(u32, 0xFFF00000)), at=128)
    sync_warp(p.b)


def specials(p: Parts) -> None:
    """Where each thread is, in a grid, a cluster and a block of three modes."""
    p.out(*(special(p.b, name) for name in NAMES), special(p.b, "warpid"))


def matrices(p: Parts) -> None:
    """Load and store 8×8 matrices, straight and transposed."""
    b = p.b
    for i in range(4):
        store(b, "shared", p.own, tuple(p.words[4 * i : 4 * i + 4]), 16 * i)
    barrier_sync(b)
    dst = tuple(declare(b, u32) for _ in range(12))
    ldmatrix(b, p.own, dst[:4])
    ldmatrix(b, p.own, dst[4:8], transposed=True, offset=16)
    ldmatrix(b, p.own, dst[8:10], offset=32)
    ldmatrix(b, p.own, dst[10:11], transposed=True, offset=48)
    barrier_sync(b)
    stmatrix(b, p.own, dst[:4], transposed=True)
    sync_warp(b)
    p.out(*dst[:11], *load(b, "shared", p.own, u32, 4))


def narrow(p: Parts) -> None:
    """Bytes of every kind, predicated loads and stores, and truth values."""
    b = p.b
    even = compare(b, "eq", binary(b, "and", p.lane, Const(u32, 1)), Const(u32, 0))
    out: list[Operand] = []
    for dtype in (i8, u8):
        out += [convert(b, v, i32) for v in load(b, "global", p.x, dtype, 4, 8, cache="nc")]
    (masked,) = load(b, "global", p.x, u32, offset=4, pred=even)
    flags = load(b, "global", p.x, boolean, 2, 12)
    store(b, "global", p.y, flags, 56)
    store(b, "global", p.y, load(b, "global", p.x, e4m3, 4, 20), 52)
    store(b, "global", p.y, (Const(u32, 77),), 60, pred=even)
    p.out(*out, masked)


def moves(dtype: DType) -> Callable[[Parts], None]:
    """Scalars and vectors of a type through shared memory and every cache operator."""

    def build(p: Parts) -> None:
        widths = [width for width in (1, 2, 4) if width * dtype.bytes <= 16]
        prefetch(p.b, p.x)
        for at, (width, cache) in enumerate(zip(widths, ("ca", "cg", "cs"), strict=False)):
            held = load(p.b, "global", p.x, dtype, width, 16 * at, cache=cache)
            store(p.b, "shared", p.own, held, 16 * at)
            again = load(p.b, "shared", p.own, dtype, width, 16 * at)
            store(p.b, "global", p.y, again, 16 * at, cache=("wb", "cg", "wt")[at])
            fence(p.b, ("cta", "gpu", "sys")[at])

    return build


def copies(p: Parts) -> None:
    """Asynchronous copies, whole and with the rest filled with zeros."""
    b = p.b
    cp_async(b, p.own, p.x, 16)
    limit = binary(b, "and", p.lane, Const(u32, 15))
    cp_async(b, p.own, p.x, 16, 16, 16, source_bytes=limit)
    cp_async(b, p.own, p.x, 4, 32, 32, source_bytes=Const(u32, 2), cache="ca")
    cp_async(b, p.own, p.x, 8, 40, 40, cache="ca")
    cp_async(b, p.own, p.x, 16, 48, 48, source_bytes=limit, cache="ca")
    cp_async_commit(b)
    cp_async_wait(b, 0)
    p.out(*(word for i in (0, 16, 48) for word in load(b, "shared", p.own, u32, 4, i)))
    p.out(*(load(b, "shared", p.own, u32, 1, i)[0] for i in (32, 40, 44)), at=48)


def atomics(p: Parts) -> None:
    """Sums, extremes and flushed subnormals; each result does not depend on the order."""
    b = p.b
    store(b, "shared", p.own, (Const(u32, 0),) * 4)
    barrier_sync(b)
    for i, (op, value) in enumerate(
        [("add", p.words[0]), ("max", bitcast(b, p.words[1], i32)), ("xor", p.words[2])]
    ):
        reduce(b, "shared", p.tile, op, value, 4 * i)
    tiny = Const(f32, 1e-40)
    reduce(b, "global", p.y, "add", tiny, 32)
    (kept,) = load(b, "shared", p.own, f32, offset=12)
    barrier_sync(b)
    sums = load(b, "shared", p.tile, u32, 2)
    (last,) = load(b, "shared", p.tile, u32, offset=8)
    old = atomic(b, "global", p.y, "exch", p.words[3], offset=36)
    won = atomic(b, "global", p.y, "cas", p.words[4], compare=p.words[3], offset=36)
    p.out(*sums, last, old, won, kept)


def alone(dtype: DType) -> Callable[[Parts], None]:
    """Every atomic operation of a type at places of the thread's own, global and shared."""

    def build(p: Parts) -> None:
        b, at = p.b, 0
        (first, value), size = _two(p, dtype), max(dtype.bytes, 4)
        odd = compare(b, "eq", binary(b, "and", p.lane, Const(u32, 1)), Const(u32, 1))
        for op in (op for op, dtypes in ATOMICS.items() if dtype in dtypes):
            expected = select(b, odd, first, value) if op == "cas" else None
            for space, start in (("global", p.y), ("shared", p.own)):
                place = at if space == "global" else 0
                store(b, space, start, (first,), place)
                old = atomic(b, space, start, op, value, compare=expected, offset=place)
                store(b, "global", p.y, (old,), at + size)
                (new,) = load(b, space, start, dtype, offset=place)
                store(b, "global", p.y, (new,), at)
                at += 2 * size

    return build


def _two(p: Parts, dtype: DType) -> tuple[Operand, Operand]:
    """Two of the thread's numbers of a type."""
    step = max(dtype.bytes, 4)
    (first,), (second,) = (load(p.b, "global", p.x, dtype, offset=step * i) for i in (0, 1))
    return first, second


def barriers(p: Parts) -> None:
    """An mbarrier expects bytes twice, is asked, ends, and another one lives at its place."""
    b, size = p.b, 32 * 4 * WORDS
    bar = p.kernel.allocate_shared("bar", 8, 8)
    at, first = shared_address(b, bar), compare(b, "eq", p.thread, Const(u32, 0))
    for turn in range(2):
        with when(p, first):
            mbarrier.init(b, at, Const(u32, 1))
            mbarrier.fence_init(b)
            mbarrier.expect(b, at, Const(u32, size))
            mbarrier.arrive(b, at, expect_bytes=Const(u32, size))
            for half in range(2):
                offset = half * size
                bulk.bulk_load(
                    b, p.tile, p.x, Const(u32, size), at,
                    destination_offset=offset, source_offset=offset,
                )  # fmt: skip
        barrier_sync(b)
        mbarrier.wait(b, at, Const(u32, 0))
        done = mbarrier.test_wait(b, at, Const(u32, 0))
        open_ = mbarrier.test_wait(b, at, Const(u32, 1), suspend=False)
        flags = [select(b, flag, Const(u32, 1), Const(u32, 0)) for flag in (done, open_)]
        p.out(*load(b, "shared", p.own, u32, 4), *flags, at=32 * turn)
        barrier_sync(b)
        with when(p, first):
            mbarrier.invalidate(b, at)
        barrier_sync(b)


def sends(p: Parts) -> None:
    """Each block sends its tile to the next one of its cluster, and waits for what it gets."""
    b, size = p.b, 64 * p.kernel.threads
    box = shared_address(b, p.kernel.allocate_shared("box", size, 128))
    at = shared_address(b, p.kernel.allocate_shared("bar", 8, 8))
    first = compare(b, "eq", p.thread, Const(u32, 0))
    following = binary(b, "xor", special(b, "cluster_ctarank"), Const(u32, 1))
    for i in range(4):
        store(b, "shared", p.own, tuple(p.words[4 * i : 4 * i + 4]), 16 * i)
    fence_proxy(b, "shared::cta")
    with when(p, first):
        mbarrier.init(b, at, Const(u32, 1))
        mbarrier.fence_init(b)
        mbarrier.arrive(b, at, expect_bytes=Const(u32, size))
    barrier_sync(b)
    _cluster_sync(p)
    with when(p, first):
        goal, bar = (cluster.map_address(b, address, following) for address in (box, at))
        bulk.bulk_send(b, goal, p.tile, Const(u32, size), bar)
    mbarrier.wait(b, at, Const(u32, 0))
    place = binary(b, "add", box, binary(b, "shl", p.thread, Const(u32, 6)))
    p.out(*(word for i in range(4) for word in load(b, "shared", place, u32, 4, 16 * i)))
    _cluster_sync(p)


def _cluster_sync(p: Parts) -> None:
    cluster.arrive(p.b)
    cluster.wait(p.b)


def assertions(p: Parts) -> None:
    """Assertions that hold change nothing."""
    assert_that(p.b, compare(p.b, "lt", p.lane, Const(u32, 32)), "a lane is below 32")
    p.out(p.words[0])


def product_of(shape: MmaShape) -> Callable[[Parts], None]:
    """One tensor-core instruction on the thread's words."""

    def build(p: Parts) -> None:
        counts = [shape.registers(matrix) for matrix in "abc"]
        at, words = 0, []
        for count in counts:
            words.append(p.words[at : at + count])
            at += count
        dtype = shape.register_types("c")[0]
        acc = tuple(declare(p.b, dtype, bitcast(p.b, word, dtype)) for word in words[2])
        types = (shape.d, shape.a, shape.b, shape.d)
        mma(p.b, (shape.m, shape.n, shape.k), types, acc, tuple(words[0]), tuple(words[1]), acc)
        p.out(*acc)

    return build


def words_of(shape: MmaShape) -> tuple[DType, ...]:
    """The types of the words of A, B and C."""
    parts = [(shape.a, "a"), (shape.b, "b"), (shape.d, "c")]
    return tuple(dtype for dtype, matrix in parts for _ in range(shape.registers(matrix)))


def finite(dtype: DType) -> tuple[DType, ...]:
    """All words of a type, as finite numbers."""
    return (dtype,) * (8 if dtype is f64 else WORDS)


def _mma_case(shape: MmaShape) -> Case:
    return Case("mma", product_of(shape), words_of(shape), grid=(32, 1, 1))


_ATOMIC_TYPES = dict.fromkeys(dtype for dtypes in ATOMICS.values() for dtype in dtypes)

CASES: dict[str, Case] = {
    "shuffles": Case("shuffle", shuffles),
    "votes": Case("lanes", votes),
    "parted": Case("lanes", parted),
    "matrices": Case("ldmatrix, stmatrix", matrices),
    "narrow": Case("memory", narrow),
    "copies": Case("cp.async", copies),
    "atomics": Case("atomic", atomics),
    "barriers": Case("mbarrier", barriers),
    "assertions": Case("assert", assertions),
    "specials": Case("special", specials, block=(8, 4, 2), grid=(4, 3, 2), cluster=(2, 1, 1)),
    "sends": Case("bulk", sends, cluster=(2, 1, 1)),
    **{f"moves {t}": Case("memory", moves(t)) for t in ALL_DTYPES},
    **{f"atomic {t}": Case("atomic", alone(t), finite(t)) for t in _ATOMIC_TYPES},
    **{s.text.split("aligned.")[1]: _mma_case(s) for s in MMA_SHAPES},
}
