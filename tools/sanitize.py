"""Small problems of every configuration family under compute-sanitizer: attention, products.

    python3 tools/sanitize.py                 memcheck, racecheck, synccheck, initcheck
    python3 tools/sanitize.py racecheck       one of them

Every case is also compared with float64. The exit code is 1 when a tool reports an error or a case
is wrong.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_OPTIONS = {"memcheck": ("--report-api-errors", "no")}
"""The driver is asked for a kernel's parameters until it has none left, and says so by an error."""
_RUN_CASES = "--cases"
_BF16 = "bfloat16"
_TOLERANCE = {"bfloat16": 4e-3, "float16": 6e-4}


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
    Case(
        (1, 4, 130, 200, 1, 32), config={"block_rows": 3, "block_keys": 64, "q_in_registers": True}
    ),
    Case(
        (1, 2, 130, 200, 1, 32),
        config={"block_queries": 64, "block_keys": 64, "stages": 2, "chunk_keys": 64},
    ),
)


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
    Product((1, 130, 70, 200), config={**_TILING, "block_k": 64, "slices": 2, "splits": 1}),
    Product((1, 200, 260, 200), config={**_TILING, "warp_m": 64, "whole_steps": False}),
)


def run_cases() -> int:
    """Run every case on the first device; 1 if one is wrong."""
    import ml_dtypes

    types = {name: np.dtype(name) for name in ("float16", "float32", "bool")}
    types[_BF16] = np.dtype(ml_dtypes.bfloat16)
    rng = np.random.default_rng(0)
    wrong = [run_attention(case, types, rng) for case in CASES]
    wrong += [run_product(case, types, rng) for case in PRODUCTS]
    return int(any(wrong))


def run_product(case: Product, types: dict[str, np.dtype], rng: np.random.Generator) -> bool:
    """Whether the product is wrong."""
    import cuevo
    from cuevo import reference

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
    cuevo.gemm(
        a, b, c, **factors, bias=bias, scatter=index, out=out, device="cuda:0", config=case.config
    )
    exact = reference.gemm(
        a, b, c, **factors, bias=bias, scatter=index, out=np.zeros(out.shape, np.float64)
    )
    error = np.linalg.norm(out.astype(np.float64) - exact) / np.linalg.norm(exact)
    fine = error < _TOLERANCE[case.dtype] * (4 if case.config.get("accumulate") == "f16" else 1)
    print(f"{'ok' if fine else 'WRONG'}  error {error:.1e}  {case}", flush=True)
    return not fine


def run_attention(case: Case, types: dict[str, np.dtype], rng: np.random.Generator) -> bool:
    """Whether the attention is wrong."""
    import cuevo
    from cuevo import reference

    batch, rows, queries, keys, heads, dim = case.sizes
    dtype = types[case.dtype]
    q, k, v = (
        rng.standard_normal((batch, rows, length, heads, dim)).astype(dtype)
        for length in (queries, keys, keys)
    )
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
    out, lse = cuevo.attention(
        q,
        k,
        v,
        mask_bias=mask,
        pair_bias=pair,
        return_lse=True,
        device="cuda:0",
        config=case.config,
    )
    exact, exact_lse = reference.attention(q, k, v, mask, pair)
    alive = np.isfinite(exact_lse)
    error = np.linalg.norm(out.astype(np.float64) - exact) / np.linalg.norm(exact)
    far = np.abs(lse[alive] - exact_lse[alive]).max()
    fine = error < _TOLERANCE[case.dtype] and far < 1e-3 and np.array_equal(alive, np.isfinite(lse))
    print(f"{'ok' if fine else 'WRONG'}  error {error:.1e}  lse {far:.1e}  {case}", flush=True)
    return not fine


def main(arguments: list[str]) -> int:
    """Run the named tools, all by default."""
    if arguments == [_RUN_CASES]:
        return run_cases()
    unknown = set(arguments) - set(TOOLS)
    if unknown:
        print(f"unknown tool {', '.join(sorted(unknown))}; there are {', '.join(TOOLS)}")
        return 2
    program = shutil.which("compute-sanitizer")
    if program is None:
        print("compute-sanitizer is not on the path: it comes with the CUDA toolkit")
        return 2
    root = Path(__file__).parents[1]
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    failed = []
    for tool in arguments or TOOLS:
        command = [
            program,
            "--tool",
            tool,
            *_OPTIONS.get(tool, ()),
            "--error-exitcode",
            "1",
            sys.executable,
            __file__,
            _RUN_CASES,
        ]
        print(f"== {tool}", flush=True)
        if subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode:
            failed.append(tool)
    print(f"failed: {', '.join(failed)}" if failed else "clean")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
