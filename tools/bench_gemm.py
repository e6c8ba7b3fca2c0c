"""cuevo's matrix product beside cuBLAS, its stages, and its read-modify-write epilogue.

    python3 tools/bench_gemm.py                               everything
    python3 tools/bench_gemm.py sizes --size 4096,4096,4096   the sizes given, both contenders
    python3 tools/bench_gemm.py sizes --config splits=1       also with changes of the configuration
    python3 tools/bench_gemm.py sustained                     large products, each contender alone
    python3 tools/bench_gemm.py limit                         what mma.sync alone reaches
    python3 tools/bench_gemm.py stages                        2 to 6 stages of one tiling
    python3 tools/bench_gemm.py rmw                           c = a.b + c/2, c prefetched or not
    python3 tools/bench_gemm.py --json docs/measurements/RUN.json > docs/measurements/RUN.md

Contenders: cuBLAS; cuevo, by whatever kernel it takes; on Hopper also gemm_sm80, by mma.sync;
under `limit` the mma of gemm_sm80 alone, from registers (tools/mma_alone), which have no result.
Columns: ms, median device time of a call by events, contenders taking turns on rotating inputs;
TF/s, 2 M N K operations over it; x, the time over that of the first row; error, the norm of the
difference to float64 over the norm, on a few rows; host us, host time of a repeated call.

Calls that take turns share their clock, and are over before the device is warm. Under `sustained` a
contender has it alone, for seconds: at the clock that its power leaves it, printed for each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from backends import Backend, open_backend
from checks import relative_error, spread
from cuevo.ops.tuning.measure import Entrant, Times, time_interleaved, warm_up
from machine import ClockReading, circumstances
from measure import burst_length, host_microseconds, teraflops, time_sustained
from mma_limit import FRAGMENTS, mma_alone, threads
from report import ERROR_LIMIT, print_rows, progress

REPEATS = 60
CHECKED_ROWS = 16
SIZES = (
    (1024, 1024, 1024),
    (2048, 2048, 64),
    (256, 256, 8192),
    (4096, 4096, 4096),
    (4000, 4000, 4000),
    (8192, 8192, 8192),
)
SUSTAINED_SIZES = ((4096, 4096, 4096), (8192, 8192, 8192))
LIMIT_SIZES = ((4096, 4096, 4096), (4224, 4096, 8192), (8192, 8192, 8192))
MMA_ALONE = "mma.sync alone"
STAGES_SIZE = (4096, 4096, 4096)
STAGES_TILING = dict(
    block_m=128, block_n=256, block_k=32, warp_m=64, warp_n=64, min_blocks=1, max_k=0
)
RMW_SIZES = ((4096, 4096, 64), (4096, 4096, 256), (4096, 4096, 1024))
PREFETCHES = ("none", "L1", "L2")


@dataclass(frozen=True)
class Row:
    """One contender on one size."""

    size: tuple[int, int, int]
    contender: str
    milliseconds: Times
    teraflops: float
    ratio: float
    """Its time over that of the first contender of the size."""
    relative_error: float | None
    """None for one that has no result."""
    host_microseconds: float
    configuration: str = ""
    load: dict[str, str] = field(default_factory=dict)
    """Clocks and power while it ran alone."""


@dataclass
class Sets:
    """Inputs of one size on the device, as many sets as twice the L2 cache takes."""

    size: tuple[int, int, int]
    a: list[Any] = field(default_factory=list)
    b: list[Any] = field(default_factory=list)
    c: list[Any] = field(default_factory=list)

    @classmethod
    def on(cls, backend: Backend, size: tuple[int, int, int], dtype: str) -> Sets:
        """Random operands and results."""
        m, n, k = size
        nbytes = 2 * (m * k + k * n + m * n)
        count = max(1, min(8, -(-2 * backend.facts.l2_bytes // nbytes)))
        made = cls(size)
        for seed in range(count):
            made.a.append(backend.normal((1, m, k), dtype, 3 * seed))
            made.b.append(backend.normal((1, k, n), dtype, 3 * seed + 1))
            made.c.append(backend.normal((1, m, n), dtype, 3 * seed + 2))
        return made


def build_parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("part", nargs="*", choices=[*PARTS, []], help="what to measure (all)")
    add("--size", action="append", type=size, metavar="M,N,K", help="instead of the usual ones")
    add("--dtype", choices=["bf16", "fp16"], default="bf16", help="of operands and result")
    add("--repeats", type=int, default=REPEATS, metavar="COUNT", help="timed calls of each")
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="sizes: also measure with these changes of the configuration that is chosen",
    )
    add("--json", type=Path, metavar="PATH", help="also write everything to a file")
    return parser


def size(text: str) -> tuple[int, int, int]:
    """Three positive numbers."""
    try:
        m, n, k = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not M,N,K") from None
    if min(m, n, k) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: extents are positive")
    return m, n, k


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    try:
        backend = open_backend()
    except RuntimeError as error:
        print(f"bench_gemm.py: {error}", file=sys.stderr)
        return 1
    parts = arguments.part or list(PARTS)
    record: dict[str, Any] = {
        **circumstances(),
        "device": {**asdict(backend.facts), "backend": backend.name},
        "dtype": arguments.dtype,
        "repeats": arguments.repeats,
    }
    print(f"{backend.facts.name} ({backend.facts.arch}), {record['date']}  {record['command']}")
    print("  ".join(f"{name} {version}" for name, version in record["versions"].items()))
    healthy = True
    for part in parts:
        record[part] = []
        for sets, calls, beta in PARTS[part](backend, arguments):
            alone = part == "sustained"
            rows, load = measure(backend, sets, calls, beta, arguments.repeats, alone=alone)
            healthy &= all((row.relative_error or 0) <= ERROR_LIMIT for row in rows)
            print_size(part, rows, load)
            record[part].append({"under_load": load, "rows": [asdict(row) for row in rows]})
            if arguments.json:
                arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if healthy else 1


# -- What is measured ------------------------------------------------------------------------------

Calls = dict[str, tuple[list[Any], str]]
"""Contender to its calls, one an input set, and its configuration in words."""


def sizes(backend: Backend, arguments: argparse.Namespace) -> Any:
    """Each size: cuBLAS where torch is, cuevo, and cuevo with the changes asked for."""
    return products(backend, arguments, SIZES)


def sustained(backend: Backend, arguments: argparse.Namespace) -> Any:
    """The same of large sizes."""
    return products(backend, arguments, SUSTAINED_SIZES)


def products(
    backend: Backend, arguments: argparse.Namespace, usual: Sequence[tuple[int, int, int]]
) -> Any:
    """Contenders on the sizes asked for, or the usual ones."""
    for each in arguments.size or usual:
        sets = Sets.on(backend, each, arguments.dtype)
        calls: Calls = {}
        if backend.name == "torch":
            import torch

            arrays = zip(sets.a, sets.b, sets.c, strict=True)
            plain = [partial(torch.matmul, a[0], b[0], out=c[0]) for a, b, c in arrays]
            calls["cuBLAS"] = (plain, "")
        if backend.facts.arch == "sm_90":
            calls["gemm_sm80"] = cuevo_calls(sets, variant_of_mma(backend, each, arguments.dtype))
        for number, label in enumerate(("", *arguments.config)):
            calls[f"cuevo {number or ''}".strip()] = cuevo_calls(sets, changes(label))
        yield sets, calls, 0.0


def limit(backend: Backend, arguments: argparse.Namespace) -> Any:
    """Each large size: cuBLAS where torch is, gemm_sm80, and its mma alone."""
    for sets, calls, beta in products(backend, arguments, LIMIT_SIZES):
        calls.pop("cuevo", None)
        fragments = backend.normal(FRAGMENTS, arguments.dtype, 0)
        sums = backend.normal((threads(sets.size),), "fp32", 0)
        calls[MMA_ALONE] = ([mma_alone(sets.size, arguments.dtype, fragments, sums)], "")
        yield sets, calls, beta


def variant_of_mma(backend: Backend, size: tuple[int, int, int], dtype: str) -> Any:
    """The configuration of gemm_sm80, where there is a higher kernel variant."""
    from cuevo.architectures import architecture
    from cuevo.kernels import gemm_sm80

    kind = {"bf16": "bf16", "fp16": "f16"}[dtype]
    problem = gemm_sm80.Problem(1, *size, dtype=kind, out_dtype=kind)
    return gemm_sm80.choose(problem, architecture(backend.facts.arch))


def stages(backend: Backend, arguments: argparse.Namespace) -> Any:
    """One tiling with 2 to 6 stages."""
    sets = Sets.on(backend, STAGES_SIZE, arguments.dtype)
    calls: Calls = {
        f"{count} stages": cuevo_calls(sets, {**STAGES_TILING, "stages": count})
        for count in range(2, 7)
    }
    yield sets, calls, 0.0


def read_modify_write(backend: Backend, arguments: argparse.Namespace) -> Any:
    """c = a.b + c/2 in place, by where c is prefetched to before the main loop."""
    for each in arguments.size or RMW_SIZES:
        sets = Sets.on(backend, each, arguments.dtype)
        calls: Calls = {
            f"prefetch {where}": cuevo_calls(sets, {"prefetch": where}, beta=0.5)
            for where in PREFETCHES
        }
        yield sets, calls, 0.5


PARTS = {
    "sizes": sizes,
    "sustained": sustained,
    "limit": limit,
    "stages": stages,
    "rmw": read_modify_write,
}


def changes(label: str) -> dict[str, Any] | None:
    """`stages=4,splits=2` as values; None for nothing. Of the variants whose Config has all of
    these fields, the highest reads them.
    """
    from cuevo.cli.arguments.settings import read_values, split_settings
    from cuevo.ops.product import VARIANTS

    settings = split_settings(label.split(",")) if label else {}
    kinds = [variant.Config for variant in VARIANTS]
    fitting = (x for x in kinds if settings.keys() <= {each.name for each in fields(x)})
    return read_values(next(fitting, kinds[-1]), settings) or None


def cuevo_calls(sets: Sets, config: Any, beta: float = 0.0) -> tuple[list[Any], str]:
    """Calls with a configuration: None, some of its fields, or all of it."""
    import cuevo

    calls = [
        partial(cuevo.gemm, a, b, c if beta else None, beta=beta, out=c, config=config)
        for a, b, c in zip(sets.a, sets.b, sets.c, strict=True)
    ]
    changed = config if isinstance(config, dict) else {}
    return calls, ", ".join(f"{key}={value}" for key, value in changed.items())


# -- Measuring and printing ------------------------------------------------------------------------


def measure(
    backend: Backend, sets: Sets, calls: Calls, beta: float, repeats: int, *, alone: bool
) -> tuple[list[Row], dict[str, str]]:
    """A row for each contender, and clocks and power under load; `alone`: one at a time, with its
    own load in its row.
    """
    m, n, k = sets.size
    every, some = slice(None), spread(m, CHECKED_ROWS)
    product = backend.slices(sets.a[0], some, every) @ backend.slices(sets.b[0], every, every)
    entrants, errors = {}, {}
    for name, (each, _) in calls.items():
        progress(f"{sets.size}: {name}")
        expected = product + beta * backend.slices(sets.c[0], some, every)
        each[0]()
        found = backend.slices(sets.c[0], some, every)
        errors[name] = None if name == MMA_ALONE else relative_error(found, expected)
        entrants[name] = Entrant(each)
        warm_up(entrants[name], backend)
    readings: dict[str, ClockReading] = {}

    def read(name: str = "") -> None:
        readings[name] = ClockReading()

    if alone:
        times = time_sustained(entrants, backend, reading=read)
    else:
        times = time_interleaved(entrants, backend, repeats, halfway=read)
    loads = {name: reading.result() for name, reading in readings.items()}
    first = next(iter(times.values())).median
    rows = []
    for name, entrant in entrants.items():
        median = times[name].median
        own = host_microseconds(entrant, backend, burst_length(median))
        figures = (times[name], teraflops(2 * m * n * k, median), median / first, errors[name], own)
        load = loads.get(name, {})
        rows.append(Row(sets.size, name, *figures, configuration=calls[name][1], load=load))
    progress("")
    return rows, loads.get("", {})


def print_size(part: str, rows: Sequence[Row], load: dict[str, str]) -> None:
    m, n, k = rows[0].size
    under = f"   {load['clocks.sm']}, {load['power.draw']} under load" if load else ""
    print(f"\n{part}: M,N,K = {m},{n},{k}{under}\n")
    headings = ("contender", "ms", "TF/s", "x", "error", "host us")
    print_rows(
        headings,
        [
            (
                row.contender,
                f"{row.milliseconds.median:.4f}",
                f"{row.teraflops:.1f}",
                f"{row.ratio:.3f}",
                "" if row.relative_error is None else f"{row.relative_error:.1e}",
                f"{row.host_microseconds:.1f}",
            )
            for row in rows
        ],
    )
    for row in rows:
        if row.configuration:
            print(f"{row.contender}: {row.configuration}")
        if row.load:
            print(f"{row.contender} alone: {row.load['clocks.sm']}, {row.load['power.draw']}")


if __name__ == "__main__":
    sys.exit(main())
