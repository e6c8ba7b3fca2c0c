"""A kernel of `sources`: what it is given, how it is launched, and what must come of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Kernel:
    """``source(in, out, n)``, one array in and one out, and the result that is expected."""

    name: str
    source: str
    given: Array
    expected: Array
    threads: tuple[int, ...]
    blocks: tuple[int, ...]
    n: int
    shared: int
    tolerance: float
    """Relative to the largest; 0 for results that are exact."""


KERNELS: dict[str, Kernel] = {}


def ints(count: int, low: int = -50, high: int = 50, dtype: str = "i4") -> Array:
    return np.random.default_rng(count).integers(low, high, count).astype(dtype)


def floats(count: int, low: float = -1, high: float = 1, dtype: Any = "f4") -> Array:
    return np.random.default_rng(count).uniform(low, high, count).astype(dtype)


def kernel(
    source: str,
    given: Array,
    threads: int | tuple[int, ...],
    blocks: int | tuple[int, ...] = 1,
    n: int | None = None,
    shared: int = 0,
    tolerance: float = 0.0,
) -> Callable[[Callable[[Array], Array]], None]:
    """Take the function below as the oracle of the kernel of its name."""

    def add(oracle: Callable[[Array], Array]) -> None:
        name = oracle.__name__
        with np.errstate(all="ignore"):
            expected = np.asarray(oracle(given.copy()))
        of_threads = threads if isinstance(threads, tuple) else (threads,)
        of_blocks = blocks if isinstance(blocks, tuple) else (blocks,)
        count = len(given) if n is None else n
        KERNELS[name] = Kernel(
            name, source, given, expected, of_threads, of_blocks, count, shared, tolerance
        )

    return add
