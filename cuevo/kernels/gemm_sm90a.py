"""Host half of ``ptx/gemm_sm90a.ptx``: what may be configured, what is chosen, its tensor maps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, ClassVar

from cuevo.architectures import Architecture, architecture
from cuevo.arrays import ArrayView
from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import TensorMap
from cuevo.kernels import choice, gemm_choice, gemm_sm80
from cuevo.kernels.choice import cheapest
from cuevo.kernels.gemm_config import ProductConfig, output_violations, type_violations
from cuevo.kernels.gemm_mma import Problem, adapt_output, instance_violations, values
from cuevo.kernels.mapped_addresses import MappedAddresses
from cuevo.layouts import M16N8, Accumulator
from cuevo.toolchain.division import magic_fields

__all__ = [
    "MINIMUM_ARCH",
    "NAME",
    "SUMMARY",
    "Config",
    "Problem",
    "adapt",
    "addresses",
    "candidates",
    "choose",
    "parameters",
    "prefers_lower_variant",
    "spill_fallbacks",
    "unmapped_fields",
    "values",
    "violations",
]

NAME = "gemm_sm90a"
SUMMARY = "matrix product: TMA, mbarriers, wgmma, persistent threadblocks"
MINIMUM_ARCH = 90
ARCH = "sm_90a"
"""Its instructions are those of one architecture, not of later ones."""

_BARRIER_BYTES = 8
_SHARED_BYTES = architecture(ARCH).shared_per_block
_MOST_WORKS = 2**31


@dataclass(frozen=True)
class Config(ProductConfig):
    """One instance; block_m is a multiple of 64 for each warpgroup that multiplies."""

    block_n: int = 256
    stages: int = 4
    raster: int = 16
    blocks: int = 132
    """Threadblocks of a launch, at most: one for each multiprocessor of the device."""

    block_k: ClassVar[int] = 64
    """k of a stage: rows of 128 bytes, which is what swizzling spans."""
    consumers: ClassVar[int] = 2
    """Consumer warpgroups, which multiply."""
    min_blocks: ClassVar[int] = 1
    mma_k: ClassVar[int] = 16
    """k of one instruction."""
    splits: ClassVar[int] = 1
    BOX_BYTES: ClassVar[int] = 64 * 64 * 2
    """64 rows of 64 elements."""

    # -- What the template takes from here ---------------------------------------------------------

    @property
    def instruction(self) -> str:
        """The instruction of the product."""
        return f"m64n{self.block_n}k16"

    @property
    def accumulate(self) -> str:
        """Type of the accumulators."""
        return "f32"

    @property
    def accumulator(self) -> Accumulator:
        """Layout of a warp's accumulators: 16 rows of tiles side by side."""
        return M16N8

    @property
    def threads(self) -> int:
        """Threads of a block: the consumer warpgroups and the producer warp."""
        return 128 * self.consumers + 32

    @property
    def consumer_m(self) -> int:
        """Rows of a tile that a warpgroup multiplies."""
        return self.block_m // self.consumers

    @property
    def products(self) -> int:
        """wgmma of 64 rows that make those."""
        return self.consumer_m // 64

    @property
    def accumulators(self) -> int:
        """Registers of a lane."""
        return self.products * self.block_n // 2

    @property
    def a_bytes(self) -> int:
        """Shared memory of a in a stage."""
        return 2 * self.block_m * self.block_k

    @property
    def b_bytes(self) -> int:
        """Shared memory of b in a stage."""
        return 2 * self.block_n * self.block_k

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage."""
        return self.a_bytes + self.b_bytes

    @property
    def a_boxes(self) -> int:
        """Boxes of a in a stage: one, or one for each 64 rows where columns are contiguous."""
        return self.block_m // 64 if self.a_columns else 1

    @property
    def b_boxes(self) -> int:
        """Boxes of b in a stage: one, or one for each 64 columns where rows are contiguous."""
        return 1 if self.b_columns else self.block_n // 64

    @property
    def slab_columns(self) -> int:
        """Columns of d that a warp stages at a time. What is added to d takes registers, too."""
        adds = self.c != "none" or self.bias
        return 64 if adds or self.block_n % 128 else 128

    @property
    def slab_rows(self) -> int:
        """Rows of a slab: as many as there is shared memory for beside the stages."""
        return 16 if self.staged_bytes == 2 else 8

    @property
    def slabs(self) -> int:
        """Slabs of the 16 rows of a warp."""
        return 16 // self.slab_rows

    @property
    def staged_tiles(self) -> tuple[int, int]:
        """Accumulator tiles along m and n of which slabs are made."""
        return 1, self.slab_columns // 8

    @property
    def c_slabs(self) -> int:
        """Slabs of c that a warp has in registers at a time."""
        return 1

    @property
    def slabs_at(self) -> int:
        """Offset of the slabs in shared memory: behind the stages."""
        return self.stages * self.stage_bytes

    @property
    def barriers_at(self) -> int:
        """Offset of the barriers: behind the slabs."""
        return self.slabs_at + 4 * self.consumers * self.slab_bytes

    @property
    def barriers(self) -> int:
        """Two for each stage."""
        return 2 * self.stages

    # -- Launch ------------------------------------------------------------------------------------

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.barriers_at + self.barriers * _BARRIER_BYTES

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Tiles of d along m and n."""
        return ceil(problem.m / self.block_m), ceil(problem.n / self.block_n)

    def works(self, problem: Problem) -> int:
        """Tiles of all batches."""
        down, right = self.tiles(problem)
        return problem.batch * down * right

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Threadblocks of a launch, which share the tiles."""
        return (min(self.works(problem), self.blocks), 1, 1)

    def workspace(self, problem: Problem) -> tuple[int, int]:
        """None: k is not split."""
        return (0, 0)

    # -- Tensor maps -------------------------------------------------------------------------------

    def a_map(self, a: ArrayView) -> TensorMap:
        """The map of a [B, M, K]: (k, m, batch), or (m, k, batch) where columns are contiguous."""
        return _tensor_map(self.dtype, a, self.a_columns, self.a_box_rows)

    def b_map(self, b: ArrayView) -> TensorMap:
        """The map of b [B, K, N]: (n, k, batch), or (k, n, batch) where columns are contiguous."""
        return _tensor_map(self.dtype, b, self.b_columns, self.b_box_rows)

    @property
    def a_box_rows(self) -> int:
        """Rows of a box of a, as they are stored, of 64 elements each."""
        return 64 if self.a_columns else self.block_m

    @property
    def b_box_rows(self) -> int:
        """The same of b."""
        return self.block_n if self.b_columns else 64


def map_axes(x: ArrayView, columns: bool) -> tuple[tuple[int, int, int], tuple[int, int]]:
    """Extents and strides of the map of an operand [B, rows, columns]; `columns`: whether these are
    contiguous.
    """
    batch, rows, length = x.shape
    stride = x.strides[1]
    if columns:
        rows, length, stride = length, rows, x.strides[2]
    # What leads nowhere is any legal number.
    along = stride if rows > 1 else -(-length * 2 // 16) * 16
    batches = batch if x.strides[0] else 1
    apart = x.strides[0] if batches > 1 else along * rows
    return (length, rows, batches), (along, min(apart, 2**40 - 16))


def _tensor_map(dtype: str, x: ArrayView, columns: bool, box_rows: int) -> TensorMap:
    extents, strides = map_axes(x, columns)
    return TensorMap(
        dtype,
        x.pointer,
        extents,
        strides,
        (64, box_rows, 1),
        swizzle=128,
        l2_promotion=256,
    )


def violations(c: Config, arch: Architecture, problem: Problem | None = None) -> tuple[str, ...]:
    """Why `c` cannot run on `arch` (and serve `problem`); empty if it can."""
    if arch.name != ARCH:
        return (f"wgmma needs {ARCH}; this is {arch.name}",)
    return tuple(_violations(c, arch, problem))


def _violations(c: Config, arch: Architecture, problem: Problem | None) -> Iterator[str]:
    reasons = list(type_violations(c))
    yield from reasons
    if reasons:
        return
    if c.block_n not in (64, 128, 192, 256):
        yield f"block_n must be 64, 128, 192 or 256, not {c.block_n}"
        return
    if c.consumer_m < 64 or c.consumer_m % 64 or c.block_m > 256:
        yield (
            f"block_m is a multiple of 64 rows for each of {c.consumers} warpgroups, 256 at most; "
            f"got {c.block_m}"
        )
        return
    if c.accumulators > 128:
        yield (
            f"tiles of {c.consumer_m} x {c.block_n} take {c.accumulators} accumulators of a lane; "
            "128 are the most"
        )
    reasons = list(output_violations(c))
    yield from reasons
    if reasons:
        return
    if not 2 <= c.stages <= 16:
        yield f"stages must be 2 to 16, not {c.stages}"
    if c.raster < 1:
        yield f"raster must be positive, not {c.raster}"
    if c.blocks < 1:
        yield f"blocks must be positive, not {c.blocks}"
    yield from choice.resource_violations(c, arch)
    if problem is not None:
        yield from problem_violations(c, problem)


def problem_violations(c: Config, problem: Problem) -> Iterator[str]:
    """Why an instance that can run cannot serve `problem`."""
    yield from instance_violations(c, problem, ("c", "d"))
    for name in ("a", "b"):
        alignment = getattr(problem, f"{name}_alignment")
        if alignment < 16:
            yield f"a tensor map needs rows aligned to 16 bytes; those of {name} are to {alignment}"
    if not problem.mapped:
        yield "a tensor map steps forward from row to row and batch to batch, by less than 2^40"
    if problem.k < 1:
        yield "a tensor map has at least one element along k"
    if c.works(problem) >= _MOST_WORKS:
        yield f"{c.works(problem)} tiles are not fewer than 2^31"


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem set to fit it."""
    return adapt_output(config, problem)


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`, then such with fewer accumulators."""
    yield config
    for block_n, stages in ((192, 5), (128, 6)):
        if block_n < config.block_n:
            fewer = replace(config, block_n=block_n, stages=stages)
            yield with_fitting_stages(fewer)


def with_fitting_stages(config: Config) -> Config:
    """`config` with no more stages than there is shared memory for."""
    each = config.stage_bytes + 2 * _BARRIER_BYTES
    room = _SHARED_BYTES - (config.shared_bytes - config.stages * each)
    return replace(config, stages=max(2, min(config.stages, room // each)))


# -- Choice ----------------------------------------------------------------------------------------

TILINGS = (
    ((128, 256, 4), 1.56),
    ((128, 192, 5), 1.56),
    ((128, 128, 6), 1.5),
    ((128, 64, 8), 0.9),
)
"""block_m, block_n, stages; and the rate of multiply-adds as `gemm.Shape` counts it."""

# As steps along k that take as long: see gemm_choice.
_LAUNCH, _TILE = 90, 103


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    for (block_m, block_n, stages), speed in TILINGS:
        if block_n > 192 and (problem.c != "none" or problem.bias):
            continue  # What is added to d takes registers that so many accumulators leave none for.
        yield adapt(Config(block_m, block_n, stages), problem), speed


def cost(config: Config, speed: float, problem: Problem, arch: Architecture) -> float:
    """Estimated time in multiply-adds of one multiprocessor, as `gemm_choice.cost` counts them."""
    tile = config.block_m * config.block_n
    rounds = ceil(config.works(problem) / arch.multiprocessors)
    loop = ceil(problem.k / config.block_k) * config.block_k * tile
    return rounds * (loop / speed + tile * _TILE) + tile * _LAUNCH


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost; ValueError, with every objection, if there is none."""
    chosen = cheapest(NAME, candidates(problem), violations, cost, problem, arch)
    return replace(chosen, blocks=arch.multiprocessors)


def least_cost_of_lower(problem: Problem, arch: Architecture) -> float:
    """What ``gemm_sm80`` is estimated to take without a ragged end, a last wave or an epilogue."""
    fastest = max(shape.speed for shape in gemm_sm80.SHAPES)
    multiply_adds = 1.0 * problem.batch * problem.m * problem.n * problem.k
    return multiply_adds / arch.multiprocessors / fastest


def prefers_lower_variant(problem: Problem, arch: Architecture) -> bool:
    """Whether ``gemm_sm80`` is estimated to be faster: it splits k, and has smaller tiles."""
    own = min(
        (
            cost(config, speed, problem, arch)
            for config, speed in candidates(problem)
            if not violations(config, arch, problem)
        ),
        default=inf,
    )
    if own <= least_cost_of_lower(problem, arch):
        return False
    return any(
        gemm_choice.cost(config, speed, problem, arch) < own
        and not gemm_sm80.violations(config, arch, problem)
        for config, speed in gemm_sm80.candidates(problem)
    )


# -- Launch ----------------------------------------------------------------------------------------


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
) -> dict[str, int | float | bytes]:
    """The parameter block of a launch, by field name; tensor maps are those of the CPU executor.

    a [B, M, K], b [B, K, N]; c and d [B, rows, N]; any batch stride, zero too.
    """
    return {
        "a_map": config.a_map(a).encode_for_executor(),
        "b_map": config.b_map(b).encode_for_executor(),
        **unmapped_fields(
            config, problem, a=a, b=b, d=d, alpha=alpha, beta=beta, c=c, bias=bias, scatter=scatter
        ),
    }


def unmapped_fields(
    config: Config,
    problem: Problem,
    *,
    a: ArrayView,
    b: ArrayView,
    d: ArrayView,
    alpha: float,
    beta: float,
    c: ArrayView | None,
    bias: ArrayView | None,
    scatter: ArrayView | None,
) -> dict[str, int | float]:
    """`parameters` without the tensor maps."""
    down, right = config.tiles(problem)
    divisors: dict[str, Any] = {
        "tiles": down * right,
        "group": config.raster * right,
        "last_rows": down % config.raster or config.raster,
    }
    return {
        "c": c.pointer if c else 0,
        "bias": bias.pointer if bias else 0,
        "scatter": scatter.pointer if scatter else 0,
        "d": d.pointer,
        "c_stride_batch": c.strides[0] if c else 0,
        "d_stride_batch": d.strides[0],
        "c_stride_row": c.strides[1] if c else 0,
        "d_stride_row": d.strides[1],
        "m": problem.m,
        "n": problem.n,
        "k_tiles": ceil(problem.k / config.block_k),
        "rows": d.shape[1],
        "a_batched": a.strides[0] != 0,
        "b_batched": b.strides[0] != 0,
        "works": config.works(problem),
        "tiles_m": down,
        **divisors,
        **magic_fields(**divisors),
        "alpha": alpha,
        "beta": beta,
    }


def addresses(
    config: Config, a: ArrayView, b: ArrayView, *, context: PrimaryContext | None
) -> MappedAddresses:
    """Packer of a call's addresses for the front of the parameter block."""
    return MappedAddresses(NAME, (config.a_map(a), config.b_map(b)), context=context)
