"""Kernels built by hand: one of each instruction, and a small one that is read as a golden."""

from __future__ import annotations

from kdsl_core.dtypes import (
    ALL_DTYPES,
    DType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i32,
    i64,
    u16,
    u32,
    u64,
)
from kdsl_core.ir import Block, Builder, Const, Kernel, Operand, Param, Target, Value
from kdsl_core.isa import cluster, launch, mbarrier
from kdsl_core.isa.arith import binary
from kdsl_core.isa.async_copy import cp_async, cp_async_commit, cp_async_wait
from kdsl_core.isa.atomic import ATOMICS, ORDERS, atomic, reduce
from kdsl_core.isa.barrier import (
    PROXY_SPACES,
    barrier_arrive,
    barrier_sync,
    fence,
    fence_proxy,
    sync_warp,
)
from kdsl_core.isa.compare import compare
from kdsl_core.isa.control import (
    BreakOp,
    ContinueOp,
    IfOp,
    LoopOp,
    ReturnOp,
    assert_that,
    print_line,
)
from kdsl_core.isa.matrix_copy import ldmatrix, stmatrix
from kdsl_core.isa.memory import (
    LOAD_CACHES,
    STORE_CACHES,
    load,
    prefetch,
    shared_address,
    store,
)
from kdsl_core.isa.mma import MMA_SHAPES, mma
from kdsl_core.isa.register import assign, declare, snapshot
from kdsl_core.isa.special import special
from kdsl_core.isa.warp import SHUFFLES, ballot, elect, match, reduce_sync, shuffle, vote


class Parts:
    """A kernel with a parameter of each type and a piece of shared memory."""

    def __init__(self, name: str = "every instruction") -> None:
        self.kernel = Kernel(name, (64, 2, 1), min_blocks_per_sm=1)
        self.by_type = {dtype: Value(dtype, hint=dtype.name) for dtype in ALL_DTYPES}
        self.pointer = Value(u64, hint="pointer")
        params = [Param("pointer", self.pointer, ("pointer", f32))]
        params += [Param(dtype.name, value) for dtype, value in self.by_type.items()]
        self.kernel.params = params
        self.b = Builder(self.kernel)
        self.kernel.allocate_shared("first", 100, 4)
        self.shared = shared_address(self.b, self.kernel.allocate_shared("tile", 4096, 128))

    def keep(self, *values: Operand) -> None:
        """Store values, so that the assembler keeps what made them."""
        for value in values:
            store(self.b, "global", self.pointer, (value,))


def every_instruction(target: Target) -> Kernel:
    """A kernel with every instruction of this folder's families that the target has."""
    parts = Parts()
    _memory(parts)
    _copies(parts, target)
    _mma(parts, target)
    _warp(parts)
    _order(parts)
    _atomics(parts, target)
    if target.number >= 90:
        mbarriers(parts)
        clusters(parts)
        _launch(parts, target)
    _control(parts)
    return parts.kernel


def _memory(p: Parts) -> None:
    pred = p.by_type[boolean]
    for dtype, value in p.by_type.items():
        for space, address in (("global", p.pointer), ("shared", p.shared)):
            store(p.b, space, address, (value, value), 16, pred)
            store(p.b, space, address, (Const(dtype, 1),))
            p.keep(*load(p.b, space, address, dtype, 2, 16), *load(p.b, space, address, dtype))
            p.keep(*load(p.b, space, address, dtype, pred=pred))
    for cache in LOAD_CACHES:
        p.keep(*load(p.b, "global", p.pointer, u32, 4, 16, cache=cache))
    for cache in STORE_CACHES:
        store(p.b, "global", p.pointer, (Const(f32, -0.5),) * 4, 16, cache=cache)
    prefetch(p.b, p.pointer)
    prefetch(p.b, p.pointer, 128, "L1")


