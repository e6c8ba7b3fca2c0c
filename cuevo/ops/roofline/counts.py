"""What a threadblock asks of the pipes: its machine instructions, each as often as the CPU executor
ran the line of the text that it is from.

Kernels run on small problems twice, with different extents of what they stream, keys or k; the
difference is what a streamed position takes, the rest what a threadblock takes besides.
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from cuevo.arrays import BFLOAT16
from cuevo.executors import architecture_of
from cuevo.ops import backward, forward, product
from cuevo.ops.operation import Operation
from cuevo.ops.plan import Launch, Plan
from cuevo.ops.roofline.units import clocks, units
from cuevo.sim import SimExecutor
from cuevo.toolchain import cache
from cuevo.toolchain.assembler import assemble, target_for
from cuevo.toolchain.sass import disassemble
from cuevo.toolchain.sources import code_digest

__all__ = ["Counts", "count"]

_TYPES = {"f16": np.dtype(np.float16), "bf16": BFLOAT16, "f32": np.dtype(np.float32)}
_KEYS = (256, 512)
_POSITIONS = (128, 256)
_K_TILES = (8, 16)


@dataclass(frozen=True)
class Counts:
    """Clocks of an SM sub-partition that a threadblock's warps take of each pipe, added up over its
    sub-partitions.
    """

    fixed: Mapping[str, float]
    """Whatever it streams."""
    each: Mapping[str, float]
    """A streamed position."""

    def of(self, positions: float, times: float = 1, *, fixed: float = 1) -> dict[str, float]:
        """Those of a threadblock that streams so many positions so many times."""
        return {
            pipe: times * max(0.0, fixed * self.fixed.get(pipe, 0.0) + positions * slope)
            for pipe, slope in self.each.items()
        }


def count(launch: Launch, problem: Any, arch_name: str) -> Counts:
    """The counts of a launch that serves `problem` on an architecture; those that another process
    has found are in the cache.

    Raises CuevoError where there is no disassembler, ValueError for an architecture whose rates
    are not known.
    """
    place = SimExecutor(arch_name, profile=True)
    rates = units(architecture_of(place))
    mask = getattr(problem, "mask", "")
    written = f"{launch.name} {_whole(launch.config)} {mask} {arch_name} {rates}"
    key = "\n".join(("counts", code_digest(), written))
    if (entry := cache.default.get(key)) is not None:
        return Counts(*json.loads(entry))
    (few, less), (many, more) = _measured(launch, problem, place)
    each = {pipe: (more[pipe] - less.get(pipe, 0.0)) / (many - few) for pipe in more}
    fixed = {pipe: less.get(pipe, 0.0) - few * each[pipe] for pipe in each}
    found = Counts(*({pipe: round(x, 6) for pipe, x in y.items()} for y in (fixed, each)))
    cache.default.put(key, json.dumps([found.fixed, found.each]).encode())
    return found


_Measured = tuple[int, dict[str, float]]
"""Streamed positions, and the clocks of a threadblock."""


def _measured(launch: Launch, problem: Any, place: SimExecutor) -> list[_Measured]:
    """The clocks of a launch's threadblocks on two small problems."""
    config: Any = launch.config
    if hasattr(problem, "side"):
        return [_gradients(config, problem, x, launch.name, place) for x in _POSITIONS]
    if hasattr(problem, "head_dim"):
        return [_attention(config, problem, x, launch.name, place) for x in _KEYS]
    tiles = _K_TILES
    if most := getattr(config, "max_k", 0) // config.block_k:
        tiles = max(1, most // 2), most
    return [_product(config, problem, x * config.block_k, launch.name, place) for x in tiles]


def _attention(config: Any, problem: Any, keys: int, name: str, place: SimExecutor) -> _Measured:
    rows = min(problem.rows, config.block_rows * getattr(config, "cluster", 1))
    queries = min(problem.queries, config.block_queries)
    keys += problem.keys % config.block_keys
    q, k, mask, pair = _operands(problem, rows, queries, keys)
    arrays = (q, k, k, mask, pair, None, None)
    plan = _run(forward.OPERATION, arrays, (None, False, None), place, _whole(config))
    return keys, _clocks(plan, name, place)


def _gradients(
    config: Any, problem: Any, positions: int, name: str, place: SimExecutor
) -> _Measured:
    positions += problem.streamed % config.block_streamed
    rows = min(problem.rows, config.block_rows)
    q, _, mask, pair = _operands(problem, rows, positions, positions)
    lse = np.full((1, rows, 1, positions), 8.0, np.float32)
    if problem.side == "keys":
        wanted = {"k": problem.first, "v": problem.second, "mask_bias": problem.sums}
    else:
        wanted = {"q": problem.first, "pair_bias": problem.sums}
    grads = tuple(each for each in backward.GRADS if wanted.get(each))
    arrays = (q, q, q, q, q, lse, mask, pair, *(None,) * len(backward.GRADS))
    options, changed = (None, grads, None, None), {problem.side: _whole(config)}
    plan = _run(backward.OPERATION, arrays, options, place, changed)
    return positions, _clocks(plan, name, place)


def _product(config: Any, problem: Any, k: int, name: str, place: SimExecutor) -> _Measured:
    dtype = _TYPES[problem.dtype]
    a, b = _random((config.block_m, k), dtype), _random((k, config.block_n), dtype)
    a = np.asfortranarray(a) if problem.a_columns else a
    b = np.asfortranarray(b) if problem.b_columns else b
    options = (1.0, 0.0, False, False, _TYPES[problem.out_dtype].name)
    plan = _run(product.OPERATION, (a, b, *(None,) * 4), options, place, _whole(config))
    return k, _clocks(plan, name, place)


def _whole(config: Any) -> Any:
    """`config` without a short last tile, without splits of k, and for a device so small that its
    threadblocks share no work.
    """
    plain = {"short_queries": 0, "short_stationary": 0, "short_rows": 0, "splits": 1}
    plain["blocks"] = getattr(config, "cluster", 1)
    known = {field.name for field in fields(config)}
    return replace(config, **{name: plain[name] for name in plain.keys() & known})


def _operands(problem: Any, rows: int, queries: int, keys: int) -> tuple[Any, Any, Any, Any]:
    """q, k, mask_bias and pair_bias of one head, of the problem's types."""
    dtype, dim = _TYPES[problem.dtype], problem.head_dim
    q, k = (_random((1, rows, x, 1, dim), dtype) for x in (queries, keys))
    mask = pair = None
    if problem.mask == "bool":
        mask = np.ones((1, rows, 1, 1, keys), bool)
    elif problem.mask != "none":
        mask = np.zeros((1, rows, 1, 1, keys), _TYPES[problem.mask])
    if problem.pair != "none":
        pair = _random((1, 1, 1, queries, keys), _TYPES[problem.pair])
    return q, k, mask, pair


def _random(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(dtype)


def _run(
    operation: Operation,
    arrays: tuple[Any, ...],
    options: tuple[object, ...],
    place: SimExecutor,
    config: Any,
) -> Plan:
    """The plan of a call that has run."""
    operation.call(arrays, options, place, None, config)
    return operation.plan_on_device(arrays, options, place, config)


# -- Machine instructions --------------------------------------------------------------------------


def _clocks(plan: Plan, name: str, place: SimExecutor) -> dict[str, float]:
    """Clocks that a threadblock of the kernel `name` took of each pipe."""
    launch = next(each for each in plan.every_launch if each.name == name)
    kernel, (grid, _, _) = launch.kernel.kernel, launch.shape
    runs: dict[int, int] = defaultdict(int)
    for use in launch.kernel.profile.instructions:
        runs[use.line] = max(runs[use.line], use.executions)
    rates = units(architecture_of(place))
    total: dict[str, float] = defaultdict(float)
    code = assemble(kernel, target_for(kernel, f"sm_{architecture_of(place).number}"))
    for instruction in disassemble(code).instructions:
        times = runs[kernel.located.number(instruction.line)]
        for pipe, taken in clocks(instruction, rates).items():
            total[pipe] += times * taken
    return {pipe: taken / math.prod(grid) for pipe, taken in total.items()}
