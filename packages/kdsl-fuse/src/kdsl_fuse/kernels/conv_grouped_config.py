"""How blocks of the grouped convolution compute their tiles, and what follows from that."""

from __future__ import annotations

import math
from dataclasses import dataclass

import kdsl_core as kd
from kdsl_core.ir.target import Target

WARP = 32
OCTET = 8  # channels of a matrix's row: 16 bytes
LINES = (16, 32, 64)  # channels that are copied together: 32, 64 or 128 bytes of a pixel
PANEL = 64  # filters of a line of results in shared memory
MOST_BOX = 256  # pixels along a mode of one copy
COPIES = ("tma", "cp.async")
PAIRED = {"rows": (2, OCTET), "images": (1, OCTET), "columns": (1, 2 * OCTET)}
"""What the two halves of 16 pixels are ↦ what rows and columns of a step are multiples of."""
QUARTER = 16384  # registers of a quarter of a multiprocessor
BARRIER_BYTES = 2048  # of shared memory that tiles leave to barriers and alignment
RESERVED_BYTES = 1024  # of a multiprocessor's shared memory, for each block
WIDE_REGISTERS = 168  # of a thread that has four octets of filters and weights in shared memory


@dataclass(frozen=True)
class GroupedConfig:
    """How a block computes its tiles.

    `kernel`, `stride`, `padding` and `dilation` are the convolution's, along height and width;
    `group` is (channels, filters) of a group. A block has `line` channels and the filters of their
    groups for itself. It takes `rows` rows of `columns` results at a time, `steps` times down the
    image, from a ring of `stages` slabs of input rows. Each of its `warps` computes 8 · `octets`
    filters, `together` strips of a step at once. A matrix instruction has 16 pixels: eight of a row
    and eight of another (`paired` "rows"), of the same row of the next image ("images", which come
    by two), or of its next columns ("columns"). Results leave through `buffers` of shared memory,
    into which the tail's operand number `staged`, of the result's type, is copied before. `weights`
    stay in "registers", or in "shared" memory.
    """

    kernel: tuple[int, int]
    group: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    line: int = 64
    rows: int = 4
    columns: int = 56
    steps: int = 1
    stages: int = 4
    octets: int = 1
    warps: int = 8
    paired: str = "rows"
    buffers: int = 2
    copies: str = "tma"
    weights: str = "registers"
    staged: int | None = None
    together: int = 1
    blocks_per_sm: int = 1

    def __post_init__(self) -> None:
        self._check_tile()
        self._check_warps()

    def _check_tile(self) -> None:
        down, across = PAIRED.get(self.paired, (MOST_BOX, MOST_BOX))
        whole = self.columns % across == 0 and self.rows % down == 0
        if not whole or min(self.rows, self.columns, self.steps, self.buffers) < 1:
            raise kd.ArgumentError(
                f"a step is a multiple of {down} rows of a multiple of {across} results where "
                f"{self.paired} are paired, one of {', '.join(PAIRED)}; got {self.rows} x "
                f"{self.columns}",
                code="K990",
                fix="round rows and columns up; what hangs over is not stored",
            )
        if self.stages <= self.window or max(self.slab, self.width * self.stride[1]) > MOST_BOX:
            raise kd.ArgumentError(
                f"a step needs {self.window} slabs of {self.slab} rows of {self.width} pixels, at "
                f"most {MOST_BOX} each way, and another stage to fill; got {self.stages} stages",
                code="K991",
                fix="take more stages, fewer rows or narrower tiles",
            )

    def _check_warps(self) -> None:
        channels, filters = self.group
        fits = self.line in LINES and self.line % channels == 0 and channels % 2 == 0
        fits = fits and self.filters % OCTET == 0 and self.filters in (8, 16, 32, *self._panels)
        if not fits:
            raise kd.ArgumentError(
                f"groups of a line of {self.line} channels have 8, 16, 32 or a multiple of {PANEL} "
                f"filters together, got groups of {channels} channels and {filters} filters",
                code="K992",
                fix=f"a line has {', '.join(map(str, LINES))} channels, whole groups of them",
            )
        known = self.copies in COPIES and self.weights in ("registers", "shared")
        known &= self.staged is None or (self.copies == "tma" and self.buffers > 1)
        # Of a buffer that others fill in between, a team would take a phase for the one before it.
        known &= self.copies != "tma" or self.teams <= self.buffers
        if self.filters % (OCTET * self.octets) or self.warps % self.parts or not known:
            raise kd.ArgumentError(
                f"{self.warps} warps do not share {self.filters} filters by {self.octets} times "
                f"{OCTET} evenly, with weights in {self.weights}, by {self.copies}, with operand "
                f"{self.staged} in one of {self.buffers} buffers",
                code="K993",
                fix="warps are a multiple of filters / (8 · octets), with a buffer for each "
                "multiple where TMA copies; TMA stages an operand in two buffers or more",
            )

    @property
    def _panels(self) -> range:
        return range(PANEL, 8 * PANEL + 1, PANEL)

    @property
    def filters(self) -> int:
        """Filters of the groups of a line."""
        return self.line // self.group[0] * self.group[1]

    @property
    def parts(self) -> int:
        """Parts of the filters that different warps compute."""
        return self.filters // (OCTET * self.octets)

    @property
    def teams(self) -> int:
        """Warps with the same part of the filters."""
        return self.warps // self.parts

    @property
    def threads(self) -> int:
        """Threads of a block; where TMA copies, each direction has a warp, and a staged operand."""
        copying = 2 + (self.staged is not None) if self.copies == "tma" else 0
        return WARP * (self.warps + copying)

    @property
    def advance(self) -> int:
        """Input rows from one step to the next."""
        return self.rows * self.stride[0]

    @property
    def reach(self) -> int:
        """Input rows that a step reads."""
        return (self.rows - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0] + 1

    @property
    def slab(self) -> int:
        """Input rows of a stage."""
        return self.reach if self.steps == 1 else self.advance

    @property
    def window(self) -> int:
        """Stages that a step reads."""
        return -(-self.reach // self.slab)

    @property
    def unread(self) -> int:
        """Rows at the start of a window that its step does not read."""
        return self.window * self.slab - self.reach

    @property
    def slabs(self) -> int:
        """Slabs of an item: a tile's columns, `steps` steps down."""
        return self.steps + self.window - 1

    @property
    def planes(self) -> tuple[int, ...]:
        """First columns of a slab's planes, each of which has every stride-th column.

        So neighbouring results read neighbouring pixels, whatever the stride.
        """
        step, apart = self.stride[1], self.dilation[1]
        return tuple(sorted({s * apart % step for s in range(self.kernel[1])}))

    @property
    def width(self) -> int:
        """Pixels of a row of a plane: whole patterns of the swizzle."""
        last = self.columns - 1 + (self.kernel[1] - 1) * self.dilation[1] // self.stride[1]
        return -(-(last + 1) // OCTET) * OCTET

    @property
    def images(self) -> int:
        """Images of an item."""
        return 2 if self.paired == "images" else 1

    @property
    def plane(self) -> int:
        """Elements of a plane of one image."""
        return self.slab * self.width * self.line

    @property
    def strips(self) -> int:
        """Pieces of eight (or sixteen) columns of a step."""
        return self.columns // PAIRED[self.paired][1]

    @property
    def units(self) -> int:
        """Matrix instructions' rows of 16 pixels in a strip."""
        return self.rows // 2 if self.paired == "rows" else self.rows

    @property
    def octets_read(self) -> int:
        """Octets of channels that a warp's filters depend on."""
        channels, filters = self.group
        spans = []
        for first in range(0, self.filters, OCTET * self.octets):
            begin, last = first // filters, (first + OCTET * self.octets - 1) // filters
            spans.append(-(-(last + 1) * channels // OCTET) - begin * channels // OCTET)
        return max(spans)

    @property
    def weight_registers(self) -> int:
        """Registers that a warp's weights take."""
        taps = -(-self.octets_read * self.kernel[1] // 2)
        return 2 * taps * self.kernel[0] * self.octets

    @property
    def looped(self) -> bool:
        """Whether the kernel counts the steps of the products, all of which have two octets."""
        plain = self.planes == tuple(range(len(self.planes)))
        return self.weights == "shared" and self.octets_read % 2 == 0 and plain

    @property
    def registers_allowed(self) -> int:
        """Most registers of a thread: a quarter of a multiprocessor's serves every fourth warp."""
        warps = -(-self.threads // WARP * self.blocks_per_sm // 4)
        return min(QUARTER // (warps * WARP) // 8 * 8, 255)

    @property
    def registers_wanted(self) -> int:
        """Registers of a thread with which the assembler spills nothing, as it was seen to."""
        held = self.weight_registers
        if self.weights == "shared":  # those of a step, or of a few steps
            held = (2 if self.looped else 12) * self.kernel[0] * self.octets
        sums = self.together * self.units * self.octets
        return held * 9 // 8 + 4 * sums + 10 * self.together + 40

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, but for its barriers."""
        slabs = self.stages * len(self.planes) * self.plane * self.images
        results = self.buffers * self.rows * self.columns * self.filters * self.images
        held = 0
        if self.weights == "shared":
            held = 2 * WARP * self.weight_registers * self.parts
        return 2 * (slabs + results + held)

    def overfull(self, target: Target) -> str | None:
        """Why a multiprocessor has no room for its blocks; None if it has."""
        whole = (target.shared_bytes + RESERVED_BYTES) // self.blocks_per_sm
        room = whole - RESERVED_BYTES - BARRIER_BYTES
        if self.shared_bytes <= room:
            return None
        return f"a block takes {self.shared_bytes} bytes of shared memory, of {room}"

    @property
    def spilling(self) -> str | None:
        """Why registers do not suffice, as far as is known; None if they do.

        The assembler unrolls a counted loop of products, and then wants more for four octets.
        """
        wanted, allowed = self.registers_wanted, self.registers_allowed
        if self.looped and self.octets > 2:
            if self.units > 4:
                return f"{self.units} units with four octets of filters from shared memory spill"
            wanted = max(wanted, WIDE_REGISTERS)
        return None if wanted <= allowed else f"a thread wants {wanted} registers, of {allowed}"

    @property
    def swizzle_bits(self) -> tuple[int, int]:
        """Bits of the swizzle of a pixel's octets: of the input, of the results."""
        lines = self.line, min(self.filters, PANEL)
        return int(math.log2(lines[0] // OCTET)), int(math.log2(lines[1] // OCTET))
