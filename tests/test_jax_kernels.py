"""Programs of cuevo.jax for CUDA devices: the launches that XLA makes give the bits of the calls
that come back to Python, on one device and on many, and are stored with the program.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax: Any = pytest.importorskip("jax")

from helpers.jax_calls import NAMES, check, devices, expected_out, make  # noqa: E402
from helpers.jax_programs import Program, export  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

from cuevo.architectures import KNOWN, architecture  # noqa: E402
from cuevo.jax import (  # noqa: E402
    DISABLED_CHECKS,
    ENVIRONMENT,
    evoformer_attention,
    kernels,
    launcher,
    lowering,
)
from cuevo.jax.primitives import backward_p, forward_p  # noqa: E402
from cuevo.kernels import evoformer_backward_sm90a  # noqa: E402
from cuevo.ops.backward import OPERATION  # noqa: E402
from cuevo.ops.operation import Plans  # noqa: E402

jnp: Any = jax.numpy


def both_passes(names: tuple[str, ...], wanted: tuple[str, ...]) -> Callable[..., Any]:
    """out, lse and gradients, of the operands and a dout."""

    def call(*arrays: Any) -> Any:
        *operands, dout = arrays
        kept = forward_p.bind(*operands, names=names, scale=0.3, with_lse=True)
        given = (*operands, *kept, dout)
        return *kept, *backward_p.bind(*given, names=names, wanted=wanted, scale=0.3)

    return call


@pytest.mark.kernel
@pytest.mark.parametrize(
    "mask, pair, sizes",
    [("float32", "bfloat16", (2, 2, 24, 40, 2, 16)), ("bool", "float32", (1, 2, 19, 37, 3, 24))],
    ids=["both", "ragged"],
)
def test_launches_give_the_bits_of_calls(mask: str, pair: str, sizes: tuple[int, ...]) -> None:
    arguments = make("cpu", mask=mask, pair=pair, sizes=sizes)
    wanted = tuple(name for name in arguments if mask != "bool" or name != "mask_bias")
    call = both_passes(tuple(arguments), wanted)
    q = arguments["q"]
    given = [*arguments.values(), jnp.cos(jnp.arange(q.size)).reshape(q.shape).astype(q.dtype)]
    program = Program(export(call, *given))
    found = program(*given)
    check("out", found[0], expected_out(arguments, 0.3), "bfloat16")
    for name, x, y in zip(("out", "lse", *wanted), found, jax.jit(call)(*given), strict=True):
        assert (x == y).all(), name
    assert program.launches[0].name == "evoformer_forward_sm80"


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are for a device of sm_90, and its own variant of the forward pass."""
    monkeypatch.setenv(kernels.ARCH_ENVIRONMENT, "sm_90")
    monkeypatch.setenv("CUEVO_VARIANT", "sm_90")


@pytest.mark.kernel
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("pair", ["bfloat16", ""], ids=["tiles", "no pair bias"])
def test_tensor_maps_are_made_on_the_device(pair: str) -> None:
    """In one launch; a last query tile of its own adds to what the others have written."""
    arguments = make("cpu", pair=pair, sizes=(1, 1, 131, 37, 1, 24))
    options = dict(names=tuple(arguments), scale=0.3, with_lse=True)
    program = Program(export(lambda *x: forward_p.bind(*x, **options), *arguments.values()))
    out, lse = program(*arguments.values())
    assert np.isfinite(lse).all()
    check("out", out, expected_out(arguments, 0.3), "bfloat16")
    launches = [x.name for x in program.launches]
    assert launches == ["attention_maps_sm90a", *["evoformer_forward_sm90a"] * 2]


@pytest.mark.kernel
def test_no_keys() -> None:
    shape = (1, 1, 8, 1, 8)
    call = kernels.forward_kernels(("q", "k", "v"), 1.0, with_lse=True)
    types = jnp.zeros(shape, jnp.float16), jnp.zeros((1, 1, 1, 8))
    q, k = jnp.ones(shape, jnp.float16), jnp.ones((1, 1, 0, 1, 8), jnp.float16)
    out, lse = call(types, q, k, k)
    assert (out == 0).all()
    assert (lse == -jnp.inf).all()


