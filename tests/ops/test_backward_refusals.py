"""cuevo.attention_backward: bad input, what is refused, by what words, and that nothing was run."""

import math
from typing import Any

import numpy as np
import pytest
from helpers.executors import Idle
from helpers.guarded import DTYPES

import cuevo
from cuevo.errors import DeviceUnavailable
from cuevo.kernels.evoformer_forward_sm80 import Config as ForwardConfig
from cuevo.ops.backward import attention_backward_workspace

pytestmark = pytest.mark.unit

Q = (1, 2, 8, 2, 16)
K = (1, 2, 12, 2, 16)


def call(**changes: Any) -> dict[str, Any]:
    """Arguments that are right, but for the changes."""
    arguments = {
        "dout": np.zeros(Q, np.float16),
        "q": np.zeros(Q, np.float16),
        "k": np.zeros(K, np.float16),
        "v": np.zeros(K, np.float16),
        "out": np.zeros(Q, np.float16),
        "lse": np.zeros((1, 2, 2, 8), np.float32),
        "mask_bias": np.zeros((1, 2, 1, 1, 12), np.float16),
        "pair_bias": np.zeros((1, 1, 2, 8, 12), np.float32),
        "device": Idle(),
    }
    return arguments | changes


def off_by_two(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(math.prod(shape) + 1, np.float16)[1:].reshape(shape)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "shape of q": (dict(q=np.zeros(Q[1:], np.float16)), ValueError, "^q: expected an array "),
    "shape of k": (dict(k=np.zeros((1, 2, 12, 3, 16), np.float16)), ValueError, "^k: expected "),
    "shape of v": (dict(v=np.zeros(Q, np.float16)), ValueError, r"^v: .* got 5 axes, shape "),
    "shape of dout": (
        dict(dout=np.zeros(K, np.float16)),
        ValueError,
        r"^dout: expected an array \[B, N, Lq, H, D\] = \(1, 2, 8, 2, 16\); got 5 axes",
    ),
    "shape of out": (dict(out=np.zeros(K, np.float16)), ValueError, "^out: expected an array "),
    "shape of lse": (
        dict(lse=np.zeros((1, 2, 8, 2), np.float32)),
        ValueError,
        r"^lse: expected an array \[B, N, H, Lq\] = \(1, 2, 2, 8\); got 4 axes",
    ),
    "shape of mask_bias": (
        dict(mask_bias=np.zeros((1, 2, 12), np.float16)),
        ValueError,
        "^mask_bias: expected an array .* got 3 axes",
    ),
    "shape of pair_bias": (
        dict(pair_bias=np.zeros((1, 2, 2, 8, 12), np.float16)),
        ValueError,
        "^pair_bias: expected an array ",
    ),
    **{
        f"dtype of {name}": (
            {name: np.zeros(shape, np.float32)},
            TypeError,
            f"^{name}: expected float16.* got float32",
        )
        for name, shape in (("q", Q), ("k", K), ("v", K), ("dout", Q), ("out", Q))
    },
    "dtype of lse": (
        dict(lse=np.zeros((1, 2, 2, 8), np.float64)),
        TypeError,
        "^lse: expected .*float32.* got float64",
    ),
    "half lse": (
        dict(lse=np.zeros((1, 2, 2, 8), np.float16)),
        TypeError,
        "^lse: expected float32; got float16",
    ),
    "dtype of mask_bias": (
        dict(mask_bias=np.zeros((1, 2, 1, 1, 12), np.int64)),
        TypeError,
        "^mask_bias: expected .* got int64",
    ),
    "strides of lse": (
        dict(lse=np.zeros((1, 2, 8, 2), np.float32).swapaxes(2, 3)),
        ValueError,
        "^lse: has to be contiguous; its strides are ",
    ),
    "expanded lse": (
        dict(lse=np.broadcast_to(np.float32(0), (1, 2, 2, 8))),
        ValueError,
        "^lse: has to be contiguous",
    ),
    **{
        f"strides of {name}": (
            {name: np.zeros((*shape[:-1], 32), np.float16)[..., ::2]},
            ValueError,
            f"^{name}: its last axis, D, must be contiguous, .* stride is 4",
        )
        for name, shape in (("q", Q), ("k", K), ("v", K), ("out", Q))
    },
    **{
        f"alignment of {name}": (
            {name: off_by_two(shape)},
            ValueError,
            f"^{name}: its rows must start at multiples of 16 bytes; its address is 0x",
        )
        for name, shape in (("q", Q), ("k", K), ("v", K), ("out", Q))
    },
    "no dout": (dict(dout=None), TypeError, "^dout: expected a NumPy, torch, CuPy or JAX array"),
    "no lse": (dict(lse=None), TypeError, "^lse: expected a NumPy, torch, CuPy or JAX array"),
    "a list": (dict(out=[[1.0]]), TypeError, "^out: expected a NumPy, torch, CuPy or JAX array"),
    "pack": (dict(pack=1), TypeError, "^pack: expected None, True or False; got int"),
    "scale": (dict(scale=math.nan), ValueError, "^scale: expected a finite number .* got nan"),
    "scale, text": (dict(scale="1"), TypeError, "^scale: expected a real number; got str"),
    "scale, an array": (dict(scale=np.ones(1)), TypeError, "^scale: expected a real number; got "),
    "grads": (
        dict(grads=("q", "lse")),
        ValueError,
        "^grads: expected a sequence of names, of q, k, v, mask_bias, pair_bias; got 'lse'",
    ),
    "grads, text": (dict(grads="q"), ValueError, "^grads: expected a sequence of .*; got 'q'"),
    "grads, lists": (
        dict(grads=[["q"]]),
        ValueError,
        r"^grads: expected a sequence .* got \['q'\]",
    ),
    "grads, a number": (dict(grads=3), TypeError, "^grads: expected a sequence of .*; got int"),
    "grads, None": (dict(grads=None), TypeError, "^grads: expected a sequence of .*; got NoneType"),
    **{
        f"bias_grad_dtype, {dtype!r}": (
            dict(bias_grad_dtype=dtype),
            ValueError,
            "^bias_grad_dtype: expected None or float32; got ",
        )
        for dtype in ("float16", np.float64, "fp32", 32, [])
    },
    "stream": (dict(stream="fast"), TypeError, "^stream: expected None, an integer handle"),
    "device": (dict(device="gpu"), ValueError, "^device: expected 'sim', "),
    "config": (
        dict(config={"keys": {"stages": 1}}),
        ValueError,
        r"^config: Config\(.*side='keys'.* stages must be 2 to 6, not 1",
    ),
    "config of queries": (
        dict(config={"queries": {"stages": 9}}),
        ValueError,
        r"^config: Config\(.*side='queries'.* stages must be 2 to 6, not 9",
    ),
    "config, a side": (
        dict(config={"rows": {"stages": 2}}),
        ValueError,
        "^config: expected keys and queries; got 'rows'",
    ),
    "config, a setting": (
        dict(config={"stages": 2}),
        ValueError,
        "^config: expected keys and queries; got 'stages'",
    ),
    "config, a field": (dict(config={"keys": {"tile": 3}}), ValueError, "^config: .*tile"),
    "config, a list": (dict(config={"keys": {"stages": [3]}}), TypeError, "^config: "),
    "config, text": (dict(config="keys"), TypeError, "^config: expected a mapping .* got str"),
    "config, a number": (dict(config=3), TypeError, "^config: expected a mapping .* got int"),
    "config, text of a side": (
        dict(config={"keys": "fast"}),
        TypeError,
        "^config: expected evoformer_backward_sm80.Config or a mapping .*; got str",
    ),
    "config of another kernel": (
        dict(config={"queries": ForwardConfig(16)}),
        TypeError,
        "^config: expected evoformer_backward_sm80.Config or a mapping .*; got Config",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_anything_runs(what: str) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        cuevo.attention_backward(**call(**changes))
    if "stream" not in changes:
        with pytest.raises(error, match=words):
            attention_backward_workspace(**call(**changes))


def test_the_head_dim() -> None:
    narrow = {name: np.zeros((1, 2, 8, 2, 12), np.float16) for name in ("dout", "q", "k", "v")}
    with pytest.raises(ValueError, match=r"^q: the head dim D must be a multiple of 8 from 8 to"):
        cuevo.attention_backward(**call(**narrow, out=narrow["q"], mask_bias=None, pair_bias=None))


def test_arrays_on_two_devices() -> None:
    elsewhere = cuevo.array_from_pointer(2**30, (1, 2, 2, 8), np.float32, device="cuda:0")
    with pytest.raises(
        ValueError, match=r"lse: expected an array on cpu, where .* is; it is on cuda"
    ):
        cuevo.attention_backward(**call(lse=elsewhere))


def test_an_architecture_that_no_kernel_serves() -> None:
    wide = {
        key: x.astype(DTYPES["bf16"])
        for key, x in call().items()
        if key in ("dout", "q", "k", "v", "out", "mask_bias")
    }
    with pytest.raises(ValueError, match=r"(?s)no kernel serves .* on sm_75:\n.*need sm_80"):
        cuevo.attention_backward(**call(**wide, device="sim:sm_75"))


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceUnavailable, match="no device cuda:9"):
        cuevo.attention_backward(**call(device="cuda:9"))
