"""Host half of ``ptx/evoformer_forward_sm80.ptx``: what may be configured, what is chosen, how it
is launched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import ceil, e, log2, sqrt

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView

NAME = "evoformer_forward_sm80"
SUMMARY = "Evoformer attention, forward: cp.async stages, ldmatrix, mma.sync.m16n8k16"
MINIMUM_ARCH = 80

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
    """Bytes that the rows of pair_bias are aligned to: 16, 8, 4 or 2."""


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    head_dim: int
    dtype: str = "bf16"
    block_rows: int = 1
    """Rows N of a threadblock: they share the pair-bias tile."""
    block_queries: int = 128
    """Queries of a threadblock."""
    block_keys: int = 64
    """Keys of a pipeline stage."""
    chunk_keys: int = 32
    """Keys of one softmax step."""
    m_tiles: int = 2
    """16-query tiles of a warp."""
    stages: int = 3
    """Shared-memory stages of K, V and the biases."""
    mask: str = "bf16"
    """As in Problem, or "bounds": no mask, but keys may end within a tile."""
    pair: str = "bf16"
    pair_copy_bytes: int = 16
    """Bytes of one copy of pair_bias: 16, 8 and 4 asynchronously, 2 through a register."""
    q_in_registers: bool = True
    """Keep the fragments of Q in registers, or read them from shared memory for each softmax
    step.
    """
    min_blocks: int = 1
    """Threadblocks that share a multiprocessor; the register allocator makes room for them."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not field.type:
                kind = getattr(field.type, "__name__", field.type)
                raise TypeError(f"{field.name}: expected {kind}; got {value!r}")

    @property
    def chunks(self) -> int:
        """16-byte chunks in a row of Q, K or V."""
        return self.head_dim // 8

    @property
    def row_threads(self) -> int:
        """Threads that work on one row N."""
        return 32 * (self.block_queries // (16 * self.m_tiles))

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block_rows * self.row_threads

    @property
    def pass_rows(self) -> int:
        """Rows of K or V that the threads of one row N copy at a time: a multiple of 8, which
        keeps a thread's swizzle.
        """
        return self.row_threads // self.chunks // 8 * 8

    @property
    def pair_pass_rows(self) -> int:
        """Queries of the pair tile that the block copies at a time, likewise; 1 where copies are
        narrower than 16 bytes.
        """
        if self.pair == "none" or self.pair_copy_bytes < 16:
            return 1
        return self.threads // (self.block_keys * BIAS_BYTES[self.pair] // 16) // 8 * 8

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: Q + stages * (K + V + pair bias + mask)."""
        q = self.block_rows * self.block_queries * self.head_dim * 2
        kv = self.block_rows * self.block_keys * self.head_dim * 2 * 2
        pair = self.block_queries * self.block_keys * BIAS_BYTES[self.pair]
        mask = 0 if self.mask == "none" else self.block_rows * self.block_keys * 4
        return q + self.stages * (kv + pair + mask)

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: queries fastest, then heads, then groups of rows,
        then batches.
        """
        tiles = ceil(problem.queries / self.block_queries)
        groups = ceil(problem.rows / self.block_rows)
        return (tiles * problem.heads * groups * problem.batch, 1, 1)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    names = [field.name for field in fields(config)]
    return {name: getattr(config, name) for name in [*names, "pass_rows", "pair_pass_rows"]}


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Why `config` cannot run on `arch` (and serve `problem`); empty if it can. The only statement
    of the constraints.
    """
    return tuple(_violations(config, arch, problem))


def _violations(c: Config, arch: Architecture, problem: Problem | None) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"cp.async and mma.m16n8k16 need sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.head_dim % 8 or not 8 <= c.head_dim <= 128:
        yield f"head_dim must be a multiple of 8 from 8 to 128, not {c.head_dim}"
        return
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.mask not in BIAS_BYTES:
        yield f"mask must be one of {', '.join(BIAS_BYTES)}, not {c.mask!r}"
    if c.pair not in ("none", "f16", "bf16", "f32"):
        yield f"pair must be none, f16, bf16 or f32, not {c.pair!r}"
        return
    if (
        c.m_tiles not in (1, 2)
        or c.block_queries < 16 * c.m_tiles
        or c.block_queries % (16 * c.m_tiles)
    ):
        yield (
            "a warp owns 16 or 32 queries (m_tiles 1 or 2), and block_queries = "
            f"{c.block_queries} is not a multiple of that"
        )
        return
    if not 1 <= c.block_rows <= 32 or not 32 <= c.threads <= 1024:
        yield (
            f"{c.block_rows} rows of {c.row_threads} threads: a threadblock has 32 to 1024 threads"
        )
        return
    if c.block_keys not in (32, 64, 128, 256):
        yield (
            "block_keys must be 32, 64, 128 or 256 (the pair tile is addressed by shifts), "
            f"not {c.block_keys}"
        )
        return
    if c.chunk_keys < 32 or c.chunk_keys % 32 or c.block_keys % c.chunk_keys:
        yield f"chunk_keys must be a multiple of 32 that divides block_keys, not {c.chunk_keys}"
    if not 2 <= c.stages <= 6:
        yield f"stages must be 2 to 6, not {c.stages}"
    if c.row_threads < 8 * c.chunks:
        yield (
            f"{c.row_threads} threads copy fewer than the 8 rows of {c.chunks} chunks that "
            "keep a thread's swizzle constant"
        )
    if c.pair != "none":
        size = BIAS_BYTES[c.pair]
        if c.pair_copy_bytes not in (2, 4, 8, 16) or c.pair_copy_bytes < size:
            yield (
                "pair_copy_bytes must be 16, 8, 4 or 2, and at least one element; got "
                f"{c.pair_copy_bytes}"
            )
        if c.pair_copy_bytes == 16 and c.threads < 8 * (c.block_keys * size // 16):
            yield (
                f"{c.threads} threads copy fewer than the 8 rows of pair bias that keep a "
                "thread's swizzle constant"
            )
    if c.m_tiles * c.head_dim > 128 and c.m_tiles > 1:
        yield "above head_dim 64, the output of 32 queries does not fit into a warp's registers"
    if c.min_blocks < 1 or c.min_blocks * c.threads > arch.threads_per_multiprocessor:
        yield f"{c.min_blocks} blocks of {c.threads} threads do not fit on a multiprocessor"
    if c.shared_bytes > arch.shared_per_block:
        yield (
            f"needs {c.shared_bytes} bytes of shared memory; a block of {arch.name} has "
            f"{arch.shared_per_block}"
        )
    if problem is None:
        return
    if (c.head_dim, c.dtype, c.pair) != (problem.head_dim, problem.dtype, problem.pair):
        yield "is an instance for another head_dim, dtype or type of pair_bias"
    if c.mask != problem.mask and (c.mask, problem.mask) != ("bounds", "none"):
        yield f"is an instance for mask {c.mask}, not {problem.mask}"
    if c.mask == "none" and problem.keys % c.block_keys:
        yield f'{problem.keys} keys end within a tile of {c.block_keys}; mask must be "bounds"'
    if c.pair != "none" and c.pair_copy_bytes > problem.pair_alignment:
        yield (
            f"copies pair_bias by {c.pair_copy_bytes} bytes; its rows are aligned to "
            f"{problem.pair_alignment}"
        )


_NEGLIGIBLE_SCALE = 2.0**-64
_ONES = {"f16": 0x3C00, "bf16": 0x3F80}


def parameters(
    config: Config,
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
    """The parameter block of a launch, by field name; shapes as in ``cuevo.h``.

    The kernel divides the biases by |scale| and gives the sign to q. A scale below 2^-64 in
    magnitude is taken as 0: it would need biases that fp32 does not have.
    """
    _, rows, queries, heads, _ = q.shape
    magnitude = abs(scale)
    sign = _ONES[config.dtype] | (0x8000 if scale < 0 else 0)
    if magnitude < _NEGLIGIBLE_SCALE:
        magnitude, sign = 1.0, 0
    values: dict[str, int | float] = {
        "q": q.pointer,
        "k": k.pointer,
        "v": v.pointer,
        "mask_bias": mask_bias.pointer if mask_bias else 0,
        "pair_bias": pair_bias.pointer if pair_bias else 0,
        "out": out.pointer,
        "lse": lse.pointer if lse else 0,
        "mask_stride_batch": mask_bias.strides[0] if mask_bias else 0,
        "mask_stride_row": mask_bias.strides[1] if mask_bias else 0,
        "mask_stride_key": mask_bias.strides[4] if mask_bias else 0,
        "pair_stride_batch": pair_bias.strides[0] if pair_bias else 0,
        "pair_stride_head": pair_bias.strides[2] if pair_bias else 0,
        "pair_stride_query": pair_bias.strides[3] if pair_bias else 0,
        "k_step_pass": k.strides[2] * config.pass_rows,
        "k_step_tile": k.strides[2] * config.block_keys,
        "v_step_pass": v.strides[2] * config.pass_rows,
        "v_step_tile": v.strides[2] * config.block_keys,
        "rows": rows,
        "heads": heads,
        "queries": queries,
        "keys": k.shape[2],
        "query_tiles": ceil(queries / config.block_queries),
        "row_groups": ceil(rows / config.block_rows),
        "score_scale": magnitude * log2(e),
        "bias_scale": 1.0 / magnitude,
        "q_multiplier": sign << 16 | sign,
    }
    values["pair_step_pass"] = values["pair_stride_query"] * config.pair_pass_rows
    values["mask_step_tile"] = values["mask_stride_key"] * config.block_keys
    for name, array, axis in (
        ("q", q, "query"),
        ("k", k, "key"),
        ("v", v, "key"),
        ("out", out, "query"),
    ):
        for index, label in enumerate(("batch", "row", axis, "head")):
            values[f"{name}_stride_{label}"] = array.strides[index]
    return values


@dataclass(frozen=True)
class Shape:
    """A candidate tiling, with the relative rate of scores that it reaches when it fills the
    device.
    """

    block_rows: int
    block_queries: int
    block_keys: int
    stages: int
    min_blocks: int
    q_in_registers: bool
    speed: float
    m_tiles: int = 2
    chunk_keys: int = 32
    excludes: frozenset[str] = frozenset()
    """Traits of problems for which the registers do not suffice; see `traits`."""

    def config(self, problem: Problem) -> Config:
        """The instance with this tiling that serves `problem`."""
        tiling = {field.name: getattr(self, field.name) for field in fields(self)}
        del tiling["speed"], tiling["excludes"]
        return adapt(Config(head_dim=problem.head_dim, **tiling), problem)


def traits(problem: Problem) -> frozenset[str]:
    """What of a problem costs a kernel registers: "no pair" (it makes room for more than there is,
    on sm_80), "f32 pair", "2-byte pair copies".
    """
    found = set()
    if problem.pair == "none":
        found.add("no pair")
    if problem.pair == "f32":
        found.add("f32 pair")
    if problem.pair != "none" and problem.pair_alignment == 2:
        found.add("2-byte pair copies")
    return frozenset(found)


#: Tilings by the largest head_dim that they are for, measured on an H200 (docs/measurements). Four
#: threadblocks of four warps, 128 registers a thread, beat fewer and larger ones as long as the
#: output leaves room for the scores.
SHAPES: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (
        8,
        (
            Shape(2, 64, 64, 3, 3, True, 1.00),
            Shape(2, 64, 32, 3, 4, False, 1.00),
            Shape(1, 64, 32, 3, 8, False, 0.94),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        16,
        (
            Shape(
                2, 64, 64, 3, 4, True, 1.00, excludes=frozenset({"2-byte pair copies", "no pair"})
            ),
            Shape(2, 64, 32, 3, 4, False, 0.92),
            Shape(1, 64, 32, 3, 8, False, 0.86),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        24,
        (
            Shape(1, 128, 64, 2, 4, False, 1.00, excludes=frozenset({"f32 pair"})),
            Shape(2, 64, 32, 3, 4, False, 0.95),
            Shape(1, 64, 32, 3, 7, False, 0.90),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        32,
        (
            Shape(2, 64, 32, 3, 4, False, 1.00),
            Shape(3, 64, 64, 3, 2, True, 0.96),
            Shape(1, 64, 32, 3, 7, False, 0.95),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        56,
        (
            Shape(1, 128, 64, 2, 3, False, 1.00),
            Shape(2, 64, 64, 3, 2, True, 0.90),
            Shape(1, 64, 64, 2, 3, True, 0.80),
            Shape(1, 64, 32, 2, 4, True, 0.70),
        ),
    ),
    (
        64,
        (
            Shape(1, 128, 64, 3, 2, True, 1.00),
            Shape(2, 64, 64, 2, 2, True, 0.91),
            Shape(1, 64, 64, 3, 2, True, 0.70),
            Shape(1, 64, 32, 2, 2, True, 0.60),
        ),
    ),
    (
        128,
        (
            Shape(1, 64, 64, 2, 2, True, 1.00, m_tiles=1),
            Shape(1, 128, 64, 2, 1, True, 0.90, m_tiles=1),
            Shape(1, 64, 32, 2, 2, True, 0.85, m_tiles=1),
        ),
    ),
)


def shapes(head_dim: int) -> tuple[Shape, ...]:
    """The candidate tilings for `head_dim`."""
    return next(found for largest, found in SHAPES if head_dim <= largest)


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    present = traits(problem)
    for shape in shapes(problem.head_dim):
        if not shape.excludes & present:
            yield shape.config(problem), shape.speed


def cost(config: Config, speed: float, problem: Problem, arch: Architecture) -> float:
    """Estimated time, arbitrary units: the padded scores of a multiprocessor's blocks over their
    rate.

    A last wave that leaves a multiprocessor with fewer blocks than it can hold runs at a lower
    rate: by the root of their share.
    """
    scores = (
        config.block_rows
        * config.block_queries
        * ceil(problem.keys / config.block_keys)
        * config.block_keys
    )
    fitting = arch.shared_per_multiprocessor // (config.shared_bytes + 1024)
    resident = max(1, min(config.min_blocks, fitting))
    waves, rest = divmod(config.grid(problem)[0], arch.multiprocessors * resident)
    blocks = waves * resident + sqrt(ceil(rest / arch.multiprocessors) * resident)
    return blocks * scores / speed


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost.

    Raises ValueError naming every candidate's objection if there is none.
    """
    rejected: dict[Config, tuple[str, ...]] = {}
    best: tuple[float, Config] | None = None
    for config, speed in candidates(problem):
        reasons = violations(config, arch, problem)
        if reasons:
            rejected[config] = reasons
            continue
        estimate = cost(config, speed, problem, arch)
        if best is None or estimate < best[0]:
            best = estimate, config
    if best is None:
        lines = [f"  {config}: {'; '.join(reasons)}" for config, reasons in rejected.items()]
        raise ValueError(
            "\n".join([f"{NAME} has no configuration for {problem} on {arch.name}:", *lines])
        )
    return best[1]


def roomier(config: Config) -> Iterator[Config]:
    """`config`, then such with ever more registers for a thread: fewer threadblocks to a
    multiprocessor, at last fewer queries to a warp.
    """
    for blocks in range(config.min_blocks, 0, -1):
        yield replace(config, min_blocks=blocks)
    if config.m_tiles > 1:
        yield replace(config, m_tiles=1, min_blocks=1)


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem (head_dim, types, bounds, alignment)
    set to fit it.
    """
    mask = problem.mask
    if mask == "none" and problem.keys % config.block_keys:
        mask = "bounds"
    return replace(
        config,
        head_dim=problem.head_dim,
        dtype=problem.dtype,
        mask=mask,
        pair=problem.pair,
        pair_copy_bytes=min(config.pair_copy_bytes, problem.pair_alignment)
        if problem.pair != "none"
        else 16,
    )
