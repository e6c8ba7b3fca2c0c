"""Bank conflicts of the building blocks, counted by Nsight Compute and by the CPU executor.

    python3 tools/bank_conflicts.py                   some 150 launches of the blocks' test kernels
    python3 tools/bank_conflicts.py --launches 40     fewer of them
    python3 tools/bank_conflicts.py mma_multistage    of one block
    python3 tools/bank_conflicts.py --sim sm_90       the CPU executor's counts alone, without a GPU

Kernels and inputs are those of tests/blocks: the first cases of the sample that the tests run on
the CPU executor. Each case is checked on both. Columns, sums over the launches:

    dev ld    l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld: ldmatrix, ld.shared
    dev st    ..._mem_shared_op_st: st.shared
    dev all   ..._mem_shared: these and others, cp.async among them
    excess    memory_l1_wavefronts_shared less ..._ideal, which Nsight Compute works out from the
              addresses, of ld, st and cp.async together; "-" where it does not
    sim ...   wavefronts that another arrangement of the addresses would save
              (cuevo.sim.memory.banks): of ldmatrix and ld.shared, of st.shared, of cp.async

The first three are hardware counters. Beside conflicts they may count accesses that had to wait
because copies landed at that moment, and what global loads read in the same banks; excess and the
executor know only addresses. Copies of 8 and 4 bytes put a chunk of 16 bytes in its place piece by
piece, and have conflicts by nature: they have lines of their own.

The exit code is 1 if ldmatrix or ld.shared has conflicts on the executor, or on the device in a
launch whose excess is not 0, if the executor counts any for another access, but for copies of 8 or
4 bytes, or if a result is wrong; 2 if nothing could be counted.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from block_kernels import SUITES, Launched, WatchedDevice, WatchedSim
from cuevo.cuda.device_info import devices, why_none
from cuevo.executors.protocol import Executor
from cuevo.sim.memory.banks import BankUse
from report import print_rows
from sanitize import print_head

BLOCKS = ("warp_iterator", "warp_load", "copy_async", "mma_multistage", "mma_pipelined")
"""Suites whose kernels use shared memory."""
COPYING = ("copy_async", "mma_multistage")
"""Kernels that copy pieces of a chunk by cp.async."""
LAUNCHES = 150
SHOWN = 10
"""Launches of a kind that are listed."""

_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_WAVEFRONTS = "memory_l1_wavefronts_shared"
COUNTERS = (f"{_CONFLICTS}_op_ld.sum", f"{_CONFLICTS}_op_st.sum", f"{_CONFLICTS}.sum")
BY_ADDRESS = (_WAVEFRONTS, f"{_WAVEFRONTS}_ideal")


@dataclass(frozen=True)
class OnSim:
    """Conflicts of a launch on the CPU executor."""

    ld: int
    st: int
    copies: int

    @classmethod
    def of(cls, uses: Iterable[BankUse]) -> OnSim:
        counts = {"ld": 0, "st": 0, "cp": 0}
        for use in uses:
            counts[use.opcode[:2]] += use.conflicts
        return cls(counts["ld"], counts["st"], counts["cp"])


@dataclass(frozen=True)
class OnDevice:
    """The same on a device."""

    ld: int
    st: int
    all: int
    excess: int | None


@dataclass(frozen=True)
class Launch:
    """One launch of a case's kernel."""

    block: str
    case: str
    kernel: str
    pieces: bool
    """Whether it copies 8 or 4 bytes at a time."""
    sim: OnSim | None
    """None if the executor did not come so far."""
    device: OnDevice | None = None

    @property
    def group(self) -> str:
        """Its line of the table."""
        return f"{self.block}, 8 or 4 bytes" if self.pieces else self.block

    @property
    def has_conflicts(self) -> bool:
        """Whether it meets conflicts that it must not."""
        sim = self.sim
        here = sim is not None and (sim.ld or (not self.pieces and sim.st + sim.copies))
        there = self.device is not None and self.device.ld and self.device.excess != 0
        return bool(here or there)


# -- Launching: the profiled process ---------------------------------------------------------------


