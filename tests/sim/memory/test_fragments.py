"""Matrices out of registers: the compiled loop gives what NumPy gives, and the way back the
registers.
"""

import numpy as np
import pytest

from cuevo.layouts import Fragment, mma_shape
from cuevo.sim.memory import fragments
from cuevo.sim.memory.fragments import elements, matrix_of, registers_of

pytestmark = pytest.mark.unit

SHAPES = (("m16n8k16", "bf16"), ("m16n8k8", "tf32"), ("m16n8k32", "s8"))


@pytest.mark.parametrize("warps", [1, 3, 70])
@pytest.mark.parametrize(("name", "operands"), SHAPES)
def test_the_loop_and_numpy(
    name: str, operands: str, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    shape, rng = mma_shape(name, operands), np.random.default_rng(warps)
    of_operands: tuple[Fragment, ...] = (shape.a["row"], shape.b["col"])
    for fragment in of_operands:
        dtype = np.dtype(f"u{4 // elements(fragment)}")
        size = (fragment.lanes, warps)
        registers = [rng.integers(0, 2**32, size, np.uint32) for _ in range(fragment.registers)]
        found = matrix_of(registers, fragment, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(fragments, "compiled", lambda function: None)
            wanted = matrix_of(registers, fragment, dtype)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert found.shape == (*fragment.shape, warps)
        np.testing.assert_array_equal(found, wanted)
        for register, back in zip(registers, registers_of(found, fragment), strict=True):
            np.testing.assert_array_equal(back, register)
