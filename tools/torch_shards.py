"""Times of attention on torch's DTensors, whose rows N are sharded over processes, a device each;
see `bench_shards`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from cuevo.torch import evoformer_attention
from shard_times import Times, milliseconds, shapes
from workloads import Workload

ROWS = Shard(1)


def count(device: str, wanted: int) -> int:
    """How many devices there are; of the CPU as many as are wanted."""
    return torch.cuda.device_count() if device == "cuda" else wanted


def run(processes: int, device: str, size: Workload, tell: Callable[..., None]) -> None:
    """Measure in so many processes, through NCCL or gloo; the first one tells the times."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (processes, device, size, Path(folder) / "store", tell)
        torch.multiprocessing.spawn(measure, arguments, processes)


def measure(
    rank: int, processes: int, device: str, size: Workload, store: Path, tell: Callable[..., None]
) -> None:
    """What the process of that rank does."""
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=processes,
    )
    try:
        whole, dout = make(device, size)
        mesh = init_device_mesh(device, (processes,))
        placements = [ROWS] * 4 + [Replicate()]
        sharded = {
            name: distribute_tensor(x.detach(), mesh, [placed]).requires_grad_()
            for (name, x), placed in zip(whole.items(), placements, strict=True)
        }
        shards = distribute_tensor(dout, mesh, [ROWS])
        times = [
            Times(
                name,
                slowest(partial(passes, whole, dout), device),
                slowest(partial(passes, sharded, shards), device),
            )
            for name, passes in (("forward", forward), ("forward and backward", both))
        ]
        if rank == 0:
            tell("torch", processes, device, size, times)
    finally:
        dist.destroy_process_group()


def make(device: str, size: Workload) -> tuple[dict[str, Any], Any]:
    """The operands, and the gradient of the result."""
    options: Any = dict(device=device, dtype=torch.bfloat16)
    torch.manual_seed(0)
    operands = {
        name: torch.randn(x, **options).requires_grad_() for name, x in shapes(size).items()
    }
    return operands, torch.randn(operands["q"].shape, **options)


def forward(operands: dict[str, Any], dout: Any) -> None:
    with torch.no_grad():
        evoformer_attention(**operands)


def both(operands: dict[str, Any], dout: Any) -> None:
    for x in operands.values():
        x.grad = None
    evoformer_attention(**operands).backward(dout)


def slowest(call: Callable[[], None], device: str) -> float:
    """Milliseconds of a call that all processes make at once, of the slowest of them."""

    def wait(_: None) -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    found = torch.tensor(milliseconds(call, wait, dist.barrier), device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)
