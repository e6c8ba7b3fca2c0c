"""cuevo.jax on several devices: what XLA's partitioner and shard_map make of it gives the bits of
one device, and arrays stay where they are. Of the CPU there are four devices (tests/conftest.py).
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")

from helpers.jax_calls import DEVICES, NAMES, check, devices, make, recorded  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from cuevo.jax import evoformer_attention, primitives  # noqa: E402

jnp: Any = jax.numpy
SIZES = (2, 4, 8, 16, 2, 8)
"""B, N, Lq, Lk, H, D."""
AXES = {
    "q": "BNQHD",
    "k": "BNKHD",
    "v": "BNKHD",
    "mask_bias": "BN..K",
    "pair_bias": "B.HQK",
}
COLLECTIVES = re.compile(r" (all-gather|all-to-all|collective-permute|all-reduce)(?:-start)?\(")


def make_mesh(device: str, shards: dict[str, int], kind: Any = AxisType.Auto) -> Any:
    """A mesh that has an axis for each sharded axis of the arrays, by the same name."""
    found = devices(device, int(np.prod(list(shards.values()))))
    return jax.make_mesh(
        tuple(shards.values()), tuple(shards), axis_types=(kind,) * len(shards), devices=found
    )


def spec_of(name: str, mesh: Any) -> Any:
    return P(*(axis if axis in mesh.axis_names else None for axis in AXES[name]))


def placed(arguments: dict[str, Any], mesh: Any) -> dict[str, Any]:
    return {
        name: jax.device_put(x, NamedSharding(mesh, spec_of(name, mesh)))
        for name, x in arguments.items()
    }


def loss(arguments: dict[str, Any], dout: Any) -> tuple[Any, Any]:
    """A sum whose gradient by out is `dout`, and out."""
    out = evoformer_attention(**arguments)
    return (out.astype(jnp.float32) * dout).sum(), out


GRADIENT = jax.grad(loss, has_aux=True)


def on_one_device(arguments: dict[str, Any], dout: Any) -> tuple[Any, Any]:
    """What is expected, before anything else begins: on a CPU callbacks of two programs at a time
    may wait for each other's devices, until XLA ends the process.
    """
    return jax.block_until_ready(GRADIENT(arguments, dout))


def make_dout(device: str) -> Any:
    out = jax.eval_shape(evoformer_attention, **make(device, sizes=SIZES))
    return jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape)


def check_all(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    """The same bits, but for sums over shards."""
    (gradients, out), (expected_gradients, expected_out) = found, expected
    assert (np.asarray(out) == np.asarray(expected_out)).all()
    assert gradients.keys() == expected_gradients.keys()
    for name, x in gradients.items():
        if name.endswith("bias"):
            check("d" + name, x, expected_gradients[name], "bfloat16")
        else:
            assert (np.asarray(x) == np.asarray(expected_gradients[name])).all(), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "shards, summed, kind",
    [
        ({"N": 2}, 1, AxisType.Auto),
        ({"N": 2}, 1, AxisType.Explicit),
        ({"B": 2}, 0, AxisType.Auto),
        ({"N": 2, "H": 2}, 2, AxisType.Auto),
    ],
    ids=["N", "N explicit", "B", "N and H"],
)
def test_jit_leaves_arrays_where_they_are(
    device: str,
    shards: dict[str, int],
    summed: int,
    kind: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments, dout = make(device, sizes=SIZES), make_dout(device)
    expected = on_one_device(arguments, dout)
    mesh = make_mesh(device, shards, kind)
    inputs = placed(arguments, mesh), placed({"q": dout}, mesh)["q"]

    def run() -> None:
        program = jax.jit(GRADIENT).lower(*inputs).compile()
        assert COLLECTIVES.findall(program.as_text()) == ["all-reduce"] * summed
        found = jax.block_until_ready(program(*inputs))
        check_all(found, expected)
        for name, x in found[0].items():
            assert x.sharding.is_equivalent_to(inputs[0][name].sharding, x.ndim), name

    if device == "gpu":
        run()  # Where XLA launches, no call comes back to Python.
    with recorded(monkeypatch) as calls:
        run()
    shape = inputs[0]["q"].sharding.shard_shape(arguments["q"].shape)
    count = mesh.devices.size
    assert sorted(calls) == [(shape,)] * count + [(shape, NAMES)] * count


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("placement", ["q only", "positions", "uneven"])
def test_jit_of_other_placements(device: str, placement: str) -> None:
    """Arrays that are sharded in other ways than the call can be give the same results."""
    arguments, dout = make(device, sizes=SIZES), make_dout(device)
    mesh = make_mesh(device, {"N": 2})
    rows = NamedSharding(mesh, P(None, "N"))
    positions = NamedSharding(mesh, P(None, None, "N"))
    if placement == "uneven":
        arguments = {name: x[:, :3] if x.shape[1] > 1 else x for name, x in arguments.items()}
        dout = dout[:, :3]
    expected = on_one_device(arguments, dout)

    @jax.jit
    def call(arguments: dict[str, Any], dout: Any) -> Any:
        wanted = {
            "q only": {"q": rows},
            "positions": {"q": positions, "k": positions, "v": positions},
            "uneven": {"q": rows, "k": rows, "v": rows, "mask_bias": rows},
        }[placement]
        constrained = {
            name: jax.lax.with_sharding_constraint(arguments[name], where)
            for name, where in wanted.items()
        }
        return GRADIENT(arguments | constrained, dout)

    everywhere = jax.device_put((arguments, dout), NamedSharding(mesh, P()))
    check_all(call(*everywhere), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("check_vma", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("compiled", [jax.jit, lambda call: call], ids=["jit", "eager"])
def test_gradients_through_shard_map(
    device: str, check_vma: bool, compiled: Callable[..., Any]
) -> None:
    arguments, dout = make(device, sizes=SIZES), make_dout(device)
    mesh = make_mesh(device, {"N": 2})
    specs = {name: spec_of(name, mesh) for name in NAMES}
    mapped = jax.shard_map(
        lambda arguments: evoformer_attention(**arguments),
        mesh=mesh,
        in_specs=(specs,),
        out_specs=specs["q"],
        check_vma=check_vma,
    )

    def loss(arguments: dict[str, Any], dout: Any) -> tuple[Any, Any]:
        out = mapped(arguments)
        return (out.astype(jnp.float32) * dout).sum(), out

    inputs = placed(arguments, mesh), placed({"q": dout}, mesh)["q"]
    expected = on_one_device(arguments, dout)
    check_all(compiled(jax.grad(loss, has_aux=True))(*inputs), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_inside_of_shard_map(device: str) -> None:
    """The gradient of what every device has is the sum over devices."""
    arguments, dout = make(device, sizes=SIZES), make_dout(device)
    mesh = make_mesh(device, {"N": 2})
    specs = {name: spec_of(name, mesh) for name in NAMES}
    mapped = jax.shard_map(
        GRADIENT, mesh=mesh, in_specs=(specs, specs["q"]), out_specs=(specs, specs["q"])
    )
    inputs = placed(arguments, mesh), placed({"q": dout}, mesh)["q"]
    expected = on_one_device(arguments, dout)
    check_all(mapped(*inputs), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_mesh_that_is_manual_in_part(device: str) -> None:
    # XLA on a CPU ends the process over a sum of bfloat16 here.
    arguments, dout = make(device, sizes=SIZES, pair="float32"), make_dout(device)
    mesh = make_mesh(device, {"N": 2, "H": 2})
    specs = {name: P(*(("N" if axis == "N" else None) for axis in AXES[name])) for name in NAMES}
    mapped = jax.shard_map(
        lambda *x: jax.lax.psum(loss(*x)[0], "N"),
        mesh=mesh,
        in_specs=(specs, specs["q"]),
        out_specs=P(),
        axis_names={"N"},
    )
    gradients, out = on_one_device(arguments, dout)
    found = jax.jit(jax.grad(mapped))(placed(arguments, mesh), dout)
    check_all((found, out), (gradients, out))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)
def test_vmap_of_sharded_arrays(device: str, kind: Any) -> None:
    """They share the pair bias, so that they are folded into N, which is sharded."""
    arguments = make(device, sizes=SIZES)
    places = {name: None if name == "pair_bias" else 0 for name in NAMES}
    stacked = {
        name: x if places[name] is None else jnp.stack([x, 2 * x]) for name, x in arguments.items()
    }
    mesh = make_mesh(device, {"N": 2}, kind)
    specs = {name: spec_of(name, mesh) for name in NAMES}
    shardings = {
        name: NamedSharding(mesh, spec if places[name] is None else P(None, *spec))
        for name, spec in specs.items()
    }

    def total(arguments: dict[str, Any]) -> Any:
        call = jax.vmap(lambda x: evoformer_attention(**x), in_axes=(places,))
        return call(arguments).astype(jnp.float32).sum()

    expected = jax.block_until_ready(jax.grad(total)(stacked))
    found = jax.jit(jax.grad(total))(jax.device_put(stacked, shardings))
    for name in NAMES:
        check("d" + name, found[name], expected[name], "bfloat16")


@pytest.mark.unit
@pytest.mark.parametrize("shards", [{"B": 2, "N": 2}, {"H": 4}], ids=["B and N", "H"])
def test_what_is_broadcast_is_not_divided(shards: dict[str, int]) -> None:
    """A bias of one batch and row is there on all devices, and its gradient is summed over them."""
    mesh = make_mesh("cpu", shards)
    extents = {"B": 4, "N": 4, "Q": 8, "K": 16, "H": 4, "D": 8}
    axes = AXES | {"mask_bias": "....K", "pair_bias": "..HQK"}
    axes |= {"out": AXES["q"], "lse": "BNHQ", "dout": AXES["q"]}
    arrays = {
        name: jax.ShapeDtypeStruct(
            tuple(extents.get(axis, 1) for axis in each),
            jnp.float32 if name == "lse" else jnp.bfloat16,
            sharding=NamedSharding(mesh, P(*(axis if axis in shards else None for axis in each))),
        )
        for name, each in axes.items()
    }
    backward = jax.jit(
        lambda *operands: primitives.backward_p.bind(
            *operands, names=NAMES, wanted=NAMES, scale=1.0
        )
    )
    program = backward.lower(*arrays.values()).compile()
    # XLA makes one of sums over the same devices.
    assert COLLECTIVES.findall(program.as_text()) == ["all-reduce"]
    for name, type_, sharding in zip(
        NAMES, program.out_info, program.output_shardings, strict=True
    ):
        assert type_.shape == arrays[name].shape, name
        assert sharding.is_equivalent_to(arrays[name].sharding, 5), name
