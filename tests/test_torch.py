"""cuevo.torch: values and gradients against plain float32 attention in torch, and its manners as an
operator of torch: needed gradients only, any strides, autocast, streams, graphs, memory.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import compress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.torch_cases import (
    DEVICES,
    FULL,
    HALF,
    NAMES,
    assert_same,
    check,
    check_all,
    gradients,
    make,
    make_dout,
    normal,
    op,
    plain,
    torch,
)

import cuevo
from cuevo.arrays import Guarded, guards, readers
from cuevo.cuda import DeviceInfo
from cuevo.executors import DriverExecutor, placement
from cuevo.ops import operation
from cuevo.ops.operation import Plans
from cuevo.toolchain.header import load_header

function: Any = pytest.importorskip("cuevo.torch.function")

# -- Values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("biases", ["both", "floats", "bool mask", "mask", "pair", "none"])
def test_values_and_gradients(device: str, dtype: Any, biases: str) -> None:
    mask, pair = {
        "both": (FULL, dtype),
        "floats": (dtype, FULL),
        "bool mask": (torch.bool, dtype),
        "mask": (dtype, None),
        "pair": (None, FULL),
        "none": (None, None),
    }[biases]
    check_all(make(device, dtype, mask, pair), make_dout(device, dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_biases_of_all_batches_and_rows(device: str) -> None:
    arguments, dout = make(device), make_dout(device)
    for name in ("q", "k", "v"):
        x = arguments[name].detach()
        arguments[name] = torch.cat((x, x.flip(2))).requires_grad_()
    for name in ("mask_bias", "pair_bias"):
        arguments[name] = arguments[name].detach()[:1, :1].requires_grad_()
    check_all(arguments, torch.cat((dout, dout.flip(3))))


@pytest.mark.parametrize("device", DEVICES)
def test_a_scale(device: str) -> None:
    check_all(make(device), make_dout(device), scale=0.5)
    check_all(make(device), make_dout(device), scale=np.float32(0.5))


@pytest.mark.parametrize("device", DEVICES)
def test_signs_and_zeros_that_torch_keeps_beside_the_memory(device: str) -> None:
    arguments, dout = make(device), make_dout(device)
    zero = torch._efficientzerotensor(dout.shape, dtype=dout.dtype, device=device)
    expected, grads = gradients(op.evoformer_attention, arguments, -dout)
    for _ in range(2):  # calls of a kind that is known, too
        lazy = {
            name: torch._neg_view(-x.detach()).requires_grad_() for name, x in arguments.items()
        }
        out = op.evoformer_attention(**lazy)
        assert torch.equal(out, expected)
        found = torch.autograd.grad(out, lazy.values(), torch._neg_view(dout), retain_graph=True)
        assert_same(dict(zip(lazy, found, strict=True)), grads)
        assert not any(x.any() for x in torch.autograd.grad(out, lazy.values(), zero))
    with pytest.raises(TypeError, match=r"q: expected .* in memory: .* its clone\(\) has all"):
        cuevo.attention(**{name: x.detach() for name, x in lazy.items()})
    given = {name: x.detach() for name, x in arguments.items()}
    with pytest.raises(TypeError, match="out: expected a tensor with its elements in memory"):
        cuevo.attention(**given, out=zero)


@pytest.mark.parametrize("device", DEVICES)
def test_strided_and_expanded_operands(device: str) -> None:
    arguments = make(device)
    dout = make_dout(device)
    views = dict(arguments)
    for name in ("q", "k", "v"):
        first = arguments[name].detach().transpose(2, 3).contiguous().transpose(2, 3)
        views[name] = first.requires_grad_()
    out, found = gradients(op.evoformer_attention, views, dout)
    packed, expected = gradients(op.evoformer_attention, arguments, dout)
    assert out.is_contiguous() and torch.equal(out, packed)
    assert_same(found, expected)
    pair = arguments["pair_bias"].detach()[:, :, :1].requires_grad_()
    wide = pair.expand_as(arguments["pair_bias"])
    op.evoformer_attention(**arguments | {"pair_bias": wide}).backward(dout)
    expected_pair = pair.detach().requires_grad_()
    plain(**arguments | {"pair_bias": expected_pair}).backward(dout.float())
    check("dpair_bias", pair.grad, expected_pair.grad, HALF)


@pytest.mark.parametrize("device", DEVICES)
def test_operands_that_no_kernel_reads_in_place(device: str) -> None:
    """Channels that are not contiguous, rows off by two bytes, a pair bias with heads last."""
    arguments, dout = make(device), make_dout(device)
    views = dict(arguments)
    for name in ("q", "k"):
        views[name] = arguments[name].detach().mT.contiguous().mT.requires_grad_()
    views["v"] = off_by_two_bytes(arguments["v"].detach()).requires_grad_()
    pair = arguments["pair_bias"].detach()
    heads_last = pair.movedim(2, -1).contiguous().movedim(-1, 2)
    views["pair_bias"] = heads_last.requires_grad_()
    results = [torch.empty_like(arguments["q"])]
    for call in (arguments, views):
        out = op.evoformer_attention(**call)
        results.append(out.detach())
        found = torch.autograd.grad(out, list(call.values()), dout)
        assert all(x.is_contiguous() for x in (out, *found))
        results += found
    half = len(results) // 2 + 1
    for x, y in zip(results[1:half], results[half:], strict=True):
        assert torch.equal(x, y)


def off_by_two_bytes(x: Any) -> Any:
    """A copy that does not start at a multiple of 16 bytes."""
    return torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)


@pytest.mark.parametrize("device", DEVICES)
def test_dead_rows(device: str) -> None:
    arguments = make(device)
    with torch.no_grad():
        arguments["mask_bias"][:, 1] = -torch.inf
    out, found = gradients(op.evoformer_attention, arguments, make_dout(device))
    assert (out[:, 1] == 0).all()
    for name in ("q", "k", "v", "mask_bias"):
        assert (found[name][:, 1] == 0).all(), name
    rest = {
        name: x.detach()[:, :1].requires_grad_() if name != "pair_bias" else x
        for name, x in arguments.items()
    }
    both = {name: x[:, :2] if name != "pair_bias" else x for name, x in arguments.items()}
    out, found = gradients(op.evoformer_attention, both, make_dout(device)[:, :2])
    exact, expected = gradients(plain, rest, make_dout(device)[:, :1])
    check("out", out[:, :1], exact, HALF)
    for name, x in found.items():
        check("d" + name, x[:, :1], expected[name], HALF)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(device: str, kind: Any) -> None:
    """q, k, v and a bias of the other 16-bit type are cast, gradients have the types given."""
    other = torch.float16 if kind is torch.bfloat16 else torch.bfloat16
    given = make(device, FULL, mask=other, pair=FULL)
    cast = {name: x.to(FULL if name == "pair_bias" else kind) for name, x in given.items()}
    cast = {name: x.detach().requires_grad_() for name, x in cast.items()}
    dout = make_dout(device, kind)
    expected_out, expected = gradients(op.evoformer_attention, cast, dout)
    with torch.autocast(device, dtype=kind):
        out = op.evoformer_attention(**given)
    assert out.dtype is kind and torch.equal(out, expected_out)
    out.backward(dout)
    for name, x in given.items():
        assert torch.equal(x.grad, expected[name].to(x.dtype)), name


# -- Gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("needed", [("q",), ("v", "pair_bias"), ("mask_bias",), NAMES], ids=str)
def test_only_needed_gradients(
    device: str, needed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    compute = op.calls.backward

    def record(*operands: Any, scale: Any, needed: Any) -> Any:
        asked.append(tuple(compress(NAMES, needed)))
        return compute(*operands, scale=scale, needed=needed)

    _, expected = gradients(op.evoformer_attention, make(device), make_dout(device))
    monkeypatch.setattr(op.calls, "backward", record)
    monkeypatch.setattr(function, "_BACKWARD", Guarded())  # no call has been made before
    arguments = {
        name: x.detach().requires_grad_(name in needed) for name, x in make(device).items()
    }
    _, found = gradients(op.evoformer_attention, arguments, make_dout(device))
    assert asked == [needed]
    assert_same(found, {name: expected[name] for name in needed})


@pytest.mark.parametrize("device", DEVICES)
def test_without_gradients(device: str) -> None:
    arguments = make(device)
    with torch.no_grad():
        assert not op.evoformer_attention(**arguments).requires_grad
    assert op.evoformer_attention(**arguments).requires_grad
    detached = {name: x.detach() for name, x in arguments.items()}
    assert not op.evoformer_attention(**detached).requires_grad


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", ["sum", "sum of rows", "axes swapped", "off by two bytes"])
def test_any_dout(device: str, loss: str) -> None:
    """Zero strides, none along D, rows that do not start at multiples of 16 bytes."""
    arguments = make(device)
    out = op.evoformer_attention(**arguments)
    dout = make_dout(device)
    if loss == "sum":
        out.sum().backward()
        dout = torch.ones_like(out)
    elif loss == "sum of rows":
        row = dout[:, :1]
        out.sum(1, keepdim=True).backward(row)
        dout = row.expand_as(out)
    elif loss == "axes swapped":
        out.transpose(-1, -2).backward(dout.transpose(-1, -2).contiguous())
    else:
        out.backward(off_by_two_bytes(dout))
    found = {name: x.grad for name, x in arguments.items()}
    assert_same(found, gradients(op.evoformer_attention, arguments, dout.contiguous())[1])


@pytest.mark.kernel
def test_an_expanded_dout_is_not_copied() -> None:
    dout = torch.ones(1, 1, 8, 2, 16, dtype=HALF)
    for expanded in (dout.expand(1, 3, 8, 2, 16), dout[:, :, :1].expand(1, 1, 8, 2, 16)):
        assert op.calls.with_rows(expanded) is expanded
    assert op.calls.with_rows(dout[..., :1].expand_as(dout)).is_contiguous()


# -- The drop-in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("mask", "pair", "count"),
    [
        (True, True, 2),
        (True, False, 1),
        (True, False, 2),
        (False, True, 2),
        (False, False, 2),
        (False, False, 0),
    ],
)
def test_the_drop_in(device: str, mask: bool, pair: bool, count: int) -> None:
    arguments = make(device, mask=HALF if mask else None, pair=HALF if pair else None)
    operands = tuple(arguments[name] for name in ("q", "k", "v"))
    biases = [arguments.get("mask_bias"), arguments.get("pair_bias")][:count]
    before = list(biases)
    out = op.DS4Sci_EvoformerAttention(*operands, biases)
    assert len(biases) == len(before)
    assert all(x is y for x, y in zip(biases, before, strict=True))
    dout = make_dout(device)
    out.backward(dout)
    expected, grads = gradients(op.evoformer_attention, arguments, dout)
    assert torch.equal(out, expected)
    assert_same({name: x.grad for name, x in arguments.items()}, grads)


def zeros(*shape: int, dtype: Any = HALF) -> Any:
    return torch.zeros(shape, dtype=dtype)


RIGHT = {
    "q": zeros(1, 2, 8, 2, 16),
    "k": zeros(1, 2, 12, 2, 16),
    "v": zeros(1, 2, 12, 2, 16),
    "mask_bias": zeros(1, 2, 1, 1, 12),
    "pair_bias": zeros(1, 1, 2, 8, 12),
}
REFUSED = {
    "no tensor": ({"k": [1.0]}, TypeError, "k: expected a tensor; got list"),
    "no array": ({"q": None}, TypeError, "q: expected a tensor; got NoneType"),
    "axes": (
        {"v": zeros(2, 12, 2, 16)},
        ValueError,
        r"v: expected .*got 4 axes, shape \(2, 12, 2,",
    ),
    "keys": ({"v": zeros(1, 2, 11, 2, 16)}, ValueError, r"v: expected .*\[B, N, Lk, H, D\] = "),
    "mask of some rows": (
        {"mask_bias": zeros(1, 3, 1, 1, 12)},
        ValueError,
        r"mask_bias: expected .*N or 1.* = \(1, 2, 1, 1, 12\); got 5 axes, shape \(1, 3, 1, 1, 12",
    ),
    "pair of rows": ({"pair_bias": zeros(1, 2, 2, 8, 12)}, ValueError, "pair_bias: expected "),
    "type": (
        {"q": zeros(1, 2, 8, 2, 16, dtype=FULL)},
        TypeError,
        r"q: expected float16 or bfloat16; got float32\. Cast it, or call under torch\.autocast",
    ),
    "other type": (
        {"k": zeros(1, 2, 12, 2, 16, dtype=torch.float16)},
        TypeError,
        "k: expected bfloat16, the type of q; got float16",
    ),
    "scale": ({"scale": "1"}, TypeError, "scale: expected a real number; got str"),
    "infinite scale": ({"scale": float("inf")}, ValueError, "scale: expected a finite number"),
    "scale of many digits": ({"scale": 10**400}, ValueError, "scale: expected a finite number"),
    "sparse": ({"k": RIGHT["k"].to_sparse()}, TypeError, "k: expected a dense .*a sparse_coo one"),
    "elsewhere": ({"k": RIGHT["k"].to("meta")}, ValueError, "k: expected an array on 'cpu' or"),
}


@pytest.mark.unit
@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_bad_input(case: tuple[dict[str, Any], type[Exception], str]) -> None:
    changes, error, message = case
    with pytest.raises(error, match=message):
        op.evoformer_attention(**RIGHT | changes)


@pytest.mark.unit
def test_bad_input_of_the_drop_in() -> None:
    operands = [RIGHT[name] for name in ("q", "k", "v")]
    mask, pair = RIGHT["mask_bias"], RIGHT["pair_bias"]
    with pytest.raises(TypeError, match=r"biases: expected a list of up to two tensors; got Tens"):
        op.DS4Sci_EvoformerAttention(*operands, mask)
    with pytest.raises(ValueError, match=r"biases: expected up to two; got 3"):
        op.DS4Sci_EvoformerAttention(*operands, [mask, pair, None])
    with pytest.raises(
        ValueError,
        match=r"biases\[0\]: expected .*\[B or 1, N or 1, 1, 1, Lk\] = .*got 5 axes, shape",
    ):
        op.DS4Sci_EvoformerAttention(*operands, [pair, mask])
    with pytest.raises(ValueError, match=r"biases\[1\]: expected .*\[B or 1, 1, H, Lq, Lk\] = "):
        op.DS4Sci_EvoformerAttention(*operands, [mask, mask])
    with pytest.raises(TypeError, match=r"biases\[1\]: expected a tensor; got int"):
        op.DS4Sci_EvoformerAttention(*operands, [mask, 0])
    with pytest.raises(ValueError, match=r"K: expected .*got 4 axes"):
        op.DS4Sci_EvoformerAttention(operands[0], mask[0], operands[2], [])
    with pytest.raises(TypeError, match="K: expected bfloat16, the type of Q; got float16"):
        op.DS4Sci_EvoformerAttention(operands[0], operands[1].half(), operands[2], [])
    with pytest.raises(TypeError, match=r"biases\[1\]: expected bfloat16, .*; got float64"):
        op.DS4Sci_EvoformerAttention(*operands, [mask, pair.double()])
    with pytest.raises(ValueError, match="Q: the head dim D must be a multiple of 8"):
        op.DS4Sci_EvoformerAttention(*(x[..., :4] for x in operands), [])


# -- On a device -----------------------------------------------------------------------------------


class Launches(DriverExecutor):
    """A device, of host memory, that remembers the addresses of launches."""

    def __init__(self) -> None:
        self.name, self.arch = "cuda:0", "sm_90"
        # Never current, so that new tensors are on the device of the operands.
        self.context = SimpleNamespace(enter=lambda: True, leave=lambda: None)
        self.info = DeviceInfo(0, "", "sm_90", 132, 232448, 60 << 20, 140 << 30, "13.0")
        self.seen: list[dict[str, int]] = []

    def expect(self, kernel: Any) -> None:
        """It assembles nothing."""

    def load(self, kernel: Any) -> Any:
        struct = load_header().kernels[kernel.name]

        def launcher(shape: Any, pick: Any, pack: Any, constants: bytes) -> Any:
            def queue(table: list[int], stream: int, workspace: Any = None) -> None:
                assert stream in (5, 6)
                addresses = struct.addresses.unpack(pack(*pick(table)))
                self.seen.append(dict(zip(struct.address_fields, addresses, strict=True)))

            return queue

        return SimpleNamespace(launcher=launcher, spills=False, resident_blocks=lambda *shape: 1)

    def side_stream(self, stream: int) -> Any:
        return nullcontext(stream + 1)


@pytest.mark.unit
@pytest.mark.parametrize("are_guarded", [True, False])
def test_repeated_calls_on_a_device(are_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They ask nothing again, and kernels get the addresses of the call's own tensors."""
    place = Launches()
    monkeypatch.setitem(readers._TORCH_DEVICES, torch.device("cpu"), place.name)
    monkeypatch.setattr(placement, "executor", lambda ordinal: place)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 5, raising=False)
    for name in ("_FORWARD", "_BACKWARD"):
        monkeypatch.setattr(function, name, Guarded())
    if not are_guarded:
        monkeypatch.setattr(guards, "_guards", lambda torch: None)
    operations = (op.calls.FORWARD, op.calls.BACKWARD)
    for each in operations:
        monkeypatch.setattr(each, "plans", Plans())
    for repeated in (False, True):
        if repeated:
            for each in operations:
                monkeypatch.setattr(each, "_make_plan", None)
        arguments, dout = make("cpu"), make_dout("cpu")
        check_launches(place, arguments, dout)
        shifted = arguments | {"q": off_by_two_bytes(arguments["q"].detach()).requires_grad_()}
        out = op.evoformer_attention(**shifted)
        assert place.seen[-1]["q"] % 16 == 0
        torch.autograd.grad(out, list(shifted.values()), off_by_two_bytes(dout))
        assert all(x["dout"] % 16 == 0 for x in place.seen if "dout" in x)
    if are_guarded:
        for each in operations:
            monkeypatch.setattr(each, "look_up", None)
        check_launches(place, make("cpu"), make_dout("cpu"))


