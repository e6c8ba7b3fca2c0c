"""Small attention problems of every configuration family under compute-sanitizer.

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


def run_cases() -> int:
    """Run every case on the first device; 1 if one is wrong."""
    import ml_dtypes

    import cuevo
    from cuevo import reference

    types = {name: np.dtype(name) for name in ("float16", "float32", "bool")}
    types[_BF16] = np.dtype(ml_dtypes.bfloat16)
    rng = np.random.default_rng(0)
    wrong = 0
    for case in CASES:
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
        fine = (
            error < _TOLERANCE[case.dtype]
            and far < 1e-3
            and np.array_equal(alive, np.isfinite(lse))
        )
        wrong += not fine
        print(f"{'ok' if fine else 'WRONG'}  error {error:.1e}  lse {far:.1e}  {case}", flush=True)
    return int(wrong > 0)


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