def _copies(p: Parts, target: Target) -> None:
    cp_async(p.b, p.shared, p.pointer, 16, 32, 16)
    cp_async(p.b, p.shared, p.pointer, 16, source_bytes=p.by_type[u32])
    for size in (4, 8, 16):
        cp_async(p.b, p.shared, p.pointer, size, source_bytes=Const(u32, 2), cache="ca")
    cp_async_commit(p.b)
    cp_async_wait(p.b, 0)
    for count in (1, 2, 4):
        for transposed in (False, True):
            dst = tuple(declare(p.b, u32, Const(u32, 0)) for _ in range(count))
            ldmatrix(p.b, p.shared, (*dst[:-1], None), transposed, 16)
            if target.number >= 90:
                stmatrix(p.b, p.shared, (*dst[:-1], Const(u32, 1)), transposed, 16)


def _mma(p: Parts, target: Target) -> None:
    for shape in MMA_SHAPES:
        if shape.need.missing(target):
            continue
        acc_type = shape.register_types("c")[0]
        acc = tuple(declare(p.b, acc_type, Const(acc_type, 0)) for _ in range(shape.registers("c")))
        a_type = shape.register_types("a")[-1]
        a = (Const(a_type, 1), *(p.by_type[a_type],) * (shape.registers("a") - 1))
        b = (p.by_type[f32 if a_type.is_float else u32],) * shape.registers("b")
        types = (shape.d, shape.a, shape.b, shape.d)
        mma(p.b, (shape.m, shape.n, shape.k), types, acc, a, b, acc)
        zero = (Const(acc_type, 0),) * len(acc)
        mma(p.b, (shape.m, shape.n, shape.k), types, acc, a, b, zero)
        p.keep(*acc)


def _warp(p: Parts) -> None:
    pred, word = p.by_type[boolean], p.by_type[u32]
    for mode in SHUFFLES:
        for value in p.by_type.values():
            p.keep(shuffle(p.b, mode, value, word, width=16))
    p.keep(shuffle(p.b, "bfly", Const(f16, 1), Const(i32, 1)))
    p.keep(vote(p.b, "all", pred), vote(p.b, "any", Const(boolean, True), word))
    p.keep(
        ballot(p.b, pred), match(p.b, word), match(p.b, p.by_type[f64]), match(p.b, Const(u32, 1))
    )
    for op in ("add", "min", "max", "and", "or", "xor"):
        p.keep(reduce_sync(p.b, op, word), reduce_sync(p.b, op, p.by_type[i32]))


def _order(p: Parts) -> None:
    barrier_sync(p.b)
    barrier_sync(p.b, 1, 64)
    barrier_sync(p.b, p.by_type[u32], 64)
    barrier_arrive(p.b, 2, 64)
    sync_warp(p.b)
    for scope in ("cta", "gpu", "sys"):
        fence(p.b, scope)


def _atomics(p: Parts, target: Target) -> None:
    for op, dtypes in ATOMICS.items():
        for dtype in dtypes:
            if dtype is bf16 and target.number < 90:
                continue
            _atomic_of(p, op, dtype)
    for order in ORDERS:
        reduce(p.b, "global", p.pointer, "add", Const(i32, -1), 4, order=order, scope="sys")
        p.keep(atomic(p.b, "global", p.pointer, "xor", Const(i64, -1), order=order))


def _atomic_of(p: Parts, op: str, dtype: DType) -> None:
    value, pred = p.by_type[dtype], p.by_type[boolean]
    for space, address in (("global", p.pointer), ("shared", p.shared)):
        if op == "cas":
            p.keep(atomic(p.b, space, address, op, value, compare=Const(dtype, 0)))
            continue
        p.keep(atomic(p.b, space, address, op, value, pred=pred))
        reduce(p.b, space, address, op, Const(dtype, 1), 8)


def mbarriers(p: Parts) -> None:
    """Every form of the mbarrier operations."""
    pred, word = p.by_type[boolean], p.by_type[u32]
    there = cluster.map_address(p.b, p.shared, Const(u32, 0))
    for number in (word, Const(u32, 1)):
        mbarrier.init(p.b, p.shared, number, 8)
        for address, remote in ((p.shared, False), (there, True)):
            mbarrier.arrive(p.b, address, 8, remote=remote)
            mbarrier.arrive(p.b, address, count=number, remote=remote, pred=pred)
            mbarrier.arrive(p.b, address, expect_bytes=number, remote=remote, pred=pred)
        mbarrier.expect(p.b, p.shared, number, pred=pred)
        for suspend in (False, True):
            p.keep(mbarrier.test_wait(p.b, p.shared, number, 8, suspend))
        mbarrier.wait(p.b, p.shared, number, 8)
    for counted in (False, True):
        mbarrier.async_copy_arrive(p.b, p.shared, 8, counted)
    mbarrier.fence_init(p.b)
    mbarrier.invalidate(p.b, p.shared)


