"""The sweep of matrix products: seeded, the same on every machine, with enough of everything.

Each property is drawn from a deck; see `attention_sweep.Deck`.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
from helpers.attention_sweep import Deck
from helpers.gemm_cases import (
    C_LAYOUTS,
    LAYOUTS,
    OUT_LAYOUTS,
    SCATTERS,
    VALUES,
    GemmCase,
    make,
    problem_of,
)
from helpers.guarded import host_views

from cuevo.architectures import architecture
from cuevo.kernels import gemm_sm80

EXTENTS = (
    *(1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 47, 56, 61, 63, 64, 65, 71, 80, 88),
    *(95, 96, 97, 104, 111, 120, 127, 128, 129, 136, 143, 160, 168, 177, 191, 192, 193, 200),
)
DEPTHS = (
    *(1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 23, 24, 31, 32, 33, 40, 48, 50, 63, 64, 65, 72, 80),
    *(95, 96, 97, 100, 112, 127, 128, 129, 144, 150, 160, 175, 191, 192, 193, 200),
)
FACTORS = ((1.0, 0.0), (1.0, 1.0), (0.5, -2.0), (-0.3, 1.0), (3.7e-3, 0.1), (0.0, 1.0), (1e30, 1.0))
"""alpha, beta"""
SHAPES = tuple(
    dict(
        block_m=m,
        block_n=n,
        block_k=k,
        warp_m=warp_m,
        warp_n=warp_n,
        stages=stages,
        min_blocks=1,
        splits=1,
    )
    for m, n, k, warp_m, warp_n, stages in (
        (64, 64, 32, 32, 32, 4),
        (64, 64, 64, 32, 32, 3),
        (128, 64, 32, 64, 32, 3),
        (64, 128, 64, 32, 64, 2),
        (128, 128, 32, 64, 64, 4),
        (64, 32, 32, 16, 32, 6),
        (32, 64, 64, 32, 32, 5),
        (32, 128, 32, 16, 64, 2),
        (128, 32, 64, 32, 32, 3),
        (64, 64, 128, 32, 32, 2),
        (96, 64, 32, 48, 32, 3),
        (16, 128, 32, 16, 32, 4),
    )
)
DETAILS: tuple[dict[str, Any], ...] = (
    dict(),
    dict(instruction="m16n8k8"),
    dict(splits=2),
    dict(splits=3),
    dict(splits=4),
    dict(splits=5),
    dict(instruction="m16n8k8", splits=2),
    dict(layout="padded"),
    dict(layout="padded", instruction="m16n8k8"),
    dict(accumulate="f16"),
    dict(accumulate="f16", instruction="m16n8k8"),
    dict(max_k=256, stages=4),
    dict(max_k=128),
    dict(cache_a="ca"),
    dict(cache_a="ca", cache_b="ca"),
    dict(a_access=4, b_access=8),
    dict(a_access=2, b_access=2),
    dict(c_access=4, d_access=4),
    dict(d_access=2),
    dict(prefetch="none"),
    dict(prefetch="L1"),
    dict(raster=1),
    dict(raster=3, splits=2),
)
WHOLE = tuple(
    dict(clear=clear, **more)
    for clear in ("none", "last_stage")
    for more in (
        dict(max_k=256, stages=4),
        dict(max_k=128),
        dict(max_k=192, stages=6),
        dict(splits=2),
        dict(layout="padded"),
        dict(instruction="m16n8k8", max_k=128),
        dict(accumulate="f16", max_k=128),
    )
)
"""For problems of whole tiles."""
SPLITS = tuple(
    dict(splits=splits, **more)
    for splits in (3, 4, 5, 6, 8)
    for more in (dict(), dict(instruction="m16n8k8"), dict(raster=2))
)
RASTERS = tuple(dict(raster=raster, splits=splits) for raster in (1, 2, 3, 8) for splits in (1, 2))
BATCHES = (0, 0, 0, 0, 2, 3, 1, 2)
MOST = 150_000
"""batch * M * N: what keeps a case below a second or two on the CPU executor."""
SM_90 = architecture("sm_90")


def sweep(
    size: int,
    seed: int,
    extents: tuple[int, ...] = EXTENTS,
    depths: tuple[int, ...] = DEPTHS,
    details: tuple[dict[str, Any], ...] = DETAILS,
) -> Iterator[GemmCase]:
    """`size` cases, their seeds from `seed` on; every one's settings can run on sm_90."""
    rng = np.random.default_rng(seed)
    rows, columns, deep = Deck(extents, rng), Deck(extents, rng), Deck(depths, rng)
    types = Deck([(dtype, out) for dtype in ("f16", "bf16") for out in ("f16", "bf16", "f32")], rng)
    orders = Deck(
        [
            (a, b, trans_a, trans_b)
            for a in ("rows", "columns")
            for b in ("rows", "columns")
            for trans_a in (False, True)
            for trans_b in (False, True)
        ],
        rng,
    )
    layouts = [Deck(kinds, rng) for kinds in (LAYOUTS, LAYOUTS, C_LAYOUTS, OUT_LAYOUTS)]
    sources = Deck((*(["none"] * 4), "f16", "bf16", "f32", "f16", "bf16", "f32", "out"), rng)
    factors, biases = Deck(FACTORS, rng), Deck((False, True, False), rng)
    scatters = Deck((*SCATTERS, *(["none"] * 9), "permuted", "spread", "dropped"), rng)
    values, batches = Deck((*VALUES, "normal", "normal", "integers"), rng), Deck(BATCHES, rng)
    shapes, further = Deck(({}, *SHAPES), rng), Deck(details, rng)
    every_other = cycle((True, False))
    for index in range(size):
        m, n, k, batch = rows.deal(), columns.deal(), deep.deal(), batches.deal()
        while batch > 1 and batch * m * n > MOST:
            batch -= 1
        dtype, out_dtype = types.deal()
        a_order, b_order, trans_a, trans_b = orders.deal()
        a_layout, b_layout, c_layout, out_layout = (deck.deal() for deck in layouts)
        c, scatter, kind = sources.deal(), scatters.deal(), values.deal()
        if kind == "nan in c" and c == "none":
            c = "f32"
        if out_layout == "new" and (c == "out" or scatter != "none"):
            out_layout = "aligned 4"
        alpha, beta = factors.deal()
        case = GemmCase(
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            out_dtype=out_dtype,
            batch=batch,
            a_order=a_order,
            b_order=b_order,
            trans_a=trans_a,
            trans_b=trans_b,
            a_layout=a_layout,
            b_layout=b_layout,
            out_layout=out_layout,
            c=c,
            c_layout=c_layout,
            alpha=alpha,
            beta=beta,
            bias=biases.deal(),
            scatter=scatter,
            values=kind,
            seed=seed + index,
        )
        case = replace(
            case,
            bias_of_inputs=case.bias and out_dtype == "f32" and next(every_other),
            index_bytes=4 if scatter != "none" and next(every_other) else 8,
        )
        yield _with_settings(case, shapes, further)