SMALL = (1, 4, 8, 8, 1, 8)


@pytest.mark.unit
def test_a_program_is_stored_with_its_kernels() -> None:
    pytest.importorskip("flatbuffers")
    arguments = make("cpu", mask="", pair="", sizes=SMALL)
    stored = export(evoformer_attention, *arguments.values()).serialize()
    found = Program(jax.export.deserialize(stored))(*arguments.values())
    assert (found == evoformer_attention(**arguments)).all()


@pytest.mark.unit
def test_a_program_for_no_device_fits_every_one_from_sm_80_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_here(backend: str) -> Any:
        raise RuntimeError(f"no {backend}")

    def loss(*arrays: Any) -> Any:
        return evoformer_attention(*arrays).astype(jnp.float32).sum()

    sizes = {"q": (1, 512, 512, 4, 32), "mask": (1, 512, 1, 1, 512), "pair": (1, 1, 4, 512, 512)}
    q, mask, pair = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in sizes.values())
    asked = []
    for arch in ("", "sm_80"):
        monkeypatch.setenv(kernels.ARCH_ENVIRONMENT, arch)
        monkeypatch.setattr(jax, "local_devices", none_here)
        text = export(jax.grad(loss, argnums=(0, 1, 2, 3, 4)), q, q, q, mask, pair).mlir_module()
        monkeypatch.undo()
        assert max(map(int, re.findall(r"\.target sm_(\d+)", text))) == 80
        asked.append(max(map(int, re.findall(r"shared_mem_bytes = (\d+)", text))))
    least = min(architecture(f"sm_{x}").shared_per_block for x in KNOWN if x >= 80)
    assert asked[0] <= least < asked[1]


@pytest.mark.unit
def test_each_shard_of_a_shard_map_has_its_launch() -> None:
    arguments = make("cpu", mask="", pair="", sizes=SMALL)
    mesh = jax.make_mesh((4,), ("n",), (AxisType.Auto,), devices=devices("cpu", 4))
    split = P(None, "n")
    mapped = jax.shard_map(evoformer_attention, mesh=mesh, in_specs=split, out_specs=split)
    alone = {name: x[:, :1] for name, x in arguments.items()}
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments.values()]
    text = export(mapped, *shapes).mlir_module()
    whole = Program(export(evoformer_attention, *alone.values()))
    whole(*alone.values())
    (launch,) = whole.launches
    assert text.count(kernels.TARGET) == 1
    # The same launch as that of an array of the shard's shape.
    grid, _, _ = launch.grid
    assert f"grid_x = {grid} : i32" in text
    assert "tensor<1x1x8x1x8xbf16>" in text


@pytest.mark.unit
def test_the_part_of_a_device_is_launched() -> None:
    """Of a backward pass that XLA divides over N: gradients of what all share are summed."""
    mesh = jax.make_mesh((4,), ("n",), (AxisType.Auto,), devices=devices("cpu", 4))
    shapes = {name: x.shape for name, x in make("cpu", sizes=SMALL).items()}
    given = shapes | {"out": shapes["q"], "lse": (1, 4, 1, 8), "dout": shapes["q"]}

    def placed(name: str) -> Any:
        kind = jnp.float32 if name in ("lse", "mask_bias") else jnp.bfloat16
        spec = P(None, None if name == "pair_bias" else "n")
        return jax.ShapeDtypeStruct(given[name], kind, sharding=NamedSharding(mesh, spec))

    arrays = [placed(name) for name in given]
    parameters = dict(names=NAMES, wanted=NAMES, scale=1.0)
    call = kernels.backward_kernels(NAMES, NAMES, 1.0)
    divided = lowering._Partition(backward_p, parameters, tuple(given), NAMES, call)
    _, local, after, before = divided._divide(mesh, arrays, [placed(name) for name in NAMES])
    specs = tuple(x.spec for x in before), [x.spec for x in after]
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False)
    text = export(mapped, *arrays).mlir_module()
    assert text.count(kernels.TARGET) == 6
    sums = re.findall(r"all_reduce.*?\) : \(tensor<(\w+)>\)", text, re.DOTALL)
    assert sums == ["1x1x1x8x8xf32"]
    assert "tensor<1x1x8x1x8xbf16>" in text


