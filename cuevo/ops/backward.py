"""Gradients of Evoformer attention: the calls; `cuevo.ops.backward_plan` makes their plan."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cuevo.ops.backward_plan import GRADS, OPERANDS, RESULTS, VARIANTS, Settings, make_plan
from cuevo.ops.operation import Operation

__all__ = [
    "GRADS",
    "OPERATION",
    "VARIANTS",
    "attention_backward",
    "attention_backward_workspace",
]

OPERATION = Operation(
    "attention_backward", OPERANDS, RESULTS, make_plan, required=6, label="results: "
)


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    mask_bias: Any = None,
    pair_bias: Any = None,
    scale: float | None = None,
    grads: Iterable[str] = GRADS,
    bias_grad_dtype: Any = None,
    pack: bool | None = None,
    workspace: Any = None,
    results: Sequence[Any] | None = None,
    device: object = None,
    stream: object = None,
    config: Mapping[str, Settings] | None = None,
) -> tuple[Any, ...]:
    """``dq, dk, dv, dmask_bias, dpair_bias`` of `cuevo.attention`, from the gradient of its result.

    dout : [B, N, Lq, H, D], type of q: the gradient of `out`; any strides, also zero.
    q, k, v, mask_bias, pair_bias, scale : as the forward pass had them.
    out, lse : its results, [B, N, Lq, H, D] and, contiguous, [B, N, H, Lq] float32.
    grads : which gradients are wanted, names of `GRADS`; nothing else is computed, and None stands
        in the place of the others, as of a bias that is absent or bool.
    bias_grad_dtype : type of the gradients of the biases, "float32"; None: that of the bias.
    pack : as in `cuevo.attention`.
    workspace : memory for what lies between the kernels, an array of at least
        `attention_backward_workspace` bytes that starts at a multiple of 256; by default taken from
        the stream's memory pool, and given back.
    results : arrays for the gradients, in the order of `GRADS`, None for what is to be a new one:
        contiguous, from multiples of 16 bytes, of the shapes and types of new ones. They must not
        overlap each other, nor an operand.
    device, stream : as in `cuevo.attention`.
    config : ``{"keys": ..., "queries": ...}``, for either side a kernel configuration, or names and
        values that change the one chosen.

    dq, dk and dv are new arrays of the type and shape of q, k and v, the gradients of the biases
    have the shapes of these, 1 where they are broadcast, summed in float32 and rounded once. Host
    arrays give NumPy arrays; arrays on a device give `DeviceArray`s, queued on the stream and not
    waited for. A row whose every score is -inf has zero gradients, if its dout is finite; so has
    one whose lse is below -2^22, where float32 has lost what the keys differ by. Results are the
    same bits from run to run.

    Raises ValueError or TypeError, naming the argument, before anything is launched;
    DeviceUnavailable, AssemblerError, DriverError and SimulatorError from what follows.
    The formulas: `cuevo.reference.attention_backward`, with P recomputed from lse.

    >>> from cuevo import attention
    >>> rng = np.random.default_rng(0)
    >>> q, k, v, dout = (rng.standard_normal((1, 2, 16, 1, 8)).astype(np.float16) for _ in range(4))
    >>> out, lse = attention(q, k, v, return_lse=True, device="sim")
    >>> dq, dk, dv, _, _ = attention_backward(dout, q, k, v, out, lse, device="sim")
    >>> dq.shape
    (1, 2, 16, 1, 8)
    """
    arrays = (dout, q, k, v, out, lse, mask_bias, pair_bias, *_targets(results))
    options = (scale, _names(grads), bias_grad_dtype, pack)
    return tuple(OPERATION.call(arrays, options, device, stream, config, workspace))


def attention_backward_workspace(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    mask_bias: Any = None,
    pair_bias: Any = None,
    scale: float | None = None,
    grads: Iterable[str] = GRADS,
    bias_grad_dtype: Any = None,
    pack: bool | None = None,
    results: Sequence[Any] | None = None,
    device: object = None,
    config: Mapping[str, Settings] | None = None,
) -> int:
    """Bytes of device memory that `attention_backward` needs for these arguments beside its
    results: O(size of q + B H Lq Lk), Lq and Lk counted in whole tiles: 32 to 128.

    The call itself finds the plan that this one has made where it has the same `results`.
    """
    arrays = (dout, q, k, v, out, lse, mask_bias, pair_bias, *_targets(results))
    options = (scale, _names(grads), bias_grad_dtype, pack)
    return OPERATION.plan_on_device(arrays, options, device, config).workspace_bytes


def _targets(results: Sequence[Any] | None) -> Sequence[Any]:
    """The caller's array for each gradient, or None."""
    if results is None:
        return (None,) * len(GRADS)
    if len(results) != len(GRADS):
        raise ValueError(
            f"results: expected an array or None for each of {', '.join(GRADS)}; got {len(results)}"
        )
    return results


def _names(grads: Iterable[str]) -> tuple[str, ...]:
    """`grads` as a tuple; ValueError or TypeError for what are no names of gradients."""
    if grads is GRADS:
        return GRADS
    try:
        names = (grads,) if isinstance(grads, str) else tuple(grads)
    except TypeError:
        raise TypeError(
            f"grads: expected a sequence of names, of {', '.join(GRADS)}; "
            f"got {type(grads).__name__}"
        ) from None
    for name in names:
        if isinstance(grads, str) or name not in GRADS:
            raise ValueError(
                f"grads: expected a sequence of names, of {', '.join(GRADS)}; got {name!r}"
            )
    return names
