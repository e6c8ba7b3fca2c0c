"""Attention, gradients, products, and the blocks' test kernels under compute-sanitizer.

    python3 tools/sanitize.py                     all of it, under memcheck, racecheck, ...
    python3 tools/sanitize.py racecheck           under one of them
    python3 tools/sanitize.py attention backward gemm
                                                  small problems of every configuration family
    python3 tools/sanitize.py memcheck blocks     the kernels of tests/blocks, a pairwise sample
    python3 tools/sanitize.py mma_multistage --every 20
                                                  of one block every 20th combination; 1: all
    CUEVO_VARIANT=sm_75 python3 tools/sanitize.py attention backward gemm
                                                  the kernels of a lower variant, in fp16

Every result is compared as well: attention, gradients and products with float64, the blocks as
their tests do it. The blocks' kernels are assembled beforehand, into the cache. The exit code is 1
when a tool reports an error or a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from block_kernels import SUITES, Launched, Suite, WatchedDevice, assemble_all
from cuevo import attention, attention_backward, gemm, reference
from cuevo.cuda.device_info import devices, why_none
from cuevo.executors import scratch
from cuevo.executors.protocol import Executor
from cuevo.kernels import evoformer_backward_sm90a
from cuevo.ops.backward import GRADS
from cuevo.ops.dispatch import ENVIRONMENT
from machine import circumstances

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_OPTIONS = {"memcheck": ("--report-api-errors", "no")}
"""The driver is asked for a kernel's parameters until it has none left, and says so by an error."""
CALLS = ("attention", "backward", "gemm")
PARTS = (*CALLS, *SUITES)
BLOCKS = "blocks"
_BF16 = "bfloat16"
_TOLERANCE = {"bfloat16": 4e-3, "float16": 6e-4}
_GRADIENT_TOLERANCE = {"bfloat16": 1e-2, "float16": 1.5e-3}


@dataclass(frozen=True)
class Case:
    """One call; sizes B, N, Lq, Lk, H, D."""

    sizes: tuple[int, int, int, int, int, int]
    dtype: str = _BF16
    mask: str | None = _BF16
    pair: str | None = _BF16
    config: dict[str, object] = field(default_factory=dict)
    dead: bool = False
    """The first keys, and every key of the first row, are masked out by -inf."""
    heads_last: bool = False
    """The heads of the pair bias lie side by side, so that it is packed."""


CASES = (
    Case((1, 2, 70, 136, 2, 32)),
    Case((2, 3, 40, 72, 1, 32), mask="bool", pair="float32", dead=True),
    Case((1, 2, 70, 257, 1, 32), mask="float32", dead=True),
    Case((1, 2, 33, 66, 1, 32), dtype="float16", mask="float16", pair="float16"),
    Case((1, 2, 33, 68, 1, 24), mask=None),
    Case((1, 2, 64, 128, 1, 32), mask=None, pair=None),
    Case((1, 2, 17, 19, 1, 8), mask=None, pair=None),
    Case((1, 3, 50, 100, 2, 8)),
    Case((1, 2, 50, 100, 1, 16), config={"stages": 5}),
    Case((1, 2, 50, 100, 1, 48)),
    Case((1, 1, 50, 100, 2, 64)),
    Case((1, 1, 70, 100, 1, 72)),
    Case((1, 1, 70, 100, 1, 128)),
    Case((1, 2, 50, 101, 4, 32), heads_last=True),
    Case((1, 2, 50, 101, 3, 32), pair="float32", heads_last=True),
    Case(
        (1, 4, 130, 200, 1, 32), config={"block_rows": 3, "block_keys": 64, "q_in_registers": True}
    ),
    Case(
        (1, 2, 130, 200, 1, 32),
        config={"block_queries": 64, "block_keys": 64, "stages": 2, "chunk_keys": 64},
    ),
)

