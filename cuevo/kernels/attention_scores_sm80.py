"""Host half of ``ptx/attention_scores_sm80.ptx``: raw scores q . k^T, for inspection and exact
comparison.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView

NAME = "attention_scores_sm80"
SUMMARY = "raw fp32 scores q . k^T: the QK product of the attention kernels alone"
MINIMUM_ARCH = 80


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    head_dim: int
    dtype: str = "bf16"
    block_queries: int = 64
    """Queries of a threadblock."""
    block_keys: int = 64
    """Keys of a tile."""
    m_tiles: int = 1
    """16-query tiles of a warp."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.block_queries // (16 * self.m_tiles))

    @property
    def pass_rows(self) -> int:
        """Rows of Q or K that the block copies at a time: a multiple of 8."""
        return self.threads // (self.head_dim // 8) // 8 * 8

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: Q + K."""
        return (self.block_queries + self.block_keys) * self.head_dim * 2

    def grid(self, batch: int, queries: int) -> tuple[int, int, int]:
        """Threadblocks of a launch: query tiles fastest, then batches."""
        return (ceil(queries / self.block_queries) * batch, 1, 1)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {**asdict(config), "pass_rows": config.pass_rows}


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"cp.async and mma.m16n8k16 need sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.head_dim % 8 or not 8 <= c.head_dim <= 128:
        yield f"head_dim must be a multiple of 8 from 8 to 128, not {c.head_dim}"
        return
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.m_tiles not in (1, 2) or c.block_queries % (16 * c.m_tiles) or not 32 <= c.threads <= 1024:
        yield f"block_queries = {c.block_queries} is not 1 to 32 warps of {16 * c.m_tiles} queries"
        return
    if c.block_keys < 32 or c.block_keys % 32:
        yield f"block_keys must be a multiple of 32, not {c.block_keys}"
    if c.pass_rows < 8:
        yield f"{c.threads} threads copy fewer than 8 rows of {c.head_dim // 8} chunks at a time"
    if c.shared_bytes > arch.shared_per_block:
        yield (
            f"needs {c.shared_bytes} bytes of shared memory; {arch.name} has "
            f"{arch.shared_per_block}"
        )


def parameters(
    config: Config, *, q: ArrayView, k: ArrayView, scores: ArrayView
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name: q [B, Lq, D], k [B, Lk, D], scores [B, Lq,
    Lk].
    """
    return {
        "q": q.pointer,
        "k": k.pointer,
        "scores": scores.pointer,
        "q_stride_batch": q.strides[0],
        "q_stride_query": q.strides[1],
        "k_stride_batch": k.strides[0],
        "k_stride_key": k.strides[1],
        "queries": q.shape[1],
        "keys": k.shape[1],
        "query_tiles": ceil(q.shape[1] / config.block_queries),
    }
