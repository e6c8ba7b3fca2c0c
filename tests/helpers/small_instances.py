"""Instances of every kernel that run within a second or two on the CPU executor."""

from types import ModuleType
from typing import Any

from cuevo.cli.kernels import configure_kernel
from cuevo.kernels import registry

KEYS = "head_dim=24 side=keys mask=true pair=f32 second=true sums=true"
QUERIES = "head_dim=32 side=queries mask=true pair=f16 sums=true dtype=f16"
SMALL = "block_m=64 block_n=64 warp_m=32 warp_n=32"
INSTANCES = [
    ("attention_delta_sm70", "head_dim=40 dtype=f16 block_heads=2"),
    ("attention_maps_sm90a", "head_dim=24 dtype=f16 row_bytes=64"),
    ("attention_maps_sm90a", "head_dim=48 last_queries=64 last_rows=4 pair=f32"),
    ("evoformer_backward_sm70", KEYS + " dtype=f16 block_stationary=32"),
    ("evoformer_backward_sm75", QUERIES + " block_stationary=32"),
    ("evoformer_backward_sm80", KEYS + " m_tiles=1 stages=2"),
    (
        "evoformer_backward_sm80",
        QUERIES + " block_rows=4 warp_rows=2 stages=2 chunk_streamed=16 full_tiles=true",
    ),
    ("evoformer_backward_sm80", "head_dim=8 first=false second=true stationary_in_registers=true"),
    (
        "evoformer_backward_sm80",
        QUERIES + " block_rows=4 stages=2 short_rows=4 short_stationary=32",
    ),
    ("evoformer_forward_sm70", "head_dim=16 mask=bool block_queries=32"),
    ("evoformer_forward_sm75", "head_dim=16 mask=bounds pair=f32 block_queries=32"),
    ("evoformer_forward_sm80", "head_dim=24 dtype=f16 block_rows=2 mask=none pair=f16"),
    ("evoformer_forward_sm80", "head_dim=32 block_queries=64 mask=f32 pair_copy_bytes=4 stages=4"),
    (
        "evoformer_forward_sm80",
        "head_dim=8 block_queries=64 block_rows=2 block_keys=32 short_queries=16 short_rows=4",
    ),
    (
        "evoformer_backward_sm90a",
        "head_dim=16 mask=true pair=bf16 second=true sums=true stages=2",
    ),
    ("evoformer_backward_sm90a", "head_dim=40 dtype=f16 pair=f32 block_rows=2 stages=3"),
    (
        "evoformer_backward_sm90a",
        "side=queries head_dim=16 mask=true pair=f32 sums=true block_rows=4 warpgroup_rows=2",
    ),
    (
        "evoformer_backward_sm90a",
        "side=queries head_dim=24 dtype=f16 block_rows=2 block_streamed=16 stages=3",
    ),
    (
        "evoformer_forward_sm90a",
        "head_dim=16 block_rows=1 m_tiles=2 stages=2 mask=f32 pair=f16 dtype=f16",
    ),
    (
        "evoformer_forward_sm90a",
        "head_dim=16 block_rows=2 stages=3 mask=bf16 pair=f32 producer=consumer continues=true",
    ),
    (
        "evoformer_forward_sm90a",
        "head_dim=16 block_rows=2 stages=4 mask=bf16 pair=f32 late_pair=true continues=true",
    ),
    ("gemm_sm70", SMALL + " a_columns=true b_columns=true"),
    ("gemm_sm75", SMALL + " c=f16 bias=true scatter=true splits=2"),
    ("gemm_sm80", SMALL + " out_dtype=f32 c=bf16 block_k=64 exact=true"),
    ("gemm_sm80", SMALL + " clear=none exact=true stages=4"),
    ("gemm_sm80", SMALL + " dtype=f16 accumulate=f16 out_dtype=f16 max_k=96 layout=padded"),
    ("gemm_sm90a", ""),
    ("gemm_sm90a", "block_n=128 stages=3 out_dtype=f32"),
    ("gemm_sm90a", "block_n=128 stages=2 a_columns=true c=f32 bias=true scatter=true"),
    ("gemm_sm90a", "block_m=128 block_n=64 stages=2 b_columns=true dtype=f16"),
    ("key_bias_sm70", "mask=bool"),
    ("key_bias_sm70", "mask=bounds threads=32"),
    ("key_bias_sm70", "mask=f32 wanted=both"),
    ("bias_tiles_sm90", "mask=f16 block_rows=3 threads=128"),
    ("bias_tiles_sm90", "mask=bool"),
    ("bias_tiles_sm90", "mask=f16 added=false"),
    ("bias_tiles_sm90", "mask=bf16 pair=f16 threads=256"),
    ("pack_sm70", "size=2 axes=2 reads=tile width=4 lanes=1"),
    ("pack_sm70", "size=4 axes=1 reads=chunks unit=4"),
    ("pair_tiles_sm90", "pair=f16"),
    ("partial_sums_sm70", "out_dtype=f16 width=2 terms=3"),
]
"""Name and settings."""


def configured(name: str, settings: str) -> tuple[ModuleType, Any, str]:
    """Host half and configuration of an instance, and the lowest architecture that runs it."""
    module = registry()[name]
    arch = getattr(module, "ARCH", f"sm_{module.MINIMUM_ARCH}")
    return module, configure_kernel(module, settings.split(), [arch]), arch
