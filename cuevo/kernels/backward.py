"""The common part of the backward kernels: the sides of the scores, the fields of every
configuration, the parameter block, the estimate of time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.kernels import choice, forward
from cuevo.toolchain.division import magic_fields

__all__ = [
    "FOLLOWS",
    "Problem",
    "SideConfig",
    "Tiles",
    "Tiling",
    "cost",
    "most_chunks",
    "needs_mask",
    "operands_shape",
    "padded",
    "parameters",
    "problem_violations",
    "stats_shape",
    "terms_shape",
    "value_violations",
]

FOLLOWS = ("head_dim", "dtype", "side", "pair", "first", "second", "sums")
"""Fields of a configuration that are those of the problem."""


def padded(extent: int, step: int) -> int:
    """Queries or keys of an array that only kernels see: whole tiles of `step`."""
    return ceil(extent / step) * step


def stats_shape(positions: int) -> tuple[int, int]:
    """The statistics of one head: blocks of 16 queries, three fp32 a query (see ``cuevo.h``)."""
    return (positions // 16, 48)


def operands_shape(positions: int) -> tuple[int, int]:
    """The same for products that add them: blocks of 8 queries, 32 bytes of bf16 a query."""
    return (positions // 8, 128)


def terms_shape(positions: int) -> tuple[int, int]:
    """The terms of a mask for products that add them: blocks of 8 keys, 16 bytes of bf16 a key."""
    return (positions // 8, 64)


@dataclass(frozen=True)
class Problem(forward.Problem):
    """One side of a backward pass, and the gradients wanted of it."""

    side: str = "keys"
    """ "keys" or "queries"."""
    first: bool = True
    """The gradient of k, or of q."""
    second: bool = False
    """The gradient of v; keys only."""
    sums: bool = False
    """The gradient of the mask, or of the pair bias."""

    @property
    def stationary(self) -> int:
        """Positions of the stationary side, of which each threadblock keeps its own."""
        return self.keys if self.side == "keys" else self.queries

    @property
    def streamed(self) -> int:
        """Positions of the streamed side, all of which pass through every threadblock."""
        return self.queries if self.side == "keys" else self.keys


class Tiles(choice.Threadblocks, Protocol):
    """A configuration as the launch geometry and the estimates see it."""

    @property
    def side(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def by_keys(self) -> bool: ...
    @property
    def block_rows(self) -> int: ...
    @property
    def block_stationary(self) -> int: ...
    @property
    def block_streamed(self) -> int: ...
    @property
    def score_step(self) -> tuple[int, int]: ...
    def groups(self, problem: Problem, arch: Architecture) -> int: ...
    def extents(self, problem: Problem, groups: int) -> tuple[int, int]: ...
    def grid(self, problem: Problem, groups: int) -> tuple[int, int, int]: ...
    def row_groups(self, problem: Problem) -> int: ...
    def chunks_of(self, problem: Problem, groups: int) -> int: ...
    def resident(self, arch: Architecture) -> int: ...


class Tiling(Tiles, Protocol):
    """One whose threads copy rows, as the parameter block sees it."""

    @property
    def pass_rows(self) -> int: ...
    @property
    def pair_pass_rows(self) -> int: ...


@dataclass(frozen=True)
class SideConfig:
    """Fields of every instance, whatever its tiling."""

    head_dim: int
    dtype: str = "bf16"
    """Type of q, k, v, dout and their gradients."""
    side: str = "keys"
    """The stationary side: "keys" or "queries"."""
    mask: bool = False
    """Whether keys have a bias: a mask, or bounds within a streamed tile of keys."""
    pair: str = "none"
    """Type of pair_bias: none, f16, bf16 or f32."""
    first: bool = True
    """The gradient of k, or of q, is wanted."""
    second: bool = False
    """The gradient of v is wanted; keys only."""
    sums: bool = False
    """The sums of dS over queries (keys), or over rows N (queries), are wanted."""
    min_blocks: int = 1
    """Threadblocks that share a multiprocessor; the register allocator makes room for them."""

    def __post_init__(self) -> None:
        choice.check_types(self)

    @property
    def by_keys(self) -> bool:
        """Whether keys are stationary."""
        return self.side == "keys"

    @property
    def stationary(self) -> tuple[str, str]:
        """The stationary operands: of the scores, of dP."""
        return ("k", "v") if self.by_keys else ("q", "dout")

    @property
    def streamed(self) -> tuple[str, str]:
        """The streamed operands, likewise."""
        return ("q", "dout") if self.by_keys else ("k", "v")

    @property
    def sums_rows(self) -> bool:
        """Whether dS is summed over rows N."""
        return self.sums and not self.by_keys

    @property
    def registers(self: Tiles) -> int:
        """Registers that the assembler may give a thread."""
        return choice.registers(self)

    def row_groups(self: Tiles, problem: Problem) -> int:
        """Groups of `block_rows` rows N."""
        return ceil(problem.rows / self.block_rows)

    def chunks_of(self: Tiles, problem: Problem, groups: int) -> int:
        """Chunks of `groups` groups, each with sums of its own."""
        return ceil(self.row_groups(problem) / groups)

    def extents(self: Tiles, problem: Problem, groups: int) -> tuple[int, int]:
        """Threadblocks along the stationary positions and along the chunks of rows N."""
        tiles = ceil(problem.stationary / self.block_stationary)
        return tiles, self.chunks_of(problem, groups)

    def resident(self: Tiles, arch: Architecture) -> int:
        """Threadblocks on a multiprocessor at a time."""
        fitting = arch.fitting_in_shared(self.shared_bytes)
        return max(1, min(self.min_blocks, fitting))


def most_chunks(problem: Problem) -> int:
    """Chunks whose sums together are at most as large as q, or twice that where their memory is
    padded to whole tiles; at least 2.
    """
    sums = 4 * problem.heads * problem.queries * problem.keys
    memory = 4 * problem.heads * padded(problem.queries, 128) * padded(problem.keys, 128)
    q = 2 * problem.rows * problem.queries * problem.heads * problem.head_dim
    return max(2, min(q // sums, 2 * q // memory))


# -- The constraints that all variants have --------------------------------------------------------


def value_violations(c: SideConfig) -> Iterator[str]:
    """Reasons why there is nothing to compute with `c`."""
    if c.head_dim % 8 or not 8 <= c.head_dim <= 128:
        yield f"head_dim must be a multiple of 8 from 8 to 128, not {c.head_dim}"
    if c.side not in ("keys", "queries"):
        yield f"side must be keys or queries, not {c.side!r}"
    elif not (c.first or c.second or c.sums) or (c.second and not c.by_keys):
        yield "a side gives first or sums, the keys second too, and at least one of them"


def problem_violations(c: SideConfig, block_streamed: int, problem: Problem) -> Iterator[str]:
    """Reasons why `c` does not serve `problem`."""
    for name in FOLLOWS:
        if getattr(c, name) != getattr(problem, name):
            yield f"is an instance for another {name}: {getattr(c, name)}"
    if needs_mask(c, block_streamed, problem) and not c.mask:
        yield "needs mask: there is one, or keys end within a streamed tile"


def needs_mask(c: SideConfig, block_streamed: int, problem: Problem) -> bool:
    """Whether keys need a bias: there is a mask, or the last streamed tile has keys that do
    not exist.
    """
    return problem.mask != "none" or (not c.by_keys and problem.keys % block_streamed != 0)


# -- The parameter block ---------------------------------------------------------------------------


def parameters(
    config: Tiling,
    problem: Problem,
    groups: int,
    *,
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    dout: ArrayView,
    scale: float,
    pair_bias: ArrayView | None = None,
    stats: ArrayView | None = None,
    key_bias: ArrayView | None = None,
    first_grad: ArrayView | None = None,
    second_grad: ArrayView | None = None,
    mask_sums: ArrayView | None = None,
    pair_sums: ArrayView | None = None,
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name; shapes as in ``cuevo.h``. Arrays that only
    kernels see are padded along queries and keys to whole tiles of every kernel that accesses them.
    """
    chunks = config.chunks_of(problem, groups)
    stationary_tiles, numbered_chunks = config.extents(problem, groups)
    by_key = (key_bias, mask_sums, pair_sums)

    def address(x: ArrayView | None) -> int:
        return 0 if x is None else x.pointer

    found: dict[str, int | float] = {
        "q": q.pointer,
        "k": k.pointer,
        "v": v.pointer,
        "dout": dout.pointer,
        "pair_bias": address(pair_bias),
        "stats": address(stats),
        "key_bias": address(key_bias),
        "first_grad": address(first_grad),
        "second_grad": address(second_grad),
        "mask_sums": address(mask_sums),
        "pair_sums": address(pair_sums),
        "pair_stride_batch": pair_bias.strides[0] if pair_bias else 0,
        "pair_stride_head": pair_bias.strides[2] if pair_bias else 0,
        "pair_stride_query": pair_bias.strides[3] if pair_bias else 0,
        "batches": problem.batch,
        "rows": problem.rows,
        "heads": problem.heads,
        "queries": problem.queries,
        "keys": problem.keys,
        "pair_keys": problem.pair_keys,
        "query_positions": 16 * stats.shape[3] if stats else 0,
        "key_positions": next((x.shape[-1] for x in by_key if x), 0),
        "stationary_tiles": stationary_tiles,
        "groups": config.row_groups(problem) // chunks,
        "longer_chunks": config.row_groups(problem) % chunks,
        "chunks": numbered_chunks,
        **magic_fields(
            heads=problem.heads, stationary_tiles=stationary_tiles, chunks=numbered_chunks
        ),
        "gradient_scale": scale,
        **forward.scale_fields(scale, config.dtype),
    }
    for name, array, axis in (
        ("q", q, "query"),
        ("k", k, "key"),
        ("v", v, "key"),
        ("dout", dout, "query"),
        ("first_grad", first_grad, "position"),
        ("second_grad", second_grad, "position"),
    ):
        for index, label in enumerate(("batch", "row", axis, "head")):
            found[f"{name}_stride_{label}"] = array.strides[index] if array else 0
    streamed = (q, dout) if config.by_keys else (k, v)
    for name, array in zip(("first", "second"), streamed, strict=True):
        found[f"{name}_step_pass"] = array.strides[2] * config.pass_rows
        found[f"{name}_step_tile"] = array.strides[2] * config.block_streamed
    found["pair_step_pass"] = found["pair_stride_query"] * config.pair_pass_rows
    found["pair_step_tile"] = found["pair_stride_query"] * config.block_streamed
    found["whole_tiles"] = problem.streamed // config.block_streamed
    return found


# -- The estimate of time --------------------------------------------------------------------------


def cost(config: Tiles, speed: float, problem: Problem, arch: Architecture) -> float:
    """Estimated time, arbitrary units: the scores of a multiprocessor's blocks over their rate,
    streamed positions padded to whole steps, as for the forward pass. A block whose last warps have
    no stationary positions takes as long as others: the rest of its time is that of the first.
    """
    groups = config.groups(problem, arch)
    _, streamed_step = config.score_step
    scores = groups * config.block_rows * padded(problem.streamed, streamed_step)
    resident = config.resident(arch)
    waves, rest = divmod(config.grid(problem, groups)[0], arch.multiprocessors * resident)
    last: float = (ceil(rest / arch.multiprocessors) * resident) ** 0.5
    return (waves * resident + last) * config.block_stationary * scores / speed