_ALONE = {
    "producer": "warp",
    "block_rows": 2,
    "row_warpgroups": 1,
    "warpgroup_rows": 1,
    "m_tiles": 2,
    "stages": 4,
    "min_blocks": 1,
    "cluster": 1,
    "converts": False,
}
"""Tiles of the pair bias; and no clusters, where one lane arrives for its warp: racecheck does not
see that the others have met it before.
"""
_THREE = {**_ALONE, "block_rows": 3, "stages": 5}
_FEW = {**_ALONE, "blocks": 2}
"""So few threadblocks that rows N share them; where there are more, each row has its own."""
_ASKING = {**_ALONE, "producer": "consumer", "block_rows": 4, "stages": 5, "continues": True}
_CONVERTING = {**_ALONE, "converts": True}
_ASKING_CONVERTING = {**_ASKING, "converts": True}
_SMALL = {**_CONVERTING, "block_rows": 1, "min_blocks": 2}
"""Threadblocks of which two share a multiprocessor."""
_SHARING = {**_ASKING, "block_rows": 2, "row_warpgroups": 2, "m_tiles": 1}
"""Two warpgroups share a row N."""
_TWO_ROWS = {**_ASKING_CONVERTING, "row_warpgroups": 2, "warpgroup_rows": 2}
"""A warpgroup has two rows N."""
_THREE_TILES = {**_TWO_ROWS, "block_rows": 2, "row_warpgroups": 3}
"""And three of them share these."""
_EMULATING = {"emulates": True, "sums": "column"}
"""A quarter of the exponentials, which a log-sum-exp has only if it is asked for."""
CASES_OF_SM_90A = (
    Case((1, 4, 200, 200, 2, 32), config={**_THREE, "blocks": 3}),
    Case((1, 4, 130, 200, 1, 32), config={**_THREE, "blocks": 2, "sums": "added"}),
    Case((2, 3, 40, 72, 1, 32), mask="bool", pair="float32", dead=True, config=_FEW),
    Case(
        (1, 2, 33, 66, 1, 24),
        dtype="float16",
        mask="float16",
        pair="float16",
        config=_ALONE,
    ),
    Case((1, 4, 130, 200, 1, 32), "float16", "float16", "float16", config=_FEW),
    Case((1, 3, 70, 100, 2, 8), mask=None, pair=None, config=_FEW),
    Case(
        (1, 2, 50, 101, 3, 64),
        mask="float32",
        dead=True,
        heads_last=True,
        config=_FEW,
    ),
    Case((1, 2, 50, 101, 1, 48), mask=None, config=_ALONE),
    Case((1, 6, 200, 200, 2, 32), dead=True, config={**_ASKING, "blocks": 2}),
    Case((1, 6, 200, 200, 1, 32), mask=None, config={**_ASKING, "blocks": 1, "sums": "added"}),
    Case((1, 5, 70, 170, 2, 16), dtype="float16", mask="bool", pair="float32", config=_ASKING),
    Case((1, 6, 200, 200, 2, 32), dead=True, config={**_ASKING_CONVERTING, "blocks": 2}),
    Case((1, 6, 200, 192, 1, 16), mask=None, config={**_ASKING_CONVERTING, "stages": 6}),
    Case(
        (1, 5, 200, 200, 1, 48),
        mask="float32",
        config={**_ASKING_CONVERTING, "block_rows": 3, "blocks": 1},
    ),
    Case(
        (1, 4, 130, 200, 1, 32),
        *("float16", "float16", "float16"),
        config={**_CONVERTING, "blocks": 2},
    ),
    Case((2, 3, 70, 104, 2, 24), mask=None, config={**_CONVERTING, "blocks": 3}),
    Case((1, 2, 50, 104, 3, 64), mask="float32", dead=True, config={**_CONVERTING, "blocks": 2}),
    Case((1, 1, 200, 200, 4, 48), config={**_SMALL, "blocks": 1}),
    Case((1, 1, 150, 104, 3, 32), mask="bool", config={**_SMALL, "m_tiles": 1, "blocks": 1}),
    Case((1, 3, 200, 200, 2, 64), dead=True, config={**_SHARING, "converts": True, "blocks": 2}),
    Case((1, 3, 70, 192, 2, 56), mask=None, config={**_SHARING, "converts": True, "blocks": 1}),
    Case((1, 3, 200, 170, 1, 64), mask="float32", config={**_SHARING, "blocks": 1}),
    Case((1, 4, 200, 200, 2, 16), config={**_ASKING_CONVERTING, "scales_q": True, "blocks": 2}),
    Case((1, 7, 200, 200, 2, 32), dead=True, config={**_TWO_ROWS, "blocks": 2}),
    Case((1, 6, 140, 192, 2, 24), mask=None, config={**_TWO_ROWS, "stages": 6, "blocks": 3}),
    Case((1, 5, 140, 200, 2, 24), dead=True, config={**_TWO_ROWS, "blocks": 2}),
    Case((1, 5, 330, 200, 1, 48), dead=True, config={**_THREE_TILES, "blocks": 2}),
    Case((1, 7, 200, 200, 2, 32), dead=True, config={**_TWO_ROWS, "converts": False, "stages": 4}),
    Case((1, 6, 200, 200, 2, 32), dead=True, config={**_ASKING, **_EMULATING, "blocks": 2}),
    Case((1, 4, 200, 200, 2, 32), config={**_THREE, **_EMULATING, "blocks": 3}),
    Case((1, 5, 140, 200, 2, 24), dead=True, config={**_TWO_ROWS, **_EMULATING, "blocks": 2}),
    Case((1, 4, 130, 170, 1, 48), mask="float32", config={**_ALONE, **_EMULATING, "blocks": 2}),
    Case(
        (1, 4, 200, 200, 2, 16),
        config={**_ASKING_CONVERTING, **_EMULATING, "scales_q": True, "blocks": 2},
    ),
    Case((1, 3, 230, 192, 2, 40), mask=None, config={**_THREE_TILES, "stages": 6, "blocks": 1}),
)
"""For devices that have wgmma."""
_PAIRED = {**_THREE, "cluster": 2}
CLUSTERS_OF_SM_90A = (
    Case((1, 4, 200, 200, 2, 32), config={**_PAIRED, "blocks": 4}),
    Case((1, 5, 50, 101, 3, 64), mask="float32", dead=True, config={**_FEW, "cluster": 2}),
)
"""The same in clusters; not for racecheck."""


