"""Shared host half of the GEMM kernels: the problem, and for mma.sync configuration and launch."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, TypeVar

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.kernels import choice
from cuevo.kernels.gemm_config import ProductConfig, output_violations, type_violations
from cuevo.layouts import M8N8K4, M8N8K4_F16, M16N8, M16N8_F16, Accumulator
from cuevo.layouts.tiles import INSTRUCTIONS, Operand, ThreadblockMma
from cuevo.toolchain.division import magic_fields

C = TypeVar("C", bound=ProductConfig)


@dataclass(frozen=True)
class Problem:
    """One call: d = alpha * a . b + beta * c + bias, a [batch, m, k], b [batch, k, n]."""

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    """Type of a and b: "f16" or "bf16"."""
    out_dtype: str
    """Type of d, and of bias unless that is of the inputs: "f16", "bf16" or "f32"."""
    a_columns: bool = False
    """Whether the columns of a are contiguous, not its rows."""
    b_columns: bool = False
    c: str = "none"
    """Type of c: "none", "f16", "bf16" or "f32"."""
    bias: bool = False
    scatter: bool = False
    """Whether rows of c and d go through an index vector."""
    a_alignment: int = 16
    """Bytes that the rows (or contiguous columns) are aligned to: 16, 8, 4 or 2."""
    b_alignment: int = 16
    c_alignment: int = 16
    d_alignment: int = 16
    far: bool = False
    """Whether stored rows of a or b are 2^23 bytes apart or more: some distances within a tile then
    need 64 bits.
    """
    mapped: bool = True
    """Whether tensor maps (cuevo.cuda.tensor_map) describe a and b: a step from a row to the next,
    or from a batch, is forward.
    """
    bias_of_inputs: bool = False
    """Whether the bias has the type of a and b, beside a d of f32."""
    index_bytes: int = 8
    """Bytes of an index of scattered rows: 8 or 4."""


@dataclass(frozen=True)
class Config(ProductConfig):
    """One instance of a GEMM kernel whose warps multiply by mma.sync."""

    block_k: int = 32
    """k of a pipeline stage."""
    warp_m: int = 64
    """Rows of d of a warp."""
    warp_n: int = 64
    """Columns of d of a warp."""
    instruction: str = "m16n8k16"
    """The mma instruction: m16n8k16, m16n8k8 or m8n8k4."""
    accumulate: str = "f32"
    """Type of the accumulators: f32, or f16 with f16 operands."""
    a_access: int = 16
    """Bytes of a copy of a: 16, 8 and 4 asynchronously, 2 through a register."""
    b_access: int = 16
    """Bytes of a copy of b."""
    layout: str = "swizzled"
    """Stages in shared memory: swizzled or padded."""
    clear: str = "zfill"
    """Treatment of operand elements that do not exist: zfill, last_stage or none."""
    max_k: int = 0
    """Largest k; 0: any. If the stages hold all of it, the main loop copies nothing."""
    cache_a: str = "cg"
    """Cache operator of the copies of a: cg, past L1, or ca."""
    cache_b: str = "cg"
    """Cache operator of the copies of b."""
    splits: int = 1
    """Threadblocks that share the K tiles of one tile of d."""
    prefetch: str = "L2"
    """Cache that c is prefetched to before the main loop: L2, L1 or none."""
    whole_steps: bool = True
    """Double-buffer fragments by whole steps along k, or with fewer registers (ThreadblockMma)."""
    min_blocks: int = 1
    """Threadblocks that share a multiprocessor; the register allocator makes room for them."""

    # -- What the template takes from here ---------------------------------------------------------

    @property
    def accumulator(self) -> Accumulator:
        """Layout of the accumulators."""
        narrow = self.accumulate == "f16"
        if self.instruction == "m8n8k4":
            return M8N8K4_F16 if narrow else M8N8K4
        return M16N8_F16 if narrow else M16N8

    @property
    def mma(self) -> ThreadblockMma:
        """The product of the threadblock."""
        common = (self.instruction, self.threads, self.layout)
        a = Operand(
            "a", self.block_m, self.block_k, self.warp_m, self.a_columns, *common, self.cache_a,
            self.a_access,
        )  # fmt: skip
        b = Operand(
            "b", self.block_n, self.block_k, self.warp_n, not self.b_columns, *common, self.cache_b,
            self.b_access,
        )  # fmt: skip
        return ThreadblockMma(a, b, self.stages, self.clear, self.max_k, self.whole_steps)

    @property
    def sums(self) -> int:
        """Registers of a lane's accumulators."""
        count = self.accumulator.count(self.mma.m_tiles, self.mma.n_tiles)
        return count // 2 if self.accumulate == "f16" else count

    @property
    def c_slabs(self) -> int:
        """Slabs of c that a warp has in registers: the next one is on its way, unless slabs are
        those of m8n8k4, which are twice as high.
        """
        return 1 if self.instruction == "m8n8k4" else 2

    @property
    def split(self) -> bool:
        """Whether partial sums are exchanged."""
        return self.splits > 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.block_m // self.warp_m) * (self.block_n // self.warp_n)

    @property
    def mma_k(self) -> int:
        """k of one mma instruction."""
        return 4 if self.instruction == "m8n8k4" else INSTRUCTIONS[self.instruction]

    @property
    def slab_columns(self) -> int:
        """Columns of d that a warp stages at a time: all of its own."""
        return self.warp_n

    @property
    def staged_tiles(self) -> tuple[int, int]:
        """Accumulator tiles of a warp along m and n, of which slabs are made."""
        return self.mma.m_tiles, self.mma.n_tiles

    @property
    def slab_rows(self) -> int:
        """Rows of d that a warp stages at a time: all of its own if the stages' memory holds them,
        else those of one accumulator tile. Beside c, which takes registers, always the latter.
        """
        rows = self.accumulator.tile[0]
        room = self.mma.shared_bytes // (self.threads // 32)
        held = self.c == "none" and self.slab_offset(self.warp_m) <= room
        return self.warp_m if held else rows

    @property
    def slabs(self) -> int:
        """Slabs that a warp stores."""
        return self.warp_m // self.slab_rows

    # -- Launch ------------------------------------------------------------------------------------

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the stages, and in their place the slabs of the warps."""
        return self.mma.shared_bytes + self.slab_excess

    @property
    def slab_excess(self) -> int:
        """Bytes by which the slabs are larger than the stages that they take the place of."""
        return max(0, self.threads // 32 * self.slab_bytes - self.mma.shared_bytes)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Tiles of d along m and n."""
        return ceil(problem.m / self.block_m), ceil(problem.n / self.block_n)

    def split_tiles(self, problem: Problem) -> int:
        """K tiles of a split; the last one may have fewer."""
        return ceil(ceil(problem.k / self.block_k) / self.splits)

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: tiles fastest, then splits, then batches."""
        down, right = self.tiles(problem)
        return (down * right * self.splits * problem.batch, 1, 1)

    def workspace(self, problem: Problem) -> tuple[int, int]:
        """Elements of `partials` (fp32) and `arrivals` (uint32) of a launch."""
        if not self.split:
            return (0, 0)
        down, right = self.tiles(problem)
        tiles = problem.batch * down * right
        return (tiles * self.splits * self.block_m * self.block_n, tiles)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {"config": config}


def violations(
    c: Config, arch: Architecture, problem: Problem | None, instructions: tuple[str, ...]
) -> Iterator[str]:
    """Why `c` cannot run on `arch` (and serve `problem`) with one of these instructions: the only
    statement of the constraints that all variants share.
    """
    if c.instruction not in instructions:
        yield f"instruction must be one of {', '.join(instructions)}, not {c.instruction!r}"
        return
    reasons = list(type_violations(c))
    yield from reasons
    if reasons:
        return
    if c.accumulate not in ("f32", "f16") or (c.accumulate == "f16" and c.dtype != "f16"):
        yield f"accumulate must be f32, or f16 with f16 operands; got {c.accumulate}, {c.dtype}"
        return
    if c.warp_m < 1 or c.warp_n < 1 or c.block_m % c.warp_m or c.block_n % c.warp_n:
        yield f"warp tiles of {c.warp_m} x {c.warp_n} do not fill {c.block_m} x {c.block_n}"
        return
    if not 32 <= c.threads <= 1024:
        yield f"{c.threads} threads; a threadblock has 32 to 1024"
        return
    reasons = list(c.mma.violations())
    yield from reasons
    if reasons:
        return
    if c.warp_n % 32:
        yield f"a staged row of {c.warp_n} columns is no multiple of 32"
        return
    reasons = list(output_violations(c))
    yield from reasons
    if reasons:
        return
    if not 2 <= c.stages <= 6:
        yield f"stages must be 2 to 6, not {c.stages}"
    if c.raster < 1:
        yield f"raster must be positive, not {c.raster}"
    if c.prefetch not in ("none", "L1", "L2"):
        yield f"prefetch must be none, L1 or L2, not {c.prefetch!r}"
    if c.splits < 1 or (c.split and c.accumulate == "f16"):
        yield "splits is at least 1, and 1 with f16 accumulators: partial sums are fp32"
    yield from choice.resource_violations(c, arch)
    if problem is not None:
        yield from problem_violations(c, problem)


FOLLOWING = (
    *("dtype", "out_dtype", "a_columns", "b_columns"),
    *("c", "bias", "bias_of_inputs", "scatter", "index_bytes"),
)
"""Fields of every configuration that are the problem's own."""


