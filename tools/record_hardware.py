"""What a GPU makes of every arithmetic instruction, for the tests to hold the CPU executor to.

    python3 tools/record_hardware.py                     all, to tests/sim/recordings/<device>.npz
    python3 tools/record_hardware.py --out FOLDER        to another folder
    python3 tools/record_hardware.py --only 'cvt|mma'    instructions whose name has the pattern
    python3 tools/record_hardware.py --octaves           also approximate functions of all numbers
                                                         of some octaves, to <device>-octaves.npz
    python3 tools/record_hardware.py --list              names what would be recorded
    python3 tools/record_hardware.py --sim sm_90         on the CPU executor, to try it out

Sweeps and the format of the file are those of ``tests/sim/recordings``; ``pytest
tests/sim/test_recordings.py`` replays them. In the end it prints what the executor makes of the new
recording. The exit code is 1 when a kernel could not be run, and names it; what differs from the
executor is no error here.
"""

from __future__ import annotations

import argparse
import re
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sim.recordings import approximations
from sim.recordings.archive import Record, record, write
from sim.recordings.fills import Array, checksum
from sim.recordings.replay import RECORDINGS, on_sim, replay
from sim.recordings.sweeps import THREADS, VERSION, Sweep, alone, octaves, sweeps

from cuevo.arrays import view
from cuevo.assemble import assemble
from cuevo.devices import devices, why_none
from cuevo.driver import DriverExecutor
from cuevo.errors import CuevoError
from cuevo.launch import DriverKernel
from cuevo.sim import SimExecutor
from machine import circumstances

Run = Callable[[Sweep], Mapping[str, Array]]
"""Runs a sweep: results by instruction."""


def on_device(executor: DriverExecutor, sweep: Sweep) -> Mapping[str, Array]:
    """A sweep on a GPU, assembled for the architecture that it asks for."""
    rendered = sweep.kernel
    kernel = DriverKernel(
        executor.info, executor.context, rendered, assemble(rendered, sweep.arch, cache=None)
    )
    sources = [np.ascontiguousarray(x) for x in sweep.inputs()]
    given = [executor.copy_to_device(view(x)) for x in sources]
    found = [executor.empty((sweep.lanes,), np.dtype(f"u{bits // 8}")) for bits in sweep.outputs]
    pointers = [x.pointer for x in (*given, *found)]
    packed = struct.pack(f"<{len(pointers)}Q", *pointers)
    kernel.launch((sweep.grid, 1, 1), (THREADS, 1, 1), 0, packed)
    return sweep.split([x.to_numpy() for x in found])


def record_all(
    chosen: Sequence[Sweep], run: Run, *, whole: bool = False
) -> tuple[dict[str, Record], list[str]]:
    """Records by instruction, and what went wrong; `whole` keeps all results.

    A kernel that fails is run again in parts, of an instruction each.
    """
    records: dict[str, Record] = {}
    failures: list[str] = []
    executors: dict[str, SimExecutor] = {}
    for i, sweep in enumerate(chosen):
        if sys.stderr.isatty():
            print(f"\r{i + 1} of {len(chosen)} kernels", end="", file=sys.stderr, flush=True)
        for part, results in _results(sweep, run, failures):
            inputs = part.inputs()
            stamp = checksum(inputs)
            here = on_sim(part, executors)
            for probe in part.probes:
                predicted = None
                if approximations.approximate(probe):
                    if whole or not probe.sources[0].role.startswith("octave"):
                        predicted = approximations.predicted(probe, inputs)
                elif here is None:
                    predicted = np.zeros_like(results[probe.name])
                mine = None if here is None else here[probe.name]
                if approximations.approximate(probe):
                    mine = None
                records[probe.name] = record(stamp, results[probe.name], mine, predicted)
    return records, failures


def _results(
    sweep: Sweep, run: Run, failures: list[str]
) -> Iterator[tuple[Sweep, Mapping[str, Array]]]:
    try:
        yield sweep, run(sweep)
    except CuevoError as error:
        if len(sweep.probes) == 1:
            failures.append(f"{sweep.names[0]}: {error}")
            return
        for part in alone(sweep):
            yield from _results(part, run, failures)


def select(pattern: str, listed: Sequence[Sweep]) -> list[Sweep]:
    """Of the sweeps, those of instructions that have the pattern; whole where all have it."""
    found = []
    for sweep in listed:
        fitting = [re.search(pattern, name) is not None for name in sweep.names]
        if all(fitting):
            found.append(sweep)
        elif any(fitting):
            found += [part for part, fits in zip(alone(sweep), fitting, strict=True) if fits]
    return found


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RECORDINGS, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--octaves", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sim", metavar="ARCH")
    return parser


def open_device(sim: str | None) -> tuple[str, int, Run]:
    """A device's name, its architecture's number, and how to run a sweep on it."""
    if sim is not None:
        executors: dict[str, SimExecutor] = {}

        def run(sweep: Sweep) -> Mapping[str, Array]:
            executor = executors.setdefault(sweep.arch, SimExecutor(sweep.arch))
            return sweep.on_sim(executor)

        return f"sim {sim}", int(sim.removeprefix("sm_")), run
    if not devices():
        raise SystemExit(f"there is no GPU to record: {why_none()}")
    executor = DriverExecutor(0)
    number = int(executor.arch.removeprefix("sm_"))
    return executor.info.name, number, lambda sweep: on_device(executor, sweep)


def stem(device: str) -> str:
    """The name of a device's file: h200 for NVIDIA H200."""
    return re.sub(r"\W+", "-", device.lower().removeprefix("nvidia ")).strip("-")


def header(device: str, number: int, seconds: float) -> dict[str, Any]:
    facts = circumstances()
    return {
        "device": device,
        "architecture": f"sm_{number}",
        "driver": facts["idle"].get("driver_version", ""),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": facts["command"],
        "ptx": VERSION,
        "versions": facts["versions"],
        "seconds": round(seconds, 1),
    }


def main(words: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(words)
    if options.list:
        number = int((options.sim or "sm_90").removeprefix("sm_"))
        listed = [*sweeps(number), *(octaves(number) if options.octaves else ())]
        names = [name for sweep in select(options.only, listed) for name in sweep.names]
        print("\n".join(names))
        print(f"{len(names)} instructions", file=sys.stderr)
        return 0
    device, number, run = open_device(options.sim)
    start = time.perf_counter()
    chosen = select(options.only, sweeps(number))
    records, failures = record_all(chosen, run)
    files = {stem(device): records}
    dense: list[Sweep] = []
    if options.octaves:
        dense = select(options.only, octaves(number))
        whole, more = record_all(dense, run, whole=True)
        failures += more
        files[f"{stem(device)}-octaves"] = whole
    print(file=sys.stderr)
    for name, kept in files.items():
        if kept:
            path = options.out / f"{name}.npz"
            write(path, header(device, number, time.perf_counter() - start), kept)
            print(f"{path}: {len(kept):,} instructions, {path.stat().st_size / 1e6:.2f} MB")
    outcome = replay([*chosen, *dense], {k: v for kept in files.values() for k, v in kept.items()})
    print(f"{outcome}\n{len(outcome.wrong)} instructions differ from the executor")
    print("\n".join(f"  {each}" for each in outcome.wrong))
    for each in failures:
        print(f"not recorded: {each}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
