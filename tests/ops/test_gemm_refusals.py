"""cuevo.gemm: calls that are refused before anything runs.

All the words about arrays that do not fit together: tests/ops/test_gemm_problem.py.
"""

import math
from typing import Any

import numpy as np
import pytest
from helpers.executors import Idle

import cuevo
from cuevo.arrays import array_from_pointer

pytestmark = pytest.mark.unit


def call(**changes: Any) -> dict[str, Any]:
    """Arguments that are right, but for the changes."""
    given = {
        "a": np.zeros((8, 16), np.float16),
        "b": np.zeros((16, 12), np.float16),
        "c": np.zeros((8, 12), np.float32),
        "bias": np.zeros(12, np.float16),
        "device": Idle(),
    }
    return given | changes


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "shape": (
        dict(b=np.zeros((15, 12), np.float16)),
        ValueError,
        r"^b: expected an array \[K, N\] .* its K is 15",
    ),
    "dtype": (
        dict(a=np.zeros((8, 16), np.float32)),
        TypeError,
        "^a: expected float16 or bfloat16; got float32",
    ),
    "no array": (dict(b=[[1.0]]), TypeError, "^b: expected a NumPy, torch, CuPy or JAX array"),
    "no array for c": (dict(c=1.0), TypeError, "^c: expected a NumPy, torch, CuPy or JAX array"),
    "complex": (dict(bias=np.zeros(12, np.complex64)), TypeError, "^bias: expected bool, an int"),
    "stride": (
        dict(a=np.zeros((8, 32), np.float16)[:, ::2]),
        ValueError,
        "^a: one of its last two axes must be contiguous",
    ),
    "scatter": (
        dict(scatter=np.arange(8, dtype=np.int16), out=np.zeros((9, 12), np.float16)),
        TypeError,
        "^scatter: expected int64 or int32; got int16; scatter.astype",
    ),
    "scatter without out": (dict(scatter=np.arange(8)), ValueError, "^out: has to be given"),
    "alpha": (dict(alpha=math.nan), ValueError, "^alpha: expected a finite .* got nan"),
    "alpha, text": (dict(alpha="1"), TypeError, "^alpha: expected a real number; got str"),
    "beta": (dict(beta=1e39), ValueError, r"^beta: expected a finite .* got 1e\+39"),
    "beta, an array": (dict(beta=np.ones(1)), TypeError, "^beta: expected a real .* got ndarray"),
    "trans_a": (dict(trans_a="T"), TypeError, "^trans_a: expected True or False; got 'T'"),
    "trans_b": (dict(trans_b=[1]), TypeError, r"^trans_b: expected True or False; got \[1\]"),
    "out_dtype": (dict(out_dtype=np.int8), TypeError, "^out_dtype: expected .* got int8"),
    "out_dtype, a list": (dict(out_dtype=["f"]), TypeError, "^out_dtype: expected float16"),
    "out, read-only": (
        dict(out=np.broadcast_to(np.zeros((8, 12), np.float16), (8, 12))),
        ValueError,
        "^out: has to be writable",
    ),
    "stream": (dict(stream="fast"), TypeError, "^stream: expected None, an integer handle"),
    "config": (dict(config={"stages": 9}), ValueError, "^config: .* stages must be 2 to 6, not 9"),
    "config, a list": (dict(config={"stages": [3]}), TypeError, "^config: stages: expected int"),
    "config, a field": (dict(config={"tile": 3}), ValueError, "^config: .*tile"),
    "config, a word": (
        dict(config="fast"),
        TypeError,
        "^config: expected gemm_sm80.Config or a mapping of its fields; got str",
    ),
    "device": (dict(device="gpu"), ValueError, "^device: expected 'sim', 'sim:sm_90', 'cuda'"),
    "device, a list": (dict(device=["sim"]), TypeError, "^device: expected None, a name"),
    "two devices": (
        dict(b=array_from_pointer(2**30, (16, 12), np.float16, device="cuda:0"), device=None),
        ValueError,
        "^b: expected an array on cpu, where a is; it is on cuda:0",
    ),
    "scatter on the host": (
        dict(
            a=array_from_pointer(2**30, (8, 16), np.float16, device="cuda:0"),
            b=array_from_pointer(2**30, (16, 12), np.float16, device="cuda:0"),
            c=None,
            bias=None,
            scatter=np.arange(8),
            out=array_from_pointer(2**30, (9, 12), np.float16, device="cuda:0"),
            device=None,
        ),
        ValueError,
        "^scatter: expected an array on cuda:0, where a is; it is on cpu",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_anything_runs(what: str) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        cuevo.gemm(**call(**changes))


def test_more_threadblocks_than_a_launch_has() -> None:
    a = array_from_pointer(2**30, (2**28, 8), np.float16, strides=(0, 2), device="cpu")
    b = array_from_pointer(2**30, (2**14, 8, 2**18), np.float16, strides=(0, 0, 2), device="cpu")
    out = array_from_pointer(2**30, (2**14, 2**28, 2**18), np.float16, device="cpu")
    with pytest.raises(ValueError, match=r"too large: [0-9]+ threadblocks; a launch has fewer"):
        cuevo.gemm(a, b, out=out, device="sim")
