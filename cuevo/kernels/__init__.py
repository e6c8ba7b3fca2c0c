"""The host half of each kernel: what may be configured, what is chosen, how it is launched.

A module here has the name of a file in ``ptx/``; `registry` lists those that ship.
"""

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from cuevo.kernels import (
    attention_delta_sm70,
    attention_maps_sm90a,
    bias_tiles_sm90,
    evoformer_backward_sm70,
    evoformer_backward_sm75,
    evoformer_backward_sm80,
    evoformer_backward_sm90a,
    evoformer_forward_sm70,
    evoformer_forward_sm75,
    evoformer_forward_sm80,
    evoformer_forward_sm90a,
    gemm_sm70,
    gemm_sm75,
    gemm_sm80,
    gemm_sm90a,
    key_bias_sm70,
    pack_sm70,
    pair_tiles_sm90,
    partial_sums_sm70,
)

__all__ = ["registry"]

_REGISTRY = MappingProxyType(
    {
        module.NAME: module
        for module in (
            evoformer_forward_sm90a,
            evoformer_forward_sm80,
            evoformer_forward_sm75,
            evoformer_forward_sm70,
            evoformer_backward_sm90a,
            evoformer_backward_sm80,
            evoformer_backward_sm75,
            evoformer_backward_sm70,
            attention_delta_sm70,
            attention_maps_sm90a,
            bias_tiles_sm90,
            key_bias_sm70,
            pack_sm70,
            pair_tiles_sm90,
            partial_sums_sm70,
            gemm_sm90a,
            gemm_sm80,
            gemm_sm75,
            gemm_sm70,
        )
    }
)


def registry() -> Mapping[str, ModuleType]:
    """Kernel name to host module, with ``NAME``, ``SUMMARY``, ``MINIMUM_ARCH``, ``Config``,
    ``values`` and ``violations``; ``DEFAULTS``, where those of ``Config`` are no instance; and
    ``ARCH``, where only one architecture runs it.
    """
    return _REGISTRY
