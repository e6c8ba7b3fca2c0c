"""Small problems for the kernels that ship, and their results on the CPU executor beside float64's.

Each kind of kernel has one with several tiles and ragged ends, as far as the instance allows them,
that keeps the stages' ring turning, and others for instructions that an ordinary problem may miss.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import e, log2, prod
from types import MappingProxyType
from typing import Any

import numpy as np

from cuevo import reference
from cuevo.arrays import BFLOAT16, ArrayView, view
from cuevo.cuda.tensor_map import TensorMap
from cuevo.kernels import pair_tiles_sm90
from cuevo.kernels.backward import padded, stats_shape, terms_shape
from cuevo.ops.backward import GRADS, attention_backward
from cuevo.ops.forward import attention
from cuevo.ops.product import gemm
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

__all__ = ["Array", "Pairs", "random_mask", "run_small_problems"]

Array = np.ndarray[Any, np.dtype[Any]]
Pairs = dict[str, tuple[Array, Array]]
"""Each result by its name: the kernel's, and float64's."""

TYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {
        "f16": np.dtype(np.float16),
        "bf16": BFLOAT16,
        "f32": np.dtype(np.float32),
        "bool": np.dtype(np.bool_),
    }
)
BATCH, HEADS, RAGGED = 1, 2, 8
"""Extent beyond the last whole tile: a multiple of 8 keeps rows aligned to 16 bytes."""
_UNALIGNED = 9
_LOW_TILE = 64


def run_small_problems(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    """Results of an instance of a kernel's host `module` on the small problems of its kind, one
    after the other, each when it is asked for: the first is the ordinary one.

    Raises ValueError where the instance cannot run, SimulatorError for what the executor finds.
    """
    family = module.NAME.rpartition("_")[0]
    yield from _FAMILIES[family](module, config, place, rng)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    return np.asarray(rng.standard_normal(shape, dtype=np.float32).astype(TYPES[kind]))


def _mask(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    return random_mask(rng, shape, TYPES[kind])


def random_mask(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A mask that leaves out a tenth of the keys."""
    kept = rng.random(shape) >= 0.1
    return kept if dtype == np.bool_ else np.where(kept, 0.0, -np.inf).astype(dtype)


def _aligned(x: Array) -> Array:
    """The same elements, in rows that begin at multiples of 16 bytes."""
    room = np.zeros((*x.shape[:-1], padded(x.shape[-1], 16)), x.dtype)
    room[..., : x.shape[-1]] = x
    return room[..., : x.shape[-1]]


def _rows(config: Any) -> int:
    """Rows N of a group of threadblocks and more, if rows may be missing."""
    block = getattr(config, "block_rows", 1)
    return int(2 * block if getattr(config, "full_tiles", False) else block + 1)


