"""Record a GPU's results of every arithmetic instruction, to hold the CPU executor to.

    python3 tools/record_hardware.py                     all, to tests/sim/recordings/<device>.npz
    python3 tools/record_hardware.py --out FOLDER        to another folder
    python3 tools/record_hardware.py --only 'cvt|mma'    instructions whose name has the pattern
    python3 tools/record_hardware.py --octaves           also approximate functions of all numbers
                                                         of some octaves, to <device>-octaves.npz
    python3 tools/record_hardware.py --list              names what would be recorded
    python3 tools/record_hardware.py --sim sm_90         on the CPU executor, to try it out

Sweeps and the format of the file are those of ``tests/sim/recordings``; ``pytest
tests/sim/test_recordings.py`` replays them. In the end it prints what the executor makes of the new
recording. The exit code is 1 when an instruction could not be run, and names it; what differs from
the executor is no error here.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sim.recordings.archive import write
from sim.recordings.fills import Array
from sim.recordings.recorder import Run, on_device, record_all
from sim.recordings.replay import RECORDINGS, replay
from sim.recordings.sweeps import VERSION, Sweep, alone, octaves, sweeps

from cuevo.cuda.device_info import devices, why_none
from cuevo.executors.driver import DriverExecutor
from cuevo.sim import SimExecutor
from machine import circumstances


def select(pattern: str, listed: Sequence[Sweep]) -> list[Sweep]:
    """Sweeps of the instructions that have the pattern; whole where all have it."""
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


def progress(name: str, total: int) -> Callable[[int], None] | None:
    """Shows how many kernels are done, where somebody looks on."""
    if not sys.stderr.isatty():
        return None

    def show(done: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{name}: {done} of {total} kernels", end=end, file=sys.stderr, flush=True)

    return show


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
    files = {stem(device): select(options.only, sweeps(number))}
    if options.octaves:
        files[f"{stem(device)}-octaves"] = select(options.only, octaves(number))
    failures = []
    for name, chosen in files.items():
        start = time.perf_counter()
        records, failed = record_all(chosen, run, progress(name, len(chosen)))
        failures += failed
        if not records:
            continue
        path = options.out / f"{name}.npz"
        write(path, header(device, number, time.perf_counter() - start), records)
        print(f"{path}: {len(records):,} instructions, {path.stat().st_size / 1e6:.2f} MB")
        outcome = replay(chosen, records)
        print(f"{outcome}\n{len(outcome.wrong)} instructions differ from the executor")
        print("".join(f"  {each}\n" for each in outcome.wrong), end="", flush=True)
    for each in failures:
        print(f"not recorded: {each}", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
