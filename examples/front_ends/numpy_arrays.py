"""cuevo.attention with NumPy arrays: lengths, masks, layouts, gradients, beside float64.

python examples/front_ends/numpy_arrays.py              on the GPU if there is one
python examples/front_ends/numpy_arrays.py sim:sm_90    on the CPU executor
"""

import argparse
from typing import Any

import ml_dtypes
import numpy as np

import cuevo
from cuevo import reference
from cuevo.ops.backward import GRADS

PARSER = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
PARSER.add_argument("device", nargs="?", help="sim, sim:sm_90, cuda or cuda:0")
DEVICE = PARSER.parse_args().device
BATCH, ROWS, LENGTH, HEADS, HEAD_DIM = 1, 3, 45, 2, 16  # any length, any head dim divisible by 8
RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def compare(what: str, found: np.ndarray, exact: np.ndarray) -> None:
    error = np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact)
    print(f"{what:45} {error:.1e}")


def attend(what: str, q: np.ndarray, k: np.ndarray, v: np.ndarray, **biases: np.ndarray) -> None:
    out = cuevo.attention(q, k, v, **biases, device=DEVICE)
    compare(what, out, reference.attention(q, k, v, **biases)[0])


def main() -> None:
    q, k, v = normal(3, BATCH, ROWS, LENGTH, HEADS, HEAD_DIM)
    attend("no bias", q, k, v)
    attend("fewer keys than queries", q, k[:, :, :17], v[:, :, :17])

    kept = RNG.random((BATCH, ROWS, 1, 1, LENGTH)) < 0.9  # True: attend
    attend("a mask of keys", q, k, v, mask_bias=kept)
    far = np.where(kept, 0, -1e9).astype(np.float32)
    attend("the same as numbers to add", q, k, v, mask_bias=far)

    # What a linear layer makes of a pair representation: [B, L, L, H], seen as [B, 1, H, L, L].
    made = normal(BATCH, LENGTH, LENGTH, HEADS, dtype=np.float32)
    pair_bias = np.moveaxis(made, 3, 1)[:, None]
    attend("a bias of pairs, heads last in memory", q, k, v, pair_bias=pair_bias)

    # Other orders of axes in memory come as views.
    stored = normal(3, BATCH, ROWS, HEADS, LENGTH, HEAD_DIM)
    attend("heads before positions in memory", *stored.swapaxes(3, 4))
    attend("attention along columns", *(x.swapaxes(1, 2) for x in (q, k, v)))
    one = np.broadcast_to(v[:, :1], v.shape)
    attend("values that all rows share", q, k, one, mask_bias=kept)

    biases = {"mask_bias": far, "pair_bias": pair_bias}
    out, lse = cuevo.attention(q, k, v, **biases, return_lse=True, device=DEVICE)
    dout = normal(*out.shape)
    grads = ("q", "k", "v", "pair_bias")
    found = cuevo.attention_backward(dout, q, k, v, out, lse, **biases, grads=grads, device=DEVICE)
    exact = reference.attention_backward(dout, q, k, v, **biases)
    for name, x, expected in zip(GRADS, found, exact, strict=True):
        if name in grads:
            compare(f"gradient of {name}", x, expected)


if __name__ == "__main__":
    main()
