"""A kernel as a PTX module.

The text depends on the kernel's operations and the target alone: not on paths, line numbers,
argument names, object identities or hash seeds, so that equal kernels share a cache entry.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from kdsl_core.dtypes import DType, boolean, tensor_map
from kdsl_core.ir import Branch, Const, Exit, Jump, Kernel, Label, Need, Op, Param, Target, flatten
from kdsl_core.ir.tensor_map import TENSOR_MAP_ALIGN
from kdsl_core.loc import Loc
from kdsl_core.ptx.module import PtxModule
from kdsl_core.ptx.spelling import parameter_type
from kdsl_core.ptx.writer import SHARED_SYMBOL, Writer

SHARED_ALIGNMENT = 1024
_CLUSTERS = Need(sm=90, ptx=(7, 8))
_PARAMETER_ADDRESS = Need(ptx=(7, 7))
# architecture number → least PTX version that knows the chip, and its "a" variant
_VERSIONS = {
    80: ((7, 0), (7, 0)),
    86: ((7, 1), (7, 1)),
    87: ((7, 4), (7, 4)),
    89: ((7, 8), (7, 8)),
    90: ((7, 8), (8, 0)),
    100: ((8, 6), (8, 6)),
    103: ((8, 8), (8, 8)),
    120: ((8, 7), (8, 7)),
}


def emit(kernel: Kernel, target: Target, lines: bool = False) -> PtxModule:
    """The PTX of a kernel for a target.

    `lines` adds the author's lines (`.loc`) for profilers and for messages of the assembler; the
    text then changes when a comment above the kernel does.
    """
    body = _Body(kernel, target, lines)
    body.run()
    version = ptx_version(kernel, target)
    return PtxModule(
        text=body.module(version),
        entry=body.writer.entry,
        target=target.name,
        shared_bytes=kernel.shared_bytes,
        threads=kernel.threads,
        params=tuple((param.name, param.dtype) for param in kernel.params),
        ptx_version=version,
    )


def instruction_texts(kernel: Kernel, target: Target) -> list[list[str]]:
    """The lines of PTX of each instruction of the flat program, without labels."""
    body = _Body(kernel, target, lines=False)
    body.run()
    ends = [*body.starts[1:], len(body.writer.body)]
    lines = body.writer.body
    return [
        [line.strip() for line in lines[start:end] if not line.endswith(":")]
        for start, end in zip(body.starts, ends, strict=True)
    ]


def ptx_version(kernel: Kernel, target: Target) -> tuple[int, int]:
    """The least PTX version that knows the target and every operation of the kernel."""
    versions = {op.need.ptx for op in kernel.body.walk()}
    if kernel.cluster_dim:
        versions.add(_CLUSTERS.ptx)
    if any(param.dtype is tensor_map for param in kernel.params):
        versions.add(_PARAMETER_ADDRESS.ptx)
    return max(_VERSIONS[target.number][target.arch_features], *versions, (7, 0))


class _Body:
    """Walks a flat program and prints it."""

    def __init__(self, kernel: Kernel, target: Target, lines: bool) -> None:
        self.kernel = kernel
        self.writer = Writer(kernel, target)
        self.lines = lines
        self.files: dict[str, int] = {}
        self.starts: list[int] = []  # of each instruction in the writer's body
        self._labels: dict[Label, str] = {}
        self._last_loc: Loc | None = None

    def run(self) -> None:
        """Print every instruction."""
        program = flatten(self.kernel)
        targets = {i.label for i in program.instructions if isinstance(i, Jump | Branch)}
        self._load_parameters()
        for index, instruction in enumerate(program.instructions):
            self.starts.append(len(self.writer.body))
            for label in program.labels_at.get(index, ()):
                if label in targets:
                    self.writer.place_label(self._label(label))
            self._instruction(instruction)

    def _label(self, label: Label) -> str:
        if label not in self._labels:
            self._labels[label] = self.writer.label(label.hint)
        return self._labels[label]

    def _instruction(self, instruction: Op | Jump | Branch | Exit) -> None:
        op = instruction if isinstance(instruction, Op) else instruction.op
        if self.lines and op is not None:
            self._location(op.loc)
        if isinstance(instruction, Op):
            instruction.ptx(self.writer)
        elif isinstance(instruction, Jump):
            self.writer.emit(f"bra.uni {self._label(instruction.label)}")
        elif isinstance(instruction, Branch):
            self._branch(instruction)
        else:
            self.writer.emit("ret")

    def _branch(self, branch: Branch) -> None:
        label = self._label(branch.label)
        if isinstance(branch.condition, Const):
            if branch.condition.value == branch.if_true:
                self.writer.emit(f"bra.uni {label}")
            return
        sense = "" if branch.if_true else "!"
        self.writer.emit(f"@{sense}{self.writer.reg(branch.condition)} bra {label}")

    def _location(self, loc: Loc | None) -> None:
        if loc is None or loc is self._last_loc:
            return
        self._last_loc = loc
        number = self.files.setdefault(os.path.basename(loc.file), len(self.files) + 1)
        self.writer.body.append(f"    .loc {number} {loc.line} {loc.column}")

    # -- parameters --------------------------------------------------------------------------
    def _load_parameters(self) -> None:
        """Bring the parameters that are read into registers."""
        read = {operand for op in self.kernel.body.walk() for operand in op.reads()}
        for index, param in enumerate(self.kernel.params):
            if param.value in read:
                self._load_parameter(index, param)

    def _load_parameter(self, index: int, param: Param) -> None:
        w, source = self.writer, f"[{self._parameter(index)}]"
        register = w.reg(param.value)
        if param.dtype is tensor_map:  # it stays where it is, its address is taken
            w.emit(f"mov.b64 {register}, {self._parameter(index)}")
            w.emit(f"cvta.param.u64 {register}, {register}")
        elif param.dtype is boolean:
            byte = w.temp("b16")
            w.emit(f"ld.param.u8 {byte}, {source}")
            w.emit(f"setp.ne.s16 {register}, {byte}, 0")
        elif param.dtype.bytes == 1:
            sign = "s" if param.dtype.kind == "i" else "u"
            w.emit(f"ld.param.{sign}8 {register}, {source}")
        else:
            w.emit(f"ld.param.b{param.dtype.bits} {register}, {source}")

    def _parameter(self, index: int) -> str:
        return f"{self.writer.entry}_param_{index}"

    # -- the frame around the instructions ---------------------------------------------------
    def module(self, version: tuple[int, int]) -> str:
        """The whole text."""
        major, minor = version
        w = self.writer
        parts = [
            f".version {major}.{minor}",
            f".target {w.target.name}",
            ".address_size 64",
            *(f'.file {number} "{name}"' for name, number in self.files.items()),
            *w.declarations,
            *self._shared(),
            "",
            self._signature(),
            *self._directives(),
            "{",
            *w.register_declarations(),
            *w.prologue,
            *w.body,
            "}",
            "",
        ]
        return "\n".join(parts)

    def _shared(self) -> Iterator[str]:
        if self.kernel.shared_bytes:
            yield f".extern .shared .align {SHARED_ALIGNMENT} .b8 {SHARED_SYMBOL}[];"

    def _signature(self) -> str:
        params = [
            f"    .param {_declaration(param.dtype, self._parameter(index))}"
            for index, param in enumerate(self.kernel.params)
        ]
        listed = "\n" + ",\n".join(params) + "\n" if params else ""
        return f".visible .entry {self.writer.entry}({listed})"

    def _directives(self) -> Iterator[str]:
        yield ".reqntid {}, {}, {}".format(*self.kernel.block_dim)
        if self.kernel.min_blocks_per_sm:
            yield f".minnctapersm {self.kernel.min_blocks_per_sm}"
        if self.kernel.cluster_dim:
            yield ".explicitcluster"
            yield ".reqnctapercluster {}, {}, {}".format(*self.kernel.cluster_dim)


def _declaration(dtype: DType, name: str) -> str:
    """Type and name of a kernel parameter."""
    if dtype is tensor_map:
        return f".align {TENSOR_MAP_ALIGN} .b8 {name}[{dtype.bytes}]"
    return f".{parameter_type(dtype)} {name}"
