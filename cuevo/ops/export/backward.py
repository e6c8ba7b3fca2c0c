"""The backward pass in C: its formulas, and the tables of what can be chosen for either side."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cuevo.architectures import Architecture
from cuevo.kernels import evoformer_backward_sm80
from cuevo.kernels.backward import Problem, cost, most_chunks
from cuevo.kernels.backward_multistage import next_chunks
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
from cuevo.ops.export.tables import TYPES, Table
from cuevo.ops.export.trace import input_int
from cuevo.toolchain.header import load_header

__all__ = ["formulas", "tables"]

_KERNEL = evoformer_backward_sm80
_COLUMNS = Columns(
    "backward_config",
    threads=lambda c: c.threads,
    shared_bytes=lambda c: c.shared_bytes,
    by_keys=lambda c: c.by_keys,
    sums=lambda c: c.sums,
    min_blocks=lambda c: c.min_blocks,
    block_rows=lambda c: c.block_rows,
    block_stationary=lambda c: c.block_stationary,
    block_streamed=lambda c: c.block_streamed,
    step_stationary=lambda c: c.score_step[0],
    step_streamed=lambda c: c.score_step[1],
    pass_rows=lambda c: c.pass_rows,
    pair_pass_rows=lambda c: c.pair_pass_rows,
)
_GIVEN = f"{_COLUMNS.parameter}, {PROBLEM}"
_MANY = 2**20


def formulas() -> Iterator[str]:
    """Functions in C of what the host half computes."""
    columns, arch = _COLUMNS.symbols(), architecture_in_c()
    step = (columns.pop("step_stationary"), columns.pop("step_streamed"))
    by_keys, groups, speed = columns.pop("by_keys"), input_int("groups"), float_in_c("speed")
    given: Any = groups

    def config(**others: Any) -> Any:
        values = {**columns, "short_stationary": 0, "score_step": step, "side": _side(), **others}
        return stand_in(_KERNEL.Config, values)

    def plain() -> Any:
        return config(groups=lambda self, problem, arch: groups)

    def _side() -> str:
        return "keys" if by_keys != 0 else "queries"

    def side() -> Any:
        own = vars(problem_in_c())
        return stand_in(Problem, {**own, "side": _side(), "pair_keys": input_int("x->pair_keys")})

    on_device = f"{_GIVEN}, {ARCHITECTURE}"
    yield number_function("backward_row_groups", _GIVEN, lambda: plain().row_groups(side()))
    yield number_function("backward_most_chunks", PROBLEM, lambda: most_chunks(_whole()))
    yield number_function(
        "backward_next_chunks",
        "int64_t row_groups, int64_t groups, int64_t chunks",
        lambda: next_chunks(input_int("row_groups"), groups, input_int("chunks")),  # type: ignore[arg-type]
    )
    yield number_function(
        "backward_time",
        f"{on_device}, int64_t groups",
        lambda: plain().time(given, side(), arch),
    )
    yield number_function(
        "backward_cost",
        f"{on_device}, double speed, int64_t groups",
        lambda: cost(plain(), speed, side(), arch),
    )
    yield number_function(
        "backward_chunks", f"{_GIVEN}, int64_t groups", lambda: config().chunks_of(side(), given)
    )
    yield number_function(
        "backward_blocks", f"{_GIVEN}, int64_t groups", lambda: config().grid(side(), given)[0]
    )
    yield number_function(
        "padded_keys",
        f"{PROBLEM}, cuevo_type type",
        lambda: (
            replace(
                problem_in_c(pair_padded=True),
                pair="f32" if input_int("type") == input_int("CUEVO_F32") else "f16",
            ).pair_keys
        ),
    )
    names = (
        *("q", "k", "v", "dout", "pair_bias", "stats", "key_bias"),
        *("first_grad", "second_grad", "mask_sums", "pair_sums"),
    )
    arrays = {name: array_in_c(name) for name in names}
    yield fields_function(
        "backward_fields",
        f"{_GIVEN}, int64_t groups, {declared(names)}, double scale",
        load_header().kernels[_KERNEL.NAME],
        lambda: _KERNEL.parameters(
            config(dtype=dtype_in_c("q->type")),
            side(),
            given,
            **arrays,
            scale=float_in_c("scale"),
        ),
    )


def _whole() -> Any:
    return Problem(**vars(problem_in_c()))


def tables(selection: Selection, instances: Instances) -> Iterator[str]:
    """What can be chosen for the problems that are served; `instances` get what they need."""
    configs = Table("backward_configs", _COLUMNS.struct)
    tilings = Table("backward_tilings", "backward_tiling")
    sides = {name: Table(f"backward_{name}_choices", "choice") for name in ("queries", "keys")}

    def number(config: Any, arch: Architecture) -> int:
        final = instances.without_spills(_KERNEL, config, arch)
        return configs.add(_COLUMNS.row(instances.add(_KERNEL, final, arch), final))

    for arch, head_dim, dtype, side, pair, sums in _kinds(selection):
        own = dict(side=side, first=True, second=side == "keys", sums=sums)
        problem = Problem(1, _MANY, 1, 1, 1, head_dim, dtype, "f32", pair, **own)  # type: ignore[arg-type]
        first = len(tilings)
        for config, speed in Narrowed(_KERNEL).candidates(problem):
            if _KERNEL.violations(config, arch, problem):
                continue
            chosen = configs.add(_COLUMNS.row(-1, config))
            tilings.append((speed, chosen, number(config, arch)))
        if count := len(tilings) - first:
            kinds = (TYPES[dtype], TYPES["none"], TYPES[pair])
            sides[side].append((arch.number, head_dim, *kinds, first, count, int(sums)))
    yield _COLUMNS.declaration
    yield _TILING
    yield from (configs.text(), tilings.text())
    yield from (table.text() for table in sides.values())


def _kinds(selection: Selection) -> Iterator[tuple[Architecture, int, str, str, str, bool]]:
    """Architecture, head dim, type, side, type of the pair bias, and whether there are sums, of the
    sides that are served: with all gradients but that of a mask, which not all want.
    """
    found: dict[tuple[Architecture, int, str, str, str, bool], None] = {}
    for arch, head_dim, dtype, mask, pair in selection.kinds("backward"):
        found[arch, head_dim, dtype, "queries", pair, pair != "none"] = None
        found[arch, head_dim, dtype, "keys", pair, False] = None
        if mask not in ("none", "bool"):
            found[arch, head_dim, dtype, "keys", pair, True] = None
    yield from found


_TILING = """\
typedef struct backward_tiling {
    double speed;
    int64_t chosen;   /* in backward_configs: what costs are estimated for */
    int64_t instance; /* likewise: what is launched */
} backward_tiling;
"""
