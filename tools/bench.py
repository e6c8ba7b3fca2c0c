"""cuevo and its peers on the same inputs in the same run.

    python3 tools/bench.py                                  all workloads, all contenders
    python3 tools/bench.py --quick                          three workloads, fewer repeats
    python3 tools/bench.py --workload 768,4,768,32 --workload D=64
    python3 tools/bench.py --no-peers --biases both --config stages=2 --config stages=4
    python3 tools/bench.py --json docs/measurements/RUN.json > docs/measurements/RUN.md

A workload is N,H,L,D: rows, heads, residues, head dim, with one batch. Read the table so:

    ms          median device time of a call, by events, contenders taking turns on rotating inputs
    TF/s        4 N H L L D operations over that time
    ex2         exponentials over what the device could do at its nominal clock
    error       norm of the difference to float64 over the norm, on a few rows
    host us     host time of a repeated call
    x both ...  how many times as long as cuevo with both biases, the pair bias, none

The exit code is 1 when a call of cuevo fails or is wrong, or there is no device: a peer may fail.
From a checkout without an install, set PYTHONPATH to the checkout.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from backends import Backend, Inputs, open_backend
from machine import ClockReading, circumstances
from measure import (
    Entrant,
    Times,
    burst_length,
    ex2_share,
    host_microseconds,
    teraflops,
    time_interleaved,
    warm_up,
)
from peers import Contender, cuevo_contenders, first_line, import_peers
from report import Result, print_head, print_table, progress
from workloads import BIASES, QUICK, Workload, input_sets, select

REPEATS = 100
QUICK_REPEATS = 20

CHECKED_ROWS = 3
CHECKED_QUERIES = 64


def build_parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--workload",
        action="append",
        default=[],
        metavar="W",
        help="N,H,L,D, or conditions such as L=768,D=32; may be given several times",
    )
    add("--direction", choices=["forward"], default="forward", help="what is measured")
    add("--dtype", choices=["bf16", "fp16"], default="bf16", help="of inputs and output")
    add("--quick", action="store_true", help=f"few workloads, {QUICK_REPEATS} repeats")
    add(
        "--biases",
        action="append",
        choices=BIASES,
        help="only contenders with both biases, the pair bias, none; may be given several times",
    )
    add("--no-peers", action="store_true", help="cuevo alone")
    add("--repeats", type=int, metavar="COUNT", help=f"timed calls of each (default {REPEATS})")
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="also measure cuevo with these changes of the configuration that it chooses",
    )
    add("--json", type=Path, metavar="PATH", help="also write everything to a file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    try:
        if arguments.quick and not arguments.workload:
            workloads = list(QUICK)
        else:
            workloads = select(arguments.workload)
        repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
        if repeats < 1:
            raise ValueError(f"--repeats must be 1 or more, not {repeats}")
        ours = cuevo_contenders(configurations(arguments.config))
    except ValueError as error:
        parser.error(str(error))
    try:
        backend = open_backend()
    except RuntimeError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 1
    found, absent = ([], {}) if arguments.no_peers else import_peers_for(backend)
    record: dict[str, Any] = {
        **circumstances(),
        "device": {**asdict(backend.facts), "backend": backend.name},
        "direction": arguments.direction,
        "dtype": arguments.dtype,
        "repeats": repeats,
        "absent": absent,
        "workloads": [],
    }
    print_head(record)
    wanted = arguments.biases or BIASES
    contenders = [contender for contender in (*ours, *found) if contender.biases in wanted]
    healthy = True
    for workload in workloads:
        results, facts = measure_workload(backend, workload, contenders, arguments.dtype, repeats)
        healthy &= not any(
            result.is_cuevo and (result.reason or result.is_wrong) for result in results
        )
        print_table(workload, results, facts)
        entries = [asdict(result) for result in results]
        record["workloads"].append({"workload": str(workload), **facts, "results": entries})
        if arguments.json:
            # After every workload, so that a run that is cut off leaves what it has.
            arguments.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if healthy else 1


def import_peers_for(backend: Backend) -> tuple[list[Contender], dict[str, str]]:
    if backend.name != "torch":
        return [], {"every peer": "torch, which they all are built on, is not installed"}
    return import_peers()


def configurations(texts: Sequence[str]) -> dict[str, Any]:
    """Label -> what to change in the configuration that cuevo chooses; nothing comes first."""
    from cuevo.cli.settings import read_values, split_settings
    from cuevo.kernels import evoformer_forward_sm80

    fields = evoformer_forward_sm80.Config
    return {
        "": None,
        **{text: read_values(fields, split_settings(text.split(","))) for text in texts},
    }


def measure_workload(
    backend: Backend,
    workload: Workload,
    contenders: Sequence[Contender],
    dtype: str,
    repeats: int,
) -> tuple[list[Result], dict[str, Any]]:
    """Results in the order of the contenders, and what the workload was measured under."""
    backend.release()
    count = input_sets(workload, backend.facts.l2_bytes, backend.free_bytes())
    sets = [backend.inputs(workload, dtype, seed) for seed in range(count)]
    references = {biases: reference(backend, sets[0], workload, biases) for biases in BIASES}
    entrants: dict[str, Entrant] = {}
    errors: dict[str, float] = {}
    reasons: dict[str, str] = {}
    configured: dict[str, str] = {}
    for contender in contenders:
        progress(f"{workload}: {contender.key}")
        reason = contender.refuses(workload)
        if reason:
            reasons[contender.key] = reason
            continue
        try:
            contender.start()
            entrant = Entrant([contender.prepare(inputs) for inputs in sets], contender.context)
            with contender.context():
                output = contender.as_output(entrant.calls[0]())
            part = backend.slices(output, *checked(workload))
            errors[contender.key] = relative_error(part, references[contender.biases])
            warm_up(entrant, backend)
            configured[contender.key] = contender.describe(sets[0])
        except Exception as error:  # whatever a contender throws is its result
            reasons[contender.key] = first_line(error)
            continue
        entrants[contender.key] = entrant
    progress(f"{workload}: timing")
    readings: list[ClockReading] = []
    times = time_interleaved(
        entrants, backend, repeats, halfway=lambda: readings.append(ClockReading())
    )
    hosts = {
        key: host_microseconds(entrant, backend, burst_length(times[key].median))
        for key, entrant in entrants.items()
    }
    progress("")
    results = []
    for contender in contenders:
        key = contender.key
        entry = Result(
            str(workload),
            contender.name,
            contender.biases,
            relative_error=errors.get(key),
            configuration=configured.get(key, ""),
            reason=reasons.get(key, ""),
        )
        results.append(
            with_times(entry, workload, backend, times[key], hosts[key]) if key in times else entry
        )
    facts = {"input_sets": count, "under_load": readings[0].result() if readings else {}}
    del sets, entrants
    gc.collect()
    return results, facts


def with_times(
    entry: Result, workload: Workload, backend: Backend, times: Times, host: float
) -> Result:
    facts = backend.facts
    return replace(
        entry,
        milliseconds=times,
        teraflops=teraflops(workload.operations, times.median),
        ex2_share=ex2_share(workload.scores, times.median, facts.multiprocessors, facts.clock_hz),
        host_microseconds=host,
    )


# -- checking ------------------------------------------------------------------------------------


def checked(workload: Workload) -> tuple[slice, slice]:
    """The rows and queries that are compared: the first, the last and some between."""
    return spread(workload.rows, CHECKED_ROWS), spread(workload.length, CHECKED_QUERIES)


def spread(extent: int, count: int) -> slice:
    """About `count` indices that reach from the first to the last of `extent`."""
    if extent <= count:
        return slice(None)
    step = (extent - 1) // (count - 1)
    return slice((extent - 1) % step, None, step)


def reference(backend: Backend, inputs: Inputs, workload: Workload, biases: str) -> np.ndarray:
    """float64 output [rows, queries, H, D] for the checked rows and queries."""
    from cuevo import reference as float64

    rows, queries = checked(workload)
    every = slice(None)
    mask, pair = None, None
    if biases == "both":
        mask = backend.slices(inputs.mask_bias, rows, every)[None]
    if biases != "none":
        pair = backend.slices(inputs.pair_bias, every, every)[None][:, :, :, queries]
    output, _ = float64.attention(
        backend.slices(inputs.q, rows, queries)[None],
        backend.slices(inputs.k, rows, every)[None],
        backend.slices(inputs.v, rows, every)[None],
        mask_bias=mask,
        pair_bias=pair,
    )
    return np.asarray(output)[0]


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


if __name__ == "__main__":
    sys.exit(main())
