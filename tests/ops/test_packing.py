"""Biases and dout in any strides: what is packed before the kernels read it, and that it changes no
bit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import attention_cases, backward_cases
from helpers.attention_cases import Case, relaid
from helpers.backward_calls import named
from helpers.backward_cases import BackwardCase
from helpers.device_calls import moved, overwrite
from helpers.executors import Idle, Recorder
from helpers.guarded import GUARD, POISON, Strided, assert_same_bytes, bytes_around

import cuevo
from cuevo.architectures import architecture
from cuevo.executors import architecture_of
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import forward_speeds_sm90a
from cuevo.kernels.forward import Problem
from cuevo.ops import packing
from cuevo.ops.packing import worth_packing

PACK = "pack_sm70"
FORWARD = Case("bf16", 16, 37, 45, batch=2, rows=2, heads=4, mask="f32", pair="bf16", seed=21)
BACKWARD = BackwardCase(**vars(FORWARD))
HEADS_LAST = dict(order=(0, 1, 3, 4, 2))

# Of the pair bias, as `lay_out` takes them.
PAIRS: dict[str, dict[str, Any]] = {
    "heads last": HEADS_LAST,
    "heads last, two bytes off": dict(**HEADS_LAST, shift=2),
    "transposed": dict(order=(0, 1, 2, 4, 3)),
    "reversed": dict(backwards=(2, 4)),
    "stepped": dict(stepped=(4,)),
    "one byte off": dict(gaps=True, unit=1, shift=1),
    "one value a query": dict(broadcast=(4,)),
    "one batch, heads last": dict(**HEADS_LAST, broadcast=(0,)),
}
DOUTS: dict[str, dict[str, Any]] = {
    "D first": dict(order=(0, 1, 4, 2, 3)),
    "two bytes off": dict(gaps=True, unit=2, shift=2),
    "D reversed": dict(backwards=(4,)),
    "one value": dict(broadcast=(0, 1, 2, 3, 4)),
    "one row": dict(broadcast=(1, 2), shift=8),
}
VARIANTS = [("sm_90", "bf16"), ("sm_75", "f16"), ("sm_70", "f16")]
"""Architectures of the other kernels, and a type that they have."""


def forward_inputs(case: Case, **layouts: dict[str, Any]) -> dict[str, Strided]:
    inputs = attention_cases.make(case)
    return inputs | {name: relaid(inputs[name], **layout) for name, layout in layouts.items()}


def arrays(inputs: dict[str, Strided]) -> dict[str, Any]:
    return {name: x.array for name, x in inputs.items()}


def contiguous(call: dict[str, Any]) -> dict[str, Any]:
    return {name: np.ascontiguousarray(x) for name, x in call.items()}


def check_forward(case: Case, inputs: dict[str, Strided], device: Any) -> None:
    """Right, and the same bits as with contiguous copies."""
    call = arrays(inputs)
    out, lse = cuevo.attention(**call, return_lse=True, device=device)
    attention_cases.check(case, out, lse, inputs)
    expected = cuevo.attention(**contiguous(call), return_lse=True, device=device)
    for name, found, right in zip(("out", "lse"), (out, lse), expected, strict=True):
        assert_same_bytes(case, name, found, right)


def backward_inputs(case: BackwardCase, **layouts: dict[str, Any]) -> dict[str, Strided]:
    """With the out and lse of what the layouts leave of the values."""
    inputs = backward_cases.make(case)
    inputs |= {name: relaid(inputs[name], **layout) for name, layout in layouts.items()}
    operands = {name: inputs[name] for name in backward_cases.GRADS if name in inputs}
    for name, exact in zip(("out", "lse"), attention_cases.expected(case, operands), strict=True):
        attention_cases.store(inputs[name].array, exact.astype(inputs[name].array.dtype))
    return inputs


def check_backward(case: BackwardCase, inputs: dict[str, Strided], device: Any) -> None:
    call = arrays(inputs)
    found = named(cuevo.attention_backward(**call, device=device))
    backward_cases.check(case, found, inputs)
    expected = named(cuevo.attention_backward(**contiguous(call), device=device))
    for name, right in expected.items():
        assert_same_bytes(case, name, found[name], right)


# -- Any strides -----------------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("layout", PAIRS)
def test_pair_biases(layout: str) -> None:
    place = Recorder()
    inputs = forward_inputs(FORWARD, pair_bias=PAIRS[layout])
    check_forward(FORWARD, inputs, place)
    assert place.names == [PACK, "evoformer_forward_sm80", "evoformer_forward_sm80"]


@pytest.mark.kernel
@pytest.mark.parametrize(("arch", "dtype"), VARIANTS)
def test_pair_biases_on_every_variant(arch: str, dtype: str) -> None:
    case = replace(FORWARD, arch=arch, dtype=dtype, pair="f32", mask=dtype)
    odd = dict(gaps=True, unit=1, shift=1)
    check_forward(case, forward_inputs(case, pair_bias=HEADS_LAST, mask_bias=odd), f"sim:{arch}")


@pytest.mark.kernel
@pytest.mark.parametrize("mask", ["bf16", "f32", "bool"])
def test_masks(mask: str) -> None:
    """Only elements that are not aligned to their size are packed."""
    place = Recorder()
    case = replace(FORWARD, mask=mask, pair="none")
    check_forward(case, forward_inputs(case, mask_bias=dict(shift=1, gaps=True, unit=1)), place)
    assert place.names.count(PACK) == (mask != "bool")
    place.loaded.clear()
    check_forward(case, forward_inputs(case, mask_bias=dict(order=(4, 1, 0, 2, 3))), place)
    assert place.names.count(PACK) == 0


@pytest.mark.kernel
@pytest.mark.parametrize("layout", [*PAIRS][::2])
def test_pair_biases_backward(layout: str) -> None:
    check_backward(BACKWARD, backward_inputs(BACKWARD, pair_bias=PAIRS[layout]), "sim")


@pytest.mark.kernel
@pytest.mark.parametrize("layout", DOUTS)
def test_douts(layout: str) -> None:
    place = Recorder()
    check_backward(BACKWARD, backward_inputs(BACKWARD, dout=DOUTS[layout]), place)
    assert place.names.count(PACK) == 1


@pytest.mark.kernel
@pytest.mark.parametrize(("arch", "dtype"), VARIANTS)
def test_gradients_on_every_variant(arch: str, dtype: str) -> None:
    case = replace(BACKWARD, arch=arch, dtype=dtype, pair="f32", mask=dtype, queries=20)
    odd = dict(gaps=True, unit=1, shift=1)
    layouts = dict(pair_bias=HEADS_LAST, mask_bias=odd, dout=DOUTS["D first"])
    check_backward(case, backward_inputs(case, **layouts), f"sim:{arch}")


# -- Where nothing has to be packed ----------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_the_caller_says_so(backward: bool) -> None:
    """Rows of 45 keys, two bytes off multiples of 16, stay in place unless the call says not."""
    inputs = backward_inputs(BACKWARD)
    call = arrays(inputs)
    if not backward:
        call = {name: call[name] for name in backward_cases.GRADS}
    function: Callable[..., Any] = cuevo.attention_backward if backward else cuevo.attention
    results = []
    for pack, packed in ((None, 0), (False, 0), (True, 1)):
        place = Recorder()
        found = function(**call, pack=pack, device=place)
        results.append(found if backward else (found,))
        assert place.names.count(PACK) == packed
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            assert_same_bytes(BACKWARD, "results", x, y)


@pytest.mark.kernel
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_the_rule_decides_where_the_caller_does_not(
    backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PACK_LAUNCH_SECONDS", 0.0)
    monkeypatch.setattr(packing, "PACK_BYTES_PER_SECOND", np.inf)
    place = Recorder()
    if backward:
        check_backward(BACKWARD, backward_inputs(BACKWARD), place)
        assert place.names[:2] == [PACK, "attention_delta_sm70"]
    else:
        check_forward(FORWARD, forward_inputs(FORWARD), place)
        assert place.names[:2] == [PACK, "evoformer_forward_sm80"]


MAPPED = Case("bf16", 64, 140, 173, rows=3, heads=2, mask="bf16", pair="bf16", seed=22)
"""At the default scale, a power of two."""


@pytest.fixture
def packs_for_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for long calls."""
    monkeypatch.setattr(forward_speeds_sm90a, "_LEAST_SCORES_OF_PACKED", 0)
    monkeypatch.setenv("CUEVO_VARIANT", "sm_90")


