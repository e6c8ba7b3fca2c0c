"""A launch of a kernel that Triton or Numba has compiled: its parameters, as the compiler has them,
and the results that must come of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sim.compiled.from_python.texts import NUMBA, Launch, launches, stored
from sim.compiled.running import aligned
from sim.conftest import Buffer

from cuevo.cuda.tensor_map import TensorMap
from cuevo.sim import LoadedKernel, SimExecutor

Array = Any


@dataclass(frozen=True)
class Run:
    name: str
    """Of the text."""
    arch: str
    text: str
    launched: Launch
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    parameters: bytes
    given: tuple[Array, ...]
    """Arrays that are read."""
    results: tuple[tuple[Array, Array], ...]
    """Arrays that are written, and what must be in them then."""
    tolerance: float
    """The largest difference."""
    scratch: Array | None = None
    """Memory that the kernel has for itself."""

    def load(self, executor: SimExecutor) -> LoadedKernel:
        return executor.load_text(self.launched.entry, self.text)

    def launch(self, kernel: LoadedKernel) -> None:
        buffers = [Buffer(each, True) for each in self.given]
        buffers += [Buffer(each) for each, _ in self.results]
        if self.scratch is not None and self.scratch.size:
            buffers.append(Buffer(self.scratch))
        kernel.launch(self.grid, self.block, self.launched.shared, self.parameters, buffers=buffers)

    def difference(self) -> float:
        """The largest one of the results from what they must be."""
        return max(
            float(np.abs(found.astype("f8") - expected).max()) for found, expected in self.results
        )


@dataclass(frozen=True)
class Descriptor:
    """An array that Triton's kernels reach through a tensor map, a box of it at a time."""

    array: Array
    box: tuple[int, int]

    def fields(self) -> list[Any]:
        (rows, columns), (row, size) = self.array.shape, self.array.strides
        tensor = TensorMap(
            "f16", self.array.ctypes.data, (columns, rows), (row,), self.box[::-1],
            swizzle=size * self.box[1],
        )  # fmt: skip
        shape, strides = np.array([rows, columns], "i4"), np.array([row // size, 1], "i8")
        return [np.void(tensor.encode_for_executor()), *shape, *strides]


def packed(fields: Sequence[Any]) -> bytes:
    """Parameters, each at a multiple of its size; a tensor map at one of 64."""
    block = b""
    for each in fields:
        block += bytes(-len(block) % min(each.nbytes, 64)) + each.tobytes()
    return block


def _fields(argument: Any, in_numba: bool) -> list[Any]:
    """The parameters that an argument becomes."""
    if isinstance(argument, Descriptor):
        return argument.fields()
    if not isinstance(argument, np.ndarray):
        return [argument]
    data = argument.ctypes.data
    numbers = [0, 0, argument.size, argument.itemsize, data, *argument.shape, *argument.strides]
    return list(np.array(numbers if in_numba else [data], "u8"))


def run_of(
    name: str,
    arguments: Sequence[Any],
    expected: Sequence[tuple[int, Any]],
    *,
    grid: int | tuple[int, ...],
    block: tuple[int, ...] = (),
    behind: Sequence[Array] = (),
    tolerance: float = 0.0,
) -> Run:
    """A launch of a text: `expected` has the results by the places of their arguments, `behind` the
    arrays that are reached through addresses in others.
    """
    kernel, arch = name.split(".")
    launched = launches()[name]
    in_numba = kernel in NUMBA
    fields = [field for each in arguments for field in _fields(each, in_numba)]
    columns, rows = [*(grid if isinstance(grid, tuple) else (grid,)), 1][:2]
    scratch = aligned(np.zeros(launched.scratch * columns * rows, "u1"))
    if not in_numba:
        fields += [np.uint64(scratch.ctypes.data if scratch.size else 0), np.uint64(0)]
    arrays = [each.array if isinstance(each, Descriptor) else each for each in arguments]
    written = [place for place, _ in expected]
    given = [
        each
        for place, each in enumerate(arrays)
        if isinstance(each, np.ndarray) and place not in written
    ]
    results = tuple((arrays[place], np.asarray(values)) for place, values in expected)
    x, y = [*(block or (launched.threads,)), 1][:2]
    return Run(
        name, arch, stored()[name], launched, (columns, rows, 1), (x, y, 1), packed(fields),
        (*given, *behind), results, tolerance, scratch,
    )  # fmt: skip
