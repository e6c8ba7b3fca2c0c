"""Whether ex2.approx.ftz.f32 is a power of two times a table of 23 bits of fraction alone.

The sweep of an H200 says so, with this way to the fraction: the magnitude of x is cut off 23 bits
behind the point; of a negative x all of its bits are inverted, as if it were less by 2^-23, unless
those behind the point are zeros.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from sim.recordings import approximations
from sim.recordings.archive import Record
from sim.recordings.fills import Array
from sim.recordings.probes import Probe
from sim.recordings.sweeps import octaves

OPCODE = "ex2.approx.ftz.f32"
_PLACES = 23


def table(x: Array, y: Array) -> Array:
    """2^fraction for each fraction in steps of 2^-23, out of `x` (float32) and their results `y`;
    NaN where there is none.
    """
    found = np.full(1 << _PLACES, np.nan)
    whole, fraction = split(x)
    found[fraction] = np.ldexp(y.astype(np.float64), -whole)
    return found


def agreement(values: Array, x: Array, y: Array) -> tuple[int, int]:
    """Of the results `y` at `x`: those whose fraction the table has, and as many of them as agree
    with it.
    """
    whole, fraction = split(x)
    mantissa = np.ldexp(y.astype(np.float64), -whole)
    there = values[fraction]
    return int(np.count_nonzero(~np.isnan(there))), int(np.count_nonzero(there == mantissa))


def split(x: Array) -> tuple[Array, Array]:
    """The power of two of each number, and its place in the table."""
    one = np.int64(1 << _PLACES)
    fixed = (np.abs(x.astype(np.float64)) * float(one)).astype(np.int64)
    inverted = np.where(fixed % one == 0, -fixed, ~fixed)
    fixed = np.where(x < 0, inverted, fixed)
    return (fixed >> _PLACES).astype(np.int32), fixed % one


def report(records: Mapping[str, Record]) -> Iterator[str]:
    """A sentence for each recorded octave."""
    values = None
    for sweep in octaves():
        (probe,) = sweep.probes
        if probe.opcode != OPCODE or probe.name not in records:
            continue
        x, y = results(probe, sweep.inputs(), records[probe.name])
        if values is None:
            if probe.sources[0].role != "octave 3f800000":
                return
            values = table(x, y)
        there, same = agreement(values, x, y)
        yield (
            f"{probe.name}: of {len(x):,} numbers {there:,} have a fraction of the first octave, "
            f"{same:,} of them its mantissa"
        )


def results(probe: Probe, inputs: Sequence[Array], one: Record) -> tuple[Array, Array]:
    """The arguments and the results of a recorded sweep, as float32; ordinary ones alone."""
    bits = one.whole(approximations.predicted(probe, inputs))
    x, y = inputs[0][0].view(np.float32), bits[:, 0].astype(np.uint32).view(np.float32)
    normal = np.finfo(np.float32).smallest_normal
    ordinary = np.isfinite(x) & (np.abs(x) >= normal) & np.isfinite(y) & (y >= normal)
    return x[ordinary], y[ordinary]