@dataclass(frozen=True)
class Backward(Case):
    """The gradients of one call; `config` is that of either side."""

    grads: tuple[str, ...] = GRADS


_ROWS = {
    "block_rows": 2, "warp_rows": 1, "block_stationary": 64, "block_streamed": 32,
    "chunk_streamed": 32, "m_tiles": 2, "stages": 2, "stationary_in_registers": False,
    "min_blocks": 1,
}  # fmt: skip
"""Two warps' rows N in a threadblock."""
BACKWARD = (
    Backward((1, 2, 70, 136, 2, 32)),
    Backward((2, 3, 40, 72, 1, 32), mask="bool", pair="float32", dead=True),
    Backward((1, 2, 70, 257, 1, 32), mask="float32", dead=True),
    Backward((1, 2, 33, 66, 1, 32), dtype="float16", mask="float16", pair="float16"),
    Backward((1, 2, 33, 69, 1, 24), mask=None),
    Backward((1, 2, 64, 128, 1, 32), mask=None, pair=None),
    Backward((1, 2, 17, 19, 1, 8), pair=None),
    Backward((1, 3, 50, 100, 2, 8)),
    Backward((1, 2, 50, 100, 1, 48)),
    Backward((1, 2, 50, 100, 2, 64), pair="float32"),
    Backward((1, 1, 70, 100, 1, 72)),
    Backward((1, 2, 70, 100, 1, 128), dead=True),
    Backward((1, 2, 50, 100, 1, 32), grads=("k", "mask_bias")),
    Backward((1, 2, 50, 100, 1, 32), grads=("v",)),
    Backward((1, 2, 50, 101, 4, 32), heads_last=True),
    Backward((1, 17, 50, 100, 1, 16), grads=("pair_bias",)),
    # Rows N summed by groups of one warp's rows, of two warps and of four, some rows a warp.
    Backward((1, 7, 50, 100, 1, 32), config={"queries": _ROWS | {"block_rows": 1}}),
    Backward((1, 9, 50, 100, 1, 32), config={"keys": _ROWS, "queries": _ROWS}),
    Backward((1, 9, 50, 100, 1, 32), config={"queries": _ROWS | {"block_rows": 4, "m_tiles": 1}}),
    Backward((1, 9, 50, 100, 1, 32), config={"queries": _ROWS | {"block_rows": 4, "warp_rows": 2}}),
    Backward(
        (1, 3, 130, 200, 1, 32),
        config={side: _ROWS | {"block_streamed": 64, "stages": 3} for side in ("keys", "queries")},
    ),
)


def _mapped(head_dim: int, **changes: object) -> dict[str, object]:
    """Both sides by the kernel on wgmma, which so short calls do not get unasked."""
    shapes = reversed(
        [each for each in evoformer_backward_sm90a.SHAPES if head_dim <= each.head_dim]
    )
    return {each.side: replace(each, head_dim=head_dim, **changes) for each in shapes}


