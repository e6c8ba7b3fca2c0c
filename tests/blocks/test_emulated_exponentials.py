"""lib/emulated_exponentials.ptx: powers of two by integers and fp16, beside exact ones."""

import ml_dtypes
import numpy as np
import pytest
from blocks.harness import array, check_all, empty, instance, on_cpu, run

from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor

THREADS = 256
LARGEST, ROOT_OF_MEAN_SQUARE, MEAN = 0.0065, 0.0023, 1e-4
"""Relative errors that the block states."""


def powers(place: Executor, exponents: np.ndarray) -> np.ndarray:
    """2^x of as many fp32 numbers as there are, padded to whole threadblocks."""
    blocks = -(-len(exponents) // (2 * THREADS))
    padded = np.zeros((blocks * THREADS, 2), np.float32)
    padded.reshape(-1)[: len(exponents)] = exponents
    found = empty(padded.shape, ml_dtypes.bfloat16)
    kernel = instance("emulated_powers", threads=THREADS)
    run(
        place,
        kernel,
        dict(exponents=array(padded)),
        dict(powers=found),
        threads=THREADS,
        grid=blocks,
    )
    bits = found.array.reshape(-1)[: len(exponents)].view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


def check_octave(place: Executor, lowest: int) -> None:
    """Errors of all counts of a power of two, and of numbers between two counts."""
    x = ((np.arange(4 * 256) / 4 + 0.1) / 256 + lowest).astype(np.float32)
    errors = powers(place, x) / 2.0 ** x.astype(np.float64) - 1
    assert np.abs(errors).max() < LARGEST
    assert np.sqrt(np.mean(errors**2)) < ROOT_OF_MEAN_SQUARE
    assert abs(errors.mean()) < MEAN


def check_order(place: Executor) -> None:
    """Whole powers are exact, and no power is less than that of a lower exponent."""
    whole = np.arange(-126, 128).astype(np.float32)
    assert np.array_equal(powers(place, whole), 2.0 ** whole.astype(np.float64))
    rising = powers(place, np.linspace(-130, 127, 20000).astype(np.float32))
    assert np.all(np.diff(rising) >= 0)


def check_extremes(place: Executor) -> None:
    """What there is no power of: too little is 0, or less than the least normal number; too much is
    no finite number, and no number stays none.
    """
    low = np.array([-127.1, -128, -383, -384, -512, -1e6, -3e38, -np.inf], np.float32)
    assert np.array_equal(powers(place, low), np.zeros(len(low)))
    below = powers(place, np.linspace(-127, -126.01, 50).astype(np.float32))
    assert np.all((below >= 0) & (below < 2.0**-126))
    high = np.array([128, 128.5, 129, 255, 256, 384, 1000, 1e9, 3e38, np.inf], np.float32)
    assert not np.any(np.isfinite(powers(place, high)))
    assert not np.any(powers(place, high) < 0)
    assert np.all(np.isnan(powers(place, np.array([np.nan, -np.nan], np.float32))))


def cases() -> tuple[int | str, ...]:
    """The lowest exponent of an octave, or what else is looked at."""
    return (-126, -80, -1, 0, 7, 126, "order", "extremes")


def check(place: Executor, case: int | str) -> None:
    if isinstance(case, int):
        check_octave(place, case)
    else:
        {"order": check_order, "extremes": check_extremes}[case](place)


def counts() -> dict[str, tuple[int, int]]:
    """Cases that a device runs, and how many of them the CPU executor."""
    return {"cases": (len(cases()), len(cases()))}


@pytest.mark.kernel
def test_powers_on_the_cpu_executor() -> None:
    check_all(check, cases(), on_cpu("sm_90"))


@pytest.mark.gpu
def test_powers_on_a_device(executor: DriverExecutor) -> None:
    check_all(check, cases(), executor)


@pytest.mark.gpu
def test_the_bits_of_the_cpu_executor(executor: DriverExecutor) -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 2**18, np.uint32).view(np.float32)
    x = np.concatenate([x, np.linspace(-130, 130, 2**18).astype(np.float32)])
    found, expected = powers(executor, x), powers(on_cpu("sm_90"), x)
    assert np.array_equal(found, expected, equal_nan=True)
