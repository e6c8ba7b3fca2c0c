"""The forward pass of sm_90a in C: its formulas, and the tables of what can be chosen."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import Any

from cuda.bindings import driver

from cuevo.architectures import Architecture
from cuevo.kernels import bias_tiles_sm90, evoformer_forward_sm90a, pair_tiles_sm90
from cuevo.kernels.forward import Problem
from cuevo.kernels.forward_works_sm90a import Slices
from cuevo.ops.export.columns import (
    ARCHITECTURE,
    PROBLEM,
    Columns,
    architecture_in_c,
    array_in_c,
    declared,
    float_in_c,
    problem_in_c,
    stand_in,
)
from cuevo.ops.export.formulas import fields_function, number_function, values_function
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import Selection
from cuevo.ops.export.tables import TYPES, Table
from cuevo.ops.export.trace import input_int
from cuevo.toolchain.header import load_header

__all__ = ["constants", "formulas", "tables"]

_KERNEL = evoformer_forward_sm90a
_COLUMNS = Columns(
    "mapped_config",
    threads=lambda c: c.threads,
    shared_bytes=lambda c: c.shared_bytes,
    cluster=lambda c: c.cluster,
    min_blocks=lambda c: c.min_blocks,
    m_tiles=lambda c: c.m_tiles,
    block_rows=lambda c: c.block_rows,
    row_warpgroups=lambda c: c.row_warpgroups,
    warpgroup_rows=lambda c: c.warpgroup_rows,
    block_queries=lambda c: c.block_queries,
    block_keys=lambda c: c.block_keys,
    stored_queries=lambda c: c.stored_queries,
    row_bytes=lambda c: c.row_bytes,
    line_heads=lambda c: c.line_heads,
    is_f16=lambda c: c.dtype == "f16",
    consumers_ask=lambda c: c.consumers_ask,
    late_pair=lambda c: c.late_pair,
    converts=lambda c: c.converts,
    scales_q=lambda c: c.scales_q,
    counts_scores=lambda c: c.counts_scores,
    tiled=lambda c: c.tiled,
    needs_whole_tiles=lambda c: c.needs_whole_tiles,
    least_key_tiles=lambda c: c.least_key_tiles,
    least_key_tiles_of_last=lambda c: c.least_key_tiles_of_last,
    reads_mask_tiles=lambda c: c.reads_mask_tiles,
    mask_addends=lambda c: c.mask_addends,
    counted_tiles=lambda c: c.counted_tiles,
)
_TILES = Columns(
    "tiles_config",
    "pair",
    block_keys=lambda c: c.block_keys,
    threads=lambda c: c.threads,
)
_BIAS_TILES = Columns(
    "bias_tiles_config",
    "mask",
    "pair",
    block_rows=lambda c: c.block_rows,
    block_keys=lambda c: c.block_keys,
    added=lambda c: c.added,
    counted_tiles=lambda c: c.counted_tiles,
    row_bytes=lambda c: c.row_bytes,
    threads=lambda c: c.threads,
)
_MANY = 2**20


def constants() -> str:
    """What the driver calls the fields of tensor maps."""
    types, promotions = driver.CUtensorMapDataType, driver.CUtensorMapL2promotion
    values = {
        "MAP_F16": types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "MAP_BF16": types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "MAP_PROMOTION_NONE": promotions.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        "MAP_PROMOTION_64": promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
        "MAP_PROMOTION_128": promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        "MAP_PROMOTION_256": promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        **{
            f"MAP_SWIZZLE_{size}": getattr(
                driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{size}B"
            )
            for size in (32, 64, 128)
        },
    }
    return f"enum {{ {', '.join(f'{name} = {int(x)}' for name, x in values.items())} }};\n"


def formulas() -> Iterator[str]:
    """Functions in C of what the host halves compute."""
    columns, arch = _COLUMNS.symbols(), architecture_in_c()
    # What is the same of a configuration and its problem is equal here.
    x = problem_in_c(pair="f32", mask="bounds")

    def config(**others: Any) -> Any:
        same = dict(head_dim=x.head_dim, dtype="", pair="f32", mask="bounds")
        return stand_in(
            _KERNEL.Config, {**same, **columns, "blocks": arch.multiprocessors, **others}
        )

    given = f"{_COLUMNS.parameter}, {PROBLEM}"
    yield number_function(
        "mapped_serves",
        f"{given}, {ARCHITECTURE}",
        lambda: (
            not [
                *_KERNEL.problem_violations(config(), x),
                *_KERNEL.device_violations(config(), arch),
            ]
        ),
    )
    for pair in ("f32", "bf16", "f16", "none"):  # the 16-bit ones are the operands' type
        biased = problem_in_c(pair=pair, mask="bounds", dtype="f16" if pair == "f16" else "bf16")
        yield number_function(
            f"mapped_prefers_lower_{pair}",
            PROBLEM,
            partial(_KERNEL.prefers_lower_variant, biased, arch),
        )
    # With a mask and a pair bias in bf16; others are not packed.
    biased = problem_in_c(pair="bf16", mask="bool", dtype="bf16")
    yield number_function("mapped_prefers_packed", PROBLEM, partial(_KERNEL.prefers_packed, biased))
    yield number_function(
        "mapped_speed",
        given,
        lambda: _KERNEL.speed(config(), replace(x, dtype="f16" if columns["is_f16"] else "bf16")),
    )
    speed = float_in_c("speed")
    yield number_function(
        "mapped_cost",
        f"{_COLUMNS.parameter}, double speed, {PROBLEM}, {ARCHITECTURE}",
        lambda: _KERNEL.cost(config(), speed, x, arch),
    )
    yield number_function(
        "mapped_scores_scale",
        f"{_COLUMNS.parameter}, double scale",
        lambda: config().scores_scale(float_in_c("scale")),
    )
    yield number_function("mapped_l2_promotion", given, lambda: config().l2_promotion(x))
    yield number_function("mapped_last_hundredths", given, lambda: config().last_hundredths(x))
    # What follows is of a launch that has so many of the multiprocessors.
    blocks: Any = input_int("blocks")
    launch = f"{given}, int64_t blocks"
    yield number_function("mapped_has_last_tile", given, lambda: config().has_last_tile(x))
    yield number_function("mapped_works", given, lambda: config().works(x))
    yield values_function("mapped_slices", launch, lambda: config().slices(x, blocks))
    sizes: Any = [input_int(f"slices[{i}]") for i in range(4)]
    slices = Slices(*sizes)
    known = {"slices": staticmethod(lambda problem, blocks: slices)}
    yield number_function(
        "mapped_blocks",
        f"{launch}, const int64_t *slices",
        lambda: config(**known).grid(x, blocks)[0],
    )
    yield number_function(
        "mapped_rounds",
        f"{launch}, const int64_t *slices",
        lambda: config(**known).rounds(x, blocks),
    )
    counts: Any = [input_int(name) for name in ("works", "last_works")]
    yield number_function(
        "mapped_least_blocks_of_last",
        f"{given}, {ARCHITECTURE}, int64_t works, int64_t last_works",
        lambda: config().least_blocks_of_last(x, *counts),
    )
    array: Any = array_in_c("source")
    yield values_function(
        "map_axes", "const cuevo_array *source", lambda: [*chain(*_KERNEL.Config.map_axes(array))]
    )
    yield values_function(
        "pair_axes",
        "const cuevo_array *source",
        lambda: [*chain(*_KERNEL.Config.pair_axes(array))],
    )
    names = ("out", "mask_bias", "pair_tiles", "lse")
    arrays = {name: array_in_c(name) for name in names}
    first: Any = input_int("first_query")
    yield fields_function(
        "mapped_fields",
        f"{given}, const int64_t *slices, {declared(names)}, double scale, int64_t first_query",
        load_header().kernels[_KERNEL.NAME],
        lambda: _KERNEL.unmapped_fields(
            config(**known),
            x,
            **arrays,
            scale=float_in_c("scale"),
            first_query=first,
            blocks=blocks,
        ),
    )
    pair, tiles = array_in_c("pair_bias"), array_in_c("tiles")
    stand = stand_in(pair_tiles_sm90.Config, {"block_keys": columns["block_keys"]})
    yield values_function(
        "tiles_shape",
        f"{_COLUMNS.parameter}, const cuevo_array *pair_bias",
        lambda: stand.shape(pair, config().block_queries),
    )
    yield number_function(
        "tiles_blocks",
        "const cuevo_array *tiles",
        lambda: stand.grid(tiles.shape)[0],
    )
    yield fields_function(
        "tiles_fields",
        "const cuevo_array *pair_bias, const cuevo_array *tiles, double scale",
        load_header().kernels[pair_tiles_sm90.NAME],
        lambda: pair_tiles_sm90.parameters(
            pair_bias=pair, pair_tiles=tiles, bias_scale=1.0 / float_in_c("scale")
        ),
    )
    of_biases = stand_in(bias_tiles_sm90.Config, _BIAS_TILES.symbols())
    of_mask = {name: array_in_c(name) for name in ("mask_bias", "mask_tiles")}
    both = {**of_mask, **{name: array_in_c(name) for name in ("pair_bias", "pair_tiles")}}
    yield values_function(
        "mask_tiles_shape",
        f"{_BIAS_TILES.parameter}, const cuevo_array *mask_bias",
        lambda: of_biases.shape(of_mask["mask_bias"]),
    )
    yield values_function(
        "mask_tiles_seen_strides",
        f"{_BIAS_TILES.parameter}, const cuevo_array *mask_tiles",
        lambda: of_biases.seen_strides(of_mask["mask_tiles"]),
    )
    yield number_function(
        "bias_tiles_blocks",
        f"{_BIAS_TILES.parameter}, const cuevo_array *mask_tiles, const cuevo_array *pair_tiles",
        lambda: of_biases.grid(both["mask_tiles"].shape, both["pair_tiles"].shape)[0],
    )
    for name, given, made in (
        ("mask_tiles_fields", "", of_mask),
        ("bias_tiles_fields", f"{_BIAS_TILES.parameter}, ", both),
    ):
        yield fields_function(
            name,
            f"{given}{declared(made)}, double scale",
            load_header().kernels[bias_tiles_sm90.NAME],
            lambda made=made: bias_tiles_sm90.parameters(  # type: ignore[misc]
                of_biases, **made, bias_scale=1.0 / float_in_c("scale")
            ),
        )


def tables(selection: Selection, instances: Instances) -> Iterator[str]:
    """What can be chosen for the problems that are served; `instances` get what they need."""
    configs = Table("mapped_configs", _COLUMNS.struct)
    tilings = Table("mapped_tilings", "mapped_tiling")
    choices = Table("mapped_choices", "choice")
    tiles = Table("tiles_configs", _TILES.struct)
    bias_tiles = Table("bias_tiles_configs", _BIAS_TILES.struct)

    def number(config: Any, arch: Architecture) -> int:
        return configs.add(_COLUMNS.row(instances.add(_KERNEL, config, arch), config))

    for arch, head_dim, dtype, mask, pair in selection.kinds("forward"):
        first = len(tilings)
        # Keys that end with a tile, which some candidates need, and others; likewise scales.
        problems = [
            Problem(1, _MANY, 1, 1, keys, head_dim, dtype, mask, pair, power_of_two=exact)
            for keys, exact in product((_MANY, _MANY + 1), (False, True))
        ]
        offered = {x: problem for problem in problems for x, _ in _KERNEL.candidates(problem)}
        for config, problem in offered.items():
            if _KERNEL.violations(config, arch, problem):
                continue
            row: list[int] = [configs.add(_COLUMNS.row(-1, config))]
            for sums in (config.sums, "added"):  # of a log-sum-exp, the latter
                wanted = _KERNEL.adapt(replace(config, sums=sums), problem)
                final = instances.without_spills(_KERNEL, wanted, arch)
                ragged = replace(problem, queries=final.block_queries + 1)
                whole, *low = _KERNEL.parts(final, ragged)
                row += [number(each.config, arch) for each in (whole, *(low or [whole]))]
                if final.reads_mask_tiles:
                    both = final.of_biases
                    kernel = instances.add(bias_tiles_sm90, both, arch)
                    bias_tiles.add(
                        _BIAS_TILES.row(kernel, both, TYPES[both.mask], TYPES[both.pair])
                    )
                elif final.tiled:
                    own = pair_tiles_sm90.Config(pair, final.block_keys)
                    kernel = instances.add(pair_tiles_sm90, own, arch)
                    tiles.add(_TILES.row(kernel, own, TYPES[pair]))
            tilings.append(row)
        if count := len(tilings) - first:
            kinds = (TYPES[dtype], TYPES[mask], TYPES[pair])
            choices.append((arch.number, head_dim, *kinds, first, count, 0))
    yield from (each.declaration for each in (_COLUMNS, _TILES, _BIAS_TILES))
    yield _TILING
    yield from (each.text() for each in (configs, tilings, choices, tiles, bias_tiles))


_TILING = """\
/* Numbers in mapped_configs: what costs are estimated for; what is launched, and for a last tile of
 * 64 queries or fewer; the same where there is a log-sum-exp. */
typedef struct mapped_tiling {
    int64_t chosen, whole, low, whole_with_lse, low_with_lse;
} mapped_tiling;
"""