BACKWARD_OF_SM_90A = (
    Backward((1, 4, 200, 100, 2, 32), config=_mapped(32, stages=3)),
    Backward((2, 3, 40, 72, 1, 32), mask="bool", pair="float32", dead=True, config=_mapped(32)),
    Backward((1, 2, 33, 66, 1, 24), "float16", "float16", "float16", config=_mapped(24, stages=3)),
    Backward((1, 3, 150, 70, 2, 8), mask=None, pair=None, config=_mapped(8)),
    Backward((1, 5, 50, 101, 4, 64), heads_last=True, dead=True, config=_mapped(64)),
)
"""For devices that have wgmma."""


@dataclass(frozen=True)
class Product:
    """One matrix product; sizes B, M, N, K."""

    sizes: tuple[int, int, int, int]
    dtype: str = _BF16
    out_dtype: str = _BF16
    columns: tuple[bool, bool] = (False, False)
    """Whether the columns of a, and of b, are contiguous."""
    c: str | None = None
    bias: bool = False
    scatter: bool = False
    config: dict[str, object] = field(default_factory=dict)


_TILING = {"block_m": 64, "block_n": 64, "block_k": 32, "warp_m": 32, "warp_n": 32, "max_k": 0}
_NARROW = {"block_n": 128, "stages": 6, "blocks": 132}
PRODUCTS = (
    Product((1, 100, 72, 136), config={**_TILING, "stages": 2, "splits": 1}),
    Product((1, 128, 128, 256), config={**_TILING, "stages": 6, "splits": 1, "clear": "none"}),
    Product((1, 64, 64, 80), config={**_TILING, "max_k": 96, "clear": "last_stage", "splits": 1}),
    Product((2, 70, 66, 67), c="float32", bias=True),
    Product((1, 70, 65, 200), out_dtype="float32", columns=(True, True), c=_BF16),
    Product((1, 40, 96, 300), columns=(True, False), scatter=True),
    Product((1, 33, 64, 1000), dtype="float16", out_dtype="float16", config={"splits": 3}),
    Product((1, 50, 60, 90), dtype="float16", config={"accumulate": "f16", "splits": 1}),
    Product(
        (1, 96, 80, 96),
        columns=(False, True),
        config={**_TILING, "instruction": "m16n8k8", "layout": "padded", "splits": 1},
    ),
    Product((1, 200, 260, 200), config={**_TILING, "warp_m": 64, "whole_steps": False}),
)

PRODUCTS_OF_SM_90A = (
    Product((1, 200, 264, 200), config={"blocks": 132}),
    Product((3, 300, 400, 72), c="float32", bias=True, config={"blocks": 132}),
    Product((1, 136, 520, 136), columns=(True, True), config=_NARROW),
    Product((2, 200, 96, 64), scatter=True, config=_NARROW),
)
"""For devices that have wgmma."""


def run_parts(parts: Sequence[str], every: int | None, tool: str) -> int:
    """Run the parts on the first device, under this tool; 1 if a result is wrong."""
    scratch.NBYTES = 0  # so that the tool knows where each workspace ends
    types = {name: np.dtype(name) for name in ("float16", "float32", "bool")}
    types[_BF16] = np.dtype(ml_dtypes.bfloat16)
    rng = np.random.default_rng(0)
    wrong = []
    hopper = devices()[0].arch == "sm_90"
    if "attention" in parts:
        cases = [*CASES, *(CASES_OF_SM_90A if hopper else ())]
        cases += CLUSTERS_OF_SM_90A if hopper and tool != "racecheck" else ()
        wrong += [run_attention(case, types, rng) for case in served(cases)]
    if "backward" in parts:
        gradients = (*BACKWARD, *(BACKWARD_OF_SM_90A if hopper else ()))
        wrong += [run_backward(case, types, rng) for case in served(gradients)]
    if "gemm" in parts:
        products = (*PRODUCTS, *(PRODUCTS_OF_SM_90A if hopper else ()))
        wrong += [run_product(case, types, rng) for case in served(products)]
    wrong += [run_suite(suite, cases) for suite, cases in chosen(parts, every)]
    return int(any(wrong))


C = TypeVar("C", Case, Backward, Product)


