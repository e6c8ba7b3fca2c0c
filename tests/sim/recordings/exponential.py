"""Whether ex2.approx.ftz.f32 is 2^floor(x) times a table of the fraction of x alone."""

from collections.abc import Iterator, Mapping

import numpy as np
from sim.recordings import approximations
from sim.recordings.archive import Record
from sim.recordings.fills import Array
from sim.recordings.sweeps import octaves

OPCODE = "ex2.approx.ftz.f32"
_PLACES = 23


def table(x: Array, y: Array) -> Array:
    """2^fraction for each fraction in steps of 2^-23, out of all `x` (float32) from 1 to 2 and
    their results `y`; NaN where there is none.
    """
    found = np.full(1 << _PLACES, np.nan)
    whole, fraction = _split(x)
    found[fraction.astype(np.int64)] = np.ldexp(y.astype(np.float64), -whole)
    return found


def agreement(values: Array, x: Array, y: Array) -> tuple[int, int, int, int]:
    """Of the results `y` at `x`: those whose fraction the table has, and as many of them as agree
    with it; of the others, between two of its steps, those that agree with the step below, and with
    the nearest one.
    """
    whole, fraction = _split(x)
    mantissa = np.ldexp(y.astype(np.float64), -whole)
    below = np.floor(fraction).astype(np.int64)
    nearest = np.rint(fraction).astype(np.int64)
    there = below == fraction
    extended = np.append(values, 2 * values[0])
    same_below, same_nearest = extended[below] == mantissa, extended[nearest] == mantissa
    return (
        int(np.count_nonzero(there)),
        int(np.count_nonzero(there & same_below)),
        int(np.count_nonzero(~there & same_below)),
        int(np.count_nonzero(~there & same_nearest)),
    )


def _split(x: Array) -> tuple[Array, Array]:
    """The whole part of each number, and the rest in steps of the table."""
    wide = x.astype(np.float64)
    whole = np.floor(wide)
    return whole.astype(np.int32), (wide - whole) * 2.0**_PLACES


def report(records: Mapping[str, Record]) -> Iterator[str]:
    """A sentence for each recorded octave."""
    values = None
    for sweep in octaves():
        (probe,) = sweep.probes
        if probe.opcode != OPCODE or probe.name not in records:
            continue
        inputs = sweep.inputs()
        bits = records[probe.name].whole(approximations.predicted(probe, inputs))
        x, y = inputs[0][0].view(np.float32), bits[:, 0].astype(np.uint32).view(np.float32)
        if values is None:
            if probe.sources[0].role != "octave 3f800000":
                return
            values = table(x, y)
        there, same, below, nearest = agreement(values, x, y)
        yield (
            f"{probe.name}: {there:,} fractions of the first octave, {same:,} with its mantissa; "
            f"{len(x) - there:,} between two, {below:,} with that of the one below, {nearest:,} of "
            "the nearest one"
        )
