"""Efficiency over several GPUs: attention whose rows N are sharded.

    python3 tools/bench_shards.py                        torch's DTensors, 2 GPUs
    python3 tools/bench_shards.py --library jax --devices 4 --workload 2048,4,512,32
    python3 tools/bench_shards.py --device cpu --workload 4,2,32,16   without a GPU, to see it work

Every device takes the whole problem, then its shard of it, at the same time as the others: forward,
and both passes with the gradients of both biases, of which that of the pair bias is summed over the
devices. A time is that of a call among eight which are queued one after the other, the median of
the slowest device's; the efficiency is the time of the whole, over that of the shards times their
number.
"""

from __future__ import annotations

import argparse

from shard_times import print_times
from workloads import select


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--library", choices=("torch", "jax"), default="torch", help="(torch)")
    add("--devices", type=int, default=2, metavar="COUNT", help="at least 2 (2)")
    add("--workload", default="1024,4,1024,32", metavar="N,H,L,D", help="(%(default)s)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="(cuda)")
    given = parser.parse_args()
    if given.devices < 2:
        parser.error("--devices: one device has no shards")
    (size,) = select([given.workload])
    if given.library == "torch":
        import torch_shards as shards
    else:
        import jax_shards as shards
    there = shards.count(given.device, given.devices)
    if there < given.devices:
        parser.error(f"--devices: there are {there}")
    shards.run(given.devices, given.device, size, print_times)


if __name__ == "__main__":
    main()
