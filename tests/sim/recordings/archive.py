"""Recorded results in a file: ``h200.npz`` with the results, ``h200.json`` with what they are of.

Results are held by digests of some hundred lanes each: all of them, in a few bytes. Beside them are
in full the results of approximate functions, as their distance from the correctly rounded ones, and
those of instructions that the executor did not know; and where the executor differed when the
recording was made, what the hardware had.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sim.recordings.fills import Array

_CHUNK = 1024


def digests(results: Array) -> Array:
    """64 bits for each chunk of the lanes of `results`, (lanes, results of a lane) as uint64."""
    lanes = len(results)
    chunk = max(_CHUNK, lanes // 256)
    data = np.ascontiguousarray(results, "<u8")
    found = [
        hashlib.blake2b(data[i : i + chunk].tobytes(), digest_size=8).digest()
        for i in range(0, lanes, chunk)
    ]
    return np.frombuffer(b"".join(found), "<u8")


@dataclass(frozen=True)
class Record:
    """The hardware's results of one sweep of one instruction."""

    inputs: int
    """Checksum of its operands."""
    shape: tuple[int, int]
    """Lanes, and results of a lane."""
    digests: Array
    places: Array
    """Indices of differing results of the executor among those of all lanes, in C order."""
    values: Array
    """The hardware's results there."""
    distances: Array | None = None
    """Distances of all results from the reader's predictions, as uint64 that wrap around."""

    @property
    def results(self) -> int:
        return self.shape[0] * self.shape[1]

    def whole(self, predicted: Array) -> Array:
        """All results; raises ValueError if they are not those that were recorded, as where the
        prediction is another one than when they were written.
        """
        assert self.distances is not None
        found = (predicted.reshape(-1) + self.distances).reshape(self.shape)
        if not np.array_equal(digests(found), self.digests):
            raise ValueError("the distances in the recording do not lead to the digests in it")
        return np.asarray(found)


def record(inputs: int, results: Array, here: Array | None, predicted: Array | None) -> Record:
    """`results` of the hardware; what the executor has, if it knows the instruction; what to
    predict, if all results are to be kept.
    """
    flat = results.reshape(-1)
    places = np.zeros(0, np.uint32)
    if here is not None and predicted is None:
        places = np.flatnonzero(flat != here.reshape(-1)).astype(np.uint32)
    distances = None if predicted is None else flat - predicted.reshape(-1)
    lanes, each = results.shape
    return Record(inputs, (lanes, each), digests(results), places, flat[places], distances)


def write(path: Path, header: Mapping[str, Any], records: Mapping[str, Record]) -> None:
    """`path` ends with .npz; the header goes beside it."""
    listed = list(records.values())
    arrays = {
        "names": np.frombuffer("\n".join(records).encode(), np.uint8),
        "inputs": np.array([each.inputs for each in listed], np.uint64),
        "shapes": np.array([each.shape for each in listed], np.uint32).reshape(-1, 2),
        "digests": np.concatenate([each.digests for each in listed]),
        "differing": np.array([len(each.places) for each in listed], np.uint32),
        "places": _packed(np.concatenate([_steps(each.places) for each in listed])),
        "values": _packed(np.concatenate([each.values for each in listed])),
    }
    for i, each in enumerate(listed):
        if each.distances is not None:
            arrays[f"distances_{i}"] = _packed(each.distances)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    facts = {**header, "forms": len(listed), "results": sum(each.results for each in listed)}
    path.with_suffix(".json").write_text(json.dumps(facts, indent=2) + "\n")


def read(path: Path) -> tuple[dict[str, Any], dict[str, Record]]:
    """The header, and the records by the name of the instruction."""
    header = json.loads(path.with_suffix(".json").read_text())
    with np.load(path) as arrays:
        names = arrays["names"].tobytes().decode().split("\n")
        shapes = arrays["shapes"].tolist()
        chunks = [-(-lanes // max(_CHUNK, lanes // 256)) for lanes, _ in shapes]
        of_chunks = np.split(arrays["digests"], np.cumsum(chunks)[:-1])
        ends = np.cumsum(arrays["differing"])[:-1]
        places = np.split(_unpacked(arrays["places"]), ends)
        values = np.split(_unpacked(arrays["values"]), ends)
        records = {
            name: Record(
                int(arrays["inputs"][i]),
                (shapes[i][0], shapes[i][1]),
                of_chunks[i],
                np.cumsum(places[i]),
                values[i],
                _unpacked(arrays[f"distances_{i}"]) if f"distances_{i}" in arrays else None,
            )
            for i, name in enumerate(names)
        }
    return header, records


def _steps(places: Array) -> Array:
    return np.diff(places.astype(np.uint64), prepend=np.uint64(0))


def _packed(values: Array) -> Array:
    """Numbers near to zero, of either sign, as planes of bytes that compress well."""
    signed = values.astype(np.uint64).view(np.int64)
    folded = (signed << 1 ^ signed >> 63).view(np.uint64).astype("<u8")
    return np.ascontiguousarray(folded.view(np.uint8).reshape(-1, 8).T)


def _unpacked(planes: Array) -> Array:
    folded = np.ascontiguousarray(planes.T).view("<u8")[:, 0].astype(np.uint64)
    return (folded >> np.uint64(1)) ^ (np.uint64(0) - (folded & np.uint64(1)))
