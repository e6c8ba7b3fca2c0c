"""Kernels in Triton that work on the rows of matrices, each in the registers of a threadblock."""

import triton
import triton.language as tl


@triton.jit
def softmax(
    source, target, rows, columns, source_row, target_row,
    WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A threadblock has every so many-th row, and fetches the next ones meanwhile."""
    column = tl.arange(0, WIDTH)
    there = column < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(source + row * source_row + column, mask=there, other=float("-inf"))
        weights = tl.exp(values - tl.max(values, 0))
        tl.store(target + row * target_row + column, weights / tl.sum(weights, 0), mask=there)


@triton.jit
def normalize(x, weight, bias, out, means, scales, columns, epsilon, TILE: tl.constexpr):
    """Layer norm of a row, in pieces; what the gradient needs of it stays in means and scales."""
    row = tl.program_id(0)
    place = tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    for first in range(0, columns, TILE):
        column = first + place
        total += tl.load(x + row * columns + column, mask=column < columns, other=0.0)
    mean = tl.sum(total, 0) / columns
    squares = tl.zeros([TILE], tl.float32)
    for first in range(0, columns, TILE):
        column = first + place
        there = column < columns
        value = tl.load(x + row * columns + column, mask=there, other=0.0)
        apart = tl.where(there, value - mean, 0.0)
        squares += apart * apart
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns + epsilon)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    for first in range(0, columns, TILE):
        column = first + place
        there = column < columns
        value = tl.load(x + row * columns + column, mask=there, other=0.0)
        factor = tl.load(weight + column, mask=there)
        shift = tl.load(bias + column, mask=there)
        tl.store(out + row * columns + column, (value - mean) * scale * factor + shift, mask=there)


@triton.jit
def normalize_gradient(
    gradient, x, weight, means, scales, of_x, of_weight, of_bias, locks, columns,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Gradients of a row, and its part of those of weight and bias, which the rows of a group add
    up one after the other: a lock says whose turn it is, and a flag behind the locks whether the
    group has begun.
    """
    row = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    there = column < columns
    value = tl.load(x + row * columns + column, mask=there, other=0.0)
    given = tl.load(gradient + row * columns + column, mask=there, other=0.0)
    scale = tl.load(scales + row)
    normal = tl.where(there, (value - tl.load(means + row)) * scale, 0.0)
    weighted = given * tl.load(weight + column, mask=there, other=0.0)
    along = tl.sum(normal * weighted, 0) / columns
    level = tl.sum(weighted, 0) / columns
    tl.store(of_x + row * columns + column, (weighted - normal * along - level) * scale, mask=there)
    group = row % GROUPS
    lock, begun = locks + group, locks + GROUPS + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    more_weight, more_bias = given * normal, given
    if tl.load(begun) == 0:
        tl.atomic_xchg(begun, 1)
    else:
        more_weight += tl.load(of_weight + group * columns + column, mask=there)
        more_bias += tl.load(of_bias + group * columns + column, mask=there)
    tl.store(of_weight + group * columns + column, more_weight, mask=there)
    tl.store(of_bias + group * columns + column, more_bias, mask=there)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def add_groups(parts, out, groups, columns, ROWS: tl.constexpr, TILE: tl.constexpr):
    """The sums of what the groups have."""
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    total = tl.zeros([ROWS, TILE], tl.float32)
    for first in range(0, groups, ROWS):
        group = first + tl.arange(0, ROWS)
        there = (group[:, None] < groups) & (column[None, :] < columns)
        total += tl.load(parts + group[:, None] * columns + column[None, :], mask=there, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < columns)


@triton.jit
def sort_and_count(x, ascending, sums, counts, highest, WIDTH: tl.constexpr, KINDS: tl.constexpr):
    """A row of numbers below `KINDS`: in order, their running sums, how many there are of each, and
    the place of the largest.
    """
    row, place = tl.program_id(0), tl.arange(0, WIDTH)
    values = tl.load(x + row * WIDTH + place)
    tl.device_assert(values < KINDS, "a number too large")
    tl.store(ascending + row * WIDTH + place, tl.sort(values))
    tl.store(sums + row * WIDTH + place, tl.cumsum(values, 0))
    tl.atomic_add(counts + tl.arange(0, KINDS), tl.histogram(values, KINDS))
    tl.store(highest + row, tl.argmax(values, 0))
