"""The pipe of the multiprocessor that executes each PTX instruction, and its arithmetic.

Pipes have the names of Nsight Compute's `smsp__inst_executed_pipe_…` on Hopper, where half
precision runs in the fma pipe. One PTX instruction counts once. The assembler chooses the machine
instructions: it merges, splits and drops, so pipes other than the tensor core's are an estimate.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from kdsl_core.errors import VerifyError
from kdsl_core.ir import Kernel, Target
from kdsl_core.ir.cost import Cost
from kdsl_core.ptx.emission import instruction_texts

# pipe → instructions, by their first words; the longest that fits decides
_OF_PIPE = {
    "alu": "add sub min max abs neg and or xor not shl shr setp selp prmt copysign vote elect "
    "redux bfe bfi lop3",
    "fma": "mul mad fma add.rn sub.rn",
    "xu": "ex2 lg2 rsqrt sqrt rcp tanh sin cos div rem popc clz brev",
    "lsu": "ld st atom red ldmatrix stmatrix shfl prefetch cp.async mbarrier fence",
    "tma": "cp.async.bulk cp.reduce.async.bulk prefetch.tensormap",
    "adu": "bar.sync bar.arrive barrier match",
    "cbu": "bra ret exit trap bar.warp griddepcontrol",
    "tensor_op_hmma": "mma.sync",
    "tensor_op_gmma": "wgmma.mma_async",
    # what becomes an operand, a register or a wait, and no instruction of a pipe
    "": "mov cvta mapa ld.param st.param .param call createpolicy setmaxnreg cp.async.commit_group "
    "cp.async.wait_group cp.async.bulk.commit_group cp.async.bulk.wait_group wgmma { }",
}
PIPES = {opcode: pipe for pipe, opcodes in _OF_PIPE.items() for opcode in opcodes.split()}
_WAITS = {
    "bar.sync": "barrier_waits",
    "barrier.cluster.wait": "cluster_waits",
    "mbarrier.try_wait": "mbarrier_waits",
    "cp.async.wait_group": "async_copy_waits",
    "cp.async.bulk.wait_group": "bulk_waits",
    "wgmma.wait_group": "wgmma_waits",
}
_OPERATIONS = {"add": 1, "sub": 1, "mul": 1, "fma": 2}
_THREADS = {"add": "thread_fadd", "sub": "thread_fadd", "mul": "thread_fmul", "fma": "thread_ffma"}
_FLOATS = {"f16": 1, "bf16": 1, "f16x2": 2, "bf16x2": 2, "f32": 1, "f64": 1}
_INTEGRAL = ("rni", "rmi", "rpi", "rzi")
_PREDICATE = re.compile(r"@!?\S+\s+")
_SHAPE = re.compile(r"\.m(\d+)n(\d+)k(\d+)\.")
_WARPS_OF_WGMMA = 4


def costs(kernel: Kernel) -> list[Cost]:
    """What each instruction of the kernel's flat program costs."""
    target = _target_with_all(kernel)
    return [_sum([cost_of(text) for text in texts]) for texts in instruction_texts(kernel, target)]


def cost_of(text: str) -> Cost:
    """What one instruction costs: its pipe, its waits and its floating-point operations.

    >>> cost_of("@%p1 fma.rn.f32 %f1, %f2, %f3, %f4;").lane
    {'flops_f32': 2, 'thread_ffma': 1}
    """
    return _cost_of_opcode(_PREDICATE.sub("", text.strip(), count=1).split()[0].rstrip(";"))


@cache
def _cost_of_opcode(opcode: str) -> Cost:
    warp: dict[str, float] = {}
    lane: dict[str, float] = {}
    pipe = pipe_of(opcode)
    if pipe:
        warp[f"pipe_{pipe}"] = 1
    warp |= {name: 1 for start, name in _WAITS.items() if opcode.startswith(start)}
    name, *qualifiers = opcode.split(".")
    if pipe.startswith("tensor"):
        warp[f"tensor_flops_{_source_type(opcode)}"] = _tensor_operations(opcode)
    elif name in _OPERATIONS and qualifiers[-1] in _FLOATS:
        kind = qualifiers[-1].removesuffix("x2")
        lane[f"flops_{kind}"] = _OPERATIONS[name] * _FLOATS[qualifiers[-1]]
        if kind == "f32":
            lane[_THREADS[name]] = 1
    return Cost(warp, lane)


def pipe_of(opcode: str) -> str:
    """The pipe that executes an instruction, "" for none.

    Raises: VerifyError K540 for an instruction that has no entry.
    """
    words = opcode.split(".")
    if words[0] == "cvt":
        return _pipe_of_conversion(words)
    if "mma" in words[0] and _source_type(opcode) in ("s8", "u8"):
        return "tensor_op_imma"
    if words[-1] == "f64" and words[0] in (*_OPERATIONS, "setp", "min", "max"):
        return "fp64"
    for count in range(len(words), 0, -1):
        pipe = PIPES.get(".".join(words[:count]))
        if pipe is not None:
            return pipe
    raise VerifyError(
        f"no pipe is known for the PTX instruction {opcode}",
        code="K540",
        fix="add it to the table in kdsl_core/ptx/costs.py",
    )


def _pipe_of_conversion(words: list[str]) -> str:
    """Changes between integers and floats, and to integral floats, are the slow ones."""
    to_integer, from_integer = (word[0] in "us" for word in words[-2:])
    if to_integer != from_integer or words[1] in _INTEGRAL or "f64" in words[-2:]:
        return "xu"
    return "alu"


def _source_type(opcode: str) -> str:
    """The type of A's elements: "bf16"; mma names D, A, B, C, and wgmma D, A, B."""
    words = opcode.split(".")
    return words[-3] if words[0] == "mma" else words[-2]


def _tensor_operations(opcode: str) -> int:
    """Multiplications and additions of one warp's execution."""
    shape = _SHAPE.search(opcode)
    assert shape is not None, opcode
    m, n, k = map(int, shape.groups())
    return 2 * m * n * k // (_WARPS_OF_WGMMA if opcode.startswith("wgmma") else 1)


def _sum(parts: Iterable[Cost]) -> Cost:
    warp: dict[str, float] = defaultdict(float)
    lane: dict[str, float] = defaultdict(float)
    for part in parts:
        for whole, some in ((warp, part.warp), (lane, part.lane)):
            for name, amount in some.items():
                whole[name] += amount
    return Cost(warp, lane)


def _target_with_all(kernel: Kernel) -> Target:
    """A target that has every instruction of the kernel."""
    needs = [op.need for op in kernel.body.walk()]
    only = {number for need in needs for number in need.only}
    return Target(max(only, default=max([need.sm for need in needs], default=80)), bool(only))
