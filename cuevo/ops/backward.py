"""Gradients of Evoformer attention: checks a call, finds or makes its plan, and carries the arrays
to it; see `cuevo.ops.backward_plan`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cuevo.arrays import ArrayView, identify, view
from cuevo.arrays.host_arrays import without_gaps
from cuevo.cuda.stream import LEGACY_DEFAULT, resolve_stream
from cuevo.executors.driver import DriverExecutor
from cuevo.ops.backward_plan import (
    GRADS,
    VARIANTS,
    Plan,
    Settings,
    Wanted,
    make_plan,
    workspace_address,
)
from cuevo.ops.plans import Plans
from cuevo.ops.results import fetched, given_or_made, targets_of

__all__ = ["GRADS", "VARIANTS", "attention_backward", "attention_backward_workspace"]

_INPUTS = ("dout", "q", "k", "v", "out", "lse", "mask_bias", "pair_bias")


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
    deterministic: bool = True,
    workspace: Any = None,
    results: Sequence[Any] | None = None,
    device: object = None,
    stream: object = None,
    config: Mapping[str, Settings] | None = None,
) -> tuple[Any, ...]:
    """``dq, dk, dv, dmask_bias, dpair_bias`` of `cuevo.attention`, from the gradient of its result.

    dout : [B, N, Lq, H, D], type of q: the gradient of `out`; strides as those of q.
    q, k, v, mask_bias, pair_bias, scale : as the forward pass had them.
    out, lse : its results, [B, N, Lq, H, D] and, contiguous, [B, N, H, Lq] float32.
    grads : which gradients are wanted, names of `GRADS`; nothing else is computed, and None stands
        in the place of the others, as of a bias that is absent or bool.
    bias_grad_dtype : type of the gradients of the biases, "float32"; None: that of the bias.
    deterministic : results are the same bits from run to run either way.
    workspace : memory for what lies between the kernels, an array of at least
        `attention_backward_workspace` bytes that starts at a multiple of 256; by default taken from
        the stream's memory pool, and given back.
    results : arrays for the gradients, in the order of `GRADS`, None for what is to be a new one:
        contiguous, from multiples of 16 bytes, of the shapes and types of new ones.
    device, stream : as in `cuevo.attention`.
    config : ``{"keys": ..., "queries": ...}``, for either side a kernel configuration, or names and
        values that change the one chosen.

    dq, dk and dv are new arrays of the type and shape of q, k and v, the gradients of the biases
    have the shapes of these, summed in float32 and rounded once. Host arrays give NumPy arrays;
    arrays on a device give `DeviceArray`s, queued on the stream and not waited for. A row whose
    every score is -inf has zero gradients; so has one whose lse is below -2^22, where float32 has
    lost what the keys differ by.

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
    given = (dout, q, k, v, out, lse, mask_bias, pair_bias)
    handle = resolve_stream(stream, (*given, workspace))
    found = _identified(given, handle)
    grads = _names(grads)
    plan = _plan(found, scale, grads, bias_grad_dtype, deterministic, device, config)
    queue = handle if stream is None else stream
    place = plan.place
    in_place = isinstance(place, DriverExecutor) and not plan.on_copies
    home = place.name if in_place else "cpu"
    targets = targets_of(results, GRADS, plan.results, home, handle)
    if plan.on_copies:
        made = _run_on_copies(
            plan, found, targets, scale, grads, bias_grad_dtype, workspace, config
        )
    elif isinstance(place, DriverExecutor):
        addresses = dict(zip(_INPUTS, (address for address, _, _ in found), strict=True))
        room = workspace_address(workspace, plan, handle)
        made = plan.run(place, addresses, targets, room, handle, queue)
    else:
        made = plan.run_on_cpu(_views(found), targets, workspace)
    return made if results is None else tuple(map(given_or_made, results, made))


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
    deterministic: bool = True,
    device: object = None,
    config: Mapping[str, Settings] | None = None,
) -> int:
    """Bytes of device memory that `attention_backward` needs for these arguments beside its
    results: O(size of q + B H Lq Lk), Lq and Lk counted in whole tiles: 32 to 128.
    """
    found = _identified((dout, q, k, v, out, lse, mask_bias, pair_bias), LEGACY_DEFAULT)
    grads = _names(grads)
    plan = _plan(found, scale, grads, bias_grad_dtype, deterministic, device, config)
    views = _views(found)
    if plan.on_copies and all(x.size for x in views.values()):
        place = plan.place
        copies = {name: replace(without_gaps(x), device=place.name) for name, x in views.items()}
        plan = make_plan(copies, scale, Wanted.of(grads, bias_grad_dtype), place, config)
    return plan.workspace_bytes


