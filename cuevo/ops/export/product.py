"""Matrix products in C: formulas, and the tables of what can be chosen."""

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from cuevo.architectures import Architecture
from cuevo.kernels import gemm_choice, gemm_mma, gemm_sm80
from cuevo.ops.export.columns import (
    ARCHITECTURE,
    Columns,
    architecture_in_c,
    float_in_c,
    product_fields_function,
    product_in_c,
    stand_in,
)
from cuevo.ops.export.formulas import number_function, values_function
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import Selection, narrowed
from cuevo.ops.export.tables import PRODUCT_CHOICE, Table, product_choice
from cuevo.ops.export.trace import input_int
from cuevo.ops.gemm_problem import MOST_POSITIONS
from cuevo.toolchain.header import load_header

__all__ = ["constants", "formulas", "tables"]

_KERNEL = gemm_sm80
_COLUMNS = Columns(
    "product_config",
    threads=lambda c: c.threads,
    shared_bytes=lambda c: c.shared_bytes,
    min_blocks=lambda c: c.min_blocks,
    block_m=lambda c: c.block_m,
    block_n=lambda c: c.block_n,
    block_k=lambda c: c.block_k,
    raster=lambda c: c.raster,
    a_columns=lambda c: c.a_columns,
    b_columns=lambda c: c.b_columns,
    a_transposed=lambda c: c.mma.a.transposed,
    b_transposed=lambda c: c.mma.b.transposed,
    a_pass_rows=lambda c: c.mma.a.pass_rows,
    b_pass_rows=lambda c: c.mma.b.pass_rows,
)
_GIVEN = f"{_COLUMNS.parameter}, const product *x, int64_t splits"


def constants(selection: Selection) -> str:
    """Names of numbers."""
    splits = (1, *gemm_choice.SPLITS)
    return (
        f"enum {{ PRODUCT_ALIGNMENT = {max(selection.products.alignments)}, "
        f"MOST_ROWS = {MOST_POSITIONS} }};\n"
        f"static const int64_t product_splits[] = {{{', '.join(map(str, splits))}}};\n"
        f"enum {{ product_splits_count = {len(splits)} }};\n"
    )


def formulas() -> Iterator[str]:
    """Functions in C of what the host halves compute."""
    columns, x, arch = _COLUMNS.symbols(), product_in_c(), architecture_in_c()
    operands = {
        name: SimpleNamespace(
            transposed=columns.pop(f"{name}_transposed"), pass_rows=columns.pop(f"{name}_pass_rows")
        )
        for name in ("a", "b")
    }

    def config(**others: Any) -> Any:
        own = {"mma": SimpleNamespace(**operands), "splits": input_int("splits")}
        return stand_in(_KERNEL.Config, {**columns, **own, **others})

    # What is the same of an instance and its problem is equal here.
    same = {name: getattr(x, name) for name in gemm_mma.FOLLOWING}
    yield number_function(
        "product_serves",
        _GIVEN,
        lambda: not [*gemm_mma.problem_violations(config(**same), x)],
    )
    yield number_function(
        "product_cost",
        f"{_GIVEN}, double speed, {ARCHITECTURE}",
        lambda: gemm_choice.cost(config(), float_in_c("speed"), x, arch),
    )
    yield number_function("product_blocks", _GIVEN, lambda: config().grid(x)[0])
    yield values_function("product_workspace", _GIVEN, lambda: config().workspace(x))
    yield product_fields_function(
        "product_fields",
        _GIVEN,
        load_header().kernels[_KERNEL.NAME],
        lambda operands: gemm_mma.parameters(config(), x, **operands),
        "partials",
        "arrivals",
    )


@cache
def _candidates(problem: gemm_mma.Problem) -> tuple[tuple[gemm_mma.Config, float], ...]:
    """Instances that may serve `problem`, with the speed of their tiling: behind one that does not
    split k, one for all that do.
    """
    offered = _KERNEL.candidates(problem)
    return tuple((narrowed(config), speed) for config, speed in offered if config.splits <= 2)


def tables(selection: Selection, instances: Instances) -> Iterator[str]:
    """What can be chosen for the products that are served; `instances` get what they need."""
    configs = Table("product_configs", _COLUMNS.struct)
    tilings = Table("product_tilings", "product_tiling")
    choices = Table("product_choices", "product_choice")

    def number(config: Any, arch: Architecture) -> int:
        final = instances.without_spills(_KERNEL, config, arch)
        return configs.add(_COLUMNS.row(instances.add(_KERNEL, final, arch), final))

    for arch, problem in selection.product_kinds():
        first, whole = len(tilings), -1
        for config, speed in _candidates(problem):
            if _KERNEL.violations(config, arch, problem):
                continue
            instance = number(config, arch)
            if config.splits == 1:
                whole = instance
            else:
                chosen = configs.add(_COLUMNS.row(-1, config))
                tilings.append((speed, chosen, whole, instance))
        if count := len(tilings) - first:
            choices.append(product_choice(arch, problem, first, count))
    yield _COLUMNS.declaration
    yield PRODUCT_CHOICE
    yield _TILING
    yield from (each.text() for each in (configs, tilings, choices))


_TILING = """\
typedef struct product_tiling {
    double speed;
    int64_t chosen; /* in product_configs: what costs are estimated for */
    int64_t whole;  /* likewise: what is launched, */
    int64_t split;  /* and where threadblocks share k */
} product_tiling;
"""