def _with_settings(
    case: GemmCase, shapes: Deck[dict[str, Any]], details: Deck[dict[str, Any]]
) -> GemmCase:
    """The case with the next shape, and the next details, that this problem can have."""
    problem = problem_of(case, host_views(make(case).call(case), readonly=False))
    chosen = gemm_sm80.choose(problem, SM_90)

    def can_have(settings: dict[str, Any]) -> bool:
        wanted = gemm_sm80.adapt(replace(chosen, **settings), problem)
        kept = all(getattr(wanted, name) == value for name, value in settings.items())
        return kept and not gemm_sm80.violations(wanted, SM_90, problem)

    while True:
        shape = shapes.deal()
        for _ in range(len(DETAILS)):
            settings = shape | details.deal()
            if can_have(settings):
                return replace(case, settings=tuple(settings.items()))


CASES = (
    *sweep(340, 0),
    *sweep(42, 1000, (64, 128, 192), (64, 100, 128, 160, 192), WHOLE),
    *sweep(30, 2000, EXTENTS[:27], (333, 400, 448, 513, 600, 777), SPLITS),
    *sweep(16, 3000, (257, 300, 330, 384), (1, 17, 40, 130), RASTERS),
)


def name(case: GemmCase) -> str:
    """A test's name: the seed tells the cases apart, the rest is for the reader."""
    return (
        f"{case.seed}-{case.dtype}-{case.out_dtype}-{case.m}x{case.n}x{case.k}-{case.values}"
    ).replace(" ", "_")
