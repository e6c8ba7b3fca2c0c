"""Arguments of the macros of ``ptx/lib``: operand tiles, threadblock products, output tiles.

Templates make these objects from their parameters, host halves from the same numbers, so that a
tile's size, its threads and its place in shared memory are worked out once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from cuevo.layouts.swizzle import CHUNK_BYTES, SharedTile

INSTRUCTIONS = {"m16n8k16": 16, "m16n8k8": 8, "m8n8k4": 8}
"""Shape of the mma instruction to the depth of a K step: m8n8k4 is issued in pairs."""
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Operand:
    """Operand A or B of a threadblock product: one K tile of it in shared memory.

    The tile is stored as it lies in global memory, rows of contiguous elements. Plain: a row for
    each m (or n), the elements of a row along k. Transposed: a row for each k.
    """

    name: str
    """"a" or "b"."""
    extent: int
    """m of the threadblock tile for A, n for B."""
    depth: int
    """k of the threadblock tile."""
    warp_extent: int
    """m or n of the warp tile."""
    transposed: bool
    instruction: str
    """A key of INSTRUCTIONS."""
    threads: int
    """Threads of the block, all of which copy."""
    layout: str = "swizzled"
    """"swizzled" or "padded"."""
    cache: str = "cg"
    """Cache operator of its copies: "cg", past L1, or "ca", through it."""
    access: int = 16
    """Bytes that its rows are aligned to in global memory: 16, 8, 4 or 2."""

    @property
    def rows(self) -> int:
        """Rows of the stored tile."""
        return self.depth if self.transposed else self.extent

    @property
    def columns(self) -> int:
        """Elements of a stored row."""
        return self.extent if self.transposed else self.depth

    @property
    def tile(self) -> SharedTile:
        """Layout of its chunks in shared memory."""
        kind = self.layout
        if self.instruction == "m8n8k4":
            kind = "quad columns" if self.transposed else "quads"
        return SharedTile(self.columns // 8, kind)

    @property
    def bytes(self) -> int:
        """Shared memory of one K tile, a multiple of 128."""
        return ceil(self.rows * self.tile.pitch * CHUNK_BYTES / 128) * 128

    @property
    def pass_rows(self) -> int:
        """Rows that the block copies at a time, a multiple of the tile's period."""
        period = self.tile.period
        return min(self.threads // self.tile.chunks // period * period, self.rows)

    @property
    def passes(self) -> int:
        """Copies of a thread for each K tile."""
        return ceil(self.rows / self.pass_rows)

    @property
    def all_copy(self) -> bool:
        """Whether no thread is idle when the tile is copied."""
        return self.pass_rows * self.tile.chunks == self.threads and self.rows % self.pass_rows == 0

    @property
    def step(self) -> int:
        """k of a warp's step."""
        return INSTRUCTIONS[self.instruction]

    @property
    def steps(self) -> int:
        """Steps of a K tile."""
        return self.depth // self.step

    @property
    def warps(self) -> int:
        """Warps side by side along the extent."""
        return self.extent // self.warp_extent

    @property
    def pattern(self) -> str:
        """Pattern of the chunks that lanes supply to ldmatrix (lib/warp_iterator.ptx), or read
        themselves (lib/warp_iterator_sm70.ptx).
        """
        if self.instruction == "m8n8k4":
            return "quad columns" if self.transposed else "quad rows"
        if self.instruction == "m16n8k8":
            return "columns" if self.transposed else "rows"
        return "a" if (self.name == "a") != self.transposed else "b"

    @property
    def unit(self) -> int:
        """Chunks of a row that one load of the pattern takes."""
        units = {"a": 2, "b": 2, "rows": 1, "columns": 4, "quad rows": 1, "quad columns": 4}
        return units[self.pattern]

    @property
    def places(self) -> int:
        """Addresses that a lane makes of its own in a stage; see `SharedTile.places`."""
        return self.tile.places(self.unit)

    @property
    def apart(self) -> int:
        """XOR between them, in bytes; see `SharedTile.distance`."""
        return self.tile.distance(self.unit)

    @property
    def group_extent(self) -> int:
        """m or n that the lanes of a warp load at a time: one ldmatrix.x4, or two ld.shared.v4."""
        return min(16 if self.instruction == "m16n8k16" else 32, self.warp_extent)

    @property
    def groups(self) -> int:
        """Loads of a step; the last one may be of fewer rows."""
        return ceil(self.warp_extent / self.group_extent)

    @property
    def group_registers(self) -> int:
        """32-bit registers of a lane's fragment of one group."""
        if self.instruction == "m8n8k4":
            return 8
        return self.group_extent * self.step // 64

    @property
    def registers(self) -> int:
        """32-bit registers of a lane's fragment of one step."""
        if self.instruction == "m8n8k4":
            return 8 * self.groups
        return self.warp_extent * self.step // 64

    def quad(self, half: int, k4: int) -> int:
        """First of the two registers, among a group's, that m8n8k4 takes for a half of the group,
        its m (or n) with ``m // 4 % 2 == half``, and the k from ``4 * k4`` of the step on.
        """
        return 4 * k4 + 2 * half if self.transposed else 4 * half + 2 * k4

    def violations(self) -> Iterator[str]:
        """Why the block cannot be; nothing if it can."""
        label = self.name.upper()
        width = {"m16n8k16": 16, "m16n8k8": 16 if self.name == "a" else 8, "m8n8k4": 32}
        if self.instruction not in INSTRUCTIONS:
            yield f"instruction must be one of {', '.join(INSTRUCTIONS)}, not {self.instruction!r}"
            return
        if self.layout not in ("swizzled", "padded"):
            yield f"layout must be swizzled or padded, not {self.layout!r}"
            return
        if self.warp_extent < 1 or self.warp_extent % width[self.instruction]:
            yield (
                f"{label}: a warp tile of {self.warp_extent} is no multiple of the "
                f"{width[self.instruction]} of {self.instruction}"
            )
            return
        if self.extent < 1 or self.extent % self.warp_extent:
            yield f"{label}: {self.extent} is no multiple of the warp tile's {self.warp_extent}"
            return
        if self.steps < 2 or self.depth % (2 * self.step):
            yield (
                f"{label}: the K tile of {self.depth} is no even number of the steps of "
                f"{self.step} of {self.instruction}: fragments are double-buffered by step"
            )
            return
        if self.instruction == "m16n8k8" and self.warp_extent % 32 == 24:
            yield f"{label}: a warp tile of {self.warp_extent} ends with three 8x8 blocks of a load"
            return
        if self.layout == "padded" and self.columns & (self.columns - 1):
            yield f"{label}: padded rows of {self.columns} elements are no power of two"
            return
        if self.transposed and self.warp_extent & (self.warp_extent - 1):
            yield f"{label}: read transposed, a warp tile of {self.warp_extent} is no power of two"
        if self.layout == "padded" and self.instruction == "m8n8k4":
            yield f"{label}: padding leaves the reads of m8n8k4 with conflicts; use swizzled"
        if self.threads < self.tile.chunks * self.tile.period:
            yield (
                f"{label}: {self.threads} threads copy fewer than the {self.tile.period} rows of "
                f"{self.tile.chunks} chunks that keep a thread's swizzle"
            )
        if self.cache not in ("ca", "cg"):
            yield f"{label}: the cache operator must be ca or cg, not {self.cache!r}"
        if self.access not in (2, 4, 8, 16):
            yield f"{label}: rows are aligned to 16, 8, 4 or 2 bytes, not {self.access}"


@dataclass(frozen=True)
class FragmentLoad:
    """One load of fragments from shared memory: a group of rows of A, or of columns of B."""

    operand: Operand
    first: int
    """Number of the first register that it fills."""
    step: int
    """K step of the tile that it reads."""
    group: int
    of_next: bool
    """Whether it reads the next K tile, which has to be there."""


@dataclass(frozen=True)
class Slot:
    """A part of a main-loop iteration: the products of one group of rows of A, one K step deep."""

    number: int
    step: int
    group: int
    a_first: int
    """Number of the first register of A's fragment."""
    b_first: int
    """The same of B's, all groups of it."""
    loads: tuple[FragmentLoad, ...]
    """Loads that come before the products, into registers that none of them reads."""
    reloads: tuple[FragmentLoad, ...]
    """Load number i follows the products with group i of B, which has one set of registers only."""
    waits: bool
    """Whether the tile has been read after the loads: the next one is waited for."""


@dataclass(frozen=True)
class ThreadblockMma:
    """C += A . B of a threadblock over K tiles in a ring of shared-memory stages."""

    a: Operand
    b: Operand
    stages: int
    clear: str = "zfill"
    """Treatment of elements outside of the operands: "zfill": they are zero-filled by the
    copies; "last_stage": the stage of the last K tile is cleared before the loop; "none": there are
    none along k."""
    max_k: int = 0
    """The largest K extent; 0: any. Where the stages hold all of it, the loop copies nothing."""
    whole_steps: bool = True
    """Whether fragments of A and B are double-buffered by steps; if not, A's by groups of rows, and
    B's are loaded anew in place: fewer registers, less time for the loads.
    """
    name: str = "mma"
    """Prefix of its registers."""

    @property
    def stage_bytes(self) -> int:
        """A | B."""
        return self.a.bytes + self.b.bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of all stages."""
        return self.stages * self.stage_bytes

    @property
    def resident(self) -> bool:
        """Whether the stages hold the whole K extent."""
        return 0 < self.max_k <= self.stages * self.a.depth

    @property
    def ahead(self) -> int:
        """Stages that the prologue fills."""
        return self.stages if self.resident else self.stages - 1

    @property
    def m_tiles(self) -> int:
        """Instruction tiles of a warp along m (32 rows for m8n8k4)."""
        return self.a.warp_extent // (32 if self.a.instruction == "m8n8k4" else 16)

    @property
    def whole(self) -> bool:
        """Whether every element of every tile exists, so that copies need no predicates."""
        return self.clear == "none"

    @property
    def tells_whole(self) -> bool:
        """Whether tiles are told apart at run time: those all of which exists are copied without
        predicates.
        """
        wide = self.a.access == 16 and self.b.access == 16
        return self.clear == "zfill" and wide and not self.resident

    @property
    def n_tiles(self) -> int:
        """Instruction tiles of a warp along n (32 columns for m8n8k4)."""
        return self.b.warp_extent // (32 if self.a.instruction == "m8n8k4" else 8)

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return 32 * self.a.warps * self.b.warps

    @property
    def loops(self) -> tuple[str, ...]:
        """The loops over K tiles, one after the other: "whole" copies tiles all of which exists,
        "ragged" any tiles, and "draining" none: its tiles are on their way.
        """
        if self.resident:
            return ("draining",)
        if self.tells_whole:
            return ("whole", "ragged", "draining")
        return ("whole" if self.whole else "ragged", "draining")

    @property
    def slots(self) -> int:
        """Parts of a main-loop iteration: the groups of A of every step."""
        return self.a.steps * self.a.groups

    @property
    def lookahead(self) -> int:
        """Slots that fragments of A are loaded before they are multiplied."""
        return self.a.groups if self.whole_steps else 1

    @property
    def waiting_slot(self) -> int:
        """The slot in which the last fragments of a tile are loaded, so that its stage is free and
        the next one is waited for.
        """
        return self.slots - 1 - self.lookahead

    @property
    def schedule(self) -> tuple[Slot, ...]:
        """The slots of a main-loop iteration in their order."""
        return tuple(self._slot(number) for number in range(self.slots))

    def _slot(self, number: int) -> Slot:
        a, b = self.a, self.b
        step, group = divmod(number, a.groups)
        coming, following, last = number + self.lookahead, (step + 1) % a.steps, step == a.steps - 1
        of_a = FragmentLoad(
            a,
            coming % (2 * self.lookahead) * a.group_registers,
            coming // a.groups % a.steps,
            coming % a.groups,
            coming >= self.slots,
        )
        # B's fragments of the next step: shared out to the slots, or each when it is free.
        of_b = [
            FragmentLoad(
                b,
                (following % 2 * b.registers if self.whole_steps else 0) + part * b.group_registers,
                following,
                part,
                last,
            )
            for part in range(b.groups)
        ]
        shared_out = slice(b.groups * group // a.groups, b.groups * (group + 1) // a.groups)
        in_place = not self.whole_steps and group == a.groups - 1
        return Slot(
            number,
            step,
            group,
            a_first=number % (2 * self.lookahead) * a.group_registers,
            b_first=step % 2 * b.registers if self.whole_steps else 0,
            loads=(of_a, *(of_b[shared_out] if self.whole_steps else ())),
            reloads=tuple(of_b) if in_place else (),
            waits=number == self.waiting_slot,
        )

    def copies(self, operand: Operand, slot: int, whole: bool) -> range:
        """The copies of an operand's next tile that are issued in a slot: spread over those up to
        the waiting one. Tiles that are not whole are copied in one slot, which takes fewer
        registers.
        """
        usable, passes = self.waiting_slot + 1, operand.passes
        if not whole:
            chosen = min(self.waiting_slot, "ab".index(operand.name))
            return range(passes if slot == chosen else 0)
        if slot >= usable:
            return range(0)
        return range(passes * slot // usable, passes * (slot + 1) // usable)

    def violations(self) -> Iterator[str]:
        """Why the block cannot be; nothing if it can."""
        yield from self.a.violations()
        yield from self.b.violations()
        if self.clear not in ("zfill", "last_stage", "none"):
            yield f"clear must be zfill, last_stage or none, not {self.clear!r}"
        if not self.whole_steps and self.a.groups < 2:
            yield "whole_steps = False needs two groups of rows of A in a warp tile"
        if self.clear == "last_stage" and not self.resident:
            yield (
                "clear = last_stage needs all of K in the stages (max_k): what an earlier tile "
                "left in the last stage would be read again"
            )


@dataclass(frozen=True)
class OutputTile:
    """Rows of elements in global memory that a group of threads loads and stores together.

    A thread has `width` neighbouring elements of each of its rows. The rows of a tile are made of
    clusters of groups of rows, `cluster_step` and `group_step` rows apart.
    """

    name: str
    """Prefix of its registers."""
    threads: int
    columns: int
    rows: int
    """Rows of a group."""
    element_bytes: int
    width: int
    """Elements of a thread in a row."""
    access: int = 16
    """Bytes that rows are aligned to, at least one element."""
    exact: bool = False
    """Whether rows end at a multiple of the access: no element needs a predicate of its own."""
    groups: int = 1
    group_step: int = 0
    clusters: int = 1
    cluster_step: int = 0
    tile_step: int = 0
    """Rows from a tile to the next; 0: the rows of the tile."""
    scatter: bool = False
    """Whether rows go through an index vector."""
    index_bytes: int = 8
    """Bytes of an index, which is signed: 8 or 4."""

    @property
    def row_threads(self) -> int:
        """Threads side by side in a row."""
        return self.columns // self.width

    @property
    def pass_rows(self) -> int:
        """Rows that the threads reach at a time; threads that are left over are idle."""
        return min(self.threads // self.row_threads, self.rows)

    @property
    def stands_alone(self) -> bool:
        """Whether its last rows are fewer than a pass: then it must be the only tile, and ends the
        rows that exist.
        """
        return self.rows % self.pass_rows != 0

    @property
    def row_offsets(self) -> tuple[int, ...]:
        """Rows of a thread's accesses, from its first one."""
        return tuple(
            cluster * self.cluster_step + group * self.group_step + row
            for cluster in range(self.clusters)
            for group in range(self.groups)
            for row in range(0, self.rows, self.pass_rows)
        )

    @property
    def advance(self) -> int:
        """Rows from a tile to the next."""
        return self.tile_step or self.rows * self.groups * self.clusters

    @property
    def registers(self) -> int:
        """32-bit registers of one access."""
        return max(self.width * self.element_bytes // 4, 1)

    @property
    def piece(self) -> int:
        """Elements of one load or store instruction."""
        return min(self.access // self.element_bytes, self.width)

    def violations(self) -> Iterator[str]:
        """Why the tile cannot be; nothing if it can."""
        if self.access not in (2, 4, 8, 16) or self.access < self.element_bytes:
            yield (
                f"rows are aligned to 16, 8, 4 or 2 bytes, and at least to their elements; got "
                f"{self.access}"
            )
            return
        if self.index_bytes not in (8, 4):
            yield f"an index has 8 or 4 bytes, not {self.index_bytes}"
            return
        if self.width * self.element_bytes not in (2, 4, 8, 16):
            yield f"{self.width} elements of {self.element_bytes} bytes are no access"
            return
        if self.columns % self.width or self.threads < self.row_threads:
            yield (
                f"{self.columns} columns are not shared by {self.threads} threads of {self.width}"
            )
            return
        if self.stands_alone and self.groups * self.clusters > 1:
            yield (
                f"{self.rows} rows are no multiple of the {self.pass_rows} reached at a time: "
                "no groups"
            )