_Found = Sequence[tuple[int, object, Any]]
"""Of each of `_INPUTS` what `identify` says; (0, None, None) where there is none."""


def _identified(given: Sequence[Any], handle: int) -> _Found:
    return [
        (0, None, None) if x is None and name.endswith("bias") else identify(x, name, handle)
        for name, x in zip(_INPUTS, given, strict=True)
    ]


def _views(found: _Found) -> dict[str, ArrayView]:
    return {
        name: view(x, name=name)
        for name, (_, _, x) in zip(_INPUTS, found, strict=True)
        if x is not None
    }


def _names(grads: Iterable[str]) -> tuple[str, ...]:
    """`grads` as a tuple; ValueError or TypeError for what are no names of gradients."""
    try:
        names = (grads,) if isinstance(grads, str) else tuple(grads)
    except TypeError:
        raise TypeError(
            f"grads: expected names of {', '.join(GRADS)}; got {type(grads).__name__}"
        ) from None
    for name in names:
        if isinstance(grads, str) or name not in GRADS:
            raise ValueError(f"grads: expected names of {', '.join(GRADS)}; got {name!r}")
    return names


# -- Plans -----------------------------------------------------------------------------------------

_plans: Plans["Plan"] = Plans()


def _plan(
    found: _Found,
    scale: float | None,
    grads: tuple[str, ...],
    bias_grad_dtype: Any,
    deterministic: bool,
    device: object,
    config: Mapping[str, Settings] | None,
) -> "Plan":
    if type(deterministic) is not bool:
        raise TypeError(f"deterministic: expected a bool; got {type(deterministic).__name__}")
    # Of the addresses, a plan depends on the alignment.
    key = (
        tuple((address & 15, kind) for address, kind, _ in found), scale, grads, bias_grad_dtype,
        device, _hashable(config),
    )  # fmt: skip
    try:
        plan = _plans.get(key)
    except TypeError:  # an argument that has no hash: the checks say what is wrong with it
        plan = None
    if plan is None:
        wanted = Wanted.of(grads, bias_grad_dtype)
        plan = make_plan(_views(found), scale, wanted, device, config)
        _plans.keep(key, plan)
    return plan


def _hashable(config: Mapping[str, Settings] | None) -> object:
    if not isinstance(config, Mapping):
        return config
    return tuple(
        (side, tuple(each.items()) if isinstance(each, Mapping) else each)
        for side, each in config.items()
    )


def _run_on_copies(
    plan: Plan,
    found: _Found,
    targets: Mapping[str, ArrayView],
    scale: float | None,
    grads: tuple[str, ...],
    bias_grad_dtype: Any,
    workspace: Any,
    config: Mapping[str, Settings] | None,
) -> tuple[Any, ...]:
    place = plan.place
    assert isinstance(place, DriverExecutor)
    queue = place.stream
    handle = resolve_stream(queue)
    host = _views(found)
    moved = [place.copy_to_device(host[name], queue) if name in host else None for name in _INPUTS]
    copies = _identified(moved, handle)
    there = _plan(copies, scale, grads, bias_grad_dtype, True, place, config)
    addresses = dict(zip(_INPUTS, (address for address, _, _ in copies), strict=True))
    results = there.run(
        place, addresses, {}, workspace_address(workspace, there, handle), handle, queue
    )
    pairs = zip(GRADS, results, strict=True)
    return tuple(None if x is None else fetched(x, targets.get(name), handle) for name, x in pairs)