def _forward(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    if hasattr(config, "blocks"):
        # Persistent threadblocks, which take one work after the other: two or more, of eight works;
        # where consumers ask for boxes, two or more of those whose last row N does not exist.
        config = replace(config, blocks=2 if getattr(config, "consumers_ask", False) else 4)
    rows, full = _rows(config), getattr(config, "full_tiles", False)
    queries = config.block_queries * 2 if full else config.block_queries + _UNALIGNED
    if hasattr(config, "blocks") and config.block_queries > _LOW_TILE:
        queries += _LOW_TILE  # a shorter last tile has an instance of its own
    ends = config.mask != "none" and not full
    laps = max(getattr(config, "stages", 2), getattr(config, "mask_ahead", 0))
    whole_keys = config.block_keys * laps
    shape = (BATCH, rows, queries, HEADS, config.head_dim)

    def computed(keys: int, growth: float, scale: float) -> Pairs:
        q = _normal(rng, shape, config.dtype)
        k, v = (
            _normal(rng, (BATCH, rows, keys, HEADS, config.head_dim), config.dtype) for _ in "kv"
        )
        k *= (1 + growth * (np.arange(keys) // 16))[:, None, None].astype(k.dtype)
        biases: dict[str, Any] = {}
        if config.mask not in ("none", "bounds"):
            mask = _mask(rng, (BATCH, rows, 1, 1, keys), config.mask)
            biases["mask_bias"] = mask
            mask[:, dead_rows] = False if config.mask == "bool" else -200.0
        if config.pair != "none":
            biases["pair_bias"] = _normal(rng, (BATCH, 1, HEADS, queries, keys), config.pair)
        call = dict(scale=scale, **biases)
        out, lse = attention(q, k, v, **call, return_lse=True, device=place, config=config)
        expected_out, expected_lse = reference.attention(q, k, v, **call)
        return {"out": (out, expected_out), "lse": (lse, expected_lse)}

    scale, dead_rows = float(config.head_dim**-0.5), slice(0)
    yield computed(whole_keys + RAGGED * ends, 0, scale)
    # Scores that outgrow the maximum at every step, and keys that end in the second step of a tile.
    step = getattr(config, "chunk_keys", 0)
    yield computed(whole_keys + (step + RAGGED) * ends, 4, -scale)
    if ends and hasattr(config, "again_words"):
        # Works with a row N none of whose keys counts, which are done again.
        dead_rows = slice(1)
        before = config.block_keys * (config.least_key_tiles - 1) if config.consumers_ask else 0
        yield computed(before + RAGGED, 0, scale)


def _backward(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    rows, full = _rows(config), getattr(config, "full_tiles", False)
    if config.sums_rows:
        # So many that a threadblock sums over a group of rows, then over another.
        rows += config.block_rows
    tile = getattr(config, "block_streamed", None) or 32
    few = 2 * getattr(config, "stages", 2) * tile
    ragged = RAGGED if (config.mask or config.by_keys) and not full else 0
    stationary = config.block_stationary * 2 if full else config.block_stationary + RAGGED
    names = ("k", "v", "mask_bias") if config.by_keys else ("q", "", "pair_bias")
    wanted = [
        name
        for name, flag in zip(names, (config.first, config.second, config.sums), strict=True)
        if flag
    ]

    def computed(scale: float, whole: int) -> Pairs:
        streamed = whole + ragged
        queries, keys = (streamed, stationary) if config.by_keys else (stationary, streamed)
        shape = (BATCH, rows, queries, HEADS, config.head_dim)
        q, dout = (_normal(rng, shape, config.dtype) for _ in "qd")
        shape = (BATCH, rows, keys, HEADS, config.head_dim)
        k, v = (_normal(rng, shape, config.dtype) for _ in "kv")
        call: dict[str, Any] = {"scale": scale}
        if config.mask:
            call["mask_bias"] = _mask(rng, (BATCH, rows, 1, 1, keys), config.dtype)
        if config.pair != "none":
            call["pair_bias"] = _normal(rng, (BATCH, 1, HEADS, queries, keys), config.pair)
        out, lse = attention(q, k, v, **call, return_lse=True, device=place)
        found = attention_backward(
            dout, q, k, v, out, lse, **call,
            grads=wanted, bias_grad_dtype="float32", device=place, config={config.side: config},
        )  # fmt: skip
        expected = reference.attention_backward(dout, q, k, v, **call)
        return {
            "d" + name: (x, y)
            for name, x, y in zip(GRADS, found, expected, strict=True)
            if x is not None and y is not None
        }

    scale = float(config.head_dim**-0.5)
    yield computed(scale, few)
    yield computed(-scale, few)
    if config.sums_rows:
        # With sums of so many there is no memory for those of every group of rows.
        yield computed(scale, padded(config.block_rows * config.head_dim + 1, 128))


def _gemm(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    zero_fills = getattr(config, "clear", "zfill") == "zfill"
    splits, laps = getattr(config, "splits", 1), config.stages
    if hasattr(config, "blocks"):
        # Persistent threadblocks take one tile after the other, in stages that they fill again.
        config, laps = replace(config, blocks=1), 2
    m, n, rest = config.block_m, config.block_n, _UNALIGNED
    if zero_fills:
        m, n = m + _UNALIGNED, n + (RAGGED if config.exact else _UNALIGNED)
    else:
        m, rest = 2 * m, 0

    def computed(k: int) -> Pairs:
        a = _aligned(_normal(rng, (k, m) if config.a_columns else (m, k), config.dtype))
        b = _aligned(_normal(rng, (n, k) if config.b_columns else (k, n), config.dtype))
        out = _aligned(np.zeros((m, n), TYPES[config.out_dtype]))
        call: dict[str, Any] = dict(trans_a=config.a_columns, trans_b=config.b_columns)
        if config.scatter:
            call["scatter"] = rng.permutation(m).astype(f"i{config.index_bytes}")
            call["out"] = out
        if config.c != "none":
            call |= dict(c=_aligned(_normal(rng, (m, n), config.c)), beta=0.5)
        if config.bias:
            call["bias"] = _normal(rng, (n,), config.bias_dtype)
        expected = reference.gemm(a, b, **call)
        gemm(a, b, **call | {"out": out}, device=place, config=config)
        return {"d": (out, expected)}

    # The last threadblock has all its tiles whole but one; that one only.
    for tiles in (laps * splits, splits - 1 if zero_fills else splits):
        k = tiles * config.block_k + rest
        yield computed(min(k, getattr(config, "max_k", 0) or k))


def _launch(
    module: Any,
    config: Any,
    place: SimExecutor,
    grid: tuple[int, int, int],
    values: dict[str, int | float],
    views: Iterable[ArrayView],
) -> None:
    loaded = place.load(render(module.NAME, module.values(config)))
    block = load_header().kernels[module.NAME].pack(values)
    loaded.launch(grid, (config.threads, 1, 1), config.shared_bytes, block, buffers=list(views))


def _delta(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    rows, heads = 2, 2 * config.block_heads
    queries = config.block_positions + _UNALIGNED
    positions = padded(queries, 16)
    shape = (BATCH, rows, queries, heads, config.head_dim)
    arrays = {name: _normal(rng, shape, config.dtype) for name in ("out", "dout")}
    arrays["lse"] = _normal(rng, (BATCH, rows, heads, queries), "f32")
    stats = np.empty((BATCH, rows, heads, *stats_shape(positions)), np.float32)
    views = {name: view(x, name=name) for name, x in (arrays | {"stats": stats}).items()}
    grid = config.grid(BATCH, rows, heads, positions)
    _launch(module, config, place, grid, module.parameters(config, **views), views.values())
    # Of 16 queries: -delta as (d0, d1, d0, d1), (d2, ...) ...; low as (l0, l1, l8, l9), (l2, ...)
    outer = stats.shape[:3]
    minus_delta = stats[..., :32].reshape(*outer, -1, 8, 4)[..., :2].reshape(*outer, positions)
    low = stats[..., 32:].reshape(*outer, -1, 4, 2, 2).swapaxes(-2, -3).reshape(*outer, positions)
    wide = [arrays[name].astype(np.float64) for name in ("out", "dout")]
    yield {
        "-delta": (minus_delta[..., :queries], -np.einsum("bnqhd,bnqhd->bnhq", *wide)),
        "low": (low[..., :queries], -arrays["lse"].astype(np.float64) * np.log2(np.e)),
    }


def _key_bias(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    rows, keys = 3, 128 + _UNALIGNED
    positions = padded(keys, 64)
    mask = None if config.mask == "bounds" else _mask(rng, (BATCH, rows, 1, 1, keys), config.mask)
    results = {
        "key_bias": np.empty((BATCH, rows, positions), np.float32),
        "key_terms": np.empty((BATCH, rows, 1, *terms_shape(positions)), BFLOAT16),
    }
    made = {name: x for name, x in results.items() if config.wanted in (name, "both")}
    arrays = made | ({} if mask is None else {"mask_bias": mask})
    views = {name: view(x) for name, x in arrays.items()}
    values = module.parameters(config, keys=keys, bias_scale=2.0, **views)
    grid = config.grid(BATCH, rows, positions)
    _launch(module, config, place, grid, values, views.values())
    expected = np.full((BATCH, rows, positions), -np.inf)
    expected[..., :keys] = 0 if mask is None else 2 * reference.additive(mask)[:, :, 0, 0]
    if "key_terms" in made:
        # The terms of a key are numbers whose sum is its bias.
        terms = made["key_terms"].reshape(*expected.shape, -1)
        made["key_terms"] = terms.astype(np.float32).sum(axis=-1)
    # -inf is no number to measure by.
    yield {name: (np.exp2(x), np.exp2(expected)) for name, x in made.items()}


def _attention_maps(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    shape = (2, 3, _UNALIGNED, HEADS, config.head_dim)
    # Rows of k that do not lie side by side, and batches that share v.
    q = _normal(rng, shape, config.dtype)
    k = _normal(rng, (*shape[:-1], 2 * config.head_dim), config.dtype)[..., : config.head_dim]
    v = np.broadcast_to(q[:1], shape)
    expected = []
    of_keys = [(k, config.block_keys), (v, config.block_keys)]
    every = ((config.block_queries, config.block_rows), (config.last_queries, config.last_rows))
    for positions, box_rows in every[: config.sets]:
        for x, box_positions in ((q, positions), *of_keys):
            axes = [x.shape[axis] for axis in (4, 2, 3, 1, 0)]
            strides = [x.strides[axis] for axis in (2, 3, 1, 0)]
            box = (config.head_dim, box_positions, 1, box_rows, 1)
            described = (x.ctypes.data, tuple(axes), tuple(strides), box, config.row_bytes)
            expected.append(TensorMap(config.dtype, *described))
    nbytes = config.sets * module.SET_BYTES
    made = np.empty(nbytes + 128, np.uint8)
    made = made[-made.ctypes.data % 128 :][:nbytes]
    views = [view(x) for x in (q, k, v, made)]
    encoded = b"".join(each.encode_for_executor() for each in expected)
    bytes_of = np.frombuffer(encoded, np.uint8).astype(np.float64)
    own = pair_tiles_sm90.Config(config.pair, config.block_keys)
    for of_tiles, pairs in _tiles_problems(own, rng, own.block_keys + _UNALIGNED + 1):
        tiles = pair_tiles_sm90.parameters(**of_tiles, bias_scale=2.0) if of_tiles else None
        values = module.parameters(expected[:3], to=made.ctypes.data, tiles=tiles)
        grid = config.grid(prod(of_tiles["pair_tiles"].shape[:4]) if of_tiles else 0)
        _launch(module, config, place, grid, values, [*views, *of_tiles.values()])
        yield {"maps": (made.astype(np.float32), bytes_of), **_seen(pairs)}


def _bias_tiles(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    rows = config.block_rows + 1
    of_pairs = pair_tiles_sm90.Config(config.pair, config.block_keys)
    many = module.ROW_THREADS * module.KEYS_AHEAD + _UNALIGNED
    for of_pair, pairs in _tiles_problems(of_pairs, rng, many + 1):
        keys = of_pair["pair_bias"].shape[4] if of_pair else many
        mask = _mask(rng, (2, rows, 1, 1, keys), config.mask)
        tiles = np.empty(config.shape(view(mask)), np.uint8)
        views = {"mask_bias": view(mask), "mask_tiles": view(tiles)} | of_pair
        values = module.parameters(config, **views, bias_scale=2.0)
        grid = config.grid(tiles.shape, of_pair["pair_tiles"].shape if of_pair else None)
        _launch(module, config, place, grid, values, views.values())
        exact = reference.additive(mask)[:, :, 0, 0]
        if config.added:
            # Behind a flag, each key's number: a lane's columns of all tiles of 8 keys, lane by
            # lane.
            lanes = tiles[..., 16:].view(np.float32).reshape(*tiles.shape[:-1], 4, -1, 2)
            numbers = lanes.swapaxes(-2, -3).reshape(*tiles.shape[:-1], -1)
            exact = exact * log2(e)
        else:
            # Of each key numbers whose sum is its mask, and another.
            apart = tiles.view(BFLOAT16).reshape(*tiles.shape[:-1], -1, 8)
            numbers = apart[..., :3].astype(np.float64).sum(axis=-1)
            exact = 2 * exact
        found = numbers.swapaxes(1, 2).reshape(tiles.shape[0], tiles.shape[2], -1)
        found = found[:, :rows, :keys].astype(np.float32)
        yield _seen({"mask_tiles": (found, exact), **pairs})


def _pair_tiles(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    # Of two tiles of keys one is whole, with rows of which two elements are read at a time.
    for views, pairs in _tiles_problems(config, rng, config.block_keys + _UNALIGNED + 1):
        values = module.parameters(**views, bias_scale=2.0)
        grid = config.grid(views["pair_tiles"].shape)
        _launch(module, config, place, grid, values, views.values())
        yield _seen(pairs)


def _tiles_problems(
    config: pair_tiles_sm90.Config, rng: np.random.Generator, keys: int
) -> Iterator[tuple[dict[str, ArrayView], Pairs]]:
    """A pair bias and memory for its tiles; and these, beside what twice the bias is in tiles. An
    even number of keys, so that two elements are read at a time; rows at multiples of 16 bytes;
    elements of a row that do not lie side by side. Or once nothing, where there is no pair bias.
    """
    if config.pair == "none":
        yield {}, {}
        return
    even = _normal(rng, (2, 1, HEADS, 64 + _UNALIGNED, keys), config.pair)
    aligned = _normal(rng, (2, 1, HEADS, 64 + _UNALIGNED, padded(keys, 8)), config.pair)
    for source in (even, aligned, even.swapaxes(3, 4).copy().swapaxes(3, 4)):
        yield _tiles_problem(config, source)


def _tiles_problem(
    config: pair_tiles_sm90.Config, source: Array
) -> tuple[dict[str, ArrayView], Pairs]:
    queries, keys = source.shape[3:]
    tiles = np.empty(config.shape(view(source), 64), np.float32)
    key_tiles = tiles.shape[2]
    whole = np.zeros((2, HEADS, 128, key_tiles * config.block_keys))
    whole[..., :queries, :keys] = 2 * source[:, 0].astype(np.float64)
    whole[..., keys:] = -np.inf
    # Queries as tiles, warps, halves, rows; keys as tiles, parts, lanes of a row, columns.
    apart = whole.reshape(2, HEADS, 2, 4, 2, 8, key_tiles, config.block_keys // 8, 4, 2)
    expected = apart.transpose(0, 1, 6, 2, 7, 3, 5, 8, 4, 9).reshape(tiles.shape)
    views = {"pair_bias": view(source), "pair_tiles": view(tiles)}
    return views, {"pair_tiles": (tiles, expected)}


def _seen(pairs: Pairs) -> Pairs:
    """Powers of two: -inf is no number to measure by."""
    return {name: (np.exp2(found), np.exp2(exact)) for name, (found, exact) in pairs.items()}


def _partial_sums(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    groups = 2
    shape = (2, groups * (2 * config.terms + 1) - 1, 3, config.block_columns + config.width)
    partials = _normal(rng, shape, "f32")
    sums = np.empty((groups, shape[0], *shape[2:]), TYPES[config.out_dtype])
    if partials.strides[2] % 16:  # rows of loads begin at their multiples
        wide = np.empty((*shape[:3], padded(shape[3], 4)), np.float32)
        wide[..., : shape[3]] = partials
        partials = wide[..., : shape[3]]
    views = {"partials": view(partials), "sums": view(sums)}
    values = module.parameters(config, **views, groups=groups)
    grid = config.grid(shape[0], shape[2], shape[3], groups)
    _launch(module, config, place, grid, values, views.values())
    exact = partials.astype(np.float64)
    yield {"sums": (sums, np.stack([exact[:, g::groups].sum(axis=1) for g in range(groups)]))}


def _pack(
    module: Any, config: Any, place: SimExecutor, rng: np.random.Generator
) -> Iterator[Pairs]:
    rows = padded(config.tile.rows + _UNALIGNED, config.width) if config.reads == "tile" else 7
    columns = 2 * config.tile.step_columns + _UNALIGNED
    # Room for more along each axis than is packed, so that no two of them are as good as one.
    shape = (*(3,) * (config.axes - 1), padded(rows + 1, 16), padded(columns + 1, 16))
    room = np.empty(shape, TYPES[{1: "bool", 2: "f16", 4: "f32"}[config.size]])
    if config.reads == "tile":
        room = room.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    elif config.reads == "elements":
        room = np.repeat(room, 2, axis=-1)[..., ::2]
    room[...] = _normal(rng, shape, "f32") > 0 if config.size == 1 else _normal(rng, shape, "f32")
    source = room[*(slice(2),) * (config.axes - 1), :rows, :columns]
    memory = np.zeros(module.packed_memory(view(source)), source.dtype)
    strides = module.packed_strides(view(source))
    views = {
        "source": view(source),
        "packed": replace(view(memory), shape=source.shape, strides=strides),
    }
    values = module.parameters(config, **views)
    grid = config.grid(int(values["parts"]))
    _launch(module, config, place, grid, values, (views["source"], view(memory)))
    wide = memory[..., :columns].astype(np.float32)
    yield {"packed": (wide, source.astype(np.float64))}


_Compute = Callable[[Any, Any, SimExecutor, np.random.Generator], Iterator[Pairs]]
_FAMILIES: Mapping[str, _Compute] = MappingProxyType(
    {
        "attention_delta": _delta,
        "attention_maps": _attention_maps,
        "evoformer_backward": _backward,
        "evoformer_forward": _forward,
        "gemm": _gemm,
        "key_bias": _key_bias,
        "pack": _pack,
        "bias_tiles": _bias_tiles,
        "pair_tiles": _pair_tiles,
        "partial_sums": _partial_sums,
    }
)
