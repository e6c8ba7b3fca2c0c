"""The planner in C at extents that no device holds: a status, soon, and no integer that overflows,
at which the library that tests compile would end the process.
"""

import ctypes
from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from helpers.c_planner import (
    DTYPES,
    ENCODER,
    TYPES,
    Array,
    Backward,
    Call,
    Device,
    Forward,
    Gemm,
    Planner,
)

pytestmark = pytest.mark.unit

OK, TOO_LARGE = 0, 8
HUGE = (2**31, 2**40, 2**62)
LARGE = (1, 7, 2**20, 2**28, 2**31 - 1)


def array(shape: Sequence[int], kind: str = "bf16") -> Array:
    """An array without gaps, modulo the size of memory."""
    step, strides = DTYPES[kind].itemsize, [0] * 5
    for axis in reversed(range(len(shape))):
        strides[axis] = ctypes.c_int64(step).value
        step *= shape[axis]
    five = ctypes.c_int64 * 5
    return Array(1 << 40, TYPES[kind], five(*shape), five(*strides))


def attention(extents: Sequence[int]) -> Iterator[Call]:
    """Both passes for B, N, H, Lq and Lk."""
    b, n, h, q, k = extents
    queries, keys = array((b, n, q, h, 32)), array((b, n, k, h, 32))
    mask, pair = array((b, n, 1, 1, k)), array((b, 1, h, q, k))
    operands, memory = (queries, keys, keys), (1 << 40, 1 << 63)
    yield Forward(*operands, queries, mask, pair, None, 0.2, *memory)
    results = (*operands, mask, pair)
    yield Backward(queries, *operands, queries, mask, pair, *results, 1 << 40, 0.2, *memory)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("extent", HUGE)
def test_attention_has_extents_below_2_to_31(planner: Planner, axis: int, extent: int) -> None:
    for others in ((1, 1, 1, 9, 9), (0, 0, 0, 9, 9), (5, 5, 5, 0, 9)):
        extents = [*others]
        extents[axis] = extent
        for call in attention(extents):
            status, plan = planner.plan(Device(80, 108, None), call)
            assert (status, plan.wrong) == (TOO_LARGE, b"q")


def test_large_attention_is_planned_or_too_large(planner: Planner) -> None:
    seen = set()
    for number, encoder in ((80, None), (90, ENCODER)):
        for extents in product(LARGE, LARGE, LARGE, (0, 1, 2**28), (1, 129, 2**28)):
            for call in attention(extents):
                status, plan = planner.plan(Device(number, 132, encoder), call)
                # Strides of the arrays that need more than 64 bits are any.
                assert status in (OK, TOO_LARGE) or plan.wrong is not None, extents
                seen.add(status)
    assert {OK, TOO_LARGE} <= seen


def test_large_products_are_planned_or_too_large(planner: Planner) -> None:
    seen = set()
    for number, encoder in ((80, None), (90, ENCODER)):
        for batch, m, n, k in product((*LARGE, *HUGE), LARGE[:4], LARGE[:4], LARGE[:4]):
            a, b, out = array((batch, m, k)), array((batch, k, n)), array((batch, m, n))
            none = Array()
            call = Gemm(a, b, none, none, none, out, 1.0, 0.0, 1 << 40, 1 << 63)
            status, plan = planner.plan(Device(number, 132, encoder), call)
            assert status == TOO_LARGE or batch < 2**31
            assert status in (OK, TOO_LARGE) or plan.wrong is not None, (batch, m, n, k)
            seen.add(status)
    assert {OK, TOO_LARGE} <= seen
