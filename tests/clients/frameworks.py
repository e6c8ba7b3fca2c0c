"""Modules run in torch and JAX: with cuevo's attention, and in float64 with a plain one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from clients.modules import Client, Tree

LIMITS = {"bfloat16": (5e-3, 2e-2), "float16": (1e-3, 4e-3)}
"""Of the result's error by norm, and of those of the gradients."""


def _place(framework: str, device: str, mark: pytest.MarkDecorator) -> Any:
    absent = pytest.mark.skipif(find_spec(framework) is None, reason=f"{framework} is absent")
    return pytest.param(framework, device, marks=[mark, absent], id=f"{framework}-{device}")


EVERYWHERE = pytest.mark.parametrize(
    ("framework", "device"),
    [
        _place("torch", "cpu", pytest.mark.kernel),
        _place("jax", "cpu", pytest.mark.kernel),
        _place("torch", "cuda", pytest.mark.gpu),
        _place("jax", "cuda", pytest.mark.gpu),
    ],
)


def check(
    client: Client,
    framework: str,
    device: str,
    dtype: str = "bfloat16",
    attend: Callable[..., Any] | None = None,
) -> None:
    """Compare the result and the gradient of every weight and input with float64. Attention gets q,
    k, v and the pair bias in `dtype`, all else is float32. `attend`: cuevo's by default.
    """
    run = {"torch": _in_torch, "jax": _in_jax}[framework]
    call = attend or import_module(f"cuevo.{framework}").evoformer_attention
    found = run(client, device, "float32", partial(_in_half_precision, call, dtype))
    expected = run(client, "cpu", "float64", None)
    assert found.keys() == expected.keys()
    of_result, of_gradients = LIMITS[dtype]
    for name, exact in expected.items():
        assert found[name].shape == exact.shape, name
        error = np.linalg.norm(found[name] - exact) / np.linalg.norm(exact)
        limit = of_result if name == "result" else of_gradients
        assert error < limit, f"{name}: relative error {error:.3g}, allowed {limit:g}"


def _in_half_precision(
    attend: Callable[..., Any], dtype: str, q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any
) -> Any:
    wide = q.dtype
    q, k, v = (_as_type(x, dtype) for x in (q, k, v))
    pair_bias = None if pair_bias is None else _as_type(pair_bias, dtype)
    return _as_type(attend(q, k, v, mask_bias, pair_bias), wide)


def _as_type(x: Any, dtype: Any) -> Any:
    if hasattr(x, "astype"):
        return x.astype(dtype)
    import torch

    return x.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)


# -- torch -----------------------------------------------------------------------------------------


def _in_torch(client: Client, device: str, dtype: str, attend: Any) -> dict[str, np.ndarray]:
    import torch

    def tensor(x: np.ndarray) -> Any:
        return torch.from_numpy(x).to(device, getattr(torch, dtype))

    def plain(q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
        scores = torch.einsum("bnqhd,bnkhd->bnhqk", q, k) * q.shape[-1] ** -0.5
        if mask_bias.dtype is torch.bool:
            scores = scores + torch.where(mask_bias, 0.0, -1e9)
        else:
            scores = scores + mask_bias
        weights = torch.softmax(scores if pair_bias is None else scores + pair_bias, -1)
        return torch.einsum("bnhqk,bnkhd->bnqhd", weights, v)

    leaves = {name: tensor(x).requires_grad_() for name, x in client.arrays().items()}
    out = client.module({**leaves, "mask": tensor(client.mask)}, attend or plain)
    (out * tensor(_dout(tuple(out.shape)))).sum().backward()
    every = {"result": out.detach(), **{name: x.grad for name, x in leaves.items()}}
    return {name: x.cpu().double().numpy() for name, x in every.items()}


# -- JAX -------------------------------------------------------------------------------------------


def _in_jax(client: Client, device: str, dtype: str, attend: Any) -> dict[str, np.ndarray]:
    import jax

    def plain(q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
        scores = jax.numpy.einsum("bnqhd,bnkhd->bnhqk", q, k) * q.shape[-1] ** -0.5
        if mask_bias.dtype == bool:
            scores = scores + jax.numpy.where(mask_bias, 0.0, -1e9)
        else:
            scores = scores + mask_bias
        weights = jax.nn.softmax(scores if pair_bias is None else scores + pair_bias, -1)
        return jax.numpy.einsum("bnhqk,bnkhd->bnqhd", weights, v)

    def loss(floats: Tree, mask: Any) -> tuple[Any, Any]:
        out = client.module({**floats, "mask": mask}, attend or plain)
        return (out * _dout(out.shape).astype(dtype)).sum(), out

    # A GPU would round float32 to fewer bits in the module's own products.
    with _double_precision(jax, dtype == "float64"), jax.default_matmul_precision("highest"):
        place = jax.devices(device)[0]
        floats = {
            name: jax.device_put(x.astype(dtype), place) for name, x in client.arrays().items()
        }
        mask = jax.device_put(client.mask.astype(dtype), place)
        # Each program runs once.
        quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
        compiled = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=quickly)
        (_, out), gradients = compiled(floats, mask)
        every = {"result": out, **gradients}
        return {name: np.asarray(x).astype(np.float64) for name, x in every.items()}


@contextmanager
def _double_precision(jax: Any, wanted: bool) -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", wanted)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)


def _dout(shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of the result, nowhere 0 for long."""
    return np.random.default_rng(1).standard_normal(shape)
