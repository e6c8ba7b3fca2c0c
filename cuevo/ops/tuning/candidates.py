"""Configurations that are worth a measurement: those that a kernel variant offers for any head dim,
and from there on neighbours, which differ in one or two fields.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import chain
from typing import Any

from cuevo.architectures import Architecture
from cuevo.ops.dispatch import KernelVariant
from cuevo.ops.tuning.tuned import Variants

__all__ = ["LADDERS", "Candidate", "neighbours", "offered"]

Variant = KernelVariant[Any, Any]
Candidate = tuple[Variant, Any]
"""A kernel variant, and a configuration of it."""

_FLAGS = (False, True)
LADDERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("block_rows", "warp_rows"), (1, 2, 3, 4, 8)),
    **dict.fromkeys(("block_queries", "block_m", "block_n"), (32, 64, 96, 128, 192, 256)),
    **dict.fromkeys(("block_stationary", "block_streamed"), (32, 64, 128)),
    **dict.fromkeys(("block_keys", "block_k"), (16, 32, 64, 128)),
    **dict.fromkeys(("warp_m", "warp_n"), (16, 32, 64, 96, 128)),
    **dict.fromkeys(("chunk_keys", "chunk_streamed"), (16, 32, 64)),
    "m_tiles": (1, 2, 3, 4),
    "stages": (2, 3, 4, 5, 6, 8),
    "min_blocks": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16),
    "splits": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "raster": (4, 8, 16, 32),
    "row_warpgroups": (1, 2, 3),
    "warpgroup_rows": (1, 2),
    **dict.fromkeys(("cluster", "parts", "meeting_buffers"), (1, 2, 4)),
    **dict.fromkeys(
        (
            *("q_in_registers", "continues", "converts", "scales_q", "emulates"),
            *("stationary_in_registers", "late_copies", "whole_steps"),
        ),
        _FLAGS,
    ),
}
"""Values of the fields of configurations that are free to be chosen, in their order."""

_RESIDENT = "min_blocks"
_HEAD_DIMS = (8, 16, 24, 32, 56, 64, 128)
_ASYNCHRONOUS = 80
"""From this architecture on, kernels without asynchronous copies are never the faster ones."""


def offered(variants: Variants, problem: Any, arch: Architecture) -> list[Candidate]:
    """Legal configurations for `problem` of all variants that may be fast on `arch`, among them
    those that are meant for other head dims, with and without a short last tile.
    """
    found: dict[Candidate, None] = {}
    least = min(arch.number, _ASYNCHRONOUS)
    for variant in variants:
        if not least <= variant.MINIMUM_ARCH <= arch.number:
            continue
        problems = [problem]
        if hasattr(problem, "head_dim"):
            problems += [replace(problem, head_dim=each) for each in _HEAD_DIMS]
        for config, _ in chain.from_iterable(map(variant.candidates, problems)):
            found |= dict.fromkeys(_legal(variant, [config], problem, arch))
    return list(found)


def neighbours(candidate: Candidate, problem: Any, arch: Architecture) -> list[Candidate]:
    """Legal configurations with a field one step up or down its ladder; where that is illegal, with
    another field a step off, too, as a smaller tile takes smaller ones of warps; at last those of
    one step with another number of resident threadblocks, as resources change with it.
    """
    variant, config = candidate
    tiles = [name for name in LADDERS if name != _RESIDENT]
    legal: dict[Candidate, None] = {}
    repaired: dict[Candidate, None] = {}
    resident: dict[Candidate, None] = {}
    for step in _steps(config, LADDERS):
        alone = list(_legal(variant, [step], problem, arch))
        legal |= dict.fromkeys(alone)
        if not alone:
            repaired |= dict.fromkeys(_legal(variant, _steps(step, tiles), problem, arch))
        resident |= dict.fromkeys(_legal(variant, _steps(step, [_RESIDENT]), problem, arch))
    found = legal | repaired | resident
    found.pop(candidate, None)
    return list(found)


def _steps(config: Any, names: Iterable[str]) -> Iterator[Any]:
    """`config` with one of the fields one step up, or down."""
    known = {field.name for field in fields(config)}
    for name in names:
        if name not in known:
            continue
        value, ladder = getattr(config, name), LADDERS[name]
        below = [x for x in ladder if x < value]
        above = [x for x in ladder if x > value]
        for other in (*below[-1:], *above[:1]):
            yield replace(config, **{name: other})


def _legal(
    variant: Variant, configs: Iterable[Any], problem: Any, arch: Architecture
) -> Iterator[Candidate]:
    """Those that can run, adapted to the problem; where there is a last tile that a short one can
    take the place of, with that, too.
    """
    shorten = getattr(variant, "with_short_tile", None)
    for config in configs:
        plain = _without_short_tile(config)
        if hasattr(config, "blocks"):
            plain = replace(plain, blocks=arch.multiprocessors)
        try:
            adapted = variant.adapt(plain, problem)
            if variant.violations(adapted, arch, problem):
                continue
        except (ValueError, ZeroDivisionError):  # nothing that has a meaning
            continue
        yield variant, adapted
        if shorten is not None:
            short = shorten(adapted, problem, arch)
            if short != adapted:
                yield variant, short


def _without_short_tile(config: Any) -> Any:
    short = [field.name for field in fields(config) if field.name.startswith("short_")]
    return replace(config, **dict.fromkeys(short, 0))
