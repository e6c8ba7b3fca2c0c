"""The forward pass in C: its formulas, and the tables of what can be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cuevo.architectures import Architecture
from cuevo.kernels import evoformer_forward_sm80, forward
from cuevo.kernels.choice import gains_by_short_tile
from cuevo.kernels.forward import Problem
from cuevo.ops.export.columns import (
    ARCHITECTURE,
    PROBLEM,
    Columns,
    architecture_in_c,
    array_in_c,
    declared,
    dtype_in_c,
    float_in_c,
    problem_in_c,
    stand_in,
)
from cuevo.ops.export.formulas import fields_function, number_function
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import Narrowed, Selection
from cuevo.ops.export.tables import SHORT_STEP, TYPES, ShortTiles, Table
from cuevo.toolchain.header import load_header

__all__ = ["formulas", "tables"]

_COLUMNS = Columns(
    "forward_config",
    threads=lambda c: c.threads,
    shared_bytes=lambda c: c.shared_bytes,
    min_blocks=lambda c: c.min_blocks,
    block_rows=lambda c: c.block_rows,
    block_queries=lambda c: c.block_queries,
    block_keys=lambda c: c.block_keys,
    step_queries=lambda c: c.score_step[0],
    step_keys=lambda c: c.score_step[1],
    pass_rows=lambda c: c.pass_rows,
    pair_pass_rows=lambda c: c.pair_pass_rows,
    short_queries=lambda c: c.short_queries,
    groups_together=lambda c: c.groups_together,
)
_MANY = 2**20
"""Rows N of a problem that may have any tiling."""


def formulas() -> Iterator[str]:
    """Functions in C of what the host halves compute."""
    columns = _COLUMNS.symbols()
    step = (columns.pop("step_queries"), columns.pop("step_keys"))
    x, arch, speed, kernel = problem_in_c(), architecture_in_c(), float_in_c("speed"), _KERNEL

    def config(**others: Any) -> Any:
        return stand_in(kernel.Config, {**columns, "score_step": step, **others})

    plain = config(short_queries=0)
    given = f"{_COLUMNS.parameter}, double speed, {PROBLEM}, {ARCHITECTURE}"
    yield number_function("forward_cost", given, lambda: forward.cost(plain, speed, x, arch))
    yield number_function(
        "forward_gains_by_short_tile",
        f"{_COLUMNS.parameter}, {PROBLEM}, {ARCHITECTURE}",
        lambda: gains_by_short_tile(plain, plain.grid(x)[0], x.rows, arch),
    )
    yield number_function(
        "forward_blocks", f"{_COLUMNS.parameter}, {PROBLEM}", lambda: config().grid(x)[0]
    )
    names = ("q", "k", "v", "out", "mask_bias", "pair_bias", "lse")
    arrays = {name: array_in_c(name) for name in names}
    yield fields_function(
        "forward_fields",
        f"{_COLUMNS.parameter}, {declared(names)}, double scale",
        load_header().kernels[kernel.NAME],
        lambda: kernel.parameters(
            config(dtype=dtype_in_c("q->type")), **arrays, scale=float_in_c("scale")
        ),
    )


_KERNEL = evoformer_forward_sm80


def tables(selection: Selection, instances: Instances) -> Iterator[str]:
    """What can be chosen for the problems that are served; `instances` get what they need."""
    configs = Table("forward_configs", _COLUMNS.struct)
    tilings = Table("forward_tilings", "forward_tiling")
    choices = Table("forward_choices", "choice")
    shorts = ShortTiles("short_tiles")

    def number(config: Any, arch: Architecture) -> int:
        final = instances.without_spills(_KERNEL, config, arch)
        kernel = instances.add(_KERNEL, final, arch)
        return configs.add(_COLUMNS.row(kernel, final))

    kernel = Narrowed(_KERNEL)
    for arch, head_dim, dtype, mask, pair in selection.kinds("forward"):
        problem = Problem(1, _MANY, 1, 1, 1, head_dim, dtype, mask, pair)
        first = len(tilings)
        for config, speed in kernel.candidates(problem):
            if _KERNEL.violations(config, arch, problem):
                continue
            chosen = configs.add(_COLUMNS.row(-1, config))
            instance = number(config, arch)
            ends = []
            for rest in range(SHORT_STEP, config.block_queries + 1, SHORT_STEP):
                ragged = replace(problem, queries=config.block_queries + rest - 1)
                short = kernel.with_short_tile(config, ragged, arch)
                ends.append(-1 if short == config else number(short, arch))
            tilings.append((speed, chosen, instance, shorts.add(ends)))
        count = len(tilings) - first
        if count:
            kinds = (TYPES[dtype], TYPES[mask], TYPES[pair])
            choices.append((arch.number, head_dim, *kinds, first, count, 0))
    yield _COLUMNS.declaration
    yield _TILING
    yield from (each.text() for each in (configs, tilings, choices, shorts))


_TILING = """\
typedef struct forward_tiling {
    double speed;
    int64_t chosen;   /* in forward_configs: what costs are estimated for */
    int64_t instance; /* likewise: what is launched */
    int64_t shorts;   /* in short_tiles: where those for a last tile begin; -1: none */
} forward_tiling;
"""
