import numpy as np
import pytest

from backends import Inputs
from checks import expected_gradients, expected_output, relative_error, spread
from cuevo import reference
from peers import arguments_of
from workloads import BIASES, Workload

pytestmark = pytest.mark.unit

WORKLOAD = Workload(rows=7, heads=3, length=66, head_dim=8)


@pytest.mark.parametrize(("extent", "count"), [(1, 3), (3, 3), (128, 3), (769, 64), (2048, 64)])
def test_what_is_checked_reaches_from_end_to_end(extent, count):
    indices = range(extent)[spread(extent, count)]
    assert indices[-1] == extent - 1
    assert min(count, extent) <= len(indices) <= 2 * count
    assert indices[0] < max(1, extent // count)


def test_relative_error_is_by_norm():
    expected = np.array([[3.0, 4.0]])
    assert relative_error(expected + np.array([[0.0, 0.5]]), expected) == pytest.approx(0.1)


class HostBackend:
    def part(self, array, index):
        return array[index].astype(np.float64)


@pytest.fixture(scope="module")
def inputs():
    generator = np.random.default_rng(0)
    rows, heads, length = WORKLOAD.rows, WORKLOAD.heads, WORKLOAD.length
    q = (1, rows, length, heads, WORKLOAD.head_dim)
    shapes = (q, q, q, (1, rows, 1, 1, length), (1, 1, heads, length, length), q)
    return Inputs(*(generator.standard_normal(shape) for shape in shapes))


@pytest.mark.parametrize("biases", BIASES)
def test_the_part_that_is_compared_is_that_of_the_whole(inputs, biases):
    arguments = arguments_of(inputs, biases)
    out, _ = reference.attention(**arguments)
    names = ("q", "k", "v", "mask_bias", "pair_bias")
    gradients = reference.attention_backward(inputs.dout, **arguments)
    whole = {"out": out, **dict(zip(names, gradients, strict=True))}
    expected = expected_output(HostBackend(), inputs, WORKLOAD, biases)
    expected |= expected_gradients(HostBackend(), inputs, WORKLOAD, biases)
    assert set(expected) == {name for name, result in whole.items() if result is not None}
    for name, (index, exact) in expected.items():
        np.testing.assert_allclose(whole[name][index], exact, rtol=1e-9, atol=1e-12)
        assert 0 < exact.size < whole[name].size
