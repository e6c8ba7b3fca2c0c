"""The common part of the forward kernels: the problem, the parameter block, the choice of a
tiling.
"""

from dataclasses import dataclass, replace
from math import ceil, e, frexp, log2
from typing import Protocol, TypeVar

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.toolchain.division import magic_fields

BIAS_BYTES = {"none": 0, "bounds": 0, "bool": 1, "f16": 2, "bf16": 2, "f32": 4}


@dataclass(frozen=True)
class Problem:
    """One call: B batches, N rows, H heads, Lq queries, Lk keys, head dim D, and the types of the
    operands.
    """

    batch: int
    rows: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    dtype: str
    """Type of q, k, v and out: "f16" or "bf16"."""
    mask: str = "none"
    """Type of mask_bias: "none", "f16", "bf16", "f32" or "bool"."""
    pair: str = "none"
    """Type of pair_bias: "none", "f16", "bf16" or "f32"."""
    pair_alignment: int = 16
    """Bytes that the rows of pair_bias are aligned to: 16, 8, 4 or 2; 0 where no kernel reads them
    as they are.
    """
    pair_padded: bool = False
    """Whether a row of pair_bias has memory of its own up to a multiple of 16 bytes."""
    pair_mapped: bool = True
    """Whether the host makes a tensor map of pair_bias, if there is one, which can describe it."""
    mapped: bool = True
    """Whether tensor maps can describe q, k and v."""
    scaled: bool = True
    """Whether the scale is not so small that it is taken as 0 (`NEGLIGIBLE_SCALE`)."""
    power_of_two: bool = False
    """Whether the scale is one that operands are multiplied by without rounding
    (`is_power_of_two`).
    """

    def with_scale(self, scale: float) -> "Problem":
        """The same with what `scale` says of itself."""
        scaled = abs(scale) >= NEGLIGIBLE_SCALE
        return replace(self, scaled=scaled, power_of_two=is_power_of_two(scale))

    @property
    def pair_keys(self) -> int:
        """Keys of a row of pair_bias that may be read."""
        if not self.pair_padded or self.pair == "none":
            return self.keys
        step = 16 // BIAS_BYTES[self.pair]
        return ceil(self.keys / step) * step

    @property
    def scores(self) -> int:
        """How many there are."""
        return self.batch * self.rows * self.heads * self.queries * self.keys


def is_power_of_two(scale: float) -> bool:
    """Whether `scale`, or its negative, is a power of two up to 1, and not so small that a product
    of it and an operand that counts is less than the least normal number of bfloat16.

    >>> is_power_of_two(0.125), is_power_of_two(32**-0.5)
    (True, False)
    """
    return LEAST_POWER <= abs(scale) <= 1.0 and abs(frexp(scale)[0]) == 0.5