def served(cases: Sequence[C]) -> Sequence[C]:
    """The case that the variant which the environment names can run: below sm_80 all in fp16, where
    no configuration is asked for.
    """
    if os.environ.get(ENVIRONMENT, "") not in ("sm_75", "sm_70"):
        return cases
    names = ("dtype", "out_dtype", "mask", "pair", "c")
    return [
        replace(case, **{x: "float16" for x in names if getattr(case, x, None) == _BF16})
        for case in cases
        if not case.config
    ]


def chosen(parts: Sequence[str], every: int | None) -> list[tuple[Suite, Sequence[Any]]]:
    """The suites among the parts, and what is launched of each."""
    suites = [SUITES[part] for part in parts if part in SUITES]
    return [(suite, suite.cases()[::every] if every else suite.sample()) for suite in suites]


def run_suite(
    suite: Suite, cases: Sequence[Any], open_place: Callable[[Launched], Executor] = WatchedDevice
) -> bool:
    """Whether a result is wrong; all cases are run."""
    launches: list[str] = []
    place = open_place(lambda loaded: launches.append(loaded.kernel.name))
    wrong = suite.failures(cases, place)
    numbers = f"{len(cases)} cases, {len(launches)} launches"
    print(f"{'WRONG' if wrong else 'ok'}  {suite.name}: {numbers}", flush=True)
    if wrong:
        print(wrong, flush=True)
    return bool(wrong)


def run_product(case: Product, types: dict[str, np.dtype], rng: np.random.Generator) -> bool:
    """Whether the product is wrong."""
    batch, m, n, k = case.sizes

    def matrix(rows: int, columns: int, dtype: str, transposed: bool = False) -> np.ndarray:
        shape = (batch, columns, rows) if transposed else (batch, rows, columns)
        x = rng.standard_normal(shape).astype(types[dtype])
        return x.swapaxes(1, 2) if transposed else x

    a, b = matrix(m, k, case.dtype, case.columns[0]), matrix(k, n, case.dtype, case.columns[1])
    rows = m + 7 if case.scatter else m
    c = None if case.c is None else matrix(rows, n, case.c)
    index = rng.permutation(rows)[:m] if case.scatter else None
    bias = rng.standard_normal(n).astype(types[case.out_dtype]) if case.bias else None
    factors = {"alpha": 1.5, "beta": 0.5 if case.c else 0.0}
    out = np.zeros((batch, rows, n), types[case.out_dtype])
    gemm(a, b, c, **factors, bias=bias, scatter=index, out=out, device="cuda:0", config=case.config)
    exact = reference.gemm(
        a, b, c, **factors, bias=bias, scatter=index, out=np.zeros(out.shape, np.float64)
    )
    error = np.linalg.norm(out.astype(np.float64) - exact) / np.linalg.norm(exact)
    fine = error < _TOLERANCE[case.dtype] * (4 if case.config.get("accumulate") == "f16" else 1)
    print(f"{'ok' if fine else 'WRONG'}  error {error:.1e}  {case}", flush=True)
    return not fine


