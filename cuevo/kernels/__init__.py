"""The host half of each kernel: what may be configured, what is chosen, how it is launched.

A module here has the name of a file in ``ptx/``; `registry` lists those that ship.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType

__all__ = ["registry"]

_NAMES = (
    "evoformer_forward_sm90a",
    "evoformer_forward_sm80",
    "evoformer_forward_sm75",
    "evoformer_forward_sm70",
    "evoformer_backward_sm90a",
    "evoformer_backward_sm80",
    "evoformer_backward_sm75",
    "evoformer_backward_sm70",
    "attention_delta_sm70",
    "attention_maps_sm90a",
    "bias_tiles_sm90",
    "key_bias_sm70",
    "pack_sm70",
    "pair_tiles_sm90",
    "partial_sums_sm70",
    "gemm_sm90a",
    "gemm_sm80",
    "gemm_sm75",
    "gemm_sm70",
)


@cache
def registry() -> Mapping[str, ModuleType]:
    """Kernel name to host module, with ``NAME``, ``SUMMARY``, ``MINIMUM_ARCH``, ``Config``,
    ``values`` and ``violations``; ``DEFAULTS``, where those of ``Config`` are no instance; and
    ``ARCH``, where only one architecture runs it.
    """
    return MappingProxyType({name: import_module(f"{__name__}.{name}") for name in _NAMES})


def __getattr__(name: str) -> ModuleType:
    """A module, imported when it is first asked for: a call needs few of them."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
