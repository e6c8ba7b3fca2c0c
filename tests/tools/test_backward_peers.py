"""The peers differentiate the same problem as cuevo, in the layouts and with the masks that they
document.
"""

import sys
import types

import numpy as np
import pytest

import backward_peers as peers
from backends import MASK_VALUE, Inputs
from cuevo import reference
from peers import arguments_of, import_peers
from workloads import Workload

pytestmark = pytest.mark.unit

ROWS = LENGTH = 12  # trifast takes nothing else
HEADS, HEAD_DIM = 3, 16


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="torch, which the peers are built on, is not here")


@pytest.fixture(scope="module")
def inputs(torch):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.bfloat16)

    shape = (1, ROWS, LENGTH, HEADS, HEAD_DIM)
    masked = torch.rand((1, ROWS, 1, 1, LENGTH), generator=generator) < 0.2
    mask_bias = torch.where(masked, MASK_VALUE, 0.0).to(torch.bfloat16)
    pair_bias = normal(1, 1, HEADS, LENGTH, LENGTH)
    q, k, v, dout = (normal(*shape) for _ in range(4))
    return Inputs(q, k, v, mask_bias, pair_bias, dout)


# The documented interfaces of the other implementations, computed by torch.


def cuequivariance(q, k, v, bias, mask=None):
    """q, k, v [B, N, H, L, D]; mask is True where a key is attended to."""
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5 + bias.float()
    return (scores.masked_fill(~mask, -1e9).softmax(-1) @ v.float()).to(q.dtype)


def trifast(q, k, v, bias, mask):
    """q, k, v [B, H, N, L, D]; mask [B, N, L] is True where a key is left out."""
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5 + bias.float()[:, :, None]
    return (scores.masked_fill(mask[:, None, :, None], -1e9).softmax(-1) @ v.float()).to(q.dtype)


def flex_attention(q, k, v, score_mod):
    """q, k, v [N, H, L, D]; score_mod takes a score and its four indices."""
    import torch

    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    places = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    return (score_mod(scores, *places).softmax(-1) @ v.float()).to(q.dtype)


LOADERS = {
    "SDPA, pair": lambda: peers._sdpa("MATH", "pair", "peer"),
    "SDPA, none": lambda: peers._sdpa("MATH", "none", "peer"),
    "Flex, both, pair": lambda: peers._flex("both", "pair", (), "peer"),
    "Flex, pair, pair": lambda: peers._flex("pair", "pair", (), "peer"),
    "Flex, both, none": lambda: peers._flex("both", "none", (), "peer"),
    "cuEquivariance": lambda: peers._cuequivariance("peer"),
    "trifast": lambda: peers._trifast("peer"),
}


@pytest.fixture
def stand_ins(torch, monkeypatch):
    modules = {"cuequivariance_torch": cuequivariance, "trifast": trifast}
    for name, function in modules.items():
        module = types.SimpleNamespace(triangle_attention=function)
        monkeypatch.setitem(sys.modules, name, module)
    from torch.nn.attention import flex_attention as module

    monkeypatch.setattr(module, "flex_attention", flex_attention)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_a_peer_computes_the_gradients_that_it_is_listed_with(load, inputs, stand_ins):
    contender = load()
    call = contender.prepare(inputs)
    call()  # The graph is there for more than one call.
    found = contender.as_output(call())
    assert tuple(found) == peers.GRADIENTS[contender.gradients]
    arrays = {
        name: tensor.double().numpy()
        for name, tensor in arguments_of(inputs, contender.biases).items()
    }
    results = reference.attention_backward(inputs.dout.double().numpy(), **arrays)
    expected = dict(zip(peers.GRADIENTS["both"], results, strict=True))
    for name, result in found.items():
        assert tuple(result.shape) == expected[name].shape
        difference = np.linalg.norm(result.double().numpy() - expected[name])
        assert difference / np.linalg.norm(expected[name]) < 1e-2, name


def test_the_inputs_are_left_as_they_are(inputs, stand_ins):
    for load in LOADERS.values():
        load().prepare(inputs)
    tensors = [x for x in vars(inputs).values() if x is not None]
    assert not any(tensor.requires_grad for tensor in tensors)


def test_what_compiles_long_takes_part_where_it_is_asked_for(torch):
    asked = Workload(9, 4, 9, 32)
    refuses = peers._flex("both", "pair", [asked], "FlexAttention").refuses
    assert refuses(asked) == ""
    assert all(refuses(workload) == "" for workload in peers.COMPILED)
    assert "only where --workload names it" in refuses(Workload(1024, 4, 1024, 32))


def test_peers_that_are_not_installed_are_named(monkeypatch):
    for name in ("cuequivariance_torch", "trifast"):
        monkeypatch.setitem(sys.modules, name, None)
    loaders = peers.backward_peers()
    found, absent = import_peers(loaders)
    assert {contender.name for contender in found} | set(absent) == {name for name, _ in loaders}
    assert set(absent) >= {"cuEquivariance", "trifast"}
