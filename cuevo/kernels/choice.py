"""Checks and choice of configurations, spill fallbacks, register budgets, for every kernel."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from math import ceil
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from cuevo.architectures import Architecture

C = TypeVar("C", bound=Hashable)
P = TypeVar("P")
D = TypeVar("D", bound=Any)

_SUBPARTITIONS, _REGISTERS = 4, 16384
"""SM sub-partitions of a multiprocessor, and the registers of each."""


def check_types(config: Any) -> None:
    """TypeError for a field of a configuration that has another type than it was declared with."""
    for field in fields(config):
        value = getattr(config, field.name)
        if type(value) is not field.type:
            kind = getattr(field.type, "__name__", field.type)
            raise TypeError(f"{field.name}: expected {kind}; got {value!r}")


class Bounded(Protocol):
    """Threadblocks of which `min_blocks` share a multiprocessor."""

    @property
    def threads(self) -> int: ...
    @property
    def min_blocks(self) -> int: ...


class Threadblocks(Bounded, Protocol):
    """Threadblocks and their shared memory."""

    @property
    def shared_bytes(self) -> int: ...


def registers(c: Bounded) -> int:
    """Registers that a thread may have where `min_blocks` threadblocks share a multiprocessor:
    warps are dealt out to its sub-partitions, registers are given out by 8, and an instruction can
    name 255.
    """
    warps = ceil(ceil(c.threads / 32) * c.min_blocks / _SUBPARTITIONS)
    return min(255, _REGISTERS // (32 * warps) // 8 * 8)


def resource_violations(c: Threadblocks, arch: Architecture) -> Iterator[str]:
    """Reasons why the threadblocks of a configuration do not fit on `arch`."""
    if c.min_blocks < 1 or c.min_blocks * c.threads > arch.threads_per_multiprocessor:
        yield f"{c.min_blocks} blocks of {c.threads} threads do not fit on a multiprocessor"
    if c.shared_bytes > arch.shared_per_block:
        yield (
            f"needs {c.shared_bytes} bytes of shared memory; a block of {arch.name} has "
            f"{arch.shared_per_block}"
        )


class ShortTiled(Threadblocks, Protocol):
    """Threadblocks of which those of a short last tile have a tiling of their own."""

    @property
    def block_rows(self) -> int: ...
    @property
    def short_rows(self) -> int: ...
    @property
    def tile_bytes(self) -> int: ...


def short_tile_violations(
    c: ShortTiled,
    arch: Architecture,
    axis: str,
    positions: int | None,
    of_tile: Callable[[], Iterable[str]],
) -> Iterator[str]:
    """Reasons why the short last tile of a configuration cannot be.

    axis : what it is a tile of, as fields are called: ``short_<axis>`` of ``block_<axis>``.
    positions : how many there are, in all tiles; None for any number.
    of_tile : reasons of its tiling alone, asked where it is one.
    """
    warps, short, block = c.threads // 32, getattr(c, f"short_{axis}"), getattr(c, f"block_{axis}")
    if c.short_rows < c.block_rows or c.short_rows % c.block_rows or warps % c.short_rows:
        yield (
            f"short_rows must be a multiple of block_rows = {c.block_rows} that divides the "
            f"{warps} warps, not {c.short_rows}"
        )
        return
    step = 16 * warps // c.short_rows
    if short % step or not 0 < short < block:
        yield (
            f"short_{axis} must be a multiple of {step} ({warps // c.short_rows} warps to a row) "
            f"below block_{axis} = {block}, not {short}"
        )
        return
    reasons = tuple(of_tile())
    yield from reasons
    resident = min(c.min_blocks, arch.fitting_in_shared(c.tile_bytes))
    if not reasons and arch.fitting_in_shared(c.shared_bytes) < resident:
        yield (
            f"the short last tile needs {c.shared_bytes} bytes of shared memory, so that fewer "
            f"than {resident} threadblocks fit on a multiprocessor"
        )
    if positions is None:
        return
    whole, rest = divmod(positions, block)
    if not whole or not 0 < rest <= short:
        yield (
            f"{positions} positions have no last tile of at most short_{axis} = {short} behind "
            f"others of block_{axis} = {block}; short_{axis} must be 0"
        )


def with_short_tile(
    config: D,
    axis: str,
    positions: int,
    violations: Callable[[D], Sequence[str]],
    sizes: Callable[[int, int], Iterable[int]] = lambda least, step: (least,),
) -> D:
    """`config` with a short last tile, of the most rows N that are legal, if any are.

    axis, positions : as for `short_tile_violations`.
    sizes : the tiles to try, in positions, from the least that will do and the step of a tile.
    """
    warps, rest = config.threads // 32, positions % getattr(config, f"block_{axis}")
    for row_warps in range(1, warps // config.block_rows + 1) if rest else ():
        step = 16 * row_warps
        for size in sizes(step * ceil(rest / step), step):
            tile = {"short_rows": warps // row_warps, f"short_{axis}": size}
            if not violations(short := replace(config, **tile)):
                return short
    return config


def gains_by_short_tile(config: D, blocks: int, rows: int, arch: Architecture) -> bool:
    """Whether a short last tile saves time, where there can be one, for a launch of so many
    threadblocks over `rows` rows N: threadblocks that all run at once gain nothing by being fewer.
    """
    crowded: bool = blocks > arch.multiprocessors * config.min_blocks
    fewer: bool = rows > config.block_rows
    return crowded and fewer


def cheapest(
    name: str,
    offered: Iterable[tuple[C, float]],
    violations: Callable[[C, Architecture, P | None], Sequence[str]],
    cost: Callable[[C, float, P, Architecture], float],
    problem: P,
    arch: Architecture,
) -> C:
    """The configuration of least cost, of those that the kernel `name` offers, without
    `violations`; the first of equals.

    offered : configurations and the speed of their tiling, which `cost` is given.

    Raises ValueError naming every violation of each of them if none can run.
    """
    estimates = [(cost(config, speed, problem, arch), config) for config, speed in offered]
    # Costs are worked out sooner than violations: few configurations are looked at in full.
    for _, config in sorted(estimates, key=itemgetter(0)):
        if not violations(config, arch, problem):
            return config
    lines = [
        f"  {config}: {'; '.join(violations(config, arch, problem))}"
        for config in dict.fromkeys(config for _, config in estimates)
    ]
    raise ValueError(
        "\n".join([f"{name} has no configuration for {problem} on {arch.name}:", *lines])
    )


def last_end(blocks: Iterable[tuple[int, float]], slots: int) -> float:
    """When the last of these threadblocks ends: so many, and the time of each, in the order in
    which they begin, `slots` at a time, each where one has ended first.
    """
    free = {0.0: slots}
    for count, time in blocks:
        while count:
            first = min(free)
            rounds = count // slots if max(free) - first <= time else 0
            if rounds:  # each slot has as many of them
                free = {end + rounds * time: ended for end, ended in free.items()}
                count -= rounds * slots
                continue
            begun = min(count, free[first])
            free[first] -= begun
            if not free[first]:
                del free[first]
            free[first + time] = free.get(first + time, 0) + begun
            count -= begun
    return max(free)


def spill_fallbacks(config: D) -> Iterator[D]:
    """`config`, then such with ever more registers for a thread: fewer threadblocks to a
    multiprocessor.
    """
    for blocks in range(config.min_blocks, 0, -1):
        yield replace(config, min_blocks=blocks)