def operands(
    case: Case, types: dict[str, np.dtype], rng: np.random.Generator
) -> dict[str, np.ndarray | None]:
    """q, k, v and the biases."""
    batch, rows, queries, keys, heads, dim = case.sizes
    made: dict[str, np.ndarray | None] = {
        name: rng.standard_normal((batch, rows, length, heads, dim)).astype(types[case.dtype])
        for name, length in (("q", queries), ("k", keys), ("v", keys))
    }
    mask = pair = None
    if case.mask is not None:
        mask = rng.standard_normal((batch, rows, 1, 1, keys))
        mask = mask > -1 if case.mask == "bool" else mask.astype(types[case.mask])
        if case.dead:
            out_of = False if case.mask == "bool" else -np.inf
            mask[..., : keys // 2] = out_of
            mask[:, 0] = out_of
    if case.pair is not None:
        pair = rng.standard_normal((batch, 1, heads, queries, keys)).astype(types[case.pair])
        if case.heads_last:
            pair = np.moveaxis(np.moveaxis(pair, 2, -1).copy(), -1, 2)
    return made | {"mask_bias": mask, "pair_bias": pair}


def run_attention(case: Case, types: dict[str, np.dtype], rng: np.random.Generator) -> bool:
    """Whether the attention is wrong."""
    given = operands(case, types, rng)
    out, lse = attention(**given, return_lse=True, device="cuda:0", config=case.config)
    exact, exact_lse = reference.attention(**given)
    alive = np.isfinite(exact_lse)
    error = np.linalg.norm(out.astype(np.float64) - exact) / np.linalg.norm(exact)
    far = np.abs(lse[alive] - exact_lse[alive]).max()
    near = far < (7e-3 if case.config.get("emulates") else 1e-3)
    fine = error < _TOLERANCE[case.dtype] and near and np.array_equal(alive, np.isfinite(lse))
    print(f"{'ok' if fine else 'WRONG'}  error {error:.1e}  lse {far:.1e}  {case}", flush=True)
    return not fine


def run_backward(
    case: Backward,
    types: dict[str, np.dtype],
    rng: np.random.Generator,
    device: str = "cuda:0",
) -> bool:
    """Whether a gradient is wrong; out and lse are float64's."""
    given = operands(case, types, rng)
    exact_out, exact_lse = reference.attention(**given)
    out = exact_out.astype(types[case.dtype])
    lse = exact_lse.astype(np.float32, order="C")
    dout = rng.standard_normal(out.shape).astype(out.dtype)
    found = attention_backward(
        dout, **given, out=out, lse=lse, grads=case.grads, device=device, config=case.config
    )
    exact = reference.attention_backward(dout=dout, **given)
    errors = {
        name: float(np.linalg.norm(x.astype(np.float64) - right) / np.linalg.norm(right))
        for name, x, right in zip(GRADS, found, exact, strict=True)
        if x is not None
    }
    fine = max(errors.values()) < _GRADIENT_TOLERANCE[case.dtype]
    told = "  ".join(f"d{name} {error:.1e}" for name, error in errors.items())
    print(f"{'ok' if fine else 'WRONG'}  {told}  {case}", flush=True)
    return not fine


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is named under the tools that are named, all by default."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    tools, parts = sorted_words(arguments.words, parser)
    if arguments.every is not None and arguments.every < 1:
        parser.error(f"--every must be 1 or more, not {arguments.every}")
    if arguments.run:
        return run_parts(parts, arguments.every, arguments.run)
    program = shutil.which("compute-sanitizer")
    if program is None:
        print("compute-sanitizer is not on the path: it comes with the CUDA toolkit")
        return 2
    if not devices():
        print(why_none())
        return 2
    print_head(program)
    ahead = {suite.name: cases for suite, cases in chosen(parts, arguments.every)}
    if ahead:
        start = time.monotonic()
        assemble_all(ahead, devices()[0].arch)
        print(f"assembled the blocks' kernels in {time.monotonic() - start:.0f} s", flush=True)
    failed = []
    for tool in tools:
        command = [program, "--tool", tool, *_OPTIONS.get(tool, ()), "--error-exitcode", "1"]
        command += [sys.executable, __file__, *parts, "--run", tool]
        if arguments.every:
            command += ["--every", str(arguments.every)]
        print(f"== {tool}", flush=True)
        start = time.monotonic()
        if subprocess.run(command, check=False).returncode:
            failed.append(tool)
        print(f"{tool}: {time.monotonic() - start:.0f} s", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "clean")
    return int(bool(failed))


def build_parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help=f"a tool: {', '.join(TOOLS)}; or a part: {', '.join((BLOCKS, *PARTS))}",
    )
    parser.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="of the blocks every N-th combination instead of a sample; 1: all, which takes hours",
    )
    parser.add_argument("--run", metavar="TOOL", choices=TOOLS, help=argparse.SUPPRESS)
    return parser


def sorted_words(
    words: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[list[str], list[str]]:
    """Tools and parts that are named; where there are none of a kind, all of it."""
    known = (*TOOLS, BLOCKS, *PARTS)
    unknown = sorted(set(words) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    named = {*words, *(SUITES if BLOCKS in words else ())}
    tools = [tool for tool in TOOLS if tool in named]
    parts = [part for part in PARTS if part in named]
    return tools or list(TOOLS), parts or list(PARTS)


def print_head(program: str) -> None:
    """Date, command, device, and the version of the program that checks it."""
    found = circumstances()
    idle = found["idle"]
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = (answer.stdout.strip().splitlines() or ["version unknown"])[-1]
    variant = os.environ.get(ENVIRONMENT)
    print(f"{found['date']}  {f'{ENVIRONMENT}={variant} ' if variant else ''}{found['command']}")
    print(f"{idle.get('name', 'a device')}, driver {idle.get('driver_version', 'unknown')}", end="")
    print(f"; {Path(program).name}: {version}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
