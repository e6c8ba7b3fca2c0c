"""Speed by length: whether an odd number of residues costs more than the multiples of 64 beside it.

    python3 tools/bench_lengths.py                         forward, L = 705 to 832, N,H,D = 384,4,32
    python3 tools/bench_lengths.py --direction backward
    python3 tools/bench_lengths.py --first 249 --last 264 --input head-last --input "fp32 pair"

Every length with every kind of input takes its turn in each round, in mixed order, and all write to
the same memory. The kinds: the pair bias contiguous, head-last (a linear layer's [L, L, H], keys H
elements apart), in fp32, and a mask of bools instead of bf16. The table has TF/s, counted by L * L
scores, and in brackets the share of the median of the multiples of 64 in the range; the last lines
name the worst length of each kind. It needs torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import cuevo
from backends import Backend, Inputs, open_backend
from cuevo.ops.tuning.measure import Entrant, time_interleaved, warm_up
from machine import circumstances
from measure import teraflops
from report import print_rows, progress
from workloads import Workload

REPEATS = 15

Call = Callable[[], Any]


class Inventory:
    """Inputs of every length, all in the memory of those of the longest."""

    def __init__(self, backend: Backend, longest: Workload) -> None:
        self._inputs = backend.inputs(longest, "bf16", 0)
        tensor = tuple(self._inputs.q.shape)
        self._dout, self._out = (backend.normal(tensor, "bf16", seed) for seed in (1, 2))
        mask, pair = (tuple(x.shape) for x in (self._inputs.mask_bias, self._inputs.pair_bias))
        self._pair_fp32 = backend.normal(pair, "fp32", 3)
        self._gradients = [backend.normal(x, "bf16", 4) for x in (*3 * [tensor], mask, pair)]
        self._dpair_fp32 = backend.normal(pair, "fp32", 4)
        self._backend = backend
        self._workspace = backend.normal((0,), "fp32", 5)

    def inputs(self, size: Workload, kind: str) -> Inputs:
        """Inputs of one kind, contiguous where the kind is not another layout."""
        n, h, length, d = size.rows, size.heads, size.length, size.head_dim
        tensor = (1, n, length, h, d)
        q, k, v, dout = (
            _part(x, tensor) for x in (self._inputs.q, self._inputs.k, self._inputs.v, self._dout)
        )
        mask = _part(self._inputs.mask_bias, (1, n, 1, 1, length))
        source = self._pair_fp32 if kind == "fp32 pair" else self._inputs.pair_bias
        if kind == "head-last":
            pair = _part(source, (1, 1, length, length, h)).swapaxes(2, 4).swapaxes(3, 4)
        else:
            pair = _part(source, (1, 1, h, length, length))
        return Inputs(q, k, v, mask == 0 if kind == "bool mask" else mask, pair, dout)

    def forward(self, size: Workload, kind: str) -> Call:
        x = self.inputs(size, kind)
        biases = dict(mask_bias=x.mask_bias, pair_bias=x.pair_bias)
        return partial(cuevo.attention, x.q, x.k, x.v, **biases, out=_part(self._out, x.q.shape))

    def backward(self, size: Workload, kind: str) -> Call:
        x = self.inputs(size, kind)
        biases = dict(mask_bias=x.mask_bias, pair_bias=x.pair_bias)
        out = self._backend.normal(tuple(x.q.shape), "bf16", 6)
        n, h = size.rows, size.heads
        lse = self._backend.normal((1, n, h, size.length), "fp32", 7)
        cuevo.attention(x.q, x.k, x.v, **biases, out=out, lse=lse)
        gradients = [
            *self._gradients[:4],
            self._dpair_fp32 if kind == "fp32 pair" else self._gradients[4],
        ]
        shaped = (x.q, x.k, x.v, x.mask_bias, x.pair_bias)
        results = [_part(of, to.shape) for of, to in zip(gradients, shaped, strict=True)]
        if kind == "bool mask":
            results[3] = None
        operands = (x.dout, x.q, x.k, x.v, out, lse)
        options: dict[str, Any] = {**biases, "results": results}
        if self._backend.name == "torch":
            nbytes = cuevo.attention_backward_workspace(*operands, **options)
            options["workspace"] = self._memory(nbytes)
        return partial(cuevo.attention_backward, *operands, **options)

    def _memory(self, nbytes: int) -> Any:
        """Memory that all calls share; it grows by half or more, as earlier calls keep the old."""
        held = self._workspace.shape[0]
        if 4 * held < nbytes:
            count = max(-(-nbytes // 4), held + held // 2)
            self._workspace = self._backend.normal((count,), "fp32", 5)
        return self._workspace


KINDS = ("contiguous", "head-last", "fp32 pair", "bool mask")


def _part(array: Any, shape: Iterable[int]) -> Any:
    """The first elements of an array's memory, in this shape."""
    shape = tuple(shape)
    count = 1
    for extent in shape:
        count *= extent
    return array.reshape(-1)[:count].reshape(shape)


