"""Which operands of attention are packed before a kernel reads them, and the launches that do it.

The attention kernels read rows: D of q, k, v and dout, keys of the pair bias, side by side. They
copy them by as many bytes as the rows are aligned to, 16 at best. What they cannot read has to be
packed; a pair bias of narrower alignment is packed where that pays.
"""

from dataclasses import replace
from math import prod

import numpy as np

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.executors import architecture_of
from cuevo.kernels import bias_tiles_sm90, pack_sm70, pair_tiles_sm90
from cuevo.kernels.forward import BIAS_BYTES, Problem
from cuevo.ops.plan import Launch, PlanBuilder
from cuevo.toolchain.template import render

__all__ = [
    "ROW_ALIGNMENT",
    "check_pack",
    "is_packed",
    "pack_biases",
    "pack_dout",
    "pack_mask",
    "pack_pair_bias",
    "row_alignment",
    "tile_biases",
    "tile_pair_bias",
    "worth_packing",
]

ROW_ALIGNMENT = 16
"""Bytes to whose multiples rows begin that kernels read fastest, of q, k, v, out and dout all."""

# What the rule weighs, from an H200 (docs/measurements/forward.md): at N 384, H 4, D 32, L 769 or
# more the forward kernel takes 0.09 ps a score longer where rows of bf16 are aligned to 8 bytes,
# 0.24 at 4, 0.52 at 2; with one row N, where it waits for tile after tile, up to 30 ns a key.
COPY_SECONDS = 0.65e-12
"""Time of the pass over one score for each copy of its bias, a copy of several being shared."""
WAIT_SECONDS = 20e-9
"""Time by which a key's score comes later for each copy of its bias, likewise."""
PACK_LAUNCH_SECONDS = 3e-6
"""Time of a launch more on a stream."""
PACK_BYTES_PER_SECOND = 2.5e12
"""Bytes that the packing reads and writes."""


def check_pack(pack: object) -> None:
    """TypeError for what is no choice about packing."""
    if pack is not None and not isinstance(pack, bool):
        raise TypeError(f"pack: expected None, True or False; got {type(pack).__name__}")


def row_alignment(x: ArrayView) -> int:
    """Bytes that the rows of an array are aligned to, 16 at most; 0 where no kernel can read them:
    their elements do not lie side by side, or are not aligned.

    >>> import numpy as np
    >>> from cuevo.arrays import view
    >>> pair_bias = np.zeros((1, 1, 2, 4, 6), np.float32)
    >>> row_alignment(view(pair_bias)), row_alignment(view(pair_bias.swapaxes(3, 4)))
    (8, 0)
    """
    if 0 in x.shape:
        return ROW_ALIGNMENT
    itemsize = x.dtype.itemsize
    if x.shape[-1] > 1 and x.strides[-1] != itemsize:
        return 0
    alignment = x.alignment(but=x.ndim - 1)
    return 0 if alignment < itemsize else alignment


def worth_packing(problem: Problem, nbytes: int, passes: int, arch: Architecture) -> bool:
    """Whether the attention saves more time on packed rows of the pair bias than packing takes.

    nbytes : of the bias, elements that are broadcast counted once.
    passes : kernels that read the bias, each once for every row N.

    Kernels below sm_80 read it element by element, whatever its alignment.
    """
    if problem.pair_alignment >= ROW_ALIGNMENT or arch.number < 80:
        return False
    size = BIAS_BYTES[problem.pair]
    copies = size / problem.pair_alignment - size / ROW_ALIGNMENT
    each_pass = max(problem.scores * COPY_SECONDS, problem.keys * WAIT_SECONDS)
    saved = passes * copies * each_pass
    return saved > PACK_LAUNCH_SECONDS + 2 * nbytes / PACK_BYTES_PER_SECOND


def is_packed(
    problem: Problem,
    pair_bias: ArrayView | None,
    pack: bool | None,
    passes: int,
    arch: Architecture,
) -> bool:
    """Whether the pair bias of `problem` is packed: always what no kernel can read, else as the
    caller says, else where it pays.
    """
    if pair_bias is None:
        return False
    if problem.pair_alignment == 0:
        return True
    if pack is not None:
        return pack
    nbytes = prod(pack_sm70.packed_memory(pair_bias)) * pair_bias.dtype.itemsize
    return worth_packing(problem, nbytes, passes, arch)


def pack_biases(
    builder: PlanBuilder, problem: Problem, pack: bool | None, *, passes: int = 1
) -> Problem:
    """Put launches into a plan that pack the biases where they are to be, and return the problem
    that its kernels have then. The names of the biases are those of their packed copies from here
    on.

    pack : whether the pair bias is, as far as that is free; None: where it pays.
    """
    pack_mask(builder)
    pair_bias = builder.views.get("pair_bias")
    arch = architecture_of(builder.plan.place)
    if is_packed(problem, pair_bias, pack, passes, arch):
        pack_pair_bias(builder)
        return replace(problem, pair_alignment=ROW_ALIGNMENT, pair_padded=True)
    return problem