@pytest.mark.kernel
@pytest.mark.usefixtures("packs_for_maps")
@pytest.mark.parametrize("layout", [{}, HEADS_LAST], ids=["odd rows", "heads last"])
@pytest.mark.parametrize("mask", ["bf16", "bool"])
def test_a_pair_bias_is_packed_so_that_a_tensor_map_describes_it(
    layout: dict[str, Any], mask: str
) -> None:
    case = replace(MAPPED, mask=mask)
    inputs = forward_inputs(case, pair_bias=layout)
    for pack in (None, False):
        place = Recorder("sm_90a")
        out = cuevo.attention(**arrays(inputs), pack=pack, device=place)
        attention_cases.check(case, out, None, inputs)
        assert place.names[0] == "evoformer_forward_sm90a"
        assert place.values[0]["config"].converts is (pack is None)
        assert place.names.count(PACK) == (pack is None)


@pytest.mark.unit
def test_what_is_no_choice() -> None:
    call = arrays(forward_inputs(FORWARD))
    with pytest.raises(TypeError, match=r"^pack: expected None, True or False; got str"):
        cuevo.attention(**call, pack="yes", device=Idle())


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "length", "pair", "alignment", "passes", "expected"),
    [
        (384, 769, "bf16", 2, 1, True),
        (384, 769, "f32", 4, 1, True),
        (384, 772, "bf16", 8, 1, True),
        (384, 768, "bf16", 16, 1, False),
        (1, 769, "bf16", 2, 1, True),
        (1, 769, "bf16", 2, 2, True),
        (1, 770, "bf16", 4, 1, False),
        (1, 129, "bf16", 2, 1, False),
        (8, 769, "bf16", 2, 1, True),
        (64, 33, "bf16", 2, 1, False),
        (4, 772, "bf16", 8, 1, False),
        (4, 772, "bf16", 8, 2, False),
    ],
)
def test_the_rule(
    rows: int, length: int, pair: str, alignment: int, passes: int, expected: bool
) -> None:
    problem = Problem(1, rows, 4, length, length, 32, "bf16", "none", pair, alignment)
    nbytes = 4 * length * length * (2 if pair == "bf16" else 4)
    assert worth_packing(problem, nbytes, passes, architecture("sm_90")) == expected
    # The kernels of sm_75 and sm_70 read elements, whatever they are aligned to.
    assert not worth_packing(problem, nbytes, passes, architecture("sm_75"))


