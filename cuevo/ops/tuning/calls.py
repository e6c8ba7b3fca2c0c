"""Calls to be tuned: the shapes, strides, types and options of calls of cuevo's operations, without
their arrays; and the files that they are in.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuevo.arrays import ArrayView, array_from_pointer
from cuevo.errors import CuevoError
from cuevo.ops import backward, forward, product
from cuevo.ops.operation import Operation
from cuevo.ops.tuning import recording
from cuevo.ops.tuning.tuned import Variants

__all__ = ["OPERATIONS", "VARIANTS", "Call", "read_recorded"]

OPERATIONS = {
    operation.name: operation
    for operation in (forward.OPERATION, backward.OPERATION, product.OPERATION)
}
VARIANTS: dict[str, Variants] = {
    forward.OPERATION.name: forward.VARIANTS,
    backward.OPERATION.name: backward.VARIANTS,
    product.OPERATION.name: product.VARIANTS,
}
_NOWHERE = 1 << 40


@dataclass(frozen=True)
class Call:
    """A call of an operation on arrays that are nowhere."""

    operation: Operation
    arrays: tuple[ArrayView | None, ...]
    """In the order of the operation's names; only the alignment of their addresses counts."""
    options: tuple[object, ...]

    @property
    def variants(self) -> Variants:
        """The kernels that there are to choose from."""
        return VARIANTS[self.operation.name]

    @property
    def named(self) -> dict[str, ArrayView]:
        """The arrays that there are."""
        pairs = zip(self.operation.names, self.arrays, strict=True)
        return {name: x for name, x in pairs if x is not None}

    def record(self) -> dict[str, Any]:
        """As `cuevo.ops.recording` describes it."""
        return recording.describe(self.operation.name, self.named, self.options)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Call":
        """The call of such a description; ValueError, TypeError or KeyError for what is none."""
        operation = OPERATIONS[record["operation"]]
        arrays = {name: _array(**each) for name, each in record["arrays"].items()}
        if not arrays.keys() <= set(operation.names):
            raise ValueError(f"{operation.name} has no array {min(arrays.keys())}")
        options = tuple(tuple(x) if isinstance(x, list) else x for x in record["options"])
        return cls(operation, tuple(arrays.get(name) for name in operation.names), options)

    def describe(self) -> str:
        """Operation, problem and types in a line: "attention 1,8,4,256,32 bf16, pair f32"."""
        x = self.named
        first = x["a" if "a" in x else "q"]
        if "a" in x:
            m, k = first.shape[-2:][:: -1 if self.options[2] else 1]
            n = x["b"].shape[-2 if self.options[3] else -1]
            sizes: tuple[int, ...] = (*(first.shape[:-2] or x["b"].shape[:-2]), m, n, k)
        else:
            batch, rows, queries, heads, dim = first.shape
            keys = x["k"].shape[2]
            lengths = (queries,) if keys == queries else (queries, keys)
            sizes = (batch, rows, heads, *lengths, dim)
        words = f"{self.operation.name} {','.join(map(str, sizes))} {_short(first)}"
        biases = [
            f"{name[:4]} {_short(x[name])}" for name in ("mask_bias", "pair_bias") if name in x
        ]
        return ", ".join([words, *biases])


def _short(x: ArrayView) -> str:
    """Its type, as the command line has it."""
    return x.dtype.name.replace("bfloat", "bf").replace("float", "f")


def _array(shape: Any, strides: Any, dtype: str, alignment: int) -> ArrayView:
    pointer = _NOWHERE + alignment % 16
    return array_from_pointer(pointer, shape, dtype, strides=strides, device="cpu")


def read_recorded(path: Path) -> Iterator[Call]:
    """The calls of a file of ``CUEVO_RECORD_PROBLEMS``; CuevoError for a line that is none."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            yield Call.of_record(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise CuevoError(f"{path}:{number}: not a recorded call: {error!r}") from error
