"""lib/mma_pipelined.ptx: what lib/mma_multistage.ptx does, for architectures without cp.async."""

from functools import cache, partial

import pytest
from blocks.harness import check_all, on_cpu, parts
from blocks.products import DETAILS as MULTISTAGE_DETAILS
from blocks.products import TILINGS as MULTISTAGE_TILINGS
from blocks.products import Product, check, drawn, sample, strangers

from cuevo.executors.driver import DriverExecutor

TILINGS = MULTISTAGE_TILINGS | {
    "stages": (2,),
    "tile": (
        (16, 16, 16, 16),
        (32, 32, 32, 32),
        (32, 32, 16, 8),
        (32, 128, 32, 64),
        (48, 32, 48, 32),
        (64, 32, 32, 32),
        (64, 64, 32, 32),
        (64, 96, 32, 48),
        (32, 96, 32, 96),
        (128, 64, 64, 32),
    ),
    "instruction": ("m16n8k8", "m8n8k4"),
}
DETAILS = MULTISTAGE_DETAILS | {
    "bounds": ("zfill", "zfill, resident", "none", "none, resident"),
    "types": (("f16", "f32"), ("f16", "f16")),
    "order": ("ab", "a b", "b a"),
}
check_pipelined = partial(check, "mma_pipelined")


@cache
def cases() -> tuple[Product, ...]:
    """Every tiling that can be, each with details drawn for it."""
    return drawn(TILINGS, DETAILS, "sm_75")


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {
        "products": (len(cases()), len(sample(cases()))),
    }


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {
        "products": (269, 69),
    }


@pytest.mark.unit
def test_every_two_values_that_can_meet_do() -> None:
    assert not strangers(cases(), TILINGS | DETAILS, "sm_75", seed=1)


@pytest.mark.kernel
@parts(4)
@pytest.mark.parametrize(("instruction", "own"), [("m8n8k4", "sm_70"), ("m16n8k8", "sm_75")])
def test_on_the_cpu_executor(instruction: str, own: str, part: slice) -> None:
    chosen = [case for case in sample(cases()) if case.instruction == instruction]
    check_all(check_pipelined, chosen[part], [on_cpu(own), on_cpu("sm_80")])


@pytest.mark.gpu
@parts(32)
def test_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check_pipelined, cases()[part], executor)