@pytest.mark.unit
def test_repeated_calls_of_the_bare_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above: torch's tensors are known again, others are identified."""
    place = Launches()
    monkeypatch.setitem(readers._TORCH_DEVICES, torch.device("cpu"), place.name)
    monkeypatch.setattr(placement, "executor", lambda ordinal: place)
    monkeypatch.setattr(op.calls.FORWARD, "plans", Plans())
    monkeypatch.setattr(op.calls.FORWARD, "_repeated", Guarded())
    for round_ in range(3):
        if round_ == 1:
            monkeypatch.setattr(operation, "identify", None)
        arrays = {name: x.detach() for name, x in make("cpu").items()}
        arrays["out"] = torch.empty_like(arrays["q"])
        assert cuevo.attention(**arrays, stream=5) is arrays["out"]
        expected = {name: x.data_ptr() for name, x in arrays.items()} | {"lse": 0}
        assert place.seen[-1] == expected
    with pytest.raises(TypeError, match="not callable"):
        cuevo.attention(**arrays | {"q": off_by_two_bytes(arrays["q"])}, stream=5)


def check_launches(place: Launches, arguments: dict[str, Any], dout: Any) -> None:
    """The kernels of a call with gradients, and of one without, get the tensors' addresses."""
    place.seen.clear()
    out = op.evoformer_attention(**arguments)
    assert out.is_contiguous() and (out.shape, out.dtype) == (dout.shape, dout.dtype)
    expected = {name: x.data_ptr() for name, x in (*arguments.items(), ("out", out))}
    forward = place.seen.pop()
    assert forward.pop("lse") and forward == expected
    grads = torch.autograd.grad(out, list(arguments.values()), dout)
    for x, grad in zip(arguments.values(), grads, strict=True):
        assert grad.is_contiguous() and (grad.shape, grad.dtype) == (x.shape, x.dtype)
    assert all(x["stats"] for x in place.seen if "stats" in x)  # in the workspace
    launched = {x for addresses in place.seen for x in addresses.values()}
    assert {x.data_ptr() for x in (dout, *arguments.values(), *grads)} <= launched
    with torch.no_grad():
        op.evoformer_attention(**arguments)
    assert place.seen[-1]["lse"] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_repeated_calls_give_the_same_bits(device: str) -> None:
    """Also where something else changes between them, and in another thread."""
    arguments, dout = make(device), make_dout(device)
    leaves = {name: x.detach().requires_grad_() for name, x in arguments.items()}
    expected_out, expected = gradients(op.evoformer_attention, arguments, dout)

    def repeat() -> None:
        for _ in range(3):
            out = op.evoformer_attention(**leaves)
            assert torch.equal(out, expected_out)
            found = torch.autograd.grad(out, list(leaves.values()), dout)
            assert_same(dict(zip(leaves, found, strict=True)), expected)

    repeat()
    other = torch.float16 if arguments["q"].dtype is torch.bfloat16 else torch.bfloat16
    with torch.autocast(device, dtype=other):
        assert op.evoformer_attention(**leaves).dtype is other
    with torch.no_grad():
        assert not op.evoformer_attention(**leaves).requires_grad
    with torch.inference_mode():
        assert op.evoformer_attention(**leaves).is_inference()
    scaled = op.evoformer_attention(**leaves, scale=0.5)
    assert not torch.equal(scaled, expected_out)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(repeat).result()


