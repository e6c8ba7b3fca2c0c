"""The peers get the same problem as cuevo, in the layouts and with the masks that they document."""

import sys
import types

import numpy as np
import pytest

import peers
from backends import MASK_VALUE, Inputs
from cuevo import reference
from workloads import BIASES, Workload

pytestmark = pytest.mark.unit

ROWS = LENGTH = 12  # trifast takes nothing else
HEADS, HEAD_DIM = 3, 16


def test_a_peer_that_cannot_be_imported_is_absent_with_the_reason():
    def present(name):
        return peers.Contender(name, "pair", lambda inputs: None)

    def absent(name):
        import no_such_module  # noqa: F401

    def broken(name):
        raise OSError("libcudart.so.12: cannot open\nsecond line")

    found, missing = peers.import_peers([("a", present), ("b", absent), ("c", broken)])
    assert [contender.key for contender in found] == ["a, pair"]
    assert missing == {
        "b": "ModuleNotFoundError: No module named 'no_such_module'",
        "c": "OSError: libcudart.so.12: cannot open",
    }


def test_cuevo_competes_with_every_combination_of_biases():
    contenders = peers.cuevo_contenders({"": None, "stages=4": {"stages": 4}})
    assert [contender.key for contender in contenders] == [
        f"{name}, {biases}" for name in ("cuevo", "cuevo stages=4") for biases in BIASES
    ]
    assert all(contender.is_cuevo for contender in contenders)


def test_trifast_refuses_what_is_not_square(monkeypatch):
    monkeypatch.setitem(sys.modules, "trifast", types.SimpleNamespace(triangle_attention=None))
    refuses = peers._trifast("trifast").refuses
    assert refuses(Workload(8, 4, 8, 32)) == ""
    assert "as many rows as residues" in refuses(Workload(8, 4, 16, 32))


# The documented interfaces of the two packages, computed by torch.


def cuequivariance(q, k, v, bias, mask=None):
    """q, k, v [B, N, H, L, D]; mask is True where a key is attended to."""
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5 + bias.float()
    weights = scores.masked_fill(~mask, -1e9).softmax(-1)
    return (weights @ v.float()).to(q.dtype)


def trifast(q, k, v, bias, mask):
    """q, k, v [B, H, N, L, D]; mask [B, N, L] is True where a key is left out."""
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5 + bias.float()[:, :, None]
    weights = scores.masked_fill(mask[:, None, :, None], -1e9).softmax(-1)
    return (weights @ v.float()).to(q.dtype)


@pytest.fixture(scope="module")
def inputs():
    torch = pytest.importorskip("torch", reason="torch, which the peers are built on, is not here")
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.bfloat16)

    shape = (1, ROWS, LENGTH, HEADS, HEAD_DIM)
    masked = torch.rand((1, ROWS, 1, 1, LENGTH), generator=generator) < 0.2
    mask_bias = torch.where(masked, MASK_VALUE, 0.0).to(torch.bfloat16)
    pair_bias = normal(1, 1, HEADS, LENGTH, LENGTH)
    return Inputs(normal(*shape), normal(*shape), normal(*shape), mask_bias, pair_bias)


LOADERS = {
    "cuEquivariance": peers._cuequivariance,
    "trifast": peers._trifast,
    "SDPA, pair": lambda name: peers._sdpa("MATH", "pair", name),
    "SDPA, none": lambda name: peers._sdpa("MATH", "none", name),
}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_a_peer_computes_the_problem_that_it_is_listed_with(load, inputs, monkeypatch):
    modules = {"cuequivariance_torch": cuequivariance, "trifast": trifast}
    for name, function in modules.items():
        module = types.SimpleNamespace(triangle_attention=function)
        monkeypatch.setitem(sys.modules, name, module)
    contender = load("peer")
    call = contender.prepare(inputs)
    with contender.context():
        output = contender.as_output(call())
    names = ["q", "k", "v"]
    names += ["mask_bias"] if contender.biases == "both" else []
    names += ["pair_bias"] if contender.biases != "none" else []
    arrays = {name: getattr(inputs, name).double().numpy() for name in names}
    expected, _ = reference.attention(**arrays)
    assert tuple(output.shape) == expected.shape
    difference = np.linalg.norm(output.double().numpy() - expected)
    assert difference / np.linalg.norm(expected) < 5e-3
