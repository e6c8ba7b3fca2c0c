"""The bits of the shipped kernels are no matter of the assembler: it may fuse nothing."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from helpers.shipped_kernels import (
    gradient_instances,
    instances,
    memory_instances,
    product_instances,
    variant_instances,
    wgmma_instances,
)

from cuevo.sim import SimExecutor
from cuevo.toolchain.template import render

SAMPLE = 3
"""Instances of each kernel."""


def samples() -> Iterator[Any]:
    """Some instances of each kernel, far apart in its list."""
    by_kernel: dict[str, list[tuple[str, dict[str, object]]]] = {}
    for label, kernel, values in chain(
        *(instances(head_dim) for head_dim in (24, 64)),
        *(gradient_instances(head_dim) for head_dim in (24, 64)),
        *(variant_instances(), memory_instances(), product_instances(), wgmma_instances()),
    ):
        by_kernel.setdefault(kernel, []).append((label, values))
    for kernel, listed in by_kernel.items():
        for label, values in listed[:: -(-len(listed) // SAMPLE)]:
            yield pytest.param(kernel, values, id=f"{kernel}-{label}")


@pytest.mark.unit
@pytest.mark.parametrize(("kernel", "values"), list(samples()))
def test_nothing_may_be_fused(kernel: str, values: dict[str, object]) -> None:
    place = SimExecutor("sm_90a" if kernel.endswith("sm90a") else "sm_90")
    assert place.load(render(kernel, values)).contractions == ()
