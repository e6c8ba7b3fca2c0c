"""cuevo.jax: values and gradients against float64, eager and compiled, and under JAX's
transformations.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")

from helpers.jax_calls import (  # noqa: E402
    DEVICES,
    NAMES,
    check,
    expected_gradients,
    expected_out,
    loss_of,
    make,
    recorded,
    split,
)

import cuevo  # noqa: E402
from cuevo import jax as op  # noqa: E402

jnp: Any = jax.numpy
SMALL = (1, 1, 8, 8, 1, 8)
COMPILED = pytest.mark.parametrize("compiled", [jax.jit, lambda call: call], ids=["jit", "eager"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dtype, biases",
    [
        *(("bfloat16", biases) for biases in ("both", "floats", "bool mask", "mask", "pair")),
        *(("float16", biases) for biases in ("floats", "none")),
    ],
)
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
    check("out", out, expected_out(arguments), dtype)
    assert out.devices() == arguments["q"].devices()
    found = compiled(jax.grad(loss_of(op.evoformer_attention)))(*split(arguments))
    expected = expected_gradients(arguments)
    assert found.keys() == expected.keys()
    for name, x in found.items():
        assert x.dtype == arguments[name].dtype, name
        check("d" + name, x, expected[name], dtype)


SCALES = [np.float32(2), np.float64(2), np.array(2), jnp.float32(2), 2]


@pytest.mark.kernel
@pytest.mark.parametrize("scale", SCALES, ids=lambda scale: type(scale).__name__)
@COMPILED
def test_numbers_for_a_scale(scale: Any, compiled: Callable[..., Any]) -> None:
    arguments = make("cpu", sizes=SMALL)
    found = compiled(lambda: op.evoformer_attention(**arguments, scale=scale))()
    assert (found == op.evoformer_attention(**arguments, scale=2.0)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_biases_of_all_batches_and_rows(device: str) -> None:
    arguments = make(device)
    for name in ("q", "k", "v"):
        x = arguments[name]
        arguments[name] = jnp.concatenate((x, x[:, :, ::-1]))
    for name in ("mask_bias", "pair_bias"):
        arguments[name] = arguments[name][:1, :1]
    found = jax.grad(loss_of(op.evoformer_attention))(arguments, {})
    expected = expected_gradients(arguments)
    for name, x in found.items():
        check("d" + name, x, expected[name], "bfloat16")


@pytest.mark.parametrize("device", DEVICES)
def test_a_scale(device: str) -> None:
    arguments = make(device)
    check(
        "out",
        op.evoformer_attention(**arguments, scale=2),
        expected_out(arguments, scale=2),
        "bfloat16",
    )
    found = jax.grad(loss_of(op.evoformer_attention, scale=2))(arguments, {})
    expected = expected_gradients(arguments, scale=2)
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
    arguments = make(device)
    floats = {name: arguments[name] for name in needed}
    others = {name: x for name, x in arguments.items() if name not in needed}
    with recorded(monkeypatch) as calls:
        found = compiled(jax.grad(loss_of(op.evoformer_attention)))(floats, others)
        jax.block_until_ready(found)
    shape = arguments["q"].shape
    assert calls == [(shape,), (shape, needed)]
    assert found.keys() == set(needed)
    everything = jax.grad(loss_of(op.evoformer_attention))(arguments, {})
    for name, x in found.items():
        assert (x == everything[name]).all(), name


def test_the_lse_is_computed_for_gradients_alone() -> None:
    arguments = make("cpu", sizes=SMALL)
    alone = str(jax.make_jaxpr(op.evoformer_attention)(**arguments))
    differentiated = str(
        jax.make_jaxpr(jax.grad(loss_of(op.evoformer_attention)))(*split(arguments))
    )
    assert "with_lse=False" in alone and "with_lse=True" not in alone
    assert "with_lse=True" in differentiated and "with_lse=False" not in differentiated


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
@pytest.mark.parametrize(
    "shared",
    [(), ("q", "v"), ("k", "mask_bias", "pair_bias")],
    ids=lambda names: " ".join(names) or "nothing",
)
def test_vmap_is_one_call(
    device: str, shared: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 3 elements, along another axis in each array."""
    sizes = (2, 1, 9, 16, 2, 8)
    arguments = make(device, sizes=sizes)
    places = {
        name: None if name in shared else place for place, name in enumerate(arguments, start=-2)
    }
    factors = jnp.asarray([1, -1, 0.5])
    elements = [
        {name: x if name in shared else (x * f).astype(x.dtype) for name, x in arguments.items()}
        for f in factors
    ]
    stacked = {
        name: x if name in shared else jnp.stack([e[name] for e in elements], places[name])
        for name, x in arguments.items()
    }
    loss = loss_of(op.evoformer_attention)
    value_and_gradient = jax.value_and_grad(lambda floats: loss(floats, {}))
    over = jax.vmap(value_and_gradient, in_axes=(places,))
    total = jax.grad(
        lambda floats: jax.vmap(lambda x: loss(x, {}), in_axes=(places,))(floats).sum()
    )
    with recorded(monkeypatch) as calls:
        values, gradients = jax.block_until_ready(over(stacked))
        jax.block_until_ready(sums := total(stacked))
    batch, rows, *rest = arguments["q"].shape
    into_batch, into_rows = (3 * batch, rows, *rest), (batch, 3 * rows, *rest)
    forward = into_rows if "pair_bias" in shared else into_batch
    # Gradients of each element are for biases of its own.
    assert calls == [(forward,), (into_batch, NAMES), (forward,), (forward, NAMES)]
    each = [value_and_gradient(x) for x in elements]
    assert (values == jnp.stack([value for value, _ in each])).all()
    for name in NAMES:
        expected = jnp.stack([gradient[name] for _, gradient in each])
        check(f"d{name} of each", gradients[name], expected, "bfloat16")
        if name in shared:
            expected = expected.astype(jnp.float32).sum(0)
        else:
            expected = jnp.moveaxis(expected, 0, places[name])
        check(f"d{name}", sums[name], expected, "bfloat16")


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_of_vmap(device: str) -> None:
    """Rows of pairs: the way of a model that is written for one row."""
    q, k, v, mask_bias, pair_bias = make(device, sizes=(2, 3, 8, 8, 1, 8)).values()

    def row(q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
        one = (x[None, None] for x in (q, k, v, mask_bias))
        return op.evoformer_attention(*one, pair_bias[None])[0, 0]

    rows = jax.vmap(jax.vmap(row, in_axes=(0, 0, 0, 0, None)))
    out = rows(q, k, v, mask_bias, pair_bias)
    assert (out == op.evoformer_attention(q, k, v, mask_bias, pair_bias)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_layers_in_a_scan_are_recomputed(device: str) -> None:
    arguments = make(device, sizes=SMALL)

    def scanned(arguments: dict[str, Any]) -> Any:
        def layer(q: Any, _: None) -> tuple[Any, None]:
            return op.evoformer_attention(**arguments | {"q": q}), None

        return jax.lax.scan(jax.checkpoint(layer), arguments["q"], None, length=2)[0]

    def unrolled(arguments: dict[str, Any]) -> Any:
        inner = op.evoformer_attention(**arguments)
        return op.evoformer_attention(**arguments | {"q": inner})

    found, expected = (
        jax.jit(jax.grad(lambda x, call=call: call(x).sum()))(arguments)
        for call in (scanned, unrolled)
    )
    for name, x in found.items():
        check("d" + name, x, expected[name], "bfloat16")


@pytest.mark.parametrize("device", DEVICES)
def test_a_donated_argument(device: str) -> None:
    arguments = make(device, sizes=SMALL)
    expected = op.evoformer_attention(**arguments)
    q = arguments.pop("q").copy()
    found = jax.jit(op.evoformer_attention, donate_argnums=0)(q, **arguments)
    assert q.is_deleted()
    assert (found == expected).all()


@pytest.mark.parametrize("device", DEVICES)
def test_without_jit(device: str) -> None:
    arguments = make(device, sizes=SMALL)
    loss = loss_of(op.evoformer_attention)
    expected = jax.grad(loss)(arguments, {})
    with jax.disable_jit():
        found = jax.grad(loss)(arguments, {})
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


@pytest.mark.unit
@pytest.mark.parametrize(
    "transformed, message",
    [
        (lambda call, q: jax.jvp(call, (q,), (q,)), "derivatives in forward mode"),
        (lambda call, q: jax.jit(jax.jacfwd(call))(q), "derivatives in forward mode"),
        (
            lambda call, q: jax.grad(lambda x: jax.grad(lambda y: call(y).sum())(x).sum())(q),
            "second derivatives",
        ),
        (lambda call, q: jax.export.export(jax.jit(call))(q), "host_callbacks"),
    ],
    ids=["jvp", "jacfwd", "grad of grad", "export"],
)
def test_what_is_not_available(transformed: Callable[..., Any], message: str) -> None:
    rest = {name: x for name, x in RIGHT.items() if name != "q"}
    with pytest.raises(NotImplementedError, match=message):
        transformed(lambda q: op.evoformer_attention(q, **rest), jnp.asarray(RIGHT["q"]))


@pytest.mark.unit
def test_an_array_of_jax_is_not_written_to() -> None:
    x = jax.numpy.ones((1, 2, 8, 2, 16), "bfloat16")
    with pytest.raises(ValueError, match="out: has to be writable"):
        cuevo.attention(x, x, x, out=x)


def test_a_scale_that_is_traced() -> None:
    call = jax.jit(lambda scale: op.evoformer_attention(**RIGHT, scale=scale))
    with pytest.raises(TypeError, match="scale: expected a number that is known while tracing"):
        call(2.0)