def instance_violations(
    c: ProductConfig, problem: Problem, names: tuple[str, ...]
) -> Iterator[str]:
    """Why an instance was made for another problem: types, orders, and accesses of `names`."""
    for name in FOLLOWING:
        if getattr(c, name) != getattr(problem, name):
            yield f"is an instance for another {name}: {getattr(c, name)}"
    for name in names:
        alignment = getattr(problem, f"{name}_alignment")
        if getattr(c, f"{name}_access") > alignment and (name != "c" or c.c != "none"):
            yield f"accesses {name} by more than the {alignment} bytes that its rows are aligned to"
    if c.exact and problem.n % c.whole_access:
        yield f"rows of {problem.n} elements end within an access; exact must be False"


def problem_violations(c: Config, problem: Problem) -> Iterator[str]:
    """Why an instance that can run cannot serve `problem`."""
    yield from instance_violations(c, problem, ("a", "b", "c", "d"))
    if c.max_k and problem.k > c.max_k:
        yield f"k = {problem.k} is above max_k = {c.max_k}"
    if c.clear != "zfill" and (problem.m % c.block_m or problem.n % c.block_n):
        yield f"clear = {c.clear} needs whole tiles along m and n"
    if c.clear == "none" and problem.k % c.block_k:
        yield "clear = none needs whole tiles along k"
    if c.clear == "none" and problem.far:
        yield "clear = none counts distances within a tile in 32 bits; rows are too far apart"
    if c.clear == "last_stage" and c.split:
        yield "clear = last_stage holds all of k in one threadblock: no splits"
    if c.split and (c.splits - 1) * c.split_tiles(problem) >= ceil(problem.k / c.block_k):
        yield f"{c.splits} splits leave some without a K tile of k = {problem.k}"