# -- The workspace ---------------------------------------------------------------------------------


@pytest.mark.unit
def test_the_size_of_the_workspace() -> None:
    """Of the packed bias; of one batch where all have the same."""
    row = 96  # 45 keys
    inputs = forward_inputs(FORWARD)
    assert cuevo.attention_workspace(**arrays(inputs), device="sim") == 0
    for batches, layout in ((2, HEADS_LAST), (1, PAIRS["one batch, heads last"])):
        call = arrays(forward_inputs(FORWARD, pair_bias=layout))
        nbytes = cuevo.attention_workspace(**call, device="sim")
        assert nbytes == -(-batches * 4 * 37 * row // 256) * 256


@pytest.mark.kernel
def test_a_workspace_changes_no_bit() -> None:
    call = arrays(forward_inputs(FORWARD, pair_bias=HEADS_LAST))
    expected = cuevo.attention(**call, device="sim")
    nbytes = cuevo.attention_workspace(**call, device="sim")
    memory = bytes_around(nbytes)
    room = memory[GUARD : GUARD + nbytes]
    found = cuevo.attention(**call, workspace=room, device="sim")
    assert_same_bytes(FORWARD, "out", found, expected)
    assert (memory[:GUARD] == POISON).all() and (memory[GUARD + nbytes :] == POISON).all()
    with pytest.raises(ValueError, match=r"^workspace: expected [0-9,]+ bytes; got "):
        cuevo.attention(**call, workspace=room[:-1], device="sim")


# -- On a device -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("layout", PAIRS)
def test_pair_biases_on_a_device(executor: DriverExecutor, layout: str) -> None:
    check_forward(FORWARD, forward_inputs(FORWARD, pair_bias=PAIRS[layout]), "cuda:0")
    check_backward(BACKWARD, backward_inputs(BACKWARD, pair_bias=PAIRS[layout]), "cuda:0")


@pytest.mark.gpu
@pytest.mark.usefixtures("packs_for_maps")
@pytest.mark.parametrize("layout", [{}, HEADS_LAST], ids=["odd rows", "heads last"])
def test_pair_biases_for_tensor_maps_on_a_device(
    executor: DriverExecutor, layout: dict[str, Any]
) -> None:
    """Right, and with the bits of the CPU executor."""
    if architecture_of(executor).number != 90:
        pytest.skip(f"wgmma is of sm_90a; this is {executor.arch}")
    inputs = forward_inputs(MAPPED, pair_bias=layout)
    found = cuevo.attention(**arrays(inputs), device="cuda:0")
    attention_cases.check(MAPPED, found, None, inputs)
    expected = cuevo.attention(**arrays(inputs), device="sim:sm_90a")
    assert_same_bytes(MAPPED, "out", found, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", DOUTS)
def test_douts_on_a_device(executor: DriverExecutor, layout: str) -> None:
    check_backward(BACKWARD, backward_inputs(BACKWARD, dout=DOUTS[layout]), "cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize("order", [(0, 1, 3, 4, 2), (0, 1, 2, 3, 4)], ids=["heads last", "packed"])
def test_a_captured_graph_packs_what_is_there(
    executor: DriverExecutor, order: tuple[int, ...]
) -> None:
    """In a workspace of its own, anew with each replay."""
    inputs = forward_inputs(FORWARD, pair_bias=dict(order=order))
    call = arrays(inputs)
    copies = moved(call, executor)
    graph = executor.capture(lambda stream: cuevo.attention(**copies, pack=True, stream=stream))
    for sign in (1, -1):
        pair_bias = sign * call["pair_bias"]
        overwrite(copies["pair_bias"], pair_bias.transpose(order), executor)
        graph.launch()
        expected = cuevo.attention(**call | {"pair_bias": pair_bias}, pack=True, device="cuda:0")
        assert_same_bytes(FORWARD, "out", graph.result.to_numpy(), expected)
