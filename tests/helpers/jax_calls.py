"""Arguments for `cuevo.jax`, and what it has to give."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from cuevo import reference
from cuevo.jax import ENVIRONMENT, callbacks

NAMES = ("q", "k", "v", "mask_bias", "pair_bias")
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.kernel),
    pytest.param("gpu", marks=pytest.mark.gpu),
]
SIZES = {"cpu": (1, 2, 24, 40, 2, 16), "gpu": (2, 5, 150, 133, 3, 32)}
"""B, N, Lq, Lk, H, D."""
TOLERANCE = {"bfloat16": 1e-2, "float16": 1.5e-3}


def devices(kind: str, count: int = 1) -> list[Any]:
    """Devices of JAX; skips where there are not as many."""
    try:
        found = jax.devices(kind)
    except RuntimeError as error:
        pytest.skip(str(error))
    if len(found) < count:
        pytest.skip(f"{count} devices of kind {kind} are needed; there are {len(found)}")
    return found[:count]


def make(
    device: str,
    dtype: str = "bfloat16",
    mask: str = "float32",
    pair: str = "bfloat16",
    sizes: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Arguments; a bias of type "" is left out."""
    (place,) = devices(device)
    batch, rows, queries, keys, heads, head_dim = sizes or SIZES[device]
    kinds = {
        "q": ((batch, rows, queries, heads, head_dim), dtype),
        "k": ((batch, rows, keys, heads, head_dim), dtype),
        "v": ((batch, rows, keys, heads, head_dim), dtype),
        "mask_bias": ((batch, rows, 1, 1, keys), mask),
        "pair_bias": ((batch, 1, heads, queries, keys), pair),
    }
    rng = np.random.default_rng(0)
    made = {}
    for name, (shape, kind) in kinds.items():
        x = rng.standard_normal(shape)
        if kind:
            x = x < 1 if kind == "bool" else x
            made[name] = jax.device_put(x.astype(jnp.dtype(kind)), place)
    return made


def expected_out(arguments: dict[str, Any], scale: Any = None) -> np.ndarray:
    """The result in float64."""
    return reference.attention(**_on_host(arguments), scale=scale)[0]


def expected_gradients(arguments: dict[str, Any], scale: Any = None) -> dict[str, np.ndarray]:
    """The gradients of `loss_of`, in float64."""
    q = arguments["q"]
    dout = np.asarray(jnp.cos(jnp.arange(q.size)).reshape(q.shape).astype(q.dtype))
    found = reference.attention_backward(dout, **_on_host(arguments), scale=scale)
    return {name: found[NAMES.index(name)] for name in split(arguments)[0]}


def _on_host(arguments: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in arguments.items()}


def loss_of(call: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    """A function of the operands by name, whose dout is nowhere zero."""

    def loss(floats: dict[str, Any], others: dict[str, Any]) -> Any:
        out = call(**floats, **others, **more).astype(jnp.float32)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum()

    return loss


def split(arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What can be differentiated, and the rest."""
    floats = {name: x for name, x in arguments.items() if x.dtype != jnp.bool_}
    return floats, {name: x for name, x in arguments.items() if name not in floats}


def check(name: str, found: Any, expected: Any, dtype: str) -> None:
    assert found.shape == expected.shape, name
    exact = np.asarray(expected).astype(np.float64)
    error = np.linalg.norm(np.asarray(found).astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error < TOLERANCE[dtype], f"{name}: relative error {error:.3g}"


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The calls, which come back to Python: the shape of q of each and, backward, its `grads`."""
    calls: list[tuple[Any, ...]] = []

    def record(compute: Callable[..., Any]) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            grads = (tuple(arguments["grads"]),) if "grads" in arguments else ()
            calls.append((arguments["q"].shape, *grads))
            return compute(**arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setenv(ENVIRONMENT, "python")
        if jax.default_backend() == "gpu":
            jax.clear_caches()  # of programs whose kernels XLA launches
        patch.setattr(callbacks, "attention", record(callbacks.attention))
        patch.setattr(callbacks, "attention_backward", record(callbacks.attention_backward))
        yield calls
        jax.effects_barrier()
