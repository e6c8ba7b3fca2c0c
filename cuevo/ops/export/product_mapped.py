"""Matrix products of sm_90a in C: formulas, and the tables of what can be chosen."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from cuevo.architectures import Architecture
from cuevo.kernels import gemm_mma, gemm_sm90a
from cuevo.ops.export.columns import (
    ARCHITECTURE,
    Columns,
    architecture_in_c,
    array_in_c,
    float_in_c,
    product_fields_function,
    product_in_c,
    stand_in,
)
from cuevo.ops.export.formulas import number_function, values_function
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import Selection
from cuevo.ops.export.tables import Table, product_choice
from cuevo.ops.export.trace import input_int
from cuevo.toolchain.header import load_header

__all__ = ["formulas", "tables"]

_KERNEL = gemm_sm90a
_COLUMNS = Columns(
    "mapped_product_config",
    threads=lambda c: c.threads,
    shared_bytes=lambda c: c.shared_bytes,
    block_m=lambda c: c.block_m,
    block_n=lambda c: c.block_n,
    raster=lambda c: c.raster,
    a_columns=lambda c: c.a_columns,
    b_columns=lambda c: c.b_columns,
    a_box_rows=lambda c: c.a_box_rows,
    b_box_rows=lambda c: c.b_box_rows,
)
_GIVEN = f"{_COLUMNS.parameter}, const product *x"


def formulas() -> Iterator[str]:
    """Functions in C of what the host halves compute."""
    columns, arch = _COLUMNS.symbols(), architecture_in_c()
    x = product_in_c(mapped=input_int("x->mapped"))

    def config(**others: Any) -> Any:
        own = {"blocks": arch.multiprocessors, **others}
        return stand_in(_KERNEL.Config, {**columns, **own})

    # What is the same of an instance and its problem is equal here.
    same = {name: getattr(x, name) for name in gemm_mma.FOLLOWING}
    yield number_function(
        "mapped_product_serves",
        _GIVEN,
        lambda: not [*_KERNEL.problem_violations(config(**same), x)],
    )
    yield number_function(
        "mapped_product_cost",
        f"{_GIVEN}, double speed, {ARCHITECTURE}",
        lambda: _KERNEL.cost(config(), float_in_c("speed"), x, arch),
    )
    yield number_function(
        "least_cost_of_lower",
        f"const product *x, {ARCHITECTURE}",
        lambda: _KERNEL.least_cost_of_lower(x, arch),
    )
    yield number_function(
        "mapped_product_blocks", f"{_GIVEN}, {ARCHITECTURE}", lambda: config().grid(x)[0]
    )
    source, contiguous = array_in_c("source", axes=3), input_int("columns")
    yield values_function(
        "product_map_axes",
        "const cuevo_array *source, int64_t columns",
        lambda: [*chain(*_KERNEL.map_axes(source, contiguous))],  # type: ignore[arg-type]
    )
    yield product_fields_function(
        "mapped_product_fields",
        _GIVEN,
        load_header().kernels[_KERNEL.NAME],
        lambda operands: _KERNEL.unmapped_fields(config(), x, **operands),
    )


def tables(selection: Selection, instances: Instances) -> Iterator[str]:
    """What can be chosen for the products that are served; `instances` get what they need."""
    configs = Table("mapped_product_configs", _COLUMNS.struct)
    tilings = Table("mapped_product_tilings", "mapped_product_tiling")
    choices = Table("mapped_product_choices", "product_choice")

    def number(config: Any, arch: Architecture) -> int:
        final = instances.without_spills(_KERNEL, config, arch)
        return configs.add(_COLUMNS.row(instances.add(_KERNEL, final, arch), final))

    for arch, problem in selection.product_kinds():
        first = len(tilings)
        for config, speed in _KERNEL.candidates(problem):
            if not _KERNEL.violations(config, arch, problem):
                chosen = configs.add(_COLUMNS.row(-1, config))
                tilings.append((speed, chosen, number(config, arch)))
        if count := len(tilings) - first:
            choices.append(product_choice(arch, problem, first, count))
    yield _COLUMNS.declaration
    yield _TILING
    yield from (each.text() for each in (configs, tilings, choices))


_TILING = """\
typedef struct mapped_product_tiling {
    double speed;
    int64_t chosen;   /* in mapped_product_configs: what costs are estimated for */
    int64_t instance; /* likewise: what is launched */
} mapped_product_tiling;
"""