def measure(
    backend: Backend, sizes: Sequence[Workload], kinds: Sequence[str], direction: str, repeats: int
) -> dict[str, dict[int, float]]:
    """TF/s by kind and length."""
    stock = Inventory(backend, max(sizes, key=lambda size: size.length))
    make = getattr(stock, direction)
    entrants: dict[str, Entrant] = {}
    # At its power limit a device takes some 100 ms to find its clock: the turns' mixed order makes
    # neighbours of all lengths.
    for size, kind in product(sizes, kinds):
        progress(f"{direction} {size}, {kind}")
        entrants[f"{kind} {size.length}"] = entrant = Entrant([make(size, kind)])
        warm_up(entrant, backend)
    times = time_interleaved(entrants, backend, repeats)

    def speed(kind: str, size: Workload) -> float:
        operations = size.operations if direction == "forward" else size.backward_operations
        return teraflops(operations, times[f"{kind} {size.length}"].median)

    return {kind: {size.length: speed(kind, size) for size in sizes} for kind in kinds}


def standard(speeds: dict[int, float]) -> float:
    """The median speed of the multiples of 64; of all lengths, where there is none."""
    whole = [speed for length, speed in speeds.items() if length % 64 == 0]
    return statistics.median(whole or speeds.values())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--direction", choices=["forward", "backward"], default="forward")
    add("--first", type=int, default=705, help="the shortest length")
    add("--last", type=int, default=832, help="the longest")
    add("--step", type=int, default=1)
    add("--rows", type=int, default=384)
    add("--heads", type=int, default=4)
    add("--head-dim", type=int, default=32)
    add("--input", action="append", choices=KINDS, help="only these; all without")
    add("--repeats", type=int, default=REPEATS, metavar="COUNT", help="rounds")
    add("--json", type=Path, metavar="PATH", help="where everything is written, too")
    arguments = parser.parse_args(argv)
    try:
        backend = open_backend()
    except RuntimeError as error:
        print(f"bench_lengths.py: {error}", file=sys.stderr)
        return 1
    lengths = range(arguments.first, arguments.last + 1, arguments.step)
    sizes = [
        Workload(arguments.rows, arguments.heads, length, arguments.head_dim) for length in lengths
    ]
    kinds = arguments.input or KINDS
    speeds = measure(backend, sizes, kinds, arguments.direction, arguments.repeats)
    record = {**circumstances(), "device": asdict(backend.facts), "direction": arguments.direction}
    print(f"{backend.facts.name}, {record['date']}  {record['command']}")
    whole = {kind: standard(found) for kind, found in speeds.items()}
    print_rows(
        ("L", *kinds),
        [
            (
                str(length),
                *(f"{speeds[x][length]:.1f} ({speeds[x][length] / whole[x]:.2f})" for x in kinds),
            )
            for length in lengths
        ],
    )
    for kind, found in speeds.items():
        worst = min(found, key=lambda length: found[length])
        share = found[worst] / whole[kind]
        print(
            f"{arguments.direction}, {kind}: multiples of 64 {whole[kind]:.1f} TF/s, worst L = "
            f"{worst} with {found[worst]:.1f}, {share:.3f} of that"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({**record, "teraflops": speeds}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
