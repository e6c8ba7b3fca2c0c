"""cuevo.torch: values and gradients against plain float32 attention in torch, and its manners as an
operator of torch: needed gradients only, strides of dout, ``torch.compile``, streams, graphs.
"""

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


# -- Gradients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("needed", [("q",), ("v", "pair_bias"), ("mask_bias",), NAMES], ids=str)
def test_only_needed_gradients(
    device: str, needed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    compute = op.attention_backward

    def record(*arrays: Any, **options: Any) -> Any:
        asked.append(tuple(options["grads"]))
        return compute(*arrays, **options)

    _, expected = gradients(op.evoformer_attention, make(device), make_dout(device))
    monkeypatch.setattr(op, "attention_backward", record)
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
        shifted = torch.empty(dout.numel() + 1, dtype=dout.dtype, device=device)[1:]
        out.backward(shifted.view(dout.shape).copy_(dout))
    found = {name: x.grad for name, x in arguments.items()}
    assert_same(found, gradients(op.evoformer_attention, arguments, dout.contiguous())[1])


@pytest.mark.kernel
def test_an_expanded_dout_is_not_copied() -> None:
    dout = torch.ones(1, 1, 8, 2, 16, dtype=HALF)
    for expanded in (dout.expand(1, 3, 8, 2, 16), dout[:, :, :1].expand(1, 1, 8, 2, 16)):
        assert op._with_rows(expanded) is expanded
    assert op._with_rows(dout[..., :1].expand_as(dout)).is_contiguous()


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
    "type": ({"q": zeros(1, 2, 8, 2, 16, dtype=FULL)}, TypeError, "q: expected float16 or bfloat"),
    "other type": (
        {"k": zeros(1, 2, 12, 2, 16, dtype=torch.float16)},
        TypeError,
        "k: expected bfloat16, the type of q; got float16",
    ),
    "stride": (
        {"q": zeros(1, 2, 8, 16, 2).transpose(3, 4)},
        ValueError,
        "q: its last axis, D, must be contiguous",
    ),
    "scale": ({"scale": "1"}, TypeError, "scale: expected a number or None; got str"),
    "infinite scale": ({"scale": float("inf")}, ValueError, "scale: expected a finite number"),
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


# -- Compiled --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(device: str, dynamic: bool) -> None:
    def layer(**arguments: Any) -> Any:
        scaled = {name: x * 1.5 if name == "q" else x for name, x in arguments.items()}
        return op.evoformer_attention(**scaled) * 2

    torch.compiler.reset()
    # Without a GPU there may be no compiler for what surrounds the call.
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=backend)
    arguments, dout = make(device), make_dout(device)
    expected_out, expected = gradients(layer, arguments, dout)
    for _ in range(2):
        out, found = gradients(compiled, arguments, dout)
        assert torch.equal(out, expected_out)
        assert_same(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_the_drop_in_compiled(device: str) -> None:
    def layer(**x: Any) -> Any:
        biases = [x["mask_bias"], x["pair_bias"]]
        return op.DS4Sci_EvoformerAttention(x["q"], x["k"], x["v"], biases)

    torch.compiler.reset()
    backend = "inductor" if device == "cuda" else "aot_eager"
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    arguments, dout = make(device), make_dout(device)
    out, found = gradients(compiled, arguments, dout)
    expected_out, expected = gradients(layer, arguments, dout)
    assert torch.equal(out, expected_out)
    assert_same(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_the_operators_are_what_torch_expects(device: str) -> None:
    arguments = make(device)
    forward = torch.ops.cuevo.evoformer_attention_forward.default
    torch.library.opcheck(forward, (*arguments.values(), None))
    torch.library.opcheck(forward, (*list(arguments.values())[:3], None, None, 0.5))
    q, k, v, mask_bias, pair_bias = (x.detach() for x in arguments.values())
    out, lse = forward(q, k, v, mask_bias, pair_bias, None)
    backward = torch.ops.cuevo.evoformer_attention_backward.default
    call = (make_dout(device), q, k, v, out, lse, mask_bias, pair_bias, None)
    for grads in ("q k v mask_bias pair_bias", "pair_bias"):
        torch.library.opcheck(backward, (*call, grads))


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
