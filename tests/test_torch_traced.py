"""cuevo.torch where torch looks on: compiled, exported, transformed, checkpointed, in modes."""

import io
from collections.abc import Callable
from typing import Any

import pytest
from helpers.torch_cases import (
    DEVICES,
    HALF,
    assert_same,
    gradients,
    make,
    make_dout,
    normal,
    op,
    torch,
)

BACKEND = {"cpu": "aot_eager", "cuda": "inductor"}
"""Without a GPU there may be no compiler for what surrounds the call."""


class Layer(torch.nn.Module):
    """A call with something before and behind it."""

    def forward(self, q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
        return op.evoformer_attention(q * 1.5, k, v, mask_bias, pair_bias) * 2


# -- Compiled and exported -------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(device: str, dynamic: bool) -> None:
    torch.compiler.reset()
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=BACKEND[device])
    arguments, dout = make(device), make_dout(device)
    expected_out, expected = gradients(layer, arguments, dout)
    for _ in range(2):
        out, found = gradients(compiled, arguments, dout)
        assert torch.equal(out, expected_out)
        assert_same(found, expected)


@pytest.mark.gpu
def test_compiled_to_cuda_graphs() -> None:
    """As the compiler captures both passes: twice before, then replayed."""
    torch.compiler.reset()
    compiled = torch.compile(Layer(), fullgraph=True, mode="reduce-overhead")
    arguments, dout = make("cuda"), make_dout("cuda")
    expected_out, expected = gradients(Layer(), arguments, dout)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        out, found = gradients(compiled, arguments, dout)
        assert torch.equal(out, expected_out)
        assert_same(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_one_graph_serves_every_length(device: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch.compiler.reset()
    backend = CompileCounterWithBackend(BACKEND[device])
    compiled = torch.compile(op.evoformer_attention, fullgraph=True, dynamic=True, backend=backend)
    for length in (12, 13):
        sizes = {"q": (1, 2, length, 1, 8), "pair_bias": (1, 1, 1, length, length)}
        leaves = {name: normal(device, HALF, shape, 0) for name, shape in sizes.items()}
        arguments = {name: x.requires_grad_() for name, x in leaves.items()}
        arguments |= dict(k=arguments["q"].detach(), v=arguments["q"].detach())
        out, found = gradients(compiled, arguments, leaves["q"].detach())
        expected_out, expected = gradients(op.evoformer_attention, arguments, leaves["q"].detach())
        assert torch.equal(out, expected_out)
        assert_same(found, expected)
    assert backend.frame_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_the_drop_in_compiled(device: str) -> None:
    def layer(**x: Any) -> Any:
        biases = [x["mask_bias"], x["pair_bias"]]
        return op.DS4Sci_EvoformerAttention(x["q"], x["k"], x["v"], biases)

    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=BACKEND[device])
    arguments, dout = make(device), make_dout(device)
    out, found = gradients(compiled, arguments, dout)
    expected_out, expected = gradients(layer, arguments, dout)
    assert torch.equal(out, expected_out)
    assert_same(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_compiled(device: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(op.evoformer_attention, fullgraph=True, backend=BACKEND[device])
    dout = make_dout(device)
    with torch.autocast(device, dtype=HALF):
        out, found = gradients(compiled, make(device, torch.float32), dout)
        expected_out, expected = gradients(
            op.evoformer_attention, make(device, torch.float32), dout
        )
    assert out.dtype is HALF and torch.equal(out, expected_out)
    assert_same(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_an_exported_program_is_saved_and_loaded(device: str) -> None:
    arguments = {name: x.detach() for name, x in make(device).items()}
    rows = torch.export.Dim("rows", min=1, max=64)
    shapes: dict[str, Any] = {name: {1: rows} for name in ("q", "k", "v", "mask_bias")}
    shapes["pair_bias"] = {}
    program = torch.export.export(Layer(), (), arguments, dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    twice = {
        name: x if name == "pair_bias" else torch.cat([x, x], 1) for name, x in arguments.items()
    }
    for call in (arguments, twice):
        assert torch.equal(loaded(**call), Layer()(**call))


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


# -- Checkpoints and modes -------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(device: str, use_reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def layer(**arguments: Any) -> Any:
        names = list(arguments)

        def call(*operands: Any) -> Any:
            return Layer()(**dict(zip(names, operands, strict=True)))

        return checkpoint(call, *arguments.values(), use_reentrant=use_reentrant)

    arguments, dout = make(device), make_dout(device)
    out, found = gradients(layer, arguments, dout)
    expected_out, expected = gradients(Layer(), arguments, dout)
    assert torch.equal(out, expected_out)
    assert_same(found, expected)


@pytest.mark.kernel
def test_modes_and_fake_tensors_see_the_operators() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None):
            self.seen.append(call.name())
            return call(*args, **(kwargs or {}))

    arguments, dout = make("cpu"), make_dout("cpu")
    with Names() as mode:
        out = op.evoformer_attention(**arguments)
    assert "cuevo::evoformer_attention_forward" in mode.seen
    assert torch.equal(out, op.evoformer_attention(**arguments))
    with Names() as mode:
        op.evoformer_attention(**arguments).backward(dout)
    assert "cuevo::evoformer_attention_backward" in mode.seen
    with FakeTensorMode() as fakes:
        fake = op.evoformer_attention(*(fakes.from_tensor(x) for x in arguments.values()))
    assert type(fake) is not torch.Tensor
    meta = op.evoformer_attention(*(x.to("meta") for x in arguments.values()))
    for x in (fake, meta):
        assert (x.shape, x.dtype, x.stride()) == (out.shape, out.dtype, out.stride())


# -- torch.func ------------------------------------------------------------------------------------


def small(device: str, samples: int | None = None) -> list[Any]:
    """q, k, v and both biases, as small as they come; a leading axis of samples."""
    shapes = [(2, 2, 5, 1, 8), (2, 2, 9, 1, 8), (2, 2, 9, 1, 8), (2, 2, 1, 1, 9), (2, 1, 1, 5, 9)]
    front = () if samples is None else (samples,)
    return [normal(device, HALF, (*front, *shape), seed) for seed, shape in enumerate(shapes)]


def loss(*operands: Any) -> Any:
    out = op.evoformer_attention(*operands).float()
    return (out * torch.arange(out.shape[-1], device=out.device)).sum()


EVERY = (0, 1, 2, 3, 4)


@pytest.mark.parametrize("device", DEVICES)
def test_function_transforms_give_the_gradients_of_backward(device: str) -> None:
    operands = small(device)
    leaves = [x.clone().requires_grad_() for x in operands]
    loss(*leaves).backward()
    for x, found in zip(leaves, torch.func.grad(loss, EVERY)(*operands), strict=True):
        assert torch.equal(found, x.grad)
    out, pull = torch.func.vjp(op.evoformer_attention, *operands)
    dout = torch.arange(out.shape[-1], device=device).to(HALF).expand_as(out)
    for x, found in zip(leaves, pull(dout), strict=True):
        assert torch.equal(found, x.grad)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "dims",
    [(0, 0, 0, 0, 0), (0, 0, 0, None, None), (1, None, None, 2, None), (None, 0, 0, None, 0)],
    ids=str,
)
def test_samples_at_once_are_samples_in_turn(device: str, dims: tuple[int | None, ...]) -> None:
    """Values, each sample's own gradients (of what all share, too), and those of the sum."""
    shared, stacked = small(device), small(device, 2)
    operands = [
        x if dim is None else s.movedim(0, dim)
        for x, s, dim in zip(shared, stacked, dims, strict=True)
    ]

    def in_turn(call: Callable[..., Any]) -> list[Any]:
        each = [
            call(
                *(
                    x if dim is None else s[i]
                    for x, s, dim in zip(shared, stacked, dims, strict=True)
                )
            )
            for i in range(2)
        ]
        return [torch.stack(column) for column in zip(*each, strict=True)]

    (expected,) = in_turn(lambda *x: (op.evoformer_attention(*x),))
    assert torch.equal(torch.vmap(op.evoformer_attention, dims)(*operands), expected)
    gradient = torch.func.grad(loss, EVERY)
    found = torch.vmap(gradient, dims)(*operands)
    expected_grads = in_turn(gradient)
    for x, y in zip(found, expected_grads, strict=True):
        assert torch.equal(x, y)
    total = torch.func.grad(lambda *x: torch.vmap(loss, dims)(*x).sum(), EVERY)(*operands)
    for x, y, dim in zip(total, expected_grads, dims, strict=True):
        y = y.sum(0) if dim is None else y.movedim(0, dim)
        torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)


@pytest.mark.kernel
def test_second_and_forward_derivatives_are_refused_in_words() -> None:
    operands = small("cpu")
    leaves = [x.requires_grad_() for x in operands]
    (dq,) = torch.autograd.grad(loss(*leaves), leaves[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives are not implemented"):
        dq.sum().backward()
    gradient = torch.func.grad(loss)
    with pytest.raises(NotImplementedError, match="second derivatives are not implemented"):
        torch.func.grad(lambda *x: gradient(*x).sum())(*operands)
    with pytest.raises(NotImplementedError, match="forward-mode derivatives are not impl"):
        torch.func.jvp(
            lambda q: op.evoformer_attention(q, *operands[1:]),
            (operands[0].detach(),),
            (dq.detach(),),
        )
    for derivative in (
        lambda: torch.func.jvp(gradient, tuple(operands), tuple(map(torch.ones_like, operands))),
        lambda: torch.func.hessian(loss)(*operands),
    ):
        with pytest.raises(NotImplementedError, match="forward-mode derivatives are not impl"):
            derivative()
    out = op.evoformer_attention(*leaves)
    several = torch.stack((out, out)).detach()
    with pytest.raises(NotImplementedError, match=r"torch.func.vmap of what torch.func.vjp gives"):
        torch.autograd.grad(out, leaves[:1], several, is_grads_batched=True)