def clusters(p: Parts) -> None:
    """Accesses to other blocks, the cluster's barrier, and fences between proxies."""
    pred, word = p.by_type[boolean], p.by_type[u32]
    there = cluster.map_address(p.b, p.shared, word)
    for dtype, value in p.by_type.items():
        store(p.b, "cluster", there, (value, value), 16, pred)
        p.keep(*load(p.b, "cluster", there, dtype, 2, 16, pred))
    for op, dtypes in ATOMICS.items():
        for dtype in dtypes:
            value = p.by_type[dtype]
            compared = value if op == "cas" else None
            p.keep(atomic(p.b, "cluster", there, op, value, compare=compared, pred=pred))
            if op not in ("cas", "exch"):
                reduce(p.b, "cluster", there, op, value, 8)
    for release in (False, True):
        cluster.arrive(p.b, release)
        cluster.wait(p.b)
    for space in PROXY_SPACES:
        fence_proxy(p.b, space)


def _launch(p: Parts, target: Target) -> None:
    p.keep(elect(p.b))
    launch.wait_for_dependencies(p.b)
    launch.launch_dependents(p.b)
    if target.name == "sm_90a":
        launch.set_max_registers(p.b, 240, increase=True)
        launch.set_max_registers(p.b, 24, increase=False)


def _control(p: Parts) -> None:
    pred, word = p.by_type[boolean], p.by_type[u32]
    assert_that(p.b, pred, "the parameter holds")
    printable = [v for t, v in p.by_type.items() if not t.is_float or t in (f32, f64)]
    print_line(p.b, "{} " * len(printable) + "100 %", tuple(printable))
    print_line(p.b, "nothing")
    print_line(p.b, "{}", (Const(f32, 1.5),))
    body, leave = Block(), Block([BreakOp()])
    with p.b.inside(body):
        p.b.append(IfOp(condition=pred, then=leave, otherwise=Block([ContinueOp()])))
    p.b.append(LoopOp(condition=compare(p.b, "lt", word, Const(u32, 4)), body=body))
    p.b.append(IfOp(condition=pred, then=Block([ReturnOp()])))
    p.keep(word)


def sum_of_four() -> Kernel:
    """Each thread adds four f32 of its own, in a loop, and one f16 constant is stored."""
    pointer = Value(u64)
    kernel = Kernel("sum.of-four", (128, 1, 1), [Param("x", pointer, ("x", f32))])
    b = Builder(kernel)
    tile = shared_address(b, kernel.allocate_shared("tile", 2048, 128))
    total, i = declare(b, f32, Const(f32, 0)), declare(b, u32, Const(u32, 0))
    head, body, step = Block(), Block(), Block()
    with b.inside(head):
        running = compare(b, "lt", snapshot(b, i), Const(u32, 4))
    with b.inside(body):
        place = binary(b, "shl", snapshot(b, i), Const(u32, 2))
        (x,) = load(b, "shared", binary(b, "add", tile, place), f32)
        assign(b, total, binary(b, "add", snapshot(b, total), x))
    with b.inside(step):
        assign(b, i, binary(b, "add", snapshot(b, i), Const(u32, 1)))
    barrier_sync(b)
    b.append(LoopOp(head=head, condition=running, body=body, step=step))
    first, then = compare(b, "eq", special(b, "tid.x"), Const(u32, 0)), Block()
    with b.inside(then):
        store(b, "global", pointer, (snapshot(b, total),))
        store(b, "global", pointer, (Const(f16, 1), Const(f16, 1)), 8)
        store(b, "global", pointer, (Const(u16, 7),), 12)
    b.append(IfOp(condition=first, then=then))
    return kernel
