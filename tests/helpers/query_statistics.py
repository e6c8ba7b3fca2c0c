"""Statistics of queries for backward, as kernels hand them on: see ``ptx/cuevo.h``."""

import numpy as np


def blocked(low: np.ndarray, minus_delta: np.ndarray) -> np.ndarray:
    """[..., positions / 16, 48] from -lse * log2(e) and -delta [..., positions]."""
    outer = low.shape[:-1]
    pairs = minus_delta.reshape(*outer, -1, 8, 1, 2)
    quads = np.concatenate([pairs, pairs], axis=-2).reshape(*outer, -1, 32)
    lows = low.reshape(*outer, -1, 2, 4, 2).swapaxes(-3, -2).reshape(*outer, -1, 16)
    return np.concatenate([quads, lows], axis=-1)


def unblocked(stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-lse * log2(e) and -delta [..., positions]; ValueError where the copies of -delta differ."""
    outer = stats.shape[:-2]
    pairs = stats[..., :32].reshape(*outer, -1, 8, 2, 2)
    if pairs[..., 0, :].tobytes() != pairs[..., 1, :].tobytes():
        raise ValueError("a query has two values of -delta")
    lows = stats[..., 32:].reshape(*outer, -1, 4, 2, 2).swapaxes(-3, -2)
    return lows.reshape(*outer, -1), pairs[..., 0, :].reshape(*outer, -1)