def launch_sample(
    blocks: Sequence[str],
    most: int,
    arch: str,
    open_device: Callable[[Launched], Executor] | None = WatchedDevice,
) -> tuple[list[Launch], list[str]]:
    """Check cases of the blocks, about as many launches of each, until there are `most`.

    Each case is launched on the device, unless there is none, and on the CPU executor. Returns the
    launches in their order, and what was wrong; ends early if that is much.
    """
    kernels: list[str] = []
    counts: list[OnSim] = []
    device = open_device and open_device(lambda loaded: kernels.append(loaded.kernel.name))
    sim = WatchedSim(arch, lambda loaded: counts.append(OnSim.of(loaded.profile.banks)))
    left = {name: iter(SUITES[name].sample()) for name in blocks}
    launches: list[Launch] = []
    wrong: list[str] = []
    while left and len(launches) < most and len(wrong) < SHOWN:
        made = [launch.block for launch in launches]
        block = min(left, key=made.count)
        case = next(left[block], None)
        if case is None:
            del left[block]
            continue
        kernels.clear()
        counts.clear()
        for place in filter(None, (device, sim)):
            if failure := SUITES[block].failures([case], place):
                wrong.append(f"{block}: {failure}")
        pieces = block in COPYING and copies_pieces(case)
        pairs = zip_longest(kernels, counts) if device else ((block, count) for count in counts)
        for kernel, count in pairs:
            if kernel is None:
                wrong.append(f"{block}: a launch is missing on the device: {case}")
                break
            launches.append(Launch(block, str(case), kernel, pieces, count))
    return launches, wrong


def copies_pieces(case: Any) -> bool:
    """Whether rows are aligned so that copies are of 8 or 4 bytes."""
    access = case.access if isinstance(case.access, tuple) else (case.access,)
    return bool({8, 4} & set(access))


def write(path: Path, launches: Sequence[Launch], wrong: Sequence[str]) -> None:
    rows = [asdict(launch) for launch in launches]
    path.write_text(json.dumps({"launches": rows, "wrong": list(wrong)}), encoding="utf-8")


