"""cuevo.jax: values and gradients against plain float32 attention in JAX, eager and compiled."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")
op: Any = pytest.importorskip("cuevo.jax")
jnp: Any = jax.numpy

NAMES = ("q", "k", "v", "mask_bias", "pair_bias")
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.kernel),
    pytest.param("gpu", marks=pytest.mark.gpu),
]
SIZES = {"cpu": (1, 2, 24, 40, 2, 16), "gpu": (2, 5, 150, 133, 3, 32)}
"""B, N, Lq, Lk, H, D."""
TOLERANCE = {"bfloat16": 1e-2, "float16": 1.5e-3}
COMPILED = pytest.mark.parametrize("compiled", [jax.jit, lambda call: call], ids=["jit", "eager"])


def make(
    device: str, dtype: str = "bfloat16", mask: str = "float32", pair: str = "bfloat16"
) -> dict[str, Any]:
    """Arguments; a bias of type "" is left out."""
    try:
        place = jax.devices(device)[0]
    except RuntimeError as error:
        pytest.skip(str(error))
    batch, rows, queries, keys, heads, head_dim = SIZES[device]
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


def plain(
    q: Any, k: Any, v: Any, mask_bias: Any = None, pair_bias: Any = None, scale: Any = None
) -> Any:
    """The same in float32, matrix by matrix."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k, precision="highest")
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if mask_bias is not None and mask_bias.dtype == jnp.bool_:
        scores = jnp.where(mask_bias, scores, -jnp.inf)
    elif mask_bias is not None:
        scores += mask_bias
    if pair_bias is not None:
        scores += pair_bias
    weights = jax.nn.softmax(scores, -1)
    return jnp.einsum("bnhqk,bnkhd->bnqhd", weights, v, precision="highest")


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
    assert found.devices() == expected.devices(), name
    exact = np.asarray(expected).astype(np.float64)
    error = np.linalg.norm(np.asarray(found).astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error < TOLERANCE[dtype], f"{name}: relative error {error:.3g}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("biases", ["both", "floats", "bool mask", "mask", "pair", "none"])
@COMPILED
def test_values_and_gradients(
    device: str, dtype: str, biases: str, compiled: Callable[..., Any]
) -> None:
    mask, pair = {
        "both": ("float32", dtype),
        "floats": (dtype, "float32"),
        "bool mask": ("bool", dtype),
        "mask": (dtype, ""),
        "pair": ("", "float32"),
        "none": ("", ""),
    }[biases]
    arguments = make(device, dtype, mask, pair)
    out = compiled(op.evoformer_attention)(**arguments)
    assert out.dtype == jnp.dtype(dtype)
    check("out", out, plain(**arguments), dtype)
    found = compiled(jax.grad(loss_of(op.evoformer_attention)))(*split(arguments))
    expected = jax.grad(loss_of(plain))(*split(arguments))
    assert found.keys() == expected.keys()
    for name, x in found.items():
        assert x.dtype == arguments[name].dtype, name
        check("d" + name, x, expected[name], dtype)


@pytest.mark.parametrize("device", DEVICES)
def test_biases_of_all_batches_and_rows(device: str) -> None:
    arguments = make(device)
    for name in ("q", "k", "v"):
        x = arguments[name]
        arguments[name] = jnp.concatenate((x, x[:, :, ::-1]))
    for name in ("mask_bias", "pair_bias"):
        arguments[name] = arguments[name][:1, :1]
    found = jax.grad(loss_of(op.evoformer_attention))(arguments, {})
    expected = jax.jit(jax.grad(loss_of(plain)))(arguments, {})
    for name, x in found.items():
        check("d" + name, x, expected[name], "bfloat16")


@pytest.mark.parametrize("device", DEVICES)
def test_a_scale(device: str) -> None:
    arguments = make(device)
    check(
        "out", op.evoformer_attention(**arguments, scale=2), plain(**arguments, scale=2), "bfloat16"
    )
    found = jax.grad(loss_of(op.evoformer_attention, scale=2))(arguments, {})
    expected = jax.grad(loss_of(plain, scale=2))(arguments, {})
    for name, x in found.items():
        check("d" + name, x, expected[name], "bfloat16")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("needed", [("q",), ("v", "pair_bias"), ("mask_bias",), NAMES], ids=str)
@COMPILED
def test_only_needed_gradients(
    device: str,
    needed: tuple[str, ...],
    compiled: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    compute = op.attention_backward

    def record(**call: Any) -> Any:
        asked.append(tuple(call["grads"]))
        return compute(**call)

    monkeypatch.setattr(op, "attention_backward", record)
    arguments = make(device)
    floats = {name: arguments[name] for name in needed}
    others = {name: x for name, x in arguments.items() if name not in needed}
    found = compiled(jax.grad(loss_of(op.evoformer_attention)))(floats, others)
    jax.block_until_ready(found)
    assert asked == [needed]
    assert found.keys() == set(needed)
    everything = jax.grad(loss_of(op.evoformer_attention))(arguments, {})
    for name, x in found.items():
        assert (x == everything[name]).all(), name


@pytest.mark.parametrize("device", DEVICES)
def test_eager_and_compiled_are_the_same_bits(device: str) -> None:
    arguments = make(device)
    once = op.evoformer_attention(**arguments)
    again = jax.jit(op.evoformer_attention)(**arguments)
    assert (once == again).all()
    chained = jax.jit(lambda x: op.evoformer_attention(**arguments | {"q": 2 * x}))
    twice = op.evoformer_attention(**arguments | {"q": 2 * arguments["q"]})
    assert (chained(arguments["q"]) == twice).all()


@pytest.mark.parametrize("device", DEVICES)
def test_dead_rows(device: str) -> None:
    arguments = make(device)
    arguments["mask_bias"] = arguments["mask_bias"].at[:, 1].set(-jnp.inf)
    assert (op.evoformer_attention(**arguments)[:, 1] == 0).all()
    found = jax.jit(jax.grad(loss_of(op.evoformer_attention)))(arguments, {})
    for name in ("q", "k", "v", "mask_bias"):
        assert (found[name][:, 1] == 0).all(), name
        assert (found[name][:, 0] != 0).any(), name
    assert jnp.isfinite(found["pair_bias"]).all()


@pytest.mark.parametrize("device", DEVICES)
def test_no_keys(device: str) -> None:
    arguments = make(device, mask="", pair="")
    arguments |= {name: arguments[name][:, :, :0] for name in ("k", "v")}
    assert (op.evoformer_attention(**arguments) == 0).all()
    found = jax.grad(loss_of(op.evoformer_attention))(arguments, {})
    assert (found["q"] == 0).all()
    assert found["k"].shape == arguments["k"].shape


@pytest.mark.parametrize("device", DEVICES)
def test_transformations(device: str) -> None:
    arguments = make(device)
    values = list(arguments.values())
    stacked = [jnp.stack([x, x[::-1]]) for x in values]
    mapped = jax.vmap(op.evoformer_attention)(*stacked)
    assert (mapped[0] == op.evoformer_attention(*values)).all()
    assert (mapped[1] == op.evoformer_attention(*(x[::-1] for x in values))).all()
    loss = loss_of(op.evoformer_attention)
    found = jax.jit(jax.grad(jax.checkpoint(loss)))(arguments, {})
    expected = jax.grad(loss)(arguments, {})
    for name, x in found.items():
        assert (x == expected[name]).all(), name


@pytest.mark.parametrize("device", DEVICES)
def test_an_operand_without_influence(device: str) -> None:
    arguments = make(device)

    def loss(v: Any) -> Any:
        op.evoformer_attention(**arguments | {"v": v})
        return v.astype(jnp.float32).sum()

    assert (jax.grad(loss)(arguments["v"]) == 1).all()


def zeros(*shape: int, dtype: Any = "float16") -> np.ndarray:
    return np.zeros(shape, jnp.dtype(dtype))


RIGHT = {
    "q": zeros(1, 2, 8, 2, 16),
    "k": zeros(1, 2, 12, 2, 16),
    "v": zeros(1, 2, 12, 2, 16),
    "mask_bias": zeros(1, 2, 1, 1, 12),
    "pair_bias": zeros(1, 1, 2, 8, 12),
}
REFUSED = {
    "no array": ({"k": [1.0]}, TypeError, "k: expected a JAX or NumPy array; got list"),
    "nothing": ({"q": None}, TypeError, "q: expected a JAX or NumPy array; got NoneType"),
    "axes": ({"v": zeros(2, 12, 2, 16)}, ValueError, "v: expected an array .*; got 4 axes"),
    "mask of some rows": (
        {"mask_bias": zeros(1, 3, 1, 1, 12)},
        ValueError,
        r"mask_bias: expected an array \[B or 1, N or 1, 1, 1, Lk\] = \(1, 2, 1, 1, 12\)",
    ),
    "type": ({"q": zeros(1, 2, 8, 2, 16, dtype="float32")}, TypeError, "q: expected float16 or"),
    "type of a bias": (
        {"pair_bias": zeros(1, 1, 2, 8, 12, dtype="bfloat16")},
        TypeError,
        "pair_bias: expected float16, the type of q, or float32; got bfloat16",
    ),
    "scale": ({"scale": "1"}, TypeError, "scale: expected a real number; got str"),
}


@pytest.mark.unit
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
@COMPILED
def test_bad_input(
    case: tuple[dict[str, Any], type[Exception], str], compiled: Callable[..., Any]
) -> None:
    changes, error, message = case
    call = RIGHT | changes
    with pytest.raises(error, match=message):
        compiled(lambda: op.evoformer_attention(**call))()
