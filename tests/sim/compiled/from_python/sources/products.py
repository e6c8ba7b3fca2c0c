"""Products of matrices in Triton, of fp16, all row-major."""

import triton
import triton.language as tl


@triton.jit
def place_of(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile: those of `GROUP` rows come one after the other, so that they find
    their operands in the cache.
    """
    of_group = GROUP * tiles_n
    first = tile // of_group * GROUP
    rows = min(tiles_m - first, GROUP)
    inside = tile % of_group
    return first + inside % rows, inside // rows


@triton.jit
def tile_of_product(a, b, m, n, k, row, column, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A tile in fp32."""
    rows = (row * M + tl.arange(0, M)) % m
    columns = (column * N + tl.arange(0, N)) % n
    depth = tl.arange(0, K)
    from_a = a + rows[:, None] * k + depth[None, :]
    from_b = b + depth[:, None] * n + columns[None, :]
    total = tl.zeros([M, N], tl.float32)
    for step in range(tl.cdiv(k, K)):
        left = k - step * K
        of_a = tl.load(from_a, mask=depth[None, :] < left, other=0.0)
        of_b = tl.load(from_b, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(of_a, of_b, total)
        from_a += K
        from_b += K * n
    return total


@triton.jit
def store_tile(out, tile, m, n, row, column, M: tl.constexpr, N: tl.constexpr):
    rows = row * M + tl.arange(0, M)
    columns = column * N + tl.arange(0, N)
    there = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out + rows[:, None] * n + columns[None, :], tile.to(tl.float16), mask=there)


@triton.jit
def multiply(
    a, b, out, m, n, k,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A threadblock has a tile; what is negative is a hundredth as large."""
    row, column = place_of(tl.program_id(0), tl.cdiv(m, M), tl.cdiv(n, N), GROUP)
    total = tile_of_product(a, b, m, n, k, row, column, M, N, K)
    store_tile(out, tl.where(total >= 0, total, 0.01 * total), m, n, row, column, M, N)


@triton.jit
def multiply_persistent(
    a, b, out, m, n, k, programs,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A threadblock has every so many-th tile, in one loop of all steps of all of them."""
    tiles_m, tiles_n = tl.cdiv(m, M), tl.cdiv(n, N)
    depth = tl.arange(0, K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=True):
        row, column = place_of(tile, tiles_m, tiles_n, GROUP)
        rows = tl.where(row * M + tl.arange(0, M) < m, row * M + tl.arange(0, M), 0)
        columns = tl.where(column * N + tl.arange(0, N) < n, column * N + tl.arange(0, N), 0)
        total = tl.zeros([M, N], tl.float32)
        for step in range(tl.cdiv(k, K)):
            at = step * K + depth
            of_a = tl.load(a + rows[:, None] * k + at[None, :], mask=at[None, :] < k, other=0.0)
            of_b = tl.load(b + at[:, None] * n + columns[None, :], mask=at[:, None] < k, other=0.0)
            total = tl.dot(of_a, of_b, total)
        store_tile(out, total, m, n, row, column, M, N)


@triton.jit
def multiply_descriptors(
    a, b, out, m, n, k, programs,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The same of tensor descriptors, which the host has made."""
    tiles_m, tiles_n = tl.cdiv(m, M), tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, programs, flatten=True):
        row, column = place_of(tile, tiles_m, tiles_n, GROUP)
        total = tl.zeros([M, N], tl.float32)
        for step in range(tl.cdiv(k, K)):
            total = tl.dot(a.load([row * M, step * K]), b.load([step * K, column * N]), total)
        out.store([row * M, column * N], total.to(tl.float16))


@triton.jit
def multiply_specialized(
    a, b, out, m, n, k, programs,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The same; some warps load, and others multiply."""
    tiles_n = tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, M) * tiles_n, programs):
        row, column = tile // tiles_n, tile % tiles_n
        total = tl.zeros([M, N], tl.float32)
        for step in tl.range(tl.cdiv(k, K), warp_specialize=True):
            total = tl.dot(a.load([row * M, step * K]), b.load([step * K, column * N]), total)
        out.store([row * M, column * N], total.to(tl.float16))


@triton.jit
def multiply_made_descriptors(
    a, b, out, m, n, k, programs,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The same of tensor descriptors that each threadblock makes for itself."""
    of_a = tl.make_tensor_descriptor(a, [m, k], [k, 1], [M, K])
    of_b = tl.make_tensor_descriptor(b, [k, n], [n, 1], [K, N])
    of_out = tl.make_tensor_descriptor(out, [m, n], [n, 1], [M, N])
    tiles_n = tl.cdiv(n, N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, M) * tiles_n, programs, flatten=True):
        row, column = tile // tiles_n, tile % tiles_n
        total = tl.zeros([M, N], tl.float32)
        for step in range(tl.cdiv(k, K)):
            left = of_a.load([row * M, step * K])
            total = tl.dot(left, of_b.load([step * K, column * N]), total)
        of_out.store([row * M, column * N], total.to(tl.float16))


@triton.jit
def multiply_many(
    of_a, of_b, of_out, sizes, count, programs,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """`count` products, whose tiles are dealt to the threadblocks together. `sizes` has m, n and k
    of each, the other arrays addresses.
    """
    tile, end = tl.program_id(0), 0
    for each in range(count):
        m = tl.load(sizes + 3 * each)
        n = tl.load(sizes + 3 * each + 1)
        k = tl.load(sizes + 3 * each + 2)
        begin = end
        end += tl.cdiv(m, M) * tl.cdiv(n, N)
        while tile >= begin and tile < end:
            a = tl.load(of_a + each).to(tl.pointer_type(tl.float16))
            b = tl.load(of_b + each).to(tl.pointer_type(tl.float16))
            out = tl.load(of_out + each).to(tl.pointer_type(tl.float16))
            row, column = (tile - begin) // tl.cdiv(n, N), (tile - begin) % tl.cdiv(n, N)
            total = tile_of_product(a, b, m, n, k, row, column, M, N, K)
            store_tile(out, total, m, n, row, column, M, N)
            tile += programs