def read(path: Path) -> tuple[list[Launch], list[str]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    launches = [
        Launch(**{**row, "sim": None if row["sim"] is None else OnSim(**row["sim"])})
        for row in found["launches"]
    ]
    return launches, found["wrong"]


# -- Profiling -------------------------------------------------------------------------------------


def ncu_command(
    program: str, log: Path, metrics: Sequence[str], command: Sequence[str]
) -> list[str]:
    """Nsight Compute on a command; clocks are left as they are."""
    options = ["--csv", "--log-file", str(log), "--print-units", "base", "--clock-control", "none"]
    return [program, *options, "--metrics", ",".join(metrics), *command]


def parse(log: str) -> list[tuple[str, dict[str, int | None]]]:
    """Name and metrics of each launch in Nsight Compute's CSV, which lines of its own precede.

    There is a row for each metric of a launch. What it could not count is None.
    """
    lines = log.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = (line for line in lines[start:] if line.startswith('"'))
    found: dict[int, tuple[str, dict[str, int | None]]] = {}
    for row in csv.DictReader(rows):
        name = row["Kernel Name"].partition("(")[0]
        _, metrics = found.setdefault(int(row["ID"]), (name, {}))
        number = re.match(r"[\d,]+", row["Metric Value"])
        metrics[row["Metric Name"]] = int(number[0].replace(",", "")) if number else None
    return [found[launch] for launch in sorted(found)]


def joined(
    launches: Sequence[Launch], profiled: Sequence[tuple[str, dict[str, int | None]]]
) -> list[Launch]:
    """The launches with what the profiler has counted; both are in the order of launching.

    Raises ValueError if they are not the same launches, or if a counter is missing.
    """
    if len(profiled) != len(launches):
        raise ValueError(f"of {len(launches)} launches the profiler saw {len(profiled)}")
    found = []
    for launch, (name, metrics) in zip(launches, profiled, strict=True):
        if name != launch.kernel:
            raise ValueError(f"launch {len(found)} is {launch.kernel}, the profiler saw {name}")
        ld, st, total = (metrics.get(counter) for counter in COUNTERS)
        if ld is None or st is None or total is None:
            raise ValueError(f"the profiler has no count of conflicts for {name}: {metrics}")
        wavefronts, ideal = (metrics.get(metric) for metric in BY_ADDRESS)
        excess = None if wavefronts is None or ideal is None else wavefronts - ideal
        found.append(replace(launch, device=OnDevice(ld, st, total, excess)))
    return found


def profile(
    blocks: Sequence[str], most: int, metrics: Sequence[str]
) -> tuple[list[Launch], list[str]]:
    """The launches of a process under Nsight Compute, and what was wrong.

    Raises ValueError if it did not profile them.
    """
    program = shutil.which("ncu")
    if program is None:
        raise ValueError("ncu is not on the path: it comes with the CUDA toolkit")
    if not devices():
        raise ValueError(why_none())
    print_head(program)
    with tempfile.TemporaryDirectory() as directory:
        log, made = Path(directory) / "ncu.csv", Path(directory) / "launches.json"
        command = [sys.executable, __file__, "--record", str(made), "--launches", str(most)]
        start = time.monotonic()
        ended = subprocess.run(ncu_command(program, log, metrics, [*command, *blocks]), check=False)
        seconds = time.monotonic() - start
        text = log.read_text(encoding="utf-8") if log.exists() else ""
        if not made.exists():
            raise ValueError(f"ncu ended with status {ended.returncode}:\n{text[-2000:]}")
        launches, wrong = read(made)
        print(f"{len(launches)} launches profiled in {seconds:.0f} s\n")
        try:
            return joined(launches, parse(text)), wrong
        except ValueError as error:
            raise ValueError(f"{error}; ncu's log:\n{text[:2000]}") from None


# -- The report ------------------------------------------------------------------------------------


def print_report(launches: Sequence[Launch], wrong: Sequence[str]) -> int:
    """The table, and what must not be; the exit code."""
    device = any(launch.device for launch in launches)
    there = ("dev ld", "dev st", "dev all", "excess") if device else ()
    here = ("sim ld", "sim st", "sim cp")
    groups: dict[str, list[Launch]] = {}
    for launch in sorted(launches, key=lambda launch: BLOCKS.index(launch.block)):
        groups.setdefault(launch.group, []).append(launch)
    rows = [[group, *cells(of_group, device)] for group, of_group in groups.items()]
    print_rows(("block", "cases", "launches", *there, *here), rows)
    bad = [launch for launch in launches if launch.has_conflicts]
    other = [launch for launch in launches if launch not in bad and differs(launch)]
    for title, some in (("conflicts", bad), ("counted otherwise on the device", other)):
        if some:
            print(f"\n{title}: {len(some)} launches")
        for launch in some[:SHOWN]:
            print(f"  {launch.group}: {launch.device}, {launch.sim}\n    {launch.case}")
    for failure in wrong:
        print(f"\nwrong: {failure}")
    print(f"\n{'failed' if bad or wrong else 'no conflicts'}")
    return int(bool(bad or wrong))


def differs(launch: Launch) -> bool:
    """Whether the device's counts of ld, st, or by addresses are not the executor's."""
    sim, there = launch.sim, launch.device
    if sim is None or there is None:
        return False
    both = [(there.ld, sim.ld), (there.st, sim.st)]
    if there.excess is not None:
        both.append((there.excess, sim.ld + sim.st + sim.copies))
    return any(one != other for one, other in both)


def cells(launches: Sequence[Launch], device: bool) -> list[str]:
    """Counts and sums of one line of the table."""
    numbers = [len({launch.case for launch in launches}), len(launches)]
    found = [str(number) for number in numbers]
    if device:
        of_device = [launch.device for launch in launches if launch.device]
        columns = [[getattr(x, name) for x in of_device] for name in ("ld", "st", "all", "excess")]
        found += ["-" if None in column else str(sum(column)) for column in columns]
    of_sim = [launch.sim for launch in launches if launch.sim]
    return found + [str(sum(getattr(x, name) for x in of_sim)) for name in ("ld", "st", "copies")]


def build_parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("blocks", nargs="*", metavar="BLOCK", help=f"one of {', '.join(BLOCKS)} (default: all)")
    add("--launches", type=int, default=LAUNCHES, metavar="COUNT", help=f"default {LAUNCHES}")
    add("--no-excess", action="store_true", help="the hardware counters alone, which takes less")
    add("--sim", metavar="ARCH", help="on the CPU executor of an architecture alone")
    add("--record", type=Path, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.blocks) - set(BLOCKS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(BLOCKS)}")
    if arguments.launches < 1:
        parser.error(f"--launches must be 1 or more, not {arguments.launches}")
    blocks, most = arguments.blocks or BLOCKS, arguments.launches
    if arguments.record:
        write(arguments.record, *launch_sample(blocks, most, devices()[0].arch))
        return 0
    try:
        if arguments.sim:
            launches, wrong = launch_sample(blocks, most, arguments.sim, None)
        else:
            metrics = COUNTERS if arguments.no_excess else COUNTERS + BY_ADDRESS
            launches, wrong = profile(blocks, most, metrics)
    except ValueError as error:
        print(f"bank_conflicts.py: {error}")
        return 2
    return print_report(launches, wrong)


if __name__ == "__main__":
    sys.exit(main())