class Tiling(Protocol):
    """A configuration as the functions here see it."""

    @property
    def dtype(self) -> str: ...
    @property
    def block_rows(self) -> int: ...
    @property
    def block_queries(self) -> int: ...
    @property
    def block_keys(self) -> int: ...
    @property
    def score_step(self) -> tuple[int, int]: ...
    @property
    def pass_rows(self) -> int: ...
    @property
    def pair_pass_rows(self) -> int: ...
    @property
    def min_blocks(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...
    def extents(self, rows: int, queries: int) -> tuple[int, int]: ...
    def grid(self, problem: Problem) -> tuple[int, int, int]: ...


T = TypeVar("T", bound=Tiling)


def extents(config: Tiling, rows: int, queries: int) -> tuple[int, int]:
    """Threadblocks along the rows N and along the queries."""
    return ceil(rows / config.block_rows), ceil(queries / config.block_queries)


def grid(config: Tiling, problem: Problem) -> tuple[int, int, int]:
    """Threadblocks of a launch, all in x: queries fastest, then heads, then groups of rows, then
    batches.
    """
    groups, tiles = config.extents(problem.rows, problem.queries)
    return (tiles * problem.heads * groups * problem.batch, 1, 1)


# -- The parameter block ---------------------------------------------------------------------------

NEGLIGIBLE_SCALE = 2.0**-64
"""Magnitude below which a scale is taken as 0."""
LEAST_POWER = 2.0**-16
"""Of two, that operands are multiplied by."""
ONES = {"f16": 0x3C00, "bf16": 0x3F80}
"""Bits of 1 in a 16-bit type."""


def scale_fields(scale: float, dtype: str) -> dict[str, int | float]:
    """Fields of the scale, for the kernels of sm_80, which divide the biases by |scale| and give
    the sign to q. A scale below 2^-64 in magnitude is taken as 0: it would need biases that fp32
    does not have.
    """
    magnitude = abs(scale)
    sign = ONES[dtype] | (0x8000 if scale < 0 else 0)
    if magnitude < NEGLIGIBLE_SCALE:
        magnitude, sign = 1.0, 0
    return {
        "score_scale": magnitude * log2(e),
        "bias_scale": 1.0 / magnitude,
        "q_multiplier": sign << 16 | sign,
    }


def parameters(
    config: Tiling,
    *,
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    out: ArrayView,
    scale: float,
    mask_bias: ArrayView | None = None,
    pair_bias: ArrayView | None = None,
    lse: ArrayView | None = None,
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name; shapes as in ``cuevo.h``."""
    groups, tiles = config.extents(*q.shape[1:3])
    values: dict[str, int | float] = {
        "q": q.pointer,
        "k": k.pointer,
        "v": v.pointer,
        "pair_bias": pair_bias.pointer if pair_bias else 0,
        "pair_stride_batch": pair_bias.strides[0] if pair_bias else 0,
        "pair_stride_head": pair_bias.strides[2] if pair_bias else 0,
        "pair_stride_query": pair_bias.strides[3] if pair_bias else 0,
        "k_step_pass": k.strides[2] * config.pass_rows,
        "k_step_tile": k.strides[2] * config.block_keys,
        "v_step_pass": v.strides[2] * config.pass_rows,
        "v_step_tile": v.strides[2] * config.block_keys,
        "row_groups": groups,
        "query_tiles": tiles,
        **magic_fields(heads=q.shape[3], query_tiles=tiles, row_groups=groups),
        **common_fields(k.shape[2], out=out, mask_bias=mask_bias, lse=lse),
        **scale_fields(scale, config.dtype),
    }
    values["pair_step_pass"] = values["pair_stride_query"] * config.pair_pass_rows
    values["mask_step_tile"] = values["mask_stride_key"] * config.block_keys
    for name, array, axis in (("q", q, "query"), ("k", k, "key"), ("v", v, "key")):
        for index, label in enumerate(("batch", "row", axis, "head")):
            values[f"{name}_stride_{label}"] = array.strides[index]
    return values


def common_fields(
    keys: int,
    *,
    out: ArrayView,
    mask_bias: ArrayView | None,
    lse: ArrayView | None,
) -> dict[str, int | float]:
    """What every forward kernel is told of the mask and the results."""
    _, rows, queries, heads, _ = out.shape
    found: dict[str, int | float] = {
        "mask_bias": mask_bias.pointer if mask_bias else 0,
        "out": out.pointer,
        "lse": lse.pointer if lse else 0,
        "mask_stride_batch": mask_bias.strides[0] if mask_bias else 0,
        "mask_stride_row": mask_bias.strides[1] if mask_bias else 0,
        "mask_stride_key": mask_bias.strides[4] if mask_bias else 0,
        "rows": rows,
        "heads": heads,
        "queries": queries,
        "keys": keys,
    }
    for index, label in enumerate(("batch", "row", "query", "head")):
        found[f"out_stride_{label}"] = out.strides[index]
    return found


# -- The choice ------------------------------------------------------------------------------------


def cost(config: Tiling, speed: float, problem: Problem, arch: Architecture) -> float:
    """Estimated time, arbitrary units: the scores of a multiprocessor's blocks, padded to whole
    rows of a block and steps (`score_step`), over their rate.

    A multiprocessor with fewer blocks than it could hold runs at a lower rate, by the root of their
    share: in a last wave, and in all of them where shared memory is too small for `min_blocks`. A
    last wave takes as long as a block that lacks nothing.
    """
    query_step, key_step = config.score_step
    keys = ceil(problem.keys / key_step) * key_step
    whole = config.block_rows * config.block_queries * keys
    groups = ceil(problem.rows / config.block_rows)
    rows = problem.batch * groups * config.block_rows * problem.heads
    blocks = config.grid(problem)[0]
    mean = rows * ceil(problem.queries / query_step) * query_step * keys / blocks
    fitting = arch.fitting_in_shared(config.shared_bytes)
    resident = max(1, min(config.min_blocks, fitting))
    waves, rest = divmod(blocks, arch.multiprocessors * resident)
    last: float = (ceil(rest / arch.multiprocessors) * resident) ** 0.5
    share: float = (resident / config.min_blocks) ** 0.5
    return (waves * resident * mean + last * whole) / (speed * share)