def adapt_output(config: C, problem: Problem) -> C:
    """`config` with the fields that every kernel has set to fit the problem."""
    fitted = replace(
        config,
        **{name: getattr(problem, name) for name in FOLLOWING},
        c_access=min(config.c_access, problem.c_alignment) if problem.c != "none" else 16,
        d_access=min(config.d_access, problem.d_alignment),
    )
    return replace(fitted, exact=problem.n % fitted.whole_access == 0)


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem set to fit it."""
    return replace(
        adapt_output(config, problem),
        a_access=min(config.a_access, problem.a_alignment),
        b_access=min(config.b_access, problem.b_alignment),
        accumulate=config.accumulate if problem.dtype == "f16" else "f32",
    )


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`, then such with ever more registers for a thread: fewer threadblocks to a
    multiprocessor, at last fewer fragments loaded ahead.
    """
    yield from choice.spill_fallbacks(config)
    if config.whole_steps and config.mma.a.groups > 1:
        yield replace(config, min_blocks=1, whole_steps=False)


_DIVISORS = ("tiles", "splits", "group", "last_rows")


def parameters(
    config: Config,
    problem: Problem,
    *,
    a: ArrayView,
    b: ArrayView,
    d: ArrayView,
    alpha: float,
    beta: float = 0.0,
    c: ArrayView | None = None,
    bias: ArrayView | None = None,
    scatter: ArrayView | None = None,
    partials: ArrayView | None = None,
    arrivals: ArrayView | None = None,
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name.

    a [B, M, K], b [B, K, N]; c and d [B, rows, N]; any batch stride, zero too.
    """
    mma = config.mma
    down, right = config.tiles(problem)
    found: dict[str, int | float] = {
        "a": a.pointer,
        "b": b.pointer,
        "d": d.pointer,
        "c": c.pointer if c else 0,
        "bias": bias.pointer if bias else 0,
        "scatter": scatter.pointer if scatter else 0,
        "partials": partials.pointer if partials else 0,
        "arrivals": arrivals.pointer if arrivals else 0,
        "a_stride_batch": a.strides[0],
        "b_stride_batch": b.strides[0],
        "c_stride_batch": c.strides[0] if c else 0,
        "d_stride_batch": d.strides[0],
        "c_stride_row": c.strides[1] if c else 0,
        "d_stride_row": d.strides[1],
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "rows": d.shape[1],
        "tiles_m": down,
        "tiles_n": right,
        "splits": config.splits,
        "split_tiles": config.split_tiles(problem),
        "tiles": down * right,
        "group": config.raster * right,
        "last_rows": down % config.raster or config.raster,
        "alpha": alpha,
        "beta": beta,
    }
    divisors: dict[str, Any] = {name: found[name] for name in _DIVISORS}
    found.update(magic_fields(**divisors))
    for name, operand, view, columns in (
        ("a", mma.a, a, config.a_columns),
        ("b", mma.b, b, config.b_columns),
    ):
        # Rows as they are stored: rows of a [m, k] and b [k, n], or their columns.
        stride = view.strides[2 if columns else 1]
        along_k = stride * config.block_k if operand.transposed else 2 * config.block_k
        found[f"{name}_stride"] = stride
        found[f"{name}_step_pass"] = stride * operand.pass_rows
        found[f"{name}_step_tile"] = along_k
    return found


@dataclass(frozen=True)
class Shape:
    """A candidate tiling, with the rate of multiply-adds that it reaches when it fills the device,
    relative to the best one.
    """

    block_m: int
    block_n: int
    block_k: int
    warp_m: int
    warp_n: int
    stages: int
    speed: float
    min_blocks: int = 1
    instruction: str = "m16n8k16"

    def config(self, problem: Problem) -> Config:
        """The instance with this tiling that serves `problem`: without predicates where all tiles
        are whole, without copies in the main loop where the stages hold all of k.
        """
        tiling: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        del tiling["speed"]
        held = self.stages * self.block_k
        extents = ((problem.m, self.block_m), (problem.n, self.block_n), (problem.k, self.block_k))
        whole = not problem.far and not any(extent % tile for extent, tile in extents)
        chosen = Config(
            **tiling,
            clear="none" if whole else "zfill",
            max_k=held if problem.k <= held else 0,
        )
        return adapt(chosen, problem)
