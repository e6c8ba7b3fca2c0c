"""Kernels in Numba, which are written thread by thread."""

import math

from numba import cuda, float32, int32


def softmax_rows(source, target, columns):
    """The softmax of each row, one warp a row."""
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x
    highest = float32(-math.inf)
    for column in range(lane, columns, 32):
        highest = max(highest, source[row, column])
    for step in (16, 8, 4, 2, 1):
        highest = max(highest, cuda.shfl_xor_sync(0xFFFFFFFF, highest, step))
    total = float32(0)
    for column in range(lane, columns, 32):
        total += math.exp(source[row, column] - highest)
    for step in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, step)
    for column in range(lane, columns, 32):
        target[row, column] = math.exp(source[row, column] - highest) / total


def sum_blocks(source, sums):
    """Sums of 128 elements, in shared memory."""
    part = cuda.shared.array(128, float32)
    thread, place = cuda.threadIdx.x, cuda.grid(1)
    part[thread] = source[place] if place < source.size else float32(0)
    cuda.syncthreads()
    step = 64
    while step > 0:
        if thread < step:
            part[thread] += part[thread + step]
        cuda.syncthreads()
        step //= 2
    if thread == 0:
        sums[cuda.blockIdx.x] = part[0]


def multiply_tiles(a, b, out):
    """The product of matrices of any size, in tiles of 8 x 8."""
    of_a = cuda.shared.array((8, 8), float32)
    of_b = cuda.shared.array((8, 8), float32)
    column, row = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for first in range(0, a.shape[1], 8):
        of_a[y, x] = of_b[y, x] = 0
        if row < a.shape[0] and first + x < a.shape[1]:
            of_a[y, x] = a[row, first + x]
        if first + y < b.shape[0] and column < b.shape[1]:
            of_b[y, x] = b[first + y, column]
        cuda.syncthreads()
        for i in range(8):
            total += of_a[y, i] * of_b[i, x]
        cuda.syncthreads()
    if row < out.shape[0] and column < out.shape[1]:
        out[row, column] = total


def count_values(values, counts):
    """How often each number below 32 is there: first of a threadblock, in shared memory."""
    own = cuda.shared.array(32, int32)
    if cuda.threadIdx.x < 32:
        own[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    for place in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        cuda.atomic.add(own, values[place], 1)
    cuda.syncthreads()
    if cuda.threadIdx.x < 32:
        cuda.atomic.add(counts, cuda.threadIdx.x, own[cuda.threadIdx.x])


def pack_positive(values, packed, length):
    """What is positive of the values of one warp after the other, without gaps: lanes vote, and
    find their places by counting votes; the first of them takes places for the warp.
    """
    place, lane = cuda.grid(1), cuda.laneid
    positive = place < values.size and values[place] > 0
    votes = cuda.ballot_sync(0xFFFFFFFF, positive)
    first = 0
    if lane == 0:
        first = cuda.atomic.add(length, 0, cuda.popc(votes))
    first = cuda.shfl_sync(0xFFFFFFFF, first, 0)
    if positive:
        packed[first + cuda.popc(votes & ((1 << lane) - 1))] = values[place]


def run_sums(values, sums):
    """Running sums of 64-bit numbers within a warp."""
    place, lane = cuda.grid(1), cuda.laneid
    total = values[place]
    for step in (1, 2, 4, 8, 16):
        below = cuda.shfl_up_sync(0xFFFFFFFF, total, step)
        if lane >= step:
            total += below
    sums[place] = total
