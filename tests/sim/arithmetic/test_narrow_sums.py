"""cuevo.sim.arithmetic.narrow_sums: the same bits as NumPy; test_tensor_core has the arithmetic."""

from typing import Any

import numpy as np
import pytest

from cuevo.sim.arithmetic import tensor_core
from cuevo.sim.arithmetic.tensor_core import BF16, F16, TF32, block, multiply_accumulate

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("arch", [70, 80, 90])
@pytest.mark.parametrize("dtype", [F16, BF16, TF32], ids=str)
def test_many_warps(dtype: Any, arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole tiles, with rows and columns of zeros, as at the edges of a matrix."""
    pytest.importorskip("numba")
    if dtype == TF32 and arch < 80:
        pytest.skip("sm_70 has no tf32")
    rng = np.random.default_rng(arch)

    def patterns(*shape: int) -> Any:
        numbers = (rng.normal(size=shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(dtype)
        return numbers.view(f"u{dtype.itemsize}")

    a, b = patterns(16, 16, 70), patterns(16, 24, 70)
    a[11:, :, ::2], b[:, 5:9], b[7:, :, 1::3] = 0, 0, 0
    c = rng.normal(size=(16, 70, 24)).astype(np.float32).transpose(0, 2, 1)
    c[:, :, 20:50] = 0
    c[3], c[:, :, 60:66], c[5, 5, ::5], c[6, 6, ::7] = np.inf, -np.inf, np.nan, -np.nan
    with np.errstate(all="ignore"):
        found = multiply_accumulate(a, b, c, dtype, block(arch, dtype))
        monkeypatch.setattr(tensor_core, "compiled", lambda function: None)
        wanted = multiply_accumulate(a, b, c, dtype, block(arch, dtype))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_it_is_the_compiled_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's path is not reached for ordinary numbers, and is for others."""
    pytest.importorskip("numba")

    def refuse(*arguments: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(tensor_core, "_one_block", refuse)
    ones = np.ones((8, 8, 2), F16)
    bits, sums = ones.view(np.uint16), ones.astype(np.float32)
    assert (multiply_accumulate(bits, bits, sums, F16, block(80)) == 9).all()
    for special in (np.inf, -np.inf, np.nan):
        sums[3, 5, 1] = special
        found = multiply_accumulate(bits, bits, sums, F16, block(80))
        assert np.array_equal(found[3, 5, 1], special, equal_nan=True)
        assert (np.delete(found, 3, axis=0) == 9).all()
    for extreme in (2.0**125, 2.0**-110):
        sums[3, 5, 1] = extreme
        a = bits if extreme > 1 else bits * 0
        with pytest.raises(NotImplementedError):
            multiply_accumulate(a, bits, sums, F16, block(80))
    infinite = bits.copy()
    infinite[2, 2, 1] = np.array(np.inf, F16).view(np.uint16)
    with pytest.raises(NotImplementedError):
        multiply_accumulate(infinite, bits, ones.astype(np.float32), F16, block(80))
