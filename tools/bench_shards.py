"""Efficiency over several GPUs: attention on torch's DTensors, whose rows N are sharded.

    python3 tools/bench_shards.py                             2 GPUs, N,H,L,D = 1024,4,1024,32
    python3 tools/bench_shards.py --processes 4 --workload 2048,4,512,32
    python3 tools/bench_shards.py --device cpu --workload 4,2,32,16   without a GPU, to see it work

Every device takes the whole problem, then its shard of it, at the same time as the others: forward,
and both passes with the gradients of both biases, of which that of the pair bias is summed over the
devices. A time is the median of the slowest device's; the efficiency is the time of the whole, over
that of the shards times their number.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

from cuevo.torch import evoformer_attention
from report import print_rows
from workloads import Workload, select

REPEATS, WARM_UP = 20, 3
ROWS = Shard(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--processes", type=int, default=2, metavar="COUNT", help="GPUs, at least 2 (2)")
    add("--workload", default="1024,4,1024,32", metavar="N,H,L,D", help="(%(default)s)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="through NCCL, or gloo (cuda)")
    given = parser.parse_args()
    if given.processes < 2:
        parser.error("--processes: one device has no shards")
    if given.device == "cuda" and torch.cuda.device_count() < given.processes:
        parser.error(f"--processes: there are {torch.cuda.device_count()} GPUs")
    (size,) = select([given.workload])
    with tempfile.TemporaryDirectory() as folder:
        arguments = (given.processes, given.device, size, Path(folder) / "store")
        torch.multiprocessing.spawn(run, arguments, given.processes)


def run(rank: int, processes: int, device: str, size: Workload, store: Path) -> None:
    """What the process of that rank does; the first one prints."""
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
        table = []
        for name, passes in (("forward", forward), ("forward and backward", both)):
            alone = time_call(partial(passes, whole, dout), device)
            together = time_call(partial(passes, sharded, shards), device)
            efficiency = alone / (processes * together)
            table.append((name, f"{alone:.3f}", f"{together:.3f}", f"{efficiency:.2f}"))
        if rank == 0:
            print(f"{size} on {processes} x {device}, B = 1, bf16, both biases; ms")
            print_rows(("", "one device", f"{processes} devices", "efficiency"), table)
    finally:
        dist.destroy_process_group()


def make(device: str, size: Workload) -> tuple[dict[str, Any], Any]:
    """The operands, and the gradient of the result."""
    n, h, length, d = size.rows, size.heads, size.length, size.head_dim
    rows = (1, n, length, h, d)
    shapes = {"q": rows, "k": rows, "v": rows, "mask_bias": (1, n, 1, 1, length)}
    shapes["pair_bias"] = (1, 1, h, length, length)
    options: Any = dict(device=device, dtype=torch.bfloat16)
    torch.manual_seed(0)
    operands = {name: torch.randn(x, **options).requires_grad_() for name, x in shapes.items()}
    return operands, torch.randn(rows, **options)


def forward(operands: dict[str, Any], dout: Any) -> None:
    with torch.no_grad():
        evoformer_attention(**operands)


def both(operands: dict[str, Any], dout: Any) -> None:
    for x in operands.values():
        x.grad = None
    evoformer_attention(**operands).backward(dout)


def time_call(call: Callable[[], None], device: str) -> float:
    """Milliseconds of a call that all processes make at once, of the slowest of them."""

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    samples = []
    for _ in range(WARM_UP + REPEATS):
        wait()
        dist.barrier()
        start = time.perf_counter()
        call()
        wait()
        samples.append(1e3 * (time.perf_counter() - start))
    slowest = torch.tensor(statistics.median(samples[WARM_UP:]), device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


if __name__ == "__main__":
    main()
