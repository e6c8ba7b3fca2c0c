"""Sweeps on a GPU, or on whatever stands for one, to records of their results."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from sim.recordings import approximations
from sim.recordings.archive import Record, record
from sim.recordings.fills import Array, checksum
from sim.recordings.replay import on_sim
from sim.recordings.sweeps import THREADS, Sweep, alone

from cuevo.arrays import view
from cuevo.errors import CuevoError, SimulatorError
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.driver_kernel import DriverKernel
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble

Run = Callable[[Sweep], Mapping[str, Array]]
"""Runs a sweep: results by instruction."""


def on_device(executor: DriverExecutor, sweep: Sweep) -> Mapping[str, Array]:
    """A sweep on a GPU, assembled for the architecture that it asks for."""
    rendered = sweep.kernel
    cubin = assemble(rendered, sweep.arch, cache=None)
    kernel = DriverKernel(executor.info, executor.context, rendered, cubin)
    sources = [np.ascontiguousarray(x) for x in sweep.inputs()]
    given = [executor.copy_to_device(view(x)) for x in sources]
    found = [executor.empty((sweep.lanes,), np.dtype(f"u{bits // 8}")) for bits in sweep.outputs]
    pointers = [x.pointer for x in (*given, *found)]
    packed = struct.pack(f"<{len(pointers)}Q", *pointers)
    kernel.launch((sweep.grid, 1, 1), (THREADS, 1, 1), 0, packed)
    return sweep.split([x.to_numpy() for x in found])


def record_all(
    chosen: Sequence[Sweep], run: Run, progress: Callable[[int], None] | None = None
) -> tuple[dict[str, Record], list[str]]:
    """Records by instruction, and sentences about those that could not be run.

    A kernel that fails is run again in parts, of an instruction each.
    """
    records: dict[str, Record] = {}
    failures: list[str] = []
    executors: dict[str, SimExecutor] = {}
    for done, sweep in enumerate(chosen):
        for part, results in _parts(sweep, run, failures):
            inputs = part.inputs()
            stamp = checksum(inputs)
            try:
                here = on_sim(part, executors)
            except SimulatorError:
                here = None  # The replay says what is wrong; the results are kept whole.
            for probe in part.probes:
                mine = None if here is None else here[probe.name]
                predicted = None
                if approximations.approximate(probe):
                    mine, predicted = None, approximations.predicted(probe, inputs)
                elif here is None:
                    predicted = np.zeros_like(results[probe.name])
                records[probe.name] = record(stamp, results[probe.name], mine, predicted)
        if progress is not None:
            progress(done + 1)
    return records, failures


def _parts(
    sweep: Sweep, run: Run, failures: list[str]
) -> Iterator[tuple[Sweep, Mapping[str, Array]]]:
    try:
        yield sweep, run(sweep)
    except CuevoError as error:
        if len(sweep.probes) == 1:
            failures.append(f"{sweep.names[0]}: {error}")
            return
        for part in alone(sweep):
            yield from _parts(part, run, failures)
