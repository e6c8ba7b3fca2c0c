"""Arrays that a caller gives for the results of a call, instead of new ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cuevo.arrays import (
    ArrayView,
    DeviceArray,
    as_numpy,
    contiguous_strides,
    copy_to_host,
    view,
)

__all__ = ["fetched", "given_or_made", "targets_of"]

_ALIGNMENT = 16
_Kinds = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


def targets_of(
    results: Sequence[Any] | None, names: Sequence[str], kinds: _Kinds, device: str, stream: int
) -> dict[str, ArrayView]:
    """Views of the arrays that a caller gives, by name.

    results : an array or None for each of `names`, or None for all.
    kinds : shape and type of each result that there is.
    device : where they have to be; `stream` is the handle of the stream that writes them.

    Raises ValueError or TypeError for what is no array for a result: it has to be contiguous,
    writable and to start at a multiple of 16 bytes.
    """
    if results is None:
        return {}
    if len(results) != len(names):
        raise ValueError(
            f"results: expected an array or None for each of {', '.join(names)}; got {len(results)}"
        )
    found = {}
    for name, x in zip(names, results, strict=True):
        if x is None:
            continue
        label = f"results: d{name}"
        if name not in kinds:
            raise ValueError(f"{label}: expected None, there is no such gradient for this call")
        found[name] = view(x, name=label, stream=stream, writable=True)
        _check(label, found[name], *kinds[name], device)
    return found


def _check(
    label: str, x: ArrayView, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
) -> None:
    if x.shape != shape:
        raise ValueError(f"{label}: expected shape {shape}; got {x.shape}")
    if x.dtype != dtype:
        raise TypeError(f"{label}: expected {dtype}; got {x.dtype}")
    if x.device != device:
        raise ValueError(f"{label}: expected an array on {device}; this is on {x.device}")
    if 0 in shape:
        return
    if x.strides != contiguous_strides(shape, dtype.itemsize):
        raise ValueError(f"{label}: has to be contiguous; its strides are {x.strides}")
    if x.pointer % _ALIGNMENT:
        raise ValueError(
            f"{label}: has to start at a multiple of {_ALIGNMENT} bytes; its address is "
            f"{x.pointer:#x}"
        )


def fetched(source: DeviceArray, given: ArrayView | None, stream: int) -> np.ndarray[Any, Any]:
    """A copy of `source` in host memory: in `given`, or in a new array where that is None."""
    return copy_to_host(source.view(stream), stream, None if given is None else as_numpy(given))


def given_or_made(given: Any, made: Any) -> Any:
    """What a call returns for one result."""
    return made if given is None else given
