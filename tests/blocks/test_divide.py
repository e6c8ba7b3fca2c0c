"""lib/divide.ptx: quotients and remainders by what the template, and by what the host knows."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from blocks.harness import array, both, check_all, empty, instance, run, same
from helpers.covering import every

from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.toolchain.division import magic

DIVISORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 24, 31, 64, 100, 641, 1000, 65537, 2**30, 2**31 - 1)
THREADS = 256


@dataclass(frozen=True)
class Division:
    """By a number of the template; `only`: the result that is asked for, "" for both."""

    divisor: int
    only: str


@cache
def divisions() -> tuple[Division, ...]:
    return tuple(every(Division, divisor=DIVISORS, only=("", "quotient", "remainder")))


def numbers(divisor: int, count: int) -> np.ndarray:
    """Some at random, some beside multiples of the divisor, the smallest and the largest."""
    rng = np.random.default_rng(divisor)
    multiples = rng.integers(0, (2**31 - 1) // divisor + 1, count // 4) * divisor
    beside = np.concatenate([multiples - 1, multiples, multiples + 1])
    anywhere = rng.integers(0, 2**31, count - len(beside) - 2)
    found = np.concatenate([beside, anywhere, [0, 2**31 - 1]])
    return np.clip(found, 0, 2**31 - 1).astype(np.uint32)


def check(place: Executor, case: Division) -> None:
    n = numbers(case.divisor, THREADS)
    multiplier, shift = magic(case.divisor)
    quotients, remainders = (empty((2, THREADS), np.uint32) for _ in range(2))
    run(
        place,
        instance("division", divisor=case.divisor, threads=THREADS, only=case.only),
        dict(n=array(n)),
        dict(quotients=quotients, remainders=remainders),
        threads=THREADS,
        divisor=case.divisor,
        divisor_magic=multiplier,
        divisor_shift=shift,
    )
    unasked = np.full(THREADS, 2**32 - 1, np.uint32)
    for name, found, expected in (
        ("quotient", quotients, n // case.divisor),
        ("remainder", remainders, n % case.divisor),
    ):
        asked = case.only in ("", name)
        same(f"{name} by the template", found.array[0], expected if asked else unasked)
        same(f"{name} by a field", found.array[1], expected)


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {"divisions": (len(divisions()), len(divisions()))}


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {"divisions": (57, 57)}


@pytest.mark.kernel
def test_divisions_on_the_cpu_executor() -> None:
    check_all(check, divisions(), both())


@pytest.mark.gpu
def test_divisions_on_a_device(executor: DriverExecutor) -> None:
    check_all(check, divisions(), executor)


@pytest.mark.unit
def test_the_multiplier_and_shift_divide_exactly() -> None:
    divisors = [*range(1, 2000), *(2**i + j for i in range(11, 31) for j in (-1, 0, 1)), 2**31 - 1]
    for divisor in divisors:
        multiplier, shift = magic(divisor)
        assert multiplier < 2**32
        n = numbers(divisor, 64)
        quotients = [int(each) * multiplier >> shift for each in n]
        assert quotients == (n // divisor).tolist(), divisor


@pytest.mark.unit
@pytest.mark.parametrize("divisor", [0, -1, 2**31])
def test_other_divisors_are_refused(divisor: int) -> None:
    with pytest.raises(ValueError, match=f"a divisor is from 1 to 2\\^31 - 1; got {divisor}"):
        magic(divisor)
