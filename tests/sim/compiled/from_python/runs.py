"""The kernels of `sources`, and one by nvcc, with operands and what must come of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from sim.compiled import texts as of_nvcc
from sim.compiled.from_python.launching import Array, Descriptor, Run, packed, run_of
from sim.compiled.from_python.texts import Launch
from sim.compiled.running import aligned

_TILE = _DEPTH = 64


def _normal(*shape: int, dtype: str = "f4") -> Array:
    return aligned(np.random.default_rng(shape[-1]).normal(size=shape).astype(dtype))


def _empty(*shape: int, dtype: str = "f4") -> Array:
    return aligned(np.zeros(shape, dtype))


def flash(arch: str, heads: int, rows: int, keys: int) -> Run:
    """Flash attention by Triton."""
    scale = np.float32(0.125)
    q, k, v = (_normal(heads, length, _DEPTH, dtype="f2") for length in (rows, keys, keys))
    scores = scale * q.astype("f8") @ k.astype("f8").transpose(0, 2, 1)
    out = _empty(heads, rows, _DEPTH, dtype="f2")
    arguments = [q, k, v, out, scale, np.int32(rows), np.int32(keys)]
    return run_of(
        f"flash_forward.{arch}", arguments, [(3, _shares(scores) @ v.astype("f8"))],
        grid=(-(-rows // _TILE), heads), tolerance=4e-3,
    )  # fmt: skip


def flash_backward(arch: str, heads: int, length: int) -> Run:
    """Its gradients."""
    shape, scale = (heads, length, _DEPTH), np.float32(0.125)
    random = np.random.default_rng(0).normal(size=(4, *shape)).astype("f2")
    arrays = [aligned(each) for each in random]
    q, k, v, given = (each.astype("f8") for each in arrays)
    scores = scale * q @ k.transpose(0, 2, 1)
    weights = _shares(scores)
    sums = np.log2(np.exp(scores).sum(-1))
    of_weights = given @ v.transpose(0, 2, 1)
    delta = (weights * of_weights).sum(-1)
    of_scores = scale * weights * (of_weights - delta[..., None])
    expected = [of_scores @ k, of_scores.transpose(0, 2, 1) @ q, weights.transpose(0, 2, 1) @ given]
    vectors = [aligned(each.astype("f4")) for each in (sums, delta)]
    outs = [_empty(*shape), *(_empty(*shape, dtype="f2") for _ in range(2))]
    return run_of(
        f"flash_backward.{arch}", [*arrays, *vectors, *outs, scale, np.int32(length)],
        list(enumerate(expected, 6)), grid=(-(-length // _TILE), heads), tolerance=4e-3,
    )  # fmt: skip


def _shares(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def softmax_rows(rows: int, columns: int) -> Run:
    """The softmax of rows by Numba."""
    source = _normal(rows, columns)
    expected = _shares(source.astype("f8"))
    arguments = [source, _empty(rows, columns), np.int32(columns)]
    return run_of(
        "softmax_rows.sm_80", arguments, [(1, expected)], grid=rows, block=(32,), tolerance=1e-6
    )


def elements(arch: str, count: int) -> list[Run]:
    """What Triton does to one element after another."""
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, count)).astype("f4")
    x, y = aligned(x), aligned(y)
    share, seed = np.float32(0.3), np.int32(1234)
    drawn = _philox(int(seed), np.arange(count)).view("i4")
    drawn = np.where(drawn < 0, -1 - drawn, drawn) * 2.0**-31
    dropped = np.where(drawn >= share, x / (1 - share), 0)
    out, grid = [_empty(count) for _ in range(4)], -(-count // 256)
    size = np.int32(count)
    sums = ["add_vectors"] + ["add_dependent"] * (arch == "sm_90a")
    return [
        *(
            run_of(f"{name}.{arch}", [x, y, each, size], [(2, x + y)], grid=grid)
            for name, each in zip(sums, out[2:], strict=False)
        ),
        run_of(
            f"drop.{arch}", [x, out[0], size, share, seed], [(1, dropped)], grid=grid,
            tolerance=1e-6,
        ),
        run_of(
            f"arc_sine.{arch}", [x, out[1], size], [(1, np.arcsin(x.astype("f8")))], grid=grid,
            tolerance=1e-6,
        ),
    ]  # fmt: skip


def _philox(seed: int, counters: Array) -> Array:
    """The first 32 random bits of each counter: Philox 4 x 32 with ten rounds."""
    a, b = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    low, high = np.uint64(2**32 - 1), np.uint64(32)
    x = [counters.astype("u8"), *np.zeros((3, len(counters)), "u8")]
    for turn in range(10):
        keys = [(seed + turn * 0x9E3779B9) % 2**32, turn * 0xBB67AE85 % 2**32]
        of_a, of_b = a * x[0], b * x[2]
        x = [
            (of_b >> high) ^ x[1] ^ np.uint64(keys[0]),
            of_b & low,
            (of_a >> high) ^ x[3] ^ np.uint64(keys[1]),
            of_a & low,
        ]
    return x[0].astype("u4")


def softmax(arch: str, rows: int, columns: int, programs: int) -> Run:
    """Rows that are longer in memory than those of the result, by Triton."""
    source, out = _normal(rows, columns + 3), _empty(rows, columns)
    sizes = np.array([rows, columns, columns + 3, columns], "i4")
    expected = _shares(source[:, :columns].astype("f8"))
    return run_of(
        f"softmax.{arch}", [source, out, *sizes], [(1, expected)], grid=programs, tolerance=1e-6
    )


def layer_norm(arch: str, rows: int, columns: int) -> list[Run]:
    """Forward, backward with the sums of three groups, and the sums of these, by Triton."""
    x, gradient = _normal(rows, columns), _normal(rows + 1, columns)[1:].copy()
    weight, bias = _normal(2, columns)
    arrays = x, gradient, weight, bias = [aligned(each) for each in (x, gradient, weight, bias)]
    wide = [each.astype("f8") for each in arrays]
    mean = wide[0].mean(1, keepdims=True)
    scale = 1 / np.sqrt(wide[0].var(1, keepdims=True) + 1e-5)
    normal = (wide[0] - mean) * scale
    weighted = wide[1] * wide[2]
    along = (normal * weighted).mean(1, keepdims=True)
    of_x = (weighted - normal * along - weighted.mean(1, keepdims=True)) * scale
    groups = np.arange(rows)[None] % 3 == np.arange(3)[:, None]
    forward = [x, weight, bias, _empty(rows, columns), _empty(rows), _empty(rows)]
    stored = [aligned(each[:, 0].astype("f4")) for each in (mean, scale)]
    parts = [aligned(np.full((3, columns), np.nan, "f4")) for _ in range(2)]
    backward = [gradient, x, weight, *stored, _empty(rows, columns), *parts, _empty(6, dtype="i4")]
    given, length = _normal(11, columns), np.int32(columns)
    return [
        run_of(
            f"normalize.{arch}", [*forward, length, np.float32(1e-5)],
            [(3, normal * wide[2] + wide[3]), (4, mean[:, 0]), (5, scale[:, 0])], grid=rows,
            tolerance=2e-6,
        ),
        run_of(
            f"normalize_gradient.{arch}", [*backward, length],
            [(5, of_x), (6, groups @ (wide[1] * normal)), (7, groups @ wide[1]),
             (8, [0, 0, 0, 1, 1, 1])], grid=rows, tolerance=1e-5,
        ),
        run_of(
            f"add_groups.{arch}", [given, _empty(columns), np.int32(11), length],
            [(1, given.astype("f8").sum(0))], grid=-(-columns // 64), tolerance=1e-5,
        ),
    ]  # fmt: skip


def sort_and_count(arch: str, rows: int) -> Run:
    """What Triton does with the 128 numbers of a row together."""
    x = aligned(np.random.default_rng(0).integers(0, 32, (rows, 128)).astype("i4"))
    expected = [np.sort(x), np.cumsum(x, 1), np.bincount(x.ravel(), minlength=32), x.argmax(1)]
    outs = [_empty(*each.shape, dtype="i4") for each in expected]
    return run_of(f"sort_and_count.{arch}", [x, *outs], list(enumerate(expected, 1)), grid=rows)


def products(arch: str, m: int, n: int, k: int) -> list[Run]:
    """Products of matrices by Triton; n and k are multiples of 16."""
    a, b = (aligned(_normal(*shape, dtype="f2") / np.float16(4)) for shape in ((m, k), (k, n)))
    product = a.astype("f8") @ b.astype("f8")
    sizes, programs = [*np.array([m, n, k], "i4")], np.int32(3)
    tiles = -(-m // 64) * -(-n // 64)
    outs = [_empty(m, n, dtype="f2") for _ in range(5)]
    leaky = np.where(product >= 0, product, 0.01 * product)
    made = [
        run_of(
            f"multiply.{arch}", [a, b, outs[0], *sizes], [(2, leaky)], grid=tiles, tolerance=2e-3
        ),
        run_of(
            f"multiply_persistent.{arch}", [a, b, outs[1], *sizes, programs], [(2, product)],
            grid=3, tolerance=2e-3,
        ),
    ]  # fmt: skip
    if arch == "sm_90a":
        given = [Descriptor(a, (64, 32)), Descriptor(b, (32, 64))]
        for kind, out in zip(("descriptors", "specialized"), outs[2:4], strict=True):
            arguments = [*given, Descriptor(out, (64, 64)), *sizes, programs]
            made += [
                run_of(f"multiply_{kind}.{arch}", arguments, [(2, product)], grid=3, tolerance=2e-3)
            ]
        made.append(
            run_of(
                f"multiply_made_descriptors.{arch}", [a, b, outs[4], *sizes, programs],
                [(2, product)], grid=3, tolerance=2e-3,
            )
        )  # fmt: skip
    return made


def grouped_products(arch: str, shapes: Sequence[tuple[int, int, int]]) -> Run:
    """Products of matrices of several sizes in one launch, by Triton."""
    a = [aligned(_normal(m, k, dtype="f2") / np.float16(4)) for m, n, k in shapes]
    b = [aligned(_normal(k, n, dtype="f2") / np.float16(4)) for m, n, k in shapes]
    outs = [_empty(m, n, dtype="f2") for m, n, _ in shapes]
    addresses = [np.array([one.ctypes.data for one in each], "i8") for each in (a, b, outs)]
    arguments = [*map(aligned, addresses), aligned(np.array(shapes, "i4"))]
    run = run_of(
        f"multiply_many.{arch}", [*arguments, np.int32(len(shapes)), np.int32(3)], [], grid=3,
        behind=[*a, *b], tolerance=2e-3,
    )  # fmt: skip
    expected = (x.astype("f8") @ y.astype("f8") for x, y in zip(a, b, strict=True))
    return replace(run, results=tuple(zip(outs, expected, strict=True)))


def threads() -> list[Run]:
    """What Numba's kernels do thread by thread."""
    values, whole = _normal(500), aligned(np.arange(500, dtype="i4") ** 2 % 32)
    counts = np.bincount(whole, minlength=32)
    sums = np.pad(values.astype("f8"), (0, 12)).reshape(4, 128).sum(1)
    a, b = _normal(13, 21), _normal(21, 18)
    positive = values[values > 0]
    packed_values = np.pad(positive, (0, 500 - len(positive)))
    wide = aligned(np.random.default_rng(0).integers(-(2**60), 2**60, 64))
    running = np.cumsum(wide.reshape(2, 32), 1).ravel()
    runs = [
        ("sum_blocks", [values, _empty(4)], [(1, sums)], 4, (128,)),
        ("multiply_tiles", [a, b, _empty(13, 18)], [(2, a.astype("f8") @ b)], (3, 2), (8, 8)),
        ("count_values", [whole, _empty(32, dtype="i4")], [(1, counts)], 2, (96,)),
        (
            "pack_positive", [values, _empty(500), _empty(1, dtype="i4")],
            [(1, packed_values), (2, [len(positive)])], 16, (32,),
        ),
        ("run_sums", [wide, _empty(64, dtype="i8")], [(1, running)], 1, (64,)),
    ]  # fmt: skip
    return [
        run_of(f"{name}.sm_80", arguments, expected, grid=grid, block=block, tolerance=1e-5)
        for name, arguments, expected, grid, block in runs
    ]


def tiled_product(n: int) -> Run:
    """Tiles of 8 x 8 in shared memory, by nvcc."""
    given, out = _normal(2, n, n), _empty(n, n)
    parameters = packed([*np.array([given.ctypes.data, out.ctypes.data], "u8"), np.int32(n)])
    return Run(
        "float_product", "sm_80", of_nvcc.stored()["matrices.O3"], Launch("float_product"),
        (n // 8, n // 8, 1), (8, 8, 1), parameters, (given,),
        ((out, given[0].astype("f8") @ given[1]),), 1e-5 * n,
    )  # fmt: skip


def of_size(length: int, heads: int) -> dict[str, Callable[[], Run]]:
    """Those that are timed, for sequences of that length, a multiple of 8."""
    return {
        "tiled product, nvcc": lambda: tiled_product(length),
        "flash attention for sm_80, Triton": lambda: flash("sm_80", heads, length, length),
        "flash attention for sm_90a, Triton": lambda: flash("sm_90a", heads, length, length),
        "softmax, Numba": lambda: softmax_rows(length, length),
    }
