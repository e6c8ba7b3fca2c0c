"""vmap of the primitives: one call for all elements, whose axis is folded into B or N.

Into N where the elements share their pair bias: it is read in place, and its gradient summed by the
kernels. Into B otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import numpy as jnp
from jax.interpreters import batching

from cuevo.jax.primitives import KEPT, backward_p, forward_p, tangent_p

__all__ = ["register"]

_INTO_BATCH, _INTO_ROWS = 0, 1
"""Places of B and N among the axes of every array."""


@dataclass(frozen=True)
class _Fold:
    """An axis of `size` elements folded into `axis`, of which each element has `extent`."""

    axis: int
    size: int
    extent: int
    is_inner: bool
    """Whether the elements change faster than the indices that they had along the axis."""

    def fold(self, name: str, x: Any, place: int | None, *, alone: bool = False) -> Any:
        """The array `name` of the elements together: `x`, of which axis `place` is that of the
        elements, or None where they share it.

        alone : each element has its own, as it has a gradient of its own.
        """
        if place is None:
            if name == "pair_bias" and self.axis == _INTO_ROWS:
                return x
            if x.shape[self.axis] == 1 < self.extent and not alone:
                return x
            stacked = jnp.broadcast_to(x, (self.size, *x.shape))
        else:
            stacked = jnp.moveaxis(x, place, 0)
        shape = stacked.shape
        shape = (*shape[: self.axis + 1], self.extent, *shape[self.axis + 2 :])
        beside = jnp.moveaxis(jnp.broadcast_to(stacked, shape), 0, self.axis + self.is_inner)
        shape = beside.shape
        merged = (*shape[: self.axis], self.size * self.extent, *shape[self.axis + 2 :])
        return beside.reshape(merged)

    def unfold(self, x: Any, extent: int | None = None) -> Any:
        """What `x` has for each element, along axis 0; the gradient of an array that has `extent`
        in the place of the full one is summed.
        """
        extents = (self.extent, self.size) if self.is_inner else (self.size, self.extent)
        shape = (*x.shape[: self.axis], *extents, *x.shape[self.axis + 1 :])
        apart = jnp.moveaxis(x.reshape(shape), self.axis + self.is_inner, 0)
        if extent is not None and extent < self.extent:
            return apart.sum(self.axis + 1, keepdims=True)
        return apart


def _make_fold(arrays: Sequence[Any], places: Sequence[int | None], *, shares_pair: bool) -> _Fold:
    """The fold of a call whose first operand is q."""
    axis = _INTO_ROWS if shares_pair else _INTO_BATCH
    q, place = arrays[0], places[0]
    size = next(x.shape[at] for x, at in zip(arrays, places, strict=True) if at is not None)
    at = axis if place is None or place > axis else axis + 1
    # Whichever is sharded has to be the outer one; types tell on a mesh with explicit axes.
    spec = jax.typeof(q).sharding.spec
    is_inner = spec[at] is not None and (place is None or spec[place] is None)
    return _Fold(axis, size, q.shape[at], is_inner)


def _shares_pair(names: Sequence[str], places: Sequence[int | None]) -> bool:
    of_pairs = [place for name, place in zip(names, places, strict=True) if name == "pair_bias"]
    return bool(of_pairs) and all(place is None for place in of_pairs)


def _map_forward(
    arrays: Sequence[Any],
    places: Sequence[int | None],
    *,
    names: tuple[str, ...],
    scale: float,
    with_lse: bool,
) -> tuple[list[Any], list[int]]:
    fold = _make_fold(arrays, places, shares_pair=_shares_pair(names, places))
    folded = map(fold.fold, names, arrays, places)
    results = forward_p.bind(*folded, names=names, scale=scale, with_lse=with_lse)
    return [fold.unfold(x) for x in results], [0] * len(results)


def _map_tangent(
    arrays: Sequence[Any],
    places: Sequence[int | None],
    *,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    scale: float,
) -> tuple[Any, int]:
    of_arrays = (*names, *KEPT, *wanted)
    fold = _make_fold(arrays, places, shares_pair=_shares_pair(of_arrays, places))
    folded = map(fold.fold, of_arrays, arrays, places)
    return fold.unfold(tangent_p.bind(*folded, names=names, wanted=wanted, scale=scale)), 0


def _map_backward(
    arrays: Sequence[Any],
    places: Sequence[int | None],
    *,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    scale: float,
) -> tuple[list[Any], list[int]]:
    of_arrays = (*names, *KEPT, "dout")
    shares_pair = "pair_bias" not in wanted and _shares_pair(of_arrays, places)
    fold = _make_fold(arrays, places, shares_pair=shares_pair)
    folded = [
        fold.fold(name, x, place, alone=name in wanted)
        for name, x, place in zip(of_arrays, arrays, places, strict=True)
    ]
    gradients = backward_p.bind(*folded, names=names, wanted=wanted, scale=scale)
    extents = {}
    for name, x, place in zip(names, arrays, places, strict=False):
        shape = x.shape if place is None else (*x.shape[:place], *x.shape[place + 1 :])
        extents[name] = shape[fold.axis]
    unfolded = [fold.unfold(x, extents[name]) for name, x in zip(wanted, gradients, strict=True)]
    return unfolded, [0] * len(unfolded)


def register() -> None:
    """Make these the rules of vmap for the primitives."""
    batching.primitive_batchers[forward_p] = _map_forward
    batching.primitive_batchers[tangent_p] = _map_tangent
    batching.primitive_batchers[backward_p] = _map_backward
