"""The kernel instances that a user can get, a sample that a test can afford, and their digests.

A digest that differs from the pinned one says that the instructions of a kernel have changed;
comments, line information and the places of macros do not count. After a change that is meant to
change them:

    python tests/helpers/shipped_kernels.py

writes tests/kernels/shipped.json anew, and takes choices of kernels that have changed out of the
table of tuned ones, cuevo/kernels/tuned.json, until they are measured again. Every configuration
that a call can get is assembled for each of the architectures by

    python tests/helpers/shipped_kernels.py spills [ARCH ...]

which names those that spill, and takes an hour on two cores: see `helpers.spills`.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from cuevo.architectures import architecture
from cuevo.kernels import attention_delta_sm70 as delta
from cuevo.kernels import (
    attention_maps_sm90a,
    bias_tiles_sm90,
    evoformer_backward_sm70,
    evoformer_backward_sm75,
    evoformer_backward_sm90a,
    evoformer_forward_sm70,
    evoformer_forward_sm75,
    evoformer_forward_sm90a,
    gemm_sm70,
    gemm_sm75,
    gemm_sm80,
    gemm_sm90a,
    key_bias_sm70,
    pack_sm70,
    pair_tiles_sm90,
    partial_sums_sm70,
    registry,
)
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.kernels.gemm_mma import Config as GemmConfig
from cuevo.kernels.gemm_mma import Problem as GemmProblem
from cuevo.kernels.gemm_sm90a import Config as WgmmaConfig
from cuevo.ops.tuning.tuned import SHIPPED, Entry, digest_of, merge, read
from cuevo.toolchain.template import render

PINS = Path(__file__).parents[1] / "kernels" / "shipped.json"
HEAD_DIMS = tuple(range(8, 129, 8))

# Type of the mask, type of the pair bias, alignment of its rows; "own" is the dtype of q.
BIASES = (
    ("none", "none", 16),
    *((mask, "none", 16) for mask in ("none", "bool", "own", "f32")),
    *(
        (mask, pair, alignment)
        for (mask, pair), alignment in zip(
            product(("none", "bool", "own", "f32"), ("own", "f32")),
            (16, 8, 4, 16, 2, 4, 8, 16),
            strict=True,
        )
    ),
    ("own", "own", 16),
    ("f32", "f32", 16),
)


LENGTHS = (256, 257)
"""One that fills the tiles, one that does not."""


def configurations(head_dim: int, dtype: str, biases: int, length: int) -> list[forward.Config]:
    """The candidates for `BIASES[biases]` that some architecture can run; where they do not fill
    their tiles, also with a short last one.
    """
    mask, pair, alignment = BIASES[biases]
    types = (dtype if mask == "own" else mask, dtype if pair == "own" else pair)
    problem = forward.Problem(1, 8, 2, length, length, head_dim, dtype, *types, alignment)
    roomy = architecture("sm_90")
    offered = (config for config, _ in forward.candidates(problem))
    found = [config for config in offered if not forward.violations(config, roomy, problem)]
    short = []
    for index, config in enumerate(found):
        few = (1, config.block_queries // 2)[(index + head_dim // 8) % 2]
        last = replace(problem, queries=config.block_queries + few)
        short.append(forward.with_short_tile(config, last, roomy))
    return found + [config for config in short if config.short_queries]


def instances(head_dim: int) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values; every tiling and every set of biases meets some of the other."""
    for biases in range(len(BIASES)):
        dtype = ("bf16", "f16")[(head_dim // 8 + biases) % 2]
        length = LENGTHS[biases % 2]
        for index, config in enumerate(configurations(head_dim, dtype, biases, length)):
            # A fifth of all, another fifth for the next head dim.
            if (biases + 2 * index + head_dim // 8) % 5 == 0:
                tiling = (
                    f"{config.block_rows}x{config.block_queries}x{config.block_keys}"
                    f"-m{config.m_tiles}-stages{config.stages}-blocks{config.min_blocks}"
                )
                if config.short_queries:
                    tiling += f"-short{config.short_rows}x{config.short_queries}"
                width = [] if config.pair == "none" else [str(config.pair_copy_bytes)]
                name = "-".join((f"D{head_dim}", dtype, tiling, config.mask, config.pair, *width))
                yield f"forward-{name}", forward.NAME, forward.values(config)
    dtype = ("bf16", "f16")[head_dim // 8 % 2]
    config = delta.choose(head_dim, dtype, heads=8)
    yield f"delta-D{head_dim}-{dtype}-heads{config.block_heads}", delta.NAME, delta.values(config)


MAPPED_DIMS = tuple(d for d in HEAD_DIMS if d <= 64)
"""Head dims of `evoformer_forward_sm90a`."""


def mapped_configurations(
    head_dim: int, dtype: str, biases: int
) -> list[evoformer_forward_sm90a.Config]:
    """Candidates of `evoformer_forward_sm90a` for `BIASES[biases]` and keys that end with a tile,
    or in one, and scales of any kind, and what they are for a last tile of queries that is short.
    """
    mask, pair, _ = BIASES[biases]
    types = (dtype if mask == "own" else mask, dtype if pair == "own" else pair)
    kernel, arch = evoformer_forward_sm90a, architecture("sm_90a")
    found = {}
    for keys, exact in product((256, 257), (False, True)):
        sizes = (1, 8, 2, 257, keys, head_dim)
        problem = forward.Problem(*sizes, dtype, *types, power_of_two=exact)
        for config, _ in kernel.candidates(problem):
            if not kernel.violations(config, arch, problem):
                found |= dict.fromkeys(part.config for part in kernel.parts(config, problem))
    return list(found)


def mapped_instances() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values of a seventh of them."""
    kernel = evoformer_forward_sm90a
    for head_dim, biases in product(MAPPED_DIMS, range(len(BIASES))):
        if (head_dim // 8 + biases) % 7 == 0:
            dtype = ("bf16", "f16")[head_dim // 8 % 2]
            for config in mapped_configurations(head_dim, dtype, biases):
                tiling = f"{config.block_rows}x{config.block_queries}x{config.block_keys}"
                tiling += f"-clusters{config.cluster}" if config.cluster > 1 else ""
                tiling += "-asking" if config.consumers_ask else ""
                tiling += "-late" if config.late_pair else ""
                tiling += "-converting" if config.converts else ""
                tiling += "-two-rows" if config.shares_pair else ""
                shares = config.row_warpgroups > 1 and not config.shares_pair
                tiling += "-sharing" if shares else ""
                tiling += "-scaled" if config.scales_q else ""
                name = f"D{head_dim}-{dtype}-{tiling}-{config.mask}-{config.pair}"
                yield f"forward-sm90a-{name}", kernel.NAME, kernel.values(config)
                if not config.converts:  # who builds maps in memory makes tiles
                    in_memory = f"{name}-maps-in-memory", kernel.values(config, maps_at=0)
    name, values = in_memory  # of the last one
    yield f"forward-sm90a-{name}", kernel.NAME, values


# Of a backward pass: whether there is a mask, type of the pair bias, alignment of its rows.
GRADIENT_BIASES = (
    (False, "none", 16),
    (True, "none", 16),
    (True, "own", 16),
    (False, "own", 8),
    (True, "own", 4),
    (False, "own", 2),
    (True, "f32", 16),
    (True, "f32", 8),
    (False, "f32", 4),
)
GRADIENTS: tuple[dict[str, Any], ...] = (
    *(
        dict(side="queries", first=first, sums=sums)
        for first, sums in ((True, False), (False, True), (True, True))
    ),
    *(
        dict(side="keys", first=first, second=second, sums=sums)
        for first, second, sums in product((True, False), repeat=3)
        if first or second or sums
    ),
)
"""Requests to a side."""


def gradient_configurations(
    head_dim: int, dtype: str, biases: int, wanted: int, length: int
) -> list[backward.Config]:
    """The candidates for `GRADIENT_BIASES[biases]` and `GRADIENTS[wanted]` that some architecture
    can run, where they do not fill their tiles also with a short last one; none where there is no
    bias that these are gradients of.
    """
    mask, pair, alignment = GRADIENT_BIASES[biases]
    asked = GRADIENTS[wanted]
    if asked["sums"] and not (mask if asked["side"] == "keys" else pair != "none"):
        return []
    problem = backward.Problem(
        1, 256, 4, length, length, head_dim, dtype, "f32" if mask else "none",
        dtype if pair == "own" else pair, alignment, **asked,
    )  # fmt: skip
    roomy = architecture("sm_90")
    offered = dict.fromkeys(config for config, _ in backward.candidates(problem))
    found = [config for config in offered if not backward.violations(config, roomy, problem)]
    short = []
    for index, config in enumerate(found):
        few = (1, config.block_stationary // 2)[(index + head_dim // 8) % 2]
        last = replace(problem, **{asked["side"]: config.block_stationary + few})
        short.append(backward.with_short_tile(config, last, roomy))
    return found + [config for config in short if config.short_stationary]


def gradient_instances(head_dim: int) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values; every tiling meets some biases and some sets of gradients."""
    for biases, wanted in product(range(len(GRADIENT_BIASES)), range(len(GRADIENTS))):
        dtype = ("bf16", "f16")[(head_dim // 8 + biases + wanted) % 2]
        length = LENGTHS[(biases + wanted) % 2]
        found = gradient_configurations(head_dim, dtype, biases, wanted, length)
        for index, config in enumerate(found):
            # A tenth of all, another tenth for the next head dim.
            if (biases + 2 * wanted + 3 * index + head_dim // 8) % 10 == 0:
                asked = [name for name in ("first", "second", "sums") if getattr(config, name)]
                biased = ("mask" if config.mask else "bare", config.pair)
                width = [] if config.pair == "none" else [str(config.pair_copy_bytes)]
                tiling = f"tiling{index}"
                if config.short_stationary:
                    tiling += f"-short{config.short_rows}x{config.short_stationary}"
                name = "-".join((config.side, *asked, tiling, *biased, *width))
                values = backward.values(config)
                yield f"backward-D{head_dim}-{dtype}-{name}", backward.NAME, values


def mapped_gradients(
    head_dim: int, dtype: str, biases: int
) -> list[evoformer_backward_sm90a.Config]:
    """Candidates of `evoformer_backward_sm90a` for `GRADIENT_BIASES[biases]` and every set of
    gradients of a side.
    """
    mask, pair, _ = GRADIENT_BIASES[biases]
    types = ("f32" if mask else "none", dtype if pair == "own" else pair)
    found = []
    for asked in GRADIENTS:
        if types[asked["side"] == "queries"] != "none" or not asked["sums"]:
            problem = backward.Problem(1, 256, 4, 257, 257, head_dim, dtype, *types, **asked)
            found += [config for config, _ in evoformer_backward_sm90a.candidates(problem)]
    return found


def mapped_gradient_instances() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values of some of them."""
    kernel = evoformer_backward_sm90a
    for head_dim, biases in product(MAPPED_DIMS, range(len(GRADIENT_BIASES))):
        dtype = ("bf16", "f16")[biases % 2]
        for index, config in enumerate(mapped_gradients(head_dim, dtype, biases)):
            if (biases + 2 * index + head_dim // 8) % 7 == 0:
                asked = [name for name in ("first", "second", "sums") if getattr(config, name)]
                biased = ("mask" if config.mask else "bare", config.pair)
                name = "-".join((f"D{head_dim}", dtype, config.side, *asked, *biased))
                yield f"backward-sm90a-{name}", kernel.NAME, kernel.values(config)


def variant_instances() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values of the variants of attention below sm_80: every tiling, with one set
    of biases and gradients or another.
    """
    for turn, head_dim in enumerate(HEAD_DIMS):
        mask, pair = (("none", "none"), ("bool", "f16"), ("f16", "f32"))[turn % 3]
        scores = forward.Problem(1, 8, 2, 257, 257, head_dim, "f16", mask, pair)
        for variant in (evoformer_forward_sm75, evoformer_forward_sm70):
            for index, (config, _) in enumerate(variant.candidates(scores)):
                name = f"{variant.NAME[-4:]}-D{head_dim}-tiling{index}-{config.mask}-{pair}"
                yield f"forward-{name}", variant.NAME, variant.values(config)
        for wanted in GRADIENTS[turn % 4 :: 4]:
            problem = backward.Problem(**vars(scores), **wanted)
            asked = [name for name in ("first", "second", "sums") if wanted.get(name)]
            for gradients in (evoformer_backward_sm75, evoformer_backward_sm70):
                offered = list(gradients.candidates(problem))
                index = (turn + len(asked)) % len(offered)
                config, _ = offered[index]
                name = "-".join((wanted["side"], *asked, f"tiling{index}", mask, pair))
                name = f"{gradients.NAME[-4:]}-D{head_dim}-{name}"
                yield f"backward-{name}", gradients.NAME, gradients.values(config)


def pack_configurations() -> Iterator[pack_sm70.Config]:
    """Configurations of `pack_sm70`: every way to read, with one number of axes or another."""
    tiles = ((1, 32), (2, 32), (4, 32), (1, 8), (2, 4), (4, 1), (8, 2), (16, 1))
    for size in (1, 2, 4):
        units = [unit for unit in (1, 2, 4) if unit <= size]
        for axes, (reads, unit) in enumerate(product(("chunks", "elements"), units)):
            yield pack_sm70.Config(size, 1 + axes % 4, reads, unit)
        for axes, (width, lanes) in enumerate(tiles):
            if width * size <= (4 if lanes > 8 else 16):
                yield pack_sm70.Config(size, 1 + axes % 4, "tile", size, width, lanes)


def memory_instances() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values of the kernels that only move and add, for any head dim."""
    for mask, wanted in product(
        ("bounds", "bool", "f16", "bf16", "f32"), ("key_bias", "key_terms", "both")
    ):
        config = key_bias_sm70.Config(mask, wanted=wanted)
        name = f"key-bias-{mask}" + ("" if wanted == "key_bias" else f"-{wanted}")
        yield name, key_bias_sm70.NAME, key_bias_sm70.values(config)
    for out_dtype, count, columns in product(("f32", "f16", "bf16"), (1, 8), (256, 254, 33)):
        sums = partial_sums_sm70.choose(out_dtype, count, columns)
        name = f"sums-{out_dtype}-width{sums.width}-terms{sums.terms}-threads{sums.row_threads}"
        yield name, partial_sums_sm70.NAME, partial_sums_sm70.values(sums)
    for pair in ("f16", "bf16", "f32"):
        tiles = pair_tiles_sm90.Config(pair)
        yield f"pair-tiles-{pair}", pair_tiles_sm90.NAME, pair_tiles_sm90.values(tiles)
    for mask in ("bool", "f16", "bf16", "f32"):
        for label, added in (("", True), ("-operands", False)):
            own = bias_tiles_sm90.Config(mask, added=added)
            yield f"mask-tiles-{mask}{label}", bias_tiles_sm90.NAME, bias_tiles_sm90.values(own)
    for pair in ("f16", "bf16", "f32"):
        both = bias_tiles_sm90.values(bias_tiles_sm90.Config(mask, pair=pair))
        yield f"bias-tiles-{mask}-{pair}", bias_tiles_sm90.NAME, both
    for dtype, head_dim, row_bytes, last_queries, last_rows, pair in (
        ("bf16", 8, 32, 0, 0, "none"),
        ("f16", 32, 64, 0, 0, "f16"),
        ("bf16", 48, 64, 64, 4, "f32"),
    ):
        maps = attention_maps_sm90a.Config(
            head_dim, dtype, row_bytes, last_queries=last_queries, last_rows=last_rows, pair=pair
        )
        name = f"maps-{dtype}-D{head_dim}" + ("" if pair == "none" else f"-tiles-{pair}")
        yield name, attention_maps_sm90a.NAME, attention_maps_sm90a.values(maps)
    for copy in pack_configurations():
        ways = [copy.reads, str(copy.unit)]
        ways += [f"{copy.width}x{copy.lanes}"] if copy.reads == "tile" else []
        name = "-".join(("pack", f"{copy.size}of{copy.axes}", *ways))
        yield name, pack_sm70.NAME, pack_sm70.values(copy)


# Of a product: type of c, bias, scatter, type of d, bytes of alignment, splits. Beside scattered
# rows of f32, indices are int32 and the bias has the inputs' type.
PRODUCTS = (
    ("none", False, False, "own", 16, 1),
    ("none", False, False, "f32", 16, 4),
    ("f32", True, True, "own", 16, 1),
    ("own", False, False, "own", 8, 1),
    ("own", True, False, "f32", 4, 1),
    ("none", True, False, "own", 2, 1),
    ("none", True, True, "f32", 16, 1),
)
ORDERS = tuple(product((False, True), repeat=2))
"""Whether the columns of a, and of b, are contiguous."""


def _narrow(kind: int) -> dict[str, Any]:
    _, _, scatter, out, _, _ = PRODUCTS[kind]
    return dict(bias_of_inputs=True, index_bytes=4) if scatter and out == "f32" else {}


def product_configurations(order: int, kind: int, dtype: str) -> list[GemmConfig]:
    """Candidates of `gemm_sm80` for ragged and for whole problems of `ORDERS` and `PRODUCTS`."""
    c, bias, scatter, out, alignment, splits = PRODUCTS[kind]
    types = {"own": dtype, "none": "none", "f32": "f32"}
    found: dict[GemmConfig, None] = {}
    for extent, k in ((1000, 1000), (1024, 1024), (1024, 64)):
        problem = GemmProblem(
            1, extent, extent + (alignment == 2), k, dtype, types[out], *ORDERS[order], types[c],
            bias, scatter, alignment, alignment, max(alignment, 4), max(alignment, 4),
            **_narrow(kind),
        )  # fmt: skip
        for config, _ in gemm_sm80.candidates(problem):
            if config.splits == splits:
                found[config] = None
    return list(found)


def product_instances() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values of a third of the products; every tiling meets every order."""
    for order, kind in product(range(len(ORDERS)), range(len(PRODUCTS))):
        dtype = ("bf16", "f16")[(order + kind) % 2]
        for index, config in enumerate(product_configurations(order, kind, dtype)):
            if (index + order + kind) % 3 == 0:
                tiling = f"{config.block_m}x{config.block_n}x{config.block_k}-{config.stages}"
                name = f"{tiling}-{config.clear}-{config.max_k}-order{order}-kind{kind}"
                yield f"gemm-{name}", gemm_sm80.NAME, gemm_sm80.values(config)


def wgmma_configurations(order: int, kind: int, dtype: str) -> list[WgmmaConfig]:
    """Candidates of `gemm_sm90a`, as `product_configurations` has them."""
    c, bias, scatter, out, alignment, _ = PRODUCTS[kind]
    types = {"own": dtype, "none": "none", "f32": "f32"}
    problem = GemmProblem(
        1, 1000, 1000 + (alignment == 2), 1000, dtype, types[out], *ORDERS[order], types[c],
        bias, scatter, 16, 16, max(alignment, 4), max(alignment, 4), **_narrow(kind),
    )  # fmt: skip
    return [config for config, _ in gemm_sm90a.candidates(problem)]


def wgmma_instances() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values of half of the products of `gemm_sm90a`."""
    for order, kind in product(range(len(ORDERS)), range(len(PRODUCTS))):
        dtype = ("bf16", "f16")[(order + kind) % 2]
        for index, config in enumerate(wgmma_configurations(order, kind, dtype)):
            if (index + order + kind) % 2 == 0:
                tiling = f"{config.block_m}x{config.block_n}-{config.stages}"
                name = f"wgmma-{tiling}-order{order}-kind{kind}"
                yield f"gemm-{name}", gemm_sm90a.NAME, gemm_sm90a.values(config)


LOWER_PRODUCTS = (
    GemmProblem(1, 500, 500, 500, "f16", "f16"),
    GemmProblem(1, 500, 500, 500, "f16", "f32", True, True, "f32", scatter=True),
    GemmProblem(1, 500, 500, 500, "f16", "f16", True, False, "f16", True, False, 2, 8, 4, 16),
    GemmProblem(1, 500, 500, 500, "f16", "f32", False, True, "none", True, False, 8, 4, 16, 4),
    GemmProblem(1, 500, 500, 64, "f16", "f16", False, True, "f32", True, True, 16, 16, 16, 2),
    GemmProblem(
        1, 500, 500, 500, "f16", "f32", bias=True, scatter=True, bias_of_inputs=True, index_bytes=4
    ),
)
"""Problems for the kernels below sm_80, each with a kernel of its own."""


def lower_product_instances() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Name, kernel and values of a third of the products below sm_80."""
    for kernel, (kind, problem) in product((gemm_sm75, gemm_sm70), enumerate(LOWER_PRODUCTS)):
        for index, (config, _) in enumerate(kernel.candidates(problem)):
            if (index + kind) % 3 == 0:
                tiling = f"{config.block_m}x{config.block_n}x{config.block_k}-{config.splits}"
                name = f"{kernel.NAME[-4:]}-{tiling}-{index}-kind{kind}"
                yield f"gemm-{name}", kernel.NAME, kernel.values(config)


Instances = Iterator[tuple[str, str, dict[str, object]]]
FAMILIES: Mapping[str, Callable[[], Instances]] = {
    **{f"forward-D{d}": partial(instances, d) for d in HEAD_DIMS},
    **{f"backward-D{d}": partial(gradient_instances, d) for d in HEAD_DIMS},
    "mapped forward": mapped_instances,
    "mapped backward": mapped_gradient_instances,
    "products": product_instances,
    "wgmma": wgmma_instances,
    "lower products": lower_product_instances,
    "variants": variant_instances,
    "memory": memory_instances,
}
"""Everything that is pinned, in parts that a test renders within seconds."""


def digests(family: str) -> dict[str, str]:
    """Name to the first half of the digest of its code."""
    return {
        name: render(kernel, values).code_digest[:32] for name, kernel, values in FAMILIES[family]()
    }


def write_pins() -> None:
    found: dict[str, str] = {}
    for family in FAMILIES:
        found |= digests(family)
    PINS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{len(found)} digests in {PINS}")


def is_current(entry: Entry) -> bool:
    """Whether the kernels that a tuned entry chooses are as they were when it was measured."""
    by_name = registry()
    return all(
        digest_of(kernel, kernel.Config(**made["config"])) == made["digest"]
        for made in entry.choices
        for kernel in [by_name[made["kernel"]]]
    )


def drop_stale_choices() -> None:
    entries = read(SHIPPED)
    current = [entry for entry in entries if is_current(entry)]
    if len(current) < len(entries):
        SHIPPED.unlink()
        merge(SHIPPED, current)
        print(f"{len(entries) - len(current)} of {len(entries)} choices taken out of {SHIPPED}")


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["spills"]:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from helpers import spills

        return spills.report(arguments[1:])
    write_pins()
    drop_stale_choices()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
