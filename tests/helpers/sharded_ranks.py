"""What each of two processes does that hold shards of torch's DTensors: `run` compares sharded
calls and their gradients with those of whole tensors.
"""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from cuevo.torch import evoformer_attention

RANKS = 2
BATCH, ROWS, QUERIES, KEYS, HEADS, DEPTH = 2, 3, 16, 24, 2, 8
SHAPES = {
    "q": (BATCH, ROWS, QUERIES, HEADS, DEPTH),
    "k": (BATCH, ROWS, KEYS, HEADS, DEPTH),
    "v": (BATCH, ROWS, KEYS, HEADS, DEPTH),
    "mask_bias": (BATCH, ROWS, 1, 1, KEYS),
    "pair_bias": (BATCH, 1, HEADS, QUERIES, KEYS),
}
NONE = Replicate()
CASES: dict[str, tuple[tuple[int, ...], list[list[Any]], list[Any]]] = {
    "B": ((2,), [[Shard(0)]] * 5, [Shard(0)]),
    "N, unevenly": ((2,), [[Shard(1)]] * 4 + [[NONE]], [Shard(1)]),
    "H": ((2,), [[Shard(3)]] * 3 + [[NONE], [Shard(2)]], [Shard(3)]),
    "N and H": ((2, 1), [[Shard(1), Shard(3)]] * 3 + [[Shard(1), NONE], [NONE, Shard(2)]],
                [Shard(1), Shard(3)]),
    "lengths, gathered": ((2,), [[Shard(2)]] * 3 + [[Shard(4)], [Shard(3)]], [NONE]),
    "B of q, N of k": ((2,), [[Shard(0)], [Shard(1)], [NONE], [NONE], [NONE]], [Shard(0)]),
}  # fmt: skip
"""Shape of the mesh, placements of the operands, and those of the result."""


def run(rank: int, store: Path, device: str) -> None:
    """Compare all cases, as one of the processes; biases are float32, as sums over shards are
    then.
    """
    options = dict(timeout=timedelta(seconds=120), rank=rank, world_size=RANKS)
    backend = "nccl" if device == "cuda" else "gloo"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", **options)
    try:
        torch.manual_seed(0)
        dtypes = dict.fromkeys(("mask_bias", "pair_bias"), torch.float32)
        whole = {
            name: torch.randn(shape).to(device, dtypes.get(name, torch.bfloat16)).requires_grad_()
            for name, shape in SHAPES.items()
        }
        dout = torch.randn(SHAPES["q"]).to(device, torch.bfloat16)
        out = evoformer_attention(**whole)
        out.backward(dout)
        for name, (shape, placements, expected) in CASES.items():
            mesh = init_device_mesh(device, shape)
            compare(name, whole, dout, out, mesh, placements, expected)
        check_errors(whole, mesh)
    finally:
        dist.destroy_process_group()


def compare(
    case: str,
    whole: dict[str, Any],
    dout: Any,
    out: Any,
    mesh: Any,
    placements: list[list[Any]],
    expected: list[Any],
) -> None:
    sharded = {
        name: distribute_tensor(x.detach(), mesh, placed).requires_grad_()
        for (name, x), placed in zip(whole.items(), placements, strict=True)
    }
    found = evoformer_attention(**sharded)
    assert isinstance(found, DTensor), case
    assert found.placements == tuple(expected), (case, found.placements)
    assert torch.equal(found.full_tensor(), out), case
    strides: dict[str, tuple[int, ...]] = {}

    def note(name: str, gradient: Any) -> None:
        strides[name] = gradient.stride()

    for name, x in sharded.items():
        x.register_hook(partial(note, name))
    found.backward(distribute_tensor(dout, mesh, expected))
    for name, x in sharded.items():
        assert strides[name] == x.stride(), (case, name, strides[name])
        assert x.grad.placements == x.placements, (case, name, x.grad.placements)
        exact = whole[name].grad
        error = (x.grad.full_tensor() - exact).norm() / exact.norm()
        assert error < 1e-6, (case, name, float(error))


def check_errors(whole: dict[str, Any], mesh: Any) -> None:
    sharded = {
        name: distribute_tensor(x.detach(), mesh, [NONE] * mesh.ndim) for name, x in whole.items()
    }
    refused = ""
    try:
        evoformer_attention(**{**sharded, "mask_bias": whole["mask_bias"]})
    except TypeError as error:
        refused = str(error)
    assert refused.startswith("mask_bias: expected a DTensor, as q is one"), refused
