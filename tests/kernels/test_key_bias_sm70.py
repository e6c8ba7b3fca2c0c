"""ptx/key_bias_sm70.ptx: the bias of every key, every bit."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from blocks.harness import check_all, empty, parts, run
from helpers.covering import covering, some
from helpers.guarded import DTYPES, Strided, fail, host_views, lay_out

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.kernels import key_bias_sm70 as key_bias
from cuevo.kernels.backward import padded, terms_shape
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

F32 = np.dtype(np.float32)
MASKS = ("bounds", "bool", "f16", "bf16", "f32")
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "keys first": dict(order=(0, 4, 1, 2, 3)),
    "reversed": dict(backwards=(1, 4)),
    "stepped": dict(stepped=(4,)),
    "broadcast N": dict(broadcast=(1,)),
    "broadcast all": dict(broadcast=(0, 1, 4)),
}


@dataclass(frozen=True)
class Case:
    """One problem; what is printed of it makes it again."""

    mask: str
    keys: int
    step: int = 128
    """Keys of a tile: the result is padded to whole ones."""
    batch: int = 1
    rows: int = 1
    layout: str = "packed"
    values: str = "normal"
    bias_scale: float = 1.0
    threads: int = 128
    wanted: str = "key_bias"
    scale: float = 1.0


def operand(case: Case) -> Strided:
    """mask_bias, some bytes off a multiple of 16, with gaps between its rows."""
    dtype = DTYPES[case.mask]
    size = dtype.itemsize
    shape = (case.batch, case.rows, 1, 1, case.keys)
    found = lay_out(shape, dtype, **LAYOUTS[case.layout], gaps=True, unit=size, shift=size)
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in found.array.strides)
    part = found.array[once]
    rng = np.random.default_rng(case.keys)
    if case.mask == "bool":
        part[...] = rng.random(part.shape) < 0.6
        return found
    x = rng.standard_normal(part.shape)
    if case.values == "far":
        lowest = {"f16": -6e4, "bf16": -3e38, "f32": -3e38}[case.mask]
        x[rng.random(x.shape) < 0.5] = lowest
    elif case.values == "not finite":
        for value in (-np.inf, np.inf, np.nan, 0.0, -0.0):
            x[rng.random(x.shape) < 0.15] = value
    part[...] = x.astype(dtype)
    return found


def expected(case: Case, mask: np.ndarray | None) -> np.ndarray:
    """The bias as the kernels add it: one product, rounded to fp32, of at least -1e30."""
    shape = (case.batch, case.rows, case.keys)
    if mask is None:
        return np.zeros(shape, F32)
    mask = mask.reshape(shape)
    if mask.dtype == np.bool_:
        return np.where(mask, 0.0, -np.inf).astype(F32)
    with np.errstate(all="ignore"):
        exact = mask.astype(np.float64) * np.float64(F32.type(case.bias_scale))
        scaled = np.maximum(exact.astype(F32), F32.type(-1e30))
    return np.where(np.isneginf(mask), F32.type(-np.inf), scaled)


def check(place: Executor, case: Case) -> None:
    config = key_bias.Config(case.mask, case.threads, case.wanted)
    assert not key_bias.violations(config, architecture("sm_70"))
    inputs = {} if case.mask == "bounds" else {"mask_bias": operand(case)}
    positions = padded(case.keys, case.step)
    outer = (case.batch, case.rows)
    results = {
        "key_bias": empty((*outer, positions), F32),
        "key_terms": empty((*outer, 1, *terms_shape(positions)), DTYPES["bf16"]),
    }
    results = {name: x for name, x in results.items() if case.wanted in (name, "both")}
    everything = host_views(inputs | results, readonly=False)
    numbers = key_bias.parameters(
        config, **everything, keys=case.keys, bias_scale=case.bias_scale, scale=case.scale
    )
    run(
        place,
        render(key_bias.NAME, key_bias.values(config)),
        inputs,
        results,
        threads=config.threads,
        grid=config.grid(case.batch, case.rows, positions)[0],
        **{name: value for name, value in numbers.items() if name not in everything},
    )
    exact = np.full((*outer, positions), -np.inf, F32)
    exact[..., : case.keys] = expected(case, inputs["mask_bias"].array if inputs else None)
    for name, x in results.items():
        wanted, found = exact, x.array
        if name == "key_terms":
            # Every sum of the pieces is exact, and nothing else is beside them.
            pieces = x.array.astype(F32).reshape(*exact.shape, 8)
            assert not pieces[..., 3:].any()
            found = pieces[..., 0] + pieces[..., 1] + pieces[..., 2] + F32.type(0)
            wanted = exact * F32.type(np.sign(case.scale)) + F32.type(0)
        differs = found.view(np.uint32) != wanted.view(np.uint32)
        differs &= ~(np.isnan(found) & np.isnan(wanted))
        if differs.any():
            fail(case, name, differs, found, wanted)


@cache
def cases() -> tuple[Case, ...]:
    """Every three values of different fields meet."""
    found = some(
        Case,
        0.3,
        mask=MASKS,
        keys=(1, 127, 128, 129, 300),
        step=(32, 64, 128),
        batch=(1, 2),
        rows=(1, 3),
        layout=tuple(LAYOUTS),
        values=("normal", "far", "not finite"),
        bias_scale=(1.0, 5.656854249492381, 2.0**60),
        threads=(32, 128),
        wanted=("key_bias", "key_terms", "both"),
        scale=(1.0, -0.3),
    )
    return tuple(covering(found, together=3))


@pytest.mark.kernel
@parts(2)
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
def test_biases_on_the_cpu_executor(arch: str, part: slice) -> None:
    check_all(check, cases()[part], SimExecutor(arch))


@pytest.mark.gpu
def test_biases_on_a_device(executor: DriverExecutor) -> None:
    check_all(check, cases(), executor)


# -- The host half ---------------------------------------------------------------------------------

SM_70 = architecture("sm_70")


def views(positions: int = 128) -> Any:
    arrays = {
        "key_bias": lay_out((1, 2, positions), F32),
        "key_terms": lay_out((1, 2, 1, *terms_shape(positions)), DTYPES["bf16"]),
        "mask_bias": lay_out((1, 2, 1, 1, 9), F32),
    }
    return host_views(arrays, readonly=False)


@pytest.mark.unit
def test_the_parameter_block_is_that_of_the_header() -> None:
    config = key_bias.Config("f32")
    names = set(key_bias.parameters(config, **views(), keys=9, bias_scale=1.0))
    assert names == {field.name for field in load_header().kernels[key_bias.NAME].fields}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(mask="none"), "mask must be one of bounds, bool, f16, bf16, f32, not 'none'"),
        (dict(threads=48), "threads must be a multiple of 32 from 32 to 1024, not 48"),
        (dict(wanted="bias"), "wanted must be key_bias, key_terms or both, not 'bias'"),
        (dict(threads=2048), "threads must be a multiple of 32 from 32 to 1024, not 2048"),
    ],
)
def test_each_constraint(changes: dict[str, Any], reason: str) -> None:
    base = key_bias.Config()
    assert not key_bias.violations(base, SM_70)
    (found,) = key_bias.violations(replace(base, **changes), SM_70)
    assert reason in found


@pytest.mark.unit
def test_what_is_for_another_instance_is_refused() -> None:
    with pytest.raises(ValueError, match="key_bias: expected 129 positions or more; got 128"):
        key_bias.parameters(key_bias.Config("f32"), **views(), keys=129, bias_scale=1.0)
    both = {**views(), "key_terms": views(256)["key_terms"]}
    with pytest.raises(ValueError, match=r"expected the same positions; got \[128, 256\]"):
        key_bias.parameters(key_bias.Config("f32", 128, "both"), **both, keys=9, bias_scale=1.0)
    with pytest.raises(ValueError, match="key_terms: expected 9 positions or more; got 0"):
        given = {name: x for name, x in views().items() if name != "key_terms"}
        config = key_bias.Config("f32", wanted="key_terms")
        key_bias.parameters(config, **given, keys=9, bias_scale=1.0)
    with pytest.raises(ValueError, match="mask_bias: this instance is for 'bounds'"):
        key_bias.parameters(key_bias.Config("bounds"), **views(), keys=9, bias_scale=1.0)
    without = {"key_bias": views()["key_bias"]}
    with pytest.raises(ValueError, match="mask_bias: this instance is for 'f32'"):
        key_bias.parameters(key_bias.Config("f32"), **without, keys=9, bias_scale=1.0)


@pytest.mark.unit
def test_a_warp_has_128_keys() -> None:
    assert key_bias.Config(threads=128).grid(2, 3, 129) == (3, 1, 1)
    assert key_bias.Config(threads=32).grid(2, 3, 129) == (12, 1, 1)
    assert key_bias.Config(threads=128).grid(1, 1, 1) == (1, 1, 1)
