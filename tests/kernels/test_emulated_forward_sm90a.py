"""What emulated exponentials change of the forward pass on wgmma: how wrong results are, biases at
the end of the range, and where there are none.
"""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import cuevo
from cuevo import reference
from cuevo.architectures import architecture
from cuevo.kernels import evoformer_forward_sm90a as kernel_90a
from cuevo.kernels.forward import Problem

BF16 = ml_dtypes.bfloat16
PLACES = ("sim:sm_90a", pytest.param("cuda:0", marks=pytest.mark.gpu))
ASKING = dict(producer="consumer", block_rows=4, m_tiles=2, stages=5, min_blocks=1, converts=False)
SHAPES: tuple[dict[str, Any], ...] = (
    dict(ASKING, row_warpgroups=1, warpgroup_rows=1),
    dict(ASKING, row_warpgroups=2, warpgroup_rows=2),
)


def inputs(rows: int, length: int) -> dict[str, np.ndarray]:
    """Operands of one head and dim 32, a pair bias, a mask of numbers of which some are -inf."""
    rng = np.random.default_rng(length)
    mask = rng.standard_normal((1, rows, 1, 1, length))
    mask[rng.random(mask.shape) < 0.1] = -np.inf
    shape, pair = (1, rows, length, 1, 32), (1, 1, 1, length, length)
    made = {name: rng.standard_normal(shape).astype(BF16) for name in "qkv"}
    return made | dict(
        mask_bias=mask.astype(BF16), pair_bias=rng.standard_normal(pair).astype(BF16)
    )


def error(out: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(out.astype(np.float64) - exact) / np.linalg.norm(exact))


@pytest.mark.kernel
@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_results_are_hardly_further_from_float64(device: str, shape: dict[str, Any]) -> None:
    given = inputs(4, 256)
    exact, _ = reference.attention(**given)
    plain, emulated = (
        error(cuevo.attention(**given, device=device, config=dict(shape, emulates=how)), exact)
        for how in (False, True)
    )
    assert plain < emulated < 1.08 * plain


@pytest.mark.kernel
@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("shape", SHAPES)
def test_biases_at_the_end_of_the_range_stay_finite(device: str, shape: dict[str, Any]) -> None:
    """Over the scale they would be infinite, but q is divided by a power of two, and they are."""
    given = inputs(4, 128)
    pair = given["pair_bias"][0, 0, 0]
    pair[3], pair[5, 7], pair[6] = -3.38e38, 3.38e38, -np.inf
    given["mask_bias"][...] = 0
    exact, _ = reference.attention(**given)
    out = cuevo.attention(**given, device=device, config=dict(shape, emulates=True))
    assert error(out[:, :, 3], exact[:, :, 3]) < 4e-3
    assert np.array_equal(out[:, :, 5], given["v"][:, :, 7])
    assert not out[:, :, 6].any()
    assert error(out, exact) < 4e-3


@pytest.mark.unit
def test_where_there_are_none() -> None:
    """In fp16, where sums are of unrounded probabilities, and where they would gain nothing."""
    problem = Problem(1, 768, 4, 768, 768, 32, "bf16", "bf16", "bf16")
    for changes, emulates in (
        (dict(), True),
        (dict(mask="none"), True),
        (dict(mask="none", pair="none"), True),
        (dict(head_dim=48), True),
        (dict(head_dim=56), False),
        (dict(head_dim=56, pair="none"), True),
        (dict(head_dim=64, pair="none"), False),
        (dict(rows=48, heads=16, head_dim=48), False),
        (dict(rows=48, heads=16, head_dim=48, mask="none"), True),
        (dict(dtype="f16", mask="f16", pair="f16"), False),
    ):
        changed = replace(problem, **changes)  # type: ignore[arg-type]
        chosen = kernel_90a.choose(changed, architecture("sm_90a"))
        assert chosen.emulates is emulates, changes
        summed = kernel_90a.adapt(replace(chosen, sums="added"), changed)
        assert not summed.emulates, changes
