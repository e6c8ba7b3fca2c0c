"""cuevo and its peers on the same inputs in the same run.

    python3 tools/bench.py                                  all workloads, all contenders
    python3 tools/bench.py --quick                          three workloads, fewer repeats
    python3 tools/bench.py --workload 768,4,768,32 --workload D=64
    python3 tools/bench.py --no-peers --biases both --config stages=2 --config stages=4
    python3 tools/bench.py --alone --workload 2048,4,2048,32         each contender for a while
    python3 tools/bench.py --direction backward             the backward pass alone
    python3 tools/bench.py --host                           host time of calls through torch, alone
    python3 tools/bench.py --jax                            calls through JAX, beside their kernels
    python3 tools/bench.py --direction backward --config keys.stages=2,queries.min_blocks=1
    python3 tools/bench.py --json docs/measurements/RUN.json > docs/measurements/RUN.md

A workload is N,H,L,D: rows, heads, residues, head dim, with one batch. Read the table so:

    ms          median device time of a call, by events, contenders taking turns on rotating inputs;
                with --alone each by itself, twice for half a second after half a second that does
                not count: in turns all have one clock, here each has what its power leaves it
    TF/s        4 N H L L D operations over that time, in backward 10 N H L L D
    ex2         exponentials over what the device could do at its nominal clock
    error       norm of the difference to float64 over the norm, on a few rows
    host us     host time of a repeated call
    packing     that of the launch alone that packs the pair bias, where it is packed, which the
                times of calls with it contain; --pair-layout head-last has it packed always
    x both ...  how many times as long as cuevo with both biases, the pair bias, none

In backward, cuevo has both biases, and `bias grads` says which of their gradients are computed; the
columns x both, x pair, x none go by them, `error` is that of the worst gradient. The memory is that
of a call with both.

The exit code is 1 when a call of cuevo fails or is wrong, or there is no device: a peer may fail.
From a checkout without an install, set PYTHONPATH to the checkout.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import host_calls
import jax_calls
from backends import MASKS, Backend, open_backend
from checks import Expected, relative_errors
from checks import relative_error as relative_error
from checks import spread as spread
from cuevo.ops.tuning.measure import Entrant, Times, input_sets, time_interleaved, warm_up
from directions import DIRECTIONS, FORWARD_PASS, PAIR_LAYOUTS, Direction, with_pair_bias
from machine import ClockReading, circumstances
from measure import burst_length, ex2_share, host_microseconds, teraflops, time_sustained
from packing import packing_call
from peers import Contender, first_line, import_peers
from report import Result, print_head, print_table, progress
from workloads import BIASES, Workload, select

REPEATS = 100
QUICK_REPEATS = 20
ALONE = 0.5
"""Seconds."""
PACKING = "packing"
PACKS = {"auto": None, "always": True, "never": False}


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
    add("--direction", choices=list(DIRECTIONS), default="forward", help="what is measured")
    add("--host", action="store_true", help="only the host time of torch's operators, both passes")
    add("--jax", action="store_true", help="only calls through JAX, and their kernels alone")
    add("--dtype", choices=["bf16", "fp16"], default="bf16", help="of inputs and output")
    add("--mask", choices=MASKS, default="random", help="which keys the mask bias takes out")
    add("--fp32-pair", action="store_true", help="the pair bias is fp32, whatever the inputs are")
    add("--quick", action="store_true", help=f"few workloads, {QUICK_REPEATS} repeats")
    add(
        "--biases",
        action="append",
        choices=BIASES,
        help="only contenders with both biases, the pair bias, none (in backward: with their "
        "gradients); may be given several times",
    )
    add("--no-peers", action="store_true", help="cuevo alone")
    add("--peer", action="append", metavar="NAME", help="of the peers this; may be given again")
    add("--repeats", type=int, metavar="COUNT", help=f"timed calls of each (default {REPEATS})")
    add("--alone", action="store_true", help="each contender by itself for a while, not in turns")
    add(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE,...",
        help="also measure cuevo with these changes of the configuration that it chooses",
    )
    add(
        "--pair-layout",
        choices=PAIR_LAYOUTS,
        default="contiguous",
        help="of the pair bias in memory; head-last as a linear layer makes it",
    )
    add("--pack", choices=list(PACKS), default="auto", help="whether cuevo packs the pair bias")
    add("--json", type=Path, metavar="PATH", help="also write everything to a file")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    direction = with_pair_bias(
        DIRECTIONS[arguments.direction],
        arguments.pair_layout,
        fp32=arguments.fp32_pair,
        pack=PACKS[arguments.pack],
    )
    try:
        if arguments.quick and not arguments.workload:
            workloads = list(direction.quick)
        else:
            workloads = select(arguments.workload, direction.workloads)
        repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
        if arguments.alone:
            repeats = None
        elif repeats < 1:
            raise ValueError(f"--repeats must be 1 or more, not {repeats}")
        ours = direction.cuevo(direction.configurations(arguments.config))
    except ValueError as error:
        parser.error(str(error))
    if arguments.jax:
        jax_calls.print_times(
            workloads if arguments.workload else jax_calls.DEFAULT, arguments.dtype
        )
        return 0
    try:
        backend = open_backend(mask=arguments.mask)
    except RuntimeError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 1
    if arguments.host:
        if backend.name != "torch":
            parser.error("--host: torch is not installed")
        workloads = workloads if arguments.workload else [host_calls.DEFAULT]
        host_calls.print_host_times(backend, workloads, arguments.dtype)
        return 0
    found, absent = [], {}
    if not arguments.no_peers:
        asked = workloads if arguments.workload else ()
        found, absent = import_peers_for(backend, direction, asked, arguments.peer)
    record: dict[str, Any] = {
        **circumstances(),
        "device": {**asdict(backend.facts), "backend": backend.name},
        "direction": direction.name,
        "dtype": arguments.dtype,
        "pair_layout": arguments.pair_layout,
        "pack": arguments.pack,
        "fp32_pair": arguments.fp32_pair,
        "repeats": repeats,
        "absent": absent,
        "workloads": [],
    }
    print_head(record)
    wanted = arguments.biases or BIASES
    contenders = [contender for contender in (*ours, *found) if contender.variant in wanted]
    healthy = True
    for workload in workloads:
        results, facts = measure_workload(
            backend, workload, contenders, arguments.dtype, repeats, direction
        )
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


def import_peers_for(
    backend: Backend,
    direction: Direction,
    asked: Sequence[Workload],
    names: Sequence[str] | None,
) -> tuple[list[Contender], dict[str, str]]:
    if backend.name != "torch":
        return [], {"every peer": "torch, which they all are built on, is not installed"}
    loaders = direction.loaders(asked)
    return import_peers(x for x in loaders if names is None or x[0] in names)


def measure_workload(
    backend: Backend,
    workload: Workload,
    contenders: Sequence[Contender],
    dtype: str,
    repeats: int | None,
    direction: Direction = FORWARD_PASS,
) -> tuple[list[Result], dict[str, Any]]:
    """Results in the order of the contenders, and what the workload was measured under. Without
    `repeats`, of each contender alone.
    """
    backend.release()
    traffic = direction.traffic(workload)
    count = input_sets(traffic, backend.facts.l2_bytes, backend.free_bytes())
    sets = [direction.inputs(backend, workload, dtype, seed) for seed in range(count)]
    expected: dict[str, Expected] = {}
    entrants: dict[str, Entrant] = {}
    errors: dict[str, dict[str, float]] = {}
    reasons: dict[str, str] = {}
    configured: dict[str, str] = {}
    for contender in contenders:
        progress(f"{workload}: {contender.key}")
        biases = contender.biases
        reason = contender.refuses(workload)
        if reason:
            reasons[contender.key] = reason
            continue
        if biases not in expected:
            expected[biases] = direction.expected(backend, sets[0], workload, biases)
        try:
            contender.start()
            entrant = Entrant([contender.prepare(inputs) for inputs in sets], contender.context)
            with contender.context():
                output = contender.as_output(entrant.calls[0]())
            named = output if isinstance(output, dict) else {"out": output}
            errors[contender.key] = relative_errors(backend, named, expected[biases])
            del output, named
            warm_up(entrant, backend)
            configured[contender.key] = contender.describe(sets[0])
        except Exception as error:  # whatever a contender throws is its result
            reasons[contender.key] = first_line(error)
            continue
        entrants[contender.key] = entrant
    packing = [packing_call(inputs, direction.passes) for inputs in sets]
    if all(packing) and any(contender.is_cuevo for contender in contenders):
        entrants[PACKING] = Entrant([each[0] for each in packing if each])
        warm_up(entrants[PACKING], backend)
    progress(f"{workload}: timing")
    readings: list[ClockReading] = []

    def read(name: str = "") -> None:
        readings.append(ClockReading())

    if repeats is None:
        times = time_sustained(entrants, backend, settle=ALONE, seconds=ALONE, reading=read)
    else:
        times = time_interleaved(entrants, backend, repeats, halfway=read)
    hosts = {
        key: host_microseconds(entrant, backend, burst_length(times[key].median))
        for key, entrant in entrants.items()
        if key != PACKING
    }
    progress("")
    results = []
    for contender in contenders:
        key = contender.key
        entry = Result(
            str(workload),
            contender.name,
            contender.biases,
            relative_error=worst(errors[key]) if key in errors else None,
            configuration=configured.get(key, ""),
            reason=reasons.get(key, ""),
            gradients=contender.gradients,
            errors=errors.get(key, {}),
        )
        results.append(
            with_times(entry, workload, backend, times[key], hosts[key], direction)
            if key in times
            else entry
        )
    facts: dict[str, Any] = {
        "input_sets": count,
        "under_load": readings[0].result() if readings else {},
    }
    if PACKING in times and packing[0]:
        facts["packing"] = {"milliseconds": times[PACKING].median, "bytes": packing[0][1]}
    if direction.memory and any(result.is_cuevo for result in results):
        try:
            facts["memory"] = dict(direction.memory(backend, sets[0], workload))
        except Exception as error:
            facts["memory"] = {"reason": first_line(error)}
    del sets, entrants
    gc.collect()
    return results, facts


def with_times(
    entry: Result,
    workload: Workload,
    backend: Backend,
    times: Times,
    host: float,
    direction: Direction,
) -> Result:
    facts = backend.facts
    share = ex2_share(workload.scores, times.median, facts.multiprocessors, facts.clock_hz)
    return replace(
        entry,
        milliseconds=times,
        teraflops=teraflops(direction.operations(workload), times.median),
        # Backward has no fixed number of exponentials.
        ex2_share=None if entry.gradients else share,
        host_microseconds=host,
    )


def worst(errors: dict[str, float]) -> float:
    """The largest error; NaN where there is one."""
    return max(errors.values(), key=lambda error: math.inf if math.isnan(error) else error)


if __name__ == "__main__":
    sys.exit(main())