@pytest.mark.parametrize("device", DEVICES)
def test_saved_tensors_may_move(device: str) -> None:
    """As where they are kept in other memory until the backward pass."""
    arguments, dout = make(device), make_dout(device)
    _, expected = gradients(op.evoformer_attention, arguments, dout)
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x):
            out = op.evoformer_attention(**arguments)
        found = torch.autograd.grad(out, list(arguments.values()), dout)
        assert_same(dict(zip(arguments, found, strict=True)), expected)


@pytest.mark.kernel
def test_a_result_that_has_been_changed_has_no_gradients() -> None:
    out = op.evoformer_attention(**make("cpu"))
    out.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.kernel
def test_what_a_transform_has_left() -> None:
    arguments, dout = make("cpu"), make_dout("cpu")
    left = []
    torch.func.grad(lambda x: (left.append(x), x.sum())[1])(arguments["q"].detach())
    expected_out, expected = gradients(op.evoformer_attention, arguments, dout)
    out = op.evoformer_attention(**arguments | {"q": left[0]})
    assert torch.equal(out, expected_out)
    out.backward(dout)
    assert torch.equal(arguments["k"].grad, expected["k"])


# -- Streams and graphs ----------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_side_stream() -> None:
    """The operands and dout are written, late, on the stream that the call runs on."""
    arguments, dout = make("cuda"), make_dout("cuda")
    expected_out, expected = gradients(op.evoformer_attention, arguments, dout)
    late = {name: torch.zeros_like(x) for name, x in arguments.items()}
    late_dout = torch.zeros_like(dout)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(200_000_000)
        for name, x in late.items():
            x.copy_(arguments[name])
        late_dout.copy_(dout)
    with torch.cuda.stream(stream):
        leaves = {name: x.detach().requires_grad_() for name, x in late.items()}
        out, found = gradients(op.evoformer_attention, leaves, late_dout)
    stream.synchronize()
    assert torch.equal(out, expected_out)
    assert_same(found, expected)


@pytest.mark.gpu
def test_a_captured_graph() -> None:
    arguments, dout = make("cuda"), make_dout("cuda")
    expected_out, expected = gradients(op.evoformer_attention, arguments, dout)

    def work() -> Any:
        out = op.evoformer_attention(**arguments)
        return out, torch.autograd.grad(out, list(arguments.values()), dout)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, grads = work()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected_out)
        assert_same(dict(zip(arguments, grads, strict=True)), expected)


@pytest.mark.gpu
def test_memory_comes_from_torch() -> None:
    """Of results and workspace, which are smaller than a matrix of scores."""
    q = normal("cuda", HALF, (1, 256, 256, 4, 32), 0)
    pair = normal("cuda", HALF, (1, 1, 4, 256, 256), 1).requires_grad_()
    leaves = [q.clone().requires_grad_() for _ in range(3)]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    op.evoformer_attention(*leaves, pair_bias=pair).backward(q)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    scores = 256 * 4 * 256 * 256 * 4
    assert 4 * q.nbytes < peak < scores
