"""Arguments of `cuevo.torch.evoformer_attention`, plain attention in torch, and comparisons."""

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
op: Any = pytest.importorskip("cuevo.torch")

NAMES = ("q", "k", "v", "mask_bias", "pair_bias")
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.kernel),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
SIZES = {"cpu": (1, 2, 24, 40, 2, 16), "cuda": (2, 5, 150, 133, 3, 32)}
"""B, N, Lq, Lk, H, D."""
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1.5e-3}
HALF, FULL = torch.bfloat16, torch.float32


def normal(device: str, dtype: Any, shape: tuple[int, ...], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def make(device: str, dtype: Any = HALF, mask: Any = FULL, pair: Any = HALF) -> dict[str, Any]:
    """Arguments; a bias of type None is left out."""
    batch, rows, queries, keys, heads, head_dim = SIZES[device]
    kinds = {
        "q": ((batch, rows, queries, heads, head_dim), dtype),
        "k": ((batch, rows, keys, heads, head_dim), dtype),
        "v": ((batch, rows, keys, heads, head_dim), dtype),
        "mask_bias": ((batch, rows, 1, 1, keys), mask),
        "pair_bias": ((batch, 1, heads, queries, keys), pair),
    }
    made = {}
    for seed, (name, (shape, kind)) in enumerate(kinds.items()):
        if kind is torch.bool:
            made[name] = normal(device, FULL, shape, seed) < 1
        elif kind is not None:
            made[name] = normal(device, kind, shape, seed).requires_grad_()
    return made


def make_dout(device: str, dtype: Any = HALF) -> Any:
    batch, rows, queries, _, heads, head_dim = SIZES[device]
    return normal(device, dtype, (batch, rows, queries, heads, head_dim), 9)


def plain(
    q: Any, k: Any, v: Any, mask_bias: Any = None, pair_bias: Any = None, scale: Any = None
) -> Any:
    """The same in float32, matrix by matrix."""
    scores = torch.einsum("bnqhd,bnkhd->bnhqk", q.float(), k.float())
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask_bias is not None and mask_bias.dtype is torch.bool:
        scores = scores.masked_fill(~mask_bias, -torch.inf)
    elif mask_bias is not None:
        scores = scores + mask_bias
    if pair_bias is not None:
        scores = scores + pair_bias
    return torch.einsum("bnhqk,bnkhd->bnqhd", scores.softmax(-1), v.float())


def gradients(call: Callable[..., Any], arguments: dict[str, Any], dout: Any, **more: Any) -> Any:
    """The result, and by name the gradients of what requires one."""
    leaves = {name: x.detach().requires_grad_(x.requires_grad) for name, x in arguments.items()}
    out = call(**leaves, **more)
    out.backward(dout.to(out.dtype))
    return out.detach(), {name: x.grad for name, x in leaves.items() if x.requires_grad}


def check(name: str, found: Any, expected: Any, dtype: Any) -> None:
    assert found.shape == expected.shape and found.device == expected.device, name
    error = float((found.double() - expected.double()).norm() / expected.double().norm())
    assert error < TOLERANCE[dtype], f"{name}: relative error {error:.3g}"


def check_all(arguments: dict[str, Any], dout: Any, **more: Any) -> None:
    dtype = arguments["q"].dtype
    out, found = gradients(op.evoformer_attention, arguments, dout, **more)
    exact, expected = gradients(plain, arguments, dout, **more)
    assert out.dtype is dtype
    check("out", out, exact, dtype)
    assert found.keys() == expected.keys()
    for name, x in found.items():
        assert x.dtype is arguments[name].dtype, name
        check("d" + name, x, expected[name], dtype)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, x in found.items():
        assert torch.equal(x, expected[name]), name