@pytest.mark.unit
def test_what_launches(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    assert launcher("cpu") == "python"
    kernels.are_launched.cache_clear()
    # XLA of the CPU stands for one that knows of no such launch.
    (cpu,) = devices("cpu")
    monkeypatch.setattr(jax, "local_devices", lambda backend: [cpu])
    monkeypatch.setattr(kernels, "_device", lambda: ("sm_80", ""))
    assert launcher() == "python"
    assert "come back to Python" in caplog.text
    assert kernels.TARGET in caplog.text
    kernels.are_launched.cache_clear()


@pytest.mark.unit
def test_the_environment_says_what_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuevo.jax.lowering.are_launched", lambda: True)
    assert launcher() == "xla"
    monkeypatch.setenv(ENVIRONMENT, "python")
    assert launcher() == "python"
    monkeypatch.setenv(ENVIRONMENT, "callback")
    with pytest.raises(ValueError, match=f"{ENVIRONMENT}: expected xla or python; got 'callback'"):
        launcher()


def gradients(arguments: dict[str, Any]) -> Any:
    out, pull = jax.vjp(lambda arguments: evoformer_attention(**arguments), arguments)
    return out, pull(out)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "sizes, mask, pair",
    [
        ((2, 5, 150, 133, 3, 32), "float32", "bfloat16"),
        ((1, 64, 64, 64, 4, 8), "", "float32"),
        ((1, 256, 256, 256, 4, 32), "bfloat16", "bfloat16"),
        ((1, 300, 301, 257, 4, 48), "float32", "float32"),
    ],
    ids=["ragged", "small", "tensor maps", "tensor maps, ragged"],
)
def test_whoever_launches_gives_the_same_bits(
    sizes: tuple[int, ...], mask: str, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of so many scores calls that come back have gradients by another kernel, of whose arrays XLA
    # would not know the addresses.
    monkeypatch.setattr(evoformer_backward_sm90a, "prefers_lower_variant", lambda *_: True)
    monkeypatch.setattr(OPERATION, "plans", Plans())
    arguments = make("gpu", mask=mask, pair=pair, sizes=sizes)
    assert kernels.are_launched()
    found = {}
    for name in ("xla", "python"):
        monkeypatch.setenv(ENVIRONMENT, name)
        jax.clear_caches()
        program = jax.jit(gradients).lower(arguments).compile()
        assert (kernels.TARGET in program.as_text()) == (name == "xla")
        found[name] = program(arguments)
    jax.clear_caches()
    for x, y in zip(*map(jax.tree.leaves, found.values()), strict=True):
        assert (x == y).all()


_ELSEWHERE = """
import sys, jax, numpy as np
program, given, found = sys.argv[1:]
call = jax.export.deserialize(open(program, "rb").read()).call
results = jax.tree.leaves(jax.jit(call)(*np.load(given).values()))
np.savez(found, *(np.asarray(x) for x in results))
assert not any(name.startswith("cuevo") for name in sys.modules)
"""


@pytest.mark.gpu
def test_a_stored_program_runs_where_cuevo_is_not(tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    arguments = make("gpu", "float16", "float32", "float16", sizes=(1, 3, 70, 45, 2, 24))

    def call(*arrays: Any) -> Any:
        return gradients(dict(zip(NAMES, arrays, strict=True)))

    given = [*arguments.values()]
    exported = jax.export.export(jax.jit(call), disabled_checks=DISABLED_CHECKS)(*given)
    paths = [tmp_path / name for name in ("program", "given.npz", "found.npz")]
    paths[0].write_bytes(exported.serialize())
    np.savez(paths[1], *(np.asarray(x) for x in given))
    subprocess.run([sys.executable, "-c", _ELSEWHERE, *map(str, paths)], check=True, cwd=tmp_path)
    expected = jax.tree.leaves(jax.jit(call)(*given))
    for x, y in zip(np.load(paths[2]).values(), expected, strict=True):
        assert (x == np.asarray(y)).all()
