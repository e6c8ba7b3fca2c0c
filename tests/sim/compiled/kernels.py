"""The kernels of `sources`, each with its oracle in NumPy."""

import math
from collections.abc import Callable
from itertools import accumulate

import numpy as np
from sim.compiled.stating import BF16, KERNELS, Array, Kernel, floats, ints, kernel

__all__ = ["KERNELS", "Kernel"]


# -- Reductions -----------------------------------------------------------------------------------


@kernel("reductions", ints(150), 64, 3)
def block_sum(x: Array) -> Array:
    return np.pad(x, (0, 42)).reshape(3, 64).sum(1, dtype="i4")


@kernel("reductions", ints(256), 128, 2)
def warp_sum(x: Array) -> Array:
    return x.reshape(8, 32).sum(1, dtype="i4")


@kernel("reductions", ints(200, 0), 96)
def atomic_sum(x: Array) -> Array:
    return np.bincount(x % 4, minlength=4).astype("i4")


@kernel("reductions", floats(150), 64)
def float_maximum(x: Array) -> Array:
    return x.max(keepdims=True)


@kernel("reductions", ints(128), 32, 4)
def last_block_sum(x: Array) -> Array:
    sums = x.reshape(4, 32).sum(1)
    return np.append(sums, sums.sum()).astype("i4")


@kernel("reductions", ints(128, -3, 4, "f2"), 32, n=64)
def half2_dot(x: Array) -> Array:
    return (x.astype("f4").reshape(2, 32, 2) ** 2).sum((0, 2), dtype="f4")


@kernel("reductions", ints(300, -1000, 1000), 64)
def argmin(x: Array) -> Array:
    return np.array([x.min(), x.argmin()], "i4")


@kernel("reductions", ints(64), 64)
def ranges(x: Array) -> Array:
    rows = x.reshape(2, 32)
    return np.stack([rows.min(1), rows.max(1)], 1).ravel()


@kernel("reductions", ints(96), 96)
def count_odd(x: Array) -> Array:
    return (x.reshape(3, 32) % 2 != 0).sum(1).astype("i4")


@kernel("reductions", floats(100, dtype="f8"), 32, tolerance=1e-14)
def double_mean(x: Array) -> Array:
    return x.mean(keepdims=True)


# -- Sorts ----------------------------------------------------------------------------------------


@kernel("sorts", ints(64), 64)
def inclusive_scan(x: Array) -> Array:
    return x.cumsum(dtype="i4")


@kernel("sorts", ints(128), 64, shared=512)
def exclusive_scan(x: Array) -> Array:
    return x.cumsum(dtype="i4") - x


@kernel("sorts", ints(64), 64)
def warp_scan(x: Array) -> Array:
    return x.reshape(2, 32).cumsum(1, dtype="i4").ravel()


@kernel("sorts", ints(128, -1000, 1000), 128)
def bitonic_sort(x: Array) -> Array:
    return np.sort(x)


@kernel("sorts", ints(32, 0, 256, "u1"), 32)
def odd_even_sort(x: Array) -> Array:
    return np.sort(x)


@kernel("sorts", ints(32, 0, 65536, "u4"), 32)
def radix_sort(x: Array) -> Array:
    return np.sort(x)


