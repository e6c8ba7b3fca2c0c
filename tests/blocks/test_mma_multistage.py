"""lib/mma_multistage.ptx: products of a threadblock's tile, every bit, in all of its forms."""

from functools import cache, partial

import pytest
from blocks.harness import both, check_all, on_cpu, parts
from blocks.products import DETAILS, TILINGS, Product, check, drawn, sample, strangers

from cuevo.executors.driver import DriverExecutor

COPIES = ("cp.async.ca", "cp.async.cg")
check_multistage = partial(check, "mma_multistage")


@cache
def cases() -> tuple[Product, ...]:
    """Every tiling that can be, each with details drawn for it."""
    return drawn(TILINGS, DETAILS, "sm_80")


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {
        "products": (len(cases()), len(sample(cases()))),
    }


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {
        "products": (2329, 72),
    }


@pytest.mark.unit
def test_every_two_values_that_can_meet_do() -> None:
    assert not strangers(cases(), TILINGS | DETAILS, "sm_80", seed=1)


@pytest.mark.kernel
@parts(16)
def test_on_the_cpu_executor(part: slice) -> None:
    check_all(check_multistage, sample(cases())[part], both())


@pytest.mark.kernel
def test_a_resident_operand_is_copied_once_and_the_loop_copies_nothing() -> None:
    chosen = [
        case
        for case in cases()
        if "resident" in case.bounds and case.access == (16, 16) and case.uses == 2
    ]
    for case in chosen[::40]:
        loaded = check_multistage(on_cpu(), case)
        uses = loaded.profile.instructions
        found = sum(use.executions for use in uses if use.opcode.startswith(COPIES))
        mma = case.mma
        once, twice = mma.a.passes, mma.b.passes
        assert found == mma.threads // 32 * mma.stages * (once + 2 * twice), case


@pytest.mark.gpu
@parts(64)
def test_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check_multistage, cases()[part], executor)
