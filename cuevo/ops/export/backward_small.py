"""The small kernels of the backward pass in C: statistics of queries, biases of keys, last sums."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from cuevo.kernels import attention_delta_sm70, key_bias_sm70, partial_sums_sm70
from cuevo.kernels.forward import scale_fields
from cuevo.ops.backward_plan import MOST_TERMS
from cuevo.ops.export.columns import (
    PROBLEM,
    Columns,
    array_in_c,
    declared,
    float_in_c,
    problem_in_c,
    stand_in,
)
from cuevo.ops.export.formulas import fields_function, number_function
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import Selection
from cuevo.ops.export.tables import TYPES, Table
from cuevo.ops.export.trace import input_int
from cuevo.toolchain.header import load_header

__all__ = ["constants", "formulas", "tables"]

_DELTA = Columns(
    "delta_config",
    "type",
    head_dim=lambda c: c.head_dim,
    block_heads=lambda c: c.block_heads,
    block_positions=lambda c: c.block_positions,
    threads=lambda c: c.threads,
)
_KEYS = Columns("key_bias_config", "mask", threads=lambda c: c.threads)
_SUMS = Columns(
    "sums_config",
    "type",
    width=lambda c: c.width,
    terms=lambda c: c.terms,
    row_threads=lambda c: c.row_threads,
    block_columns=lambda c: c.block_columns,
    threads=lambda c: c.threads,
)
_MOST_HEADS = 8
_MOST_COLUMNS = 512
"""Columns from which on all rows have the most threads."""


def constants() -> str:
    """Names of numbers."""
    groups = partial_sums_sm70.MOST_GROUPS
    return f"enum {{ MOST_TERMS = {MOST_TERMS}, MOST_GROUPS = {groups} }};\n"


def formulas() -> Iterator[str]:
    """Functions in C of what the host halves compute."""
    header, x = load_header().kernels, problem_in_c()
    positions: Any = input_int("positions")

    delta = stand_in(attention_delta_sm70.Config, _DELTA.symbols())
    names = ("out", "dout", "lse", "stats")
    arrays = {name: array_in_c(name) for name in names}
    yield number_function(
        "delta_blocks",
        f"{_DELTA.parameter}, {PROBLEM}, int64_t positions",
        lambda: delta.grid(x.batch, x.rows, x.heads, positions)[0],
    )
    yield fields_function(
        "delta_fields",
        f"{_DELTA.parameter}, {declared(names)}",
        header[attention_delta_sm70.NAME],
        lambda: attention_delta_sm70.parameters(delta, **arrays),
    )

    keys = stand_in(key_bias_sm70.Config, {**_KEYS.symbols(), "mask": "f32"})
    key_bias = array_in_c("key_bias", (x.batch, x.rows, positions))
    yield number_function(
        "key_bias_blocks",
        f"{_KEYS.parameter}, {PROBLEM}, int64_t positions",
        lambda: keys.grid(x.batch, x.rows, positions)[0],
    )
    yield fields_function(
        "key_bias_fields",
        f"{PROBLEM}, int64_t positions, const cuevo_array *key_bias, "
        "const cuevo_array *mask_bias, double scale",
        header[key_bias_sm70.NAME],
        lambda: key_bias_sm70.parameters(
            keys,
            key_bias=key_bias,
            keys=x.keys,
            bias_scale=scale_fields(float_in_c("scale"), "bf16")["bias_scale"],
            mask_bias=array_in_c("mask_bias"),
        ),
    )

    sums = stand_in(partial_sums_sm70.Config, _SUMS.symbols())
    partials, groups = array_in_c("partials", axes=4), input_int("groups")
    given: Any = {"partials": partials, "sums": array_in_c("sums"), "groups": groups}
    number: Any = input_int("number")
    yield number_function(
        "sums_row_threads", "int64_t number", lambda: partial_sums_sm70.row_threads(number)
    )
    yield number_function(
        "sums_terms", "int64_t number", lambda: partial_sums_sm70.terms_at_once(number)
    )
    outer, _, rows, columns = partials.shape
    yield number_function(
        "sums_blocks",
        f"{_SUMS.parameter}, const cuevo_array *partials",
        lambda: sums.grid(outer, rows, columns)[0],
    )
    yield fields_function(
        "sums_fields",
        f"{_SUMS.parameter}, const cuevo_array *partials, const cuevo_array *sums, int64_t groups",
        header[partial_sums_sm70.NAME],
        lambda: partial_sums_sm70.fields(sums, **given),
    )


def tables(selection: Selection, instances: Instances) -> Iterator[str]:
    """The instances that serve; `instances` get them."""
    deltas = Table("delta_configs", _DELTA.struct)
    biases = Table("key_bias_configs", _KEYS.struct)
    sums = Table("sums_configs", _SUMS.struct)
    for arch, head_dim, dtype, mask, _ in selection.kinds("backward"):
        for heads in (2**power for power in range(_MOST_HEADS.bit_length())):
            delta = attention_delta_sm70.choose(head_dim, dtype, heads)
            number = instances.add(attention_delta_sm70, delta, arch)
            deltas.add(_DELTA.row(number, delta, TYPES[dtype]))
        bias = key_bias_sm70.Config("bounds" if mask == "none" else mask)
        number = instances.add(key_bias_sm70, bias, arch)
        biases.add(_KEYS.row(number, bias, TYPES[mask]))
        for kind in ("f32", dtype):
            for config in _sums_of(kind):
                number = instances.add(partial_sums_sm70, config, arch)
                sums.add(_SUMS.row(number, config, TYPES[kind]))
    yield from (_DELTA.declaration, _KEYS.declaration, _SUMS.declaration)
    yield from (deltas.text(), biases.text(), sums.text())


@cache
def _sums_of(kind: str) -> tuple[partial_sums_sm70.Config, ...]:
    """What `partial_sums_sm70.choose` has for sums of that type."""
    sizes = product(range(1, _MOST_COLUMNS), (1, 2, 3))
    found = (partial_sums_sm70.choose(kind, count, columns) for columns, count in sizes)
    return tuple(dict.fromkeys(found))