@kernel("sorts", ints(500, 0, 256, "u1"), 64)
def histogram(x: Array) -> Array:
    return np.bincount(x // 16, minlength=16).astype("i4")


@kernel("sorts", ints(96), 32)
def compaction(x: Array) -> Array:
    kept = x[x > 0]
    return np.concatenate([[kept.size], kept, np.zeros(x.size - kept.size, "i4")]).astype("i4")


@kernel("sorts", np.sort(ints(128).reshape(2, 64), axis=1).ravel(), 128)
def merge(x: Array) -> Array:
    return np.sort(x)


@kernel("sorts", ints(96, 0, 8), 96)
def counting_sort(x: Array) -> Array:
    return np.sort(x)


# -- Matrices -------------------------------------------------------------------------------------


@kernel("matrices", floats(900), (16, 16), (2, 2), n=30)
def transpose(x: Array) -> Array:
    return x.reshape(30, 30).T.ravel()


def product_of(x: Array) -> Array:
    a, b = x.reshape(2, 16, 16)
    return (a @ b).ravel()


@kernel("matrices", floats(512), (8, 8), (2, 2), n=16, tolerance=1e-6)
def float_product(x: Array) -> Array:
    return product_of(x)


@kernel("matrices", floats(512, dtype="f8"), (8, 8), (2, 2), n=16, tolerance=1e-14)
def double_product(x: Array) -> Array:
    return product_of(x)


@kernel("matrices", ints(512, -(10**6), 10**6, "i8"), (8, 8), (2, 2), n=16)
def long_product(x: Array) -> Array:
    return product_of(x)


@kernel("matrices", floats(90), 64, 2, tolerance=1e-6)
def stencil(x: Array) -> Array:
    padded = np.pad(x, 2, mode="edge")
    weights = (0.0625, 0.25, 0.375, 0.25, 0.0625)
    return np.asarray(sum(w * padded[k : k + 90] for k, w in enumerate(weights))).astype("f4")


@kernel("matrices", floats(128), 32)
def vector_copy(x: Array) -> Array:
    return x.reshape(32, 4)[:, ::-1].ravel()


@kernel("matrices", floats(320, -5, 5), 32, n=10, tolerance=1e-6)
def softmax(x: Array) -> Array:
    e = np.exp(x.reshape(32, 10) - x.reshape(32, 10).max(1, keepdims=True))
    return (e / e.sum(1, keepdims=True)).ravel()


@kernel("matrices", floats(128), 32, 4, tolerance=2e-6)
def layer_norm(x: Array) -> Array:
    rows = x.reshape(4, 32)
    return ((rows - rows.mean(1)[:, None]) / np.sqrt(rows.var(1) + 1e-5)[:, None]).ravel()


def tile_product(x: Array, m: int, n: int, k: int, transposed: bool = False) -> Array:
    """2 (1 + A B), of small whole numbers: every sum is exact."""
    a, b = x[: m * k].reshape(m, k), x[m * k :]
    b = b.reshape(n, k).T if transposed else b.reshape(k, n)
    return 2 * (1 + a.astype("f8") @ b.astype("f8")).ravel()


@kernel("matrices", ints(512, -4, 5, "f2"), 32)
def wmma_half(x: Array) -> Array:
    return tile_product(x, 16, 16, 16, True).astype("f4")


@kernel("matrices", ints(640, -4, 5, "f2"), 32)
def wmma_tall(x: Array) -> Array:
    return tile_product(x, 32, 8, 16).astype("f2")


@kernel("matrices", ints(640, -4, 5, "f2"), 32)
def wmma_wide(x: Array) -> Array:
    return tile_product(x, 8, 32, 16).astype("f4")


@kernel("matrices", ints(512, -4, 5).astype(BF16), 32)
def wmma_bfloat(x: Array) -> Array:
    return tile_product(x, 16, 16, 16).astype("f4")


@kernel("matrices", ints(640, -128, 128, "i1"), 32)
def wmma_bytes(x: Array) -> Array:
    return tile_product(x, 32, 8, 16, True).astype("i4")


@kernel("matrices", ints(640, 0, 256, "u1"), 32)
def wmma_unsigned(x: Array) -> Array:
    return tile_product(x, 8, 32, 16, True).astype("i4")


@kernel("matrices", ints(64, -4, 5, "f8"), 32)
def wmma_double(x: Array) -> Array:
    return tile_product(x, 8, 8, 4)


@kernel("matrices", ints(256, -4, 5, "f4"), 32)
def wmma_tf32(x: Array) -> Array:
    a, b, c = x[:128].reshape(16, 8), x[128:].reshape(16, 8).T, x.reshape(16, 16).T
    return (a @ b + c).ravel()


NEAR_THE_ENDS = (2**31 - 1 - ints(64, 0, 200, "i8")) * np.tile([1, -1], 32)
WORDS = np.append(ints(96, -(2**31), 2**31), NEAR_THE_ENDS).astype("i4")


def small_products(x: Array, elements: Callable[[Array], Array]) -> tuple[Array, Array, Array]:
    """Rows of A and columns of B, as `elements` of their words; C."""
    a, b = x[:32].reshape(8, 4), x[32:96].reshape(8, 8)[:, :4]
    return elements(a), elements(b), x[96:].reshape(8, 8).T.astype("i8")


@kernel("matrices", WORDS, 32)
def wmma_nibbles(x: Array) -> Array:
    def nibbles(words: Array) -> Array:
        octets = np.ascontiguousarray(words).view("u1").astype("i8")
        return np.stack([octets % 16, octets // 16], 2).reshape(8, 32)

    a, b, c = small_products(x, nibbles)
    signed_a, signed_b = (np.where(each < 8, each, each - 16) for each in (a, b))
    signed = np.clip(c + signed_a @ signed_b.T, -(2**31), 2**31 - 1)
    return np.stack([signed, c + a @ b.T]).astype("i4").ravel()


@kernel("matrices", WORDS, 32)
def wmma_bits(x: Array) -> Array:
    def bits(words: Array) -> Array:
        return np.unpackbits(np.ascontiguousarray(words).view("u1"), axis=1)

    a, b, c = small_products(x, bits)
    counts = [op(a[:, None], b).sum(2, dtype="i8") for op in (np.bitwise_xor, np.bitwise_and)]
    return np.stack([c + each for each in counts]).astype("i4").ravel()


# -- Arithmetic -----------------------------------------------------------------------------------

WIDE = ints(64, -(2**62), 2**62, "i8")


@kernel("arithmetic", WIDE, 32)
def wide_product(x: Array) -> Array:
    pairs = [(int(a) * int(b) + int(a)) % 2**128 for a, b in x.reshape(32, 2)]
    words = [(p % 2**64, p >> 64) for p in pairs]
    return np.array(words, "u8").view("i8").ravel()


@kernel("arithmetic", WIDE.view("u8") >> np.uint64(3), 32)
def wide_quotient(x: Array) -> Array:
    found = []
    for high, low in x.reshape(32, 2):
        a, b = int(high) << 32 | int(low), int(low) // 3 + 1
        found += [a // b % 2**64, a % b]
    return np.array(found, "u8")


@kernel("arithmetic", ints(64, -(10**15), 10**15, "i8"), 64)
def long_quotient(x: Array) -> Array:
    by = np.fmod(x, 1000) + 1001
    rest = np.fmod(x, by)
    return np.stack([(x - rest) // by, rest], 1).ravel()


@kernel("arithmetic", ints(64, -(10**9), 10**9), 64)
def short_quotient(x: Array) -> Array:
    t = np.arange(64)

    def quotient(by: Array) -> Array:
        return (x - np.fmod(x, by)) // by

    rows = [quotient(7), np.fmod(x, 10), quotient(t + 1), x.view("u4") % (2 * t + 3).astype("u4")]
    return np.stack([each.astype("i8") for each in rows], 1).astype("u4").view("i4").ravel()


@kernel("arithmetic", ints(64, 0, 2**32, "u4") >> (np.arange(64, dtype="u4") // 2), 64)
def bit_counts(x: Array) -> Array:
    def row(value: int) -> list[int]:
        digits = f"{value:032b}"
        first = (value & -value).bit_length()
        return [value.bit_count(), 32 - value.bit_length(), first, int(digits[::-1], 2)]

    return np.array([row(int(each)) for each in x], "u4").ravel()


@kernel("arithmetic", ints(64, 0, 2**32, "u4"), 32)
def packed_bytes(x: Array) -> Array:
    a, b = x.view("u1").reshape(32, 2, 4).transpose(1, 0, 2).astype("i4")
    distance = np.abs(a - b)
    permuted = np.concatenate([a, b], 1)[:, [0, 4, 2, 6]]
    dot = (a.astype("i1").astype("i4") * b.astype("i1")).sum(1) + np.arange(32)
    of_bytes = (a + b, distance, np.maximum(a, b), permuted)
    packed = [np.ascontiguousarray(each, "u1").view("u4")[:, 0] for each in of_bytes]
    rows = [*packed, distance.sum(1), dot]
    return np.stack([np.asarray(each).astype("i8").astype("u4") for each in rows], 1).ravel()


@kernel("arithmetic", floats(64, -4, 4, "f2"), 32)
def half_arithmetic(x: Array) -> Array:
    half = np.float16(0.5)
    return (x + half) * (x - half)


@kernel("arithmetic", floats(64, -4, 4), 32)
def bfloat_arithmetic(x: Array) -> Array:
    short = x.astype(BF16).astype("f8")
    return (short * short + short).astype("f4").astype(BF16)


@kernel("arithmetic", floats(64, 0.01, 9, "f8"), 64, tolerance=1e-14)
def double_functions(x: Array) -> Array:
    rows = [np.sqrt(x) / (1 + x), np.exp(-x), np.sin(x) * np.cos(x), np.log1p(x), x**1.5]
    return np.stack(rows, 1).ravel()


@kernel("arithmetic", floats(64, 0.01, 9), 64, tolerance=1e-6)
def float_functions(x: Array) -> Array:
    d = x.astype("f8")
    error = np.array([math.erf(each) for each in d])
    hundred = (np.float32(100) * x).astype("f8")
    rows = [np.sqrt(d) / (1 + d), np.exp(-d), np.sin(hundred), np.log(d), error, np.tanh(d)]
    return np.stack(rows, 1).ravel().astype("f4")


@kernel("arithmetic", floats(64, 0, 250), 64)
def conversions(x: Array) -> Array:
    whole = np.floor(x * np.float32(100)).astype("i4").astype("i2")
    rows = [np.trunc(x), np.rint(x), np.ceil(x), np.trunc(x).astype("u1"), x.view("i4"), whole]
    return np.stack([each.astype("i4") for each in rows], 1).ravel()


@kernel("arithmetic", np.arange(1, 33, dtype="i4"), 32)
def collatz(x: Array) -> Array:
    def steps(value: int) -> int:
        return 0 if value == 1 else 1 + steps(3 * value + 1 if value % 2 else value // 2)

    return np.array([steps(int(each)) for each in x], "i4")


@kernel("arithmetic", ints(128, 1, 5000), 64)
def divisors(x: Array) -> Array:
    return np.gcd(*x.reshape(64, 2).T).astype("i4")


@kernel("arithmetic", ints(64, 0, 2**32, "u4"), 64, n=20)
def xorshift(x: Array) -> Array:
    x = x | np.uint32(1)
    for _ in range(20):
        x ^= x << np.uint32(13)
        x ^= x >> np.uint32(17)
        x ^= x << np.uint32(5)
    return x


@kernel("arithmetic", floats(128, -1.5, 1), 64, n=40)
def mandelbrot(x: Array) -> Array:
    def steps(a: np.float32, b: np.float32) -> int:
        x = y = np.float32(0)
        for i in range(40):
            if x * x + y * y > 4:
                return i
            x, y = x * x - y * y + a, np.float32(2) * x * y + b
        return 40

    return np.array([steps(a, b) for a, b in x.reshape(64, 2)], "i4")


# -- Control --------------------------------------------------------------------------------------


@kernel("control", np.arange(32, dtype="i4") % 11, 32)
def recursion(x: Array) -> Array:
    numbers = [a for a, _ in accumulate(range(12), lambda p, _: (p[1], sum(p)), initial=(0, 1))]
    return np.array(numbers, "i4")[x]


@kernel("control", np.arange(32, dtype="i4") % 4, 32)
def nested_recursion(x: Array) -> Array:
    return np.array([3, 4, 7, 29], "i4")[x]


@kernel("control", ints(256), 32)
def own_quicksort(x: Array) -> Array:
    return np.sort(x.reshape(32, 8), axis=1).ravel()


@kernel("control", ints(64), 64)
def function_table(x: Array) -> Array:
    t = np.arange(64, dtype="i4")
    return np.choose(t % 3, [x + t, x - t, x * t])


@kernel("control", ints(64, 0), 64)
def virtual_calls(x: Array) -> Array:
    return np.where(x % 2 == 1, x * x, 2 * x)


@kernel("control", ints(64, 0, 9), 64)
def dense_switch(x: Array) -> Array:
    by_case = [x * 0 + 5, x * 3 + 7, x * 0 + 7, x << 4, x * 0, -x, x**3, ~x, x * 0 + 99]
    return np.choose(x, by_case)


PROSE = np.frombuffer(b'so it "is. said" and so on. end "of it', np.uint8)


@kernel("control", PROSE, 32)
def state_machine(x: Array) -> Array:
    def run(state: int) -> int:
        words = 0
        for each in map(chr, x):
            if state == 0:
                words, state = (words + 1, 1) if each != " " else (words, 0)
            elif state == 1:
                state = {" ": 0, '"': 2}.get(each, 1)
            elif state == 2:
                if each == ".":
                    break
                state = 1 if each == '"' else 2
            else:
                state = 0
        return 10 * words + state

    return np.array([run(t % 4) for t in range(32)], "i4")


@kernel("control", ints(192), 32)
def structs_by_value(x: Array) -> Array:
    rows = [np.roll(row, t % 5) + t + t % 5 for t, row in enumerate(x.reshape(32, 6))]
    return np.concatenate(rows).astype("i4")


@kernel("control", ints(40), 32)
def local_indexing(x: Array) -> Array:
    counts = [np.bincount((x + t) & 15, minlength=16) for t in range(32)]
    return np.array([100 * c.argmax() + c.max() for c in counts], "i4")


@kernel("control", ints(64, 0), 64)
def constant_table(x: Array) -> Array:
    values = np.array([1, 10, 100, 1000, 10000, 2, 20, 200], "i4")[x & 7]
    return np.tile(values.reshape(16, 4).sum(0), 16).astype("i4") + values


@kernel("control", ints(32), 32)
def lambdas(x: Array) -> Array:
    for _ in range(5):
        x = x * 3 + np.arange(1, 33, dtype="i4")
    return x


@kernel("control", ints(32, 0), 32)
def assertions(x: Array) -> Array:
    return x + 1


@kernel("control", ints(32), 32)
def printing(x: Array) -> Array:
    return x


# -- Cooperation ----------------------------------------------------------------------------------


@kernel("cooperation", ints(64), 64)
def tile_sums(x: Array) -> Array:
    return x.reshape(8, 8).sum(1, dtype="i4")


@kernel("cooperation", ints(64), 64)
def group_reduce(x: Array) -> Array:
    rows = x.reshape(2, 32)
    return np.repeat(1000 * rows.max(1) + rows.sum(1), 32).astype("i4")


@kernel("cooperation", ints(64), 64)
def coalesced_counter(x: Array) -> Array:
    count = (x % 3 == 0).sum()
    return np.array([count] + [1] * count + [0] * (64 - count), "i4")


@kernel("cooperation", ints(64, 0, 6), 64)
def matching(x: Array) -> Array:
    rows = x.reshape(2, 32)
    same = rows[:, :, None] == rows[:, None, :]
    first = same.argmax(2) == np.arange(32)
    return (100 * same.sum(2) + 10 * first + 1).ravel().astype("i4")


@kernel("cooperation", np.where(np.arange(96) < 32, 2 * ints(96), ints(96)).astype("i4"), 96)
def votes(x: Array) -> Array:
    even = x.reshape(3, 32) % 2 == 0
    rolled = np.roll(even, -5, axis=1)
    return (4 * even.all(1)[:, None] + 2 * even.any(1)[:, None] + rolled).ravel().astype("i4")


@kernel("cooperation", ints(64), 64)
def half_warps(x: Array) -> Array:
    return np.repeat(x.reshape(4, 16).sum(1), 16).astype("i4")


@kernel("cooperation", ints(64), 64)
def block_barrier(x: Array) -> Array:
    return x[::-1]


@kernel("cooperation", ints(160), 32)
def pipelined_copies(x: Array) -> Array:
    return (x.reshape(5, 32)[:, ::-1] * np.arange(1, 6)[:, None]).sum(0).astype("i4")


@kernel("cooperation", ints(256), 32)
def pipeline_of_blocks(x: Array) -> Array:
    pairs = x.reshape(4, 32, 2)
    return (pairs[..., 0] - pairs[..., 1]).sum(0).astype("i4")


@kernel("cooperation", ints(32), 64)
def named_barriers(x: Array) -> Array:
    return np.concatenate([0 * x, 2 * x[::-1]])


@kernel("cooperation", ints(128), 128)
def spin_lock(x: Array) -> Array:
    return x[::32].sum(keepdims=True).astype("i4")


@kernel("cooperation", ints(1), 64)
def hand_over(x: Array) -> Array:
    return x + 1


@kernel("cooperation", ints(64), 64)
def pyramid(x: Array) -> Array:
    while x.size > 1:
        x = x[::2] - x[1::2]
    return x


# -- Clusters -------------------------------------------------------------------------------------


@kernel("clusters", ints(128), 32, 4)
def neighbours(x: Array) -> Array:
    return x.reshape(2, 2, 32)[:, ::-1, ::-1].ravel()


@kernel("clusters", ints(128, 0), 32, 4)
def cluster_histogram(x: Array) -> Array:
    return np.bincount(x & 15, minlength=16).astype("i4")


@kernel("clusters", ints(64), 64)
def bulk_copy(x: Array) -> Array:
    return x + 7
