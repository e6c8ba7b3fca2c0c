"""Choice of a tiling by a GEMM kernel variant: candidates and their estimated cost."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from cuevo.architectures import Architecture
from cuevo.kernels.gemm_mma import Config, Problem, Shape

SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
"""How often k may be split."""

# As steps along k that take as long on an H200: starting a threadblock and storing its tile, the
# same beside another one on its multiprocessor, exchanging partial sums, adding those of a split.
_LAUNCH, _LAUNCH_BESIDE, _SPLIT, _EACH_SPLIT = 300, 210, 330, 46
_ARRIVALS = 6_000_000
"""Multiply-adds in the time that the arrivals of splits take, however small the tiles: 3 us."""


def candidates(shapes: Sequence[Shape], problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    for shape in shapes:
        k_tiles = ceil(problem.k / shape.block_k)
        whole = shape.config(problem)
        yield whole, shape.speed
        for splits in SPLITS:
            if ceil(k_tiles / splits) * (splits - 1) < k_tiles:
                yield replace(whole, splits=splits), shape.speed


def cost(config: Config, speed: float, problem: Problem, arch: Architecture) -> float:
    """Estimated time in multiply-adds of one multiprocessor at full speed; `speed` as in Shape."""
    fitting = arch.fitting_in_shared(config.shared_bytes)
    resident = max(1, min(config.min_blocks, fitting))
    blocks = config.grid(problem)[0]
    waves, rest = divmod(blocks, arch.multiprocessors * resident)
    full = waves * resident + ceil(rest / arch.multiprocessors)
    tile = config.block_m * config.block_n
    loop = config.split_tiles(problem) * config.block_k * tile
    overhead = tile * (_LAUNCH if full == 1 or resident == 1 else _LAUNCH_BESIDE)
    if config.split:
        overhead += tile * (_SPLIT + _EACH_SPLIT * config.splits)
    return full * (loop / speed + overhead) + config.split * _ARRIVALS


def violations_of_pipelined(config: Config) -> Iterator[str]:
    """Why the variants below sm_80 cannot be configured so."""
    for name, dtype in (("a and b", config.dtype), ("d", config.out_dtype)):
        if dtype == "bf16":
            yield f"{name} in bf16 needs sm_80, whose tensor cores and conversions know the type"
    if config.stages != 2:
        yield f"stages must be 2, filled through registers; got {config.stages}"
    if config.clear == "last_stage":
        yield "clear = last_stage is for asynchronous copies; zeros cost nothing in registers"
