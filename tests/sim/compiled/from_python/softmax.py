"""The softmax of each row of a matrix in Numba, one warp a row."""

import math

from numba import cuda, float32


def softmax_rows(source, target, columns):
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