def pack_pair_bias(builder: PlanBuilder) -> None:
    """Put a launch into a plan that packs the pair bias: rows at multiples of 16 bytes."""
    _pack(builder, "pair_bias")


def pack_mask(builder: PlanBuilder) -> None:
    """Put a launch into a plan that packs the mask, if its elements are not aligned: kernels read
    it key by key, at any stride.
    """
    mask_bias = builder.views.get("mask_bias")
    if mask_bias is not None and mask_bias.alignment() % mask_bias.dtype.itemsize:
        _pack(builder, "mask_bias")


def tile_pair_bias(
    builder: PlanBuilder,
    pair: str,
    block: tuple[int, int],
    bias_scale: float,
    *,
    name: str = "pair_tiles",
    transposed: bool = False,
    queue: list[Launch] | None = None,
) -> None:
    """Put a launch into a plan that makes an array of tiles of the pair bias, if there is one, of
    type `pair`.

    block : queries of a threadblock of the kernel that reads the tiles, a multiple of 64, and keys
        of a tile; of a bias that is `transposed`, keys and queries.
    """
    if pair == "none":
        return
    own = pair_tiles_sm90.Config(pair, block[1])
    source, tiles = _add_pair_tiles(builder, own, block[0], name, transposed)
    values = pair_tiles_sm90.parameters(pair_bias=source, pair_tiles=tiles, bias_scale=bias_scale)
    loaded = builder.plan.place.load(render(pair_tiles_sm90.NAME, pair_tiles_sm90.values(own)))
    grid = own.grid(tiles.shape)
    arrays = {"pair_tiles": name}
    builder.add_launch(pair_tiles_sm90.NAME, loaded, own, grid, values, arrays=arrays, queue=queue)


def tile_biases(
    builder: PlanBuilder, own: bias_tiles_sm90.Config, block_queries: int, bias_scale: float
) -> None:
    """Put a launch into a plan that makes tiles of the mask, as `own` says, and of the pair bias if
    that is among it, for blocks of so many queries; the name of the mask is that of its tiles from
    here on.
    """
    source, name = builder.views["mask_bias"], "mask_tiles"
    shape = own.shape(source)
    pair: dict[str, ArrayView] = {}
    if own.pair != "none":
        of_pair = pair_tiles_sm90.Config(own.pair, own.block_keys)
        found = _add_pair_tiles(builder, of_pair, block_queries, "pair_tiles")
        pair["pair_bias"], pair["pair_tiles"] = found
    builder.add_workspace(name, shape, np.uint8)
    tiles = builder.views[name]
    values = bias_tiles_sm90.parameters(
        own, mask_bias=source, mask_tiles=tiles, **pair, bias_scale=bias_scale
    )
    loaded = builder.plan.place.load(render(bias_tiles_sm90.NAME, bias_tiles_sm90.values(own)))
    grid = own.grid(shape, pair["pair_tiles"].shape if pair else None)
    arrays = {} if pair else {"pair_bias": "", "pair_tiles": ""}
    builder.add_launch(bias_tiles_sm90.NAME, loaded, own, grid, values, arrays=arrays)
    builder.substitute("mask_bias", name, own.seen(source, tiles))


def _add_pair_tiles(
    builder: PlanBuilder,
    own: pair_tiles_sm90.Config,
    block_queries: int,
    name: str,
    transposed: bool = False,
) -> tuple[ArrayView, ArrayView]:
    """The pair bias as tiles are made of it, and an array for these in the workspace."""
    if builder.views["pair_bias"].alignment() % BIAS_BYTES[own.pair]:
        pack_pair_bias(builder)
    source = builder.views["pair_bias"]
    if transposed:
        source = replace(
            source,
            shape=(*source.shape[:3], *source.shape[:2:-1]),
            strides=(*source.strides[:3], *source.strides[:2:-1]),
        )
    shape = own.shape(source, block_queries)
    builder.add_workspace(name, shape)
    tiles = builder.views[name]
    if shape[0] != source.shape[0]:
        tiles = replace(tiles, strides=(0, *tiles.strides[1:]))
        builder.substitute(name, name, tiles)
    return source, tiles


def pack_dout(builder: PlanBuilder) -> None:
    """Put a launch into a plan that packs dout, where no kernel can read it in place."""
    if row_alignment(builder.views["dout"]) < ROW_ALIGNMENT:
        _pack(builder, "dout")


def _pack(builder: PlanBuilder, name: str) -> None:
    source, copy = builder.views[name], f"packed_{name}"
    builder.add_workspace(copy, pack_sm70.packed_memory(source), source.dtype)
    strides = pack_sm70.packed_strides(source)
    packed = replace(builder.views[copy], shape=source.shape, strides=strides)
    config = pack_sm70.choose(source)
    values = pack_sm70.parameters(config, source=source, packed=packed)
    loaded = builder.plan.place.load(render(pack_sm70.NAME, pack_sm70.values(config)))
    grid = config.grid(int(values["parts"]))
    arrays = {"source": name, "packed": copy}
    builder.add_launch(pack_sm70.NAME, loaded, config, grid, values, arrays=arrays)
    builder.substitute(name, copy, packed)
