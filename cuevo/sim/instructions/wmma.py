"""wmma: matrices that a warp loads, multiplies and stores as a whole.

Which lane has which element is left open by the PTX ISA. Here lane l has n elements of a matrix one
after the other, from element l n on, counted along its rows; of f16, where A and B have twice as
many places as elements, it has them twice. Elements of less than a byte stand in words, those of B
counted along its columns.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from cuevo.sim.aliases import AnyArray, AnyDType, Mask, Step
from cuevo.sim.arithmetic import float64
from cuevo.sim.arithmetic.integer_product import bit_product, integer_product, nibble_product
from cuevo.sim.arithmetic.tensor_core import OPERAND_TYPES, block, multiply_accumulate
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access
from cuevo.sim.instructions.matrix import whole_warps
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.memory.spaces import FIRST, WINDOWS
from cuevo.sim.text.syntax import Operand
from cuevo.sim.text.types import TYPES, ScalarType

_LANES = 32
_ROWS_ALIGNED = 16
"""Bytes that rows or columns are at multiples of at most: what CUDA C++ asks for, where the PTX ISA
has them at multiples of the fragment, as the matrix is.
"""
_PATTERNS: dict[str, AnyDType] = {
    **dict.fromkeys(("f16", "bf16"), np.dtype(np.uint16)),
    "tf32": np.dtype(np.uint32),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "s4": np.dtype(np.int32),
    "u4": np.dtype(np.uint32),
    "b1": np.dtype(np.uint32),
    "s32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
_IN_WORDS = {"s4": 8, "u4": 8, "b1": 32}
"""Elements in a word, of types of less than a byte."""


def _extents(m: Modifiers, matrix: str, element: str) -> tuple[int, int]:
    """Rows and columns of what is held of the matrix a, b, c or d: elements, or words, of which
    those along a column of B make a row.
    """
    found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", m["shape"])
    assert found is not None
    rows, columns, depth = map(int, found.groups())
    if element in _IN_WORDS:
        return {"a": rows, "b": columns}[matrix], depth // _IN_WORDS[element]
    return {"a": (rows, depth), "b": (depth, columns)}.get(matrix, (rows, columns))


def _register_type(name: str) -> ScalarType:
    return TYPES[name if name in ("f32", "f64", "s32") else "b32"]


def _fragment_bytes(m: Modifiers, matrix: str, element: str) -> int:
    """What a lane has of a matrix."""
    rows, columns = _extents(m, matrix, element)
    if element == "f16" and matrix in "ab":
        return 32
    return rows * columns * _PATTERNS[element].itemsize // _LANES


def _fragment(
    b: Binder, index: int, m: Modifiers, matrix: str, element: str
) -> tuple[Operand, ...]:
    """The registers of a fragment; raises `PtxError` for another number than it has."""
    size = _register_type(element).bits // 8
    return b.vector(b.operand(index), _fragment_bytes(m, matrix, element) // size)


def _matrix(registers: Sequence[AnyArray], shape: tuple[int, int], dtype: AnyDType) -> AnyArray:
    """The matrix (rows, columns, warps) that registers, (32, warps) each, hold."""
    # (warps, lanes, elements of a lane)
    held = np.ascontiguousarray(np.stack(registers, axis=-1).transpose(1, 0, 2)).view(dtype)
    each = shape[0] * shape[1] // _LANES
    return np.ascontiguousarray(held[..., :each].reshape(-1, *shape).transpose(1, 2, 0))


def _lanes(matrix: AnyArray) -> AnyArray:
    """The elements of each lane, (elements, 32, warps), of a matrix (rows, columns, warps)."""
    warps = matrix.shape[2]
    return matrix.reshape(_LANES, -1, warps).transpose(1, 0, 2)


def _fill(destinations: Sequence[AnyArray], elements: AnyArray, mask: Mask) -> None:
    """Put elements (elements, 32, warps) into registers, as often as these have places."""
    each = destinations[0].itemsize // elements.itemsize
    where = True if mask is None else mask
    for index, d in enumerate(destinations):
        held = [elements[(index * each + part) % len(elements)] for part in range(each)]
        bits = np.ascontiguousarray(np.stack(held, axis=-1)).view(d.dtype)[..., 0]
        np.copyto(d, bits, where=where)


def _distances(
    shape: tuple[int, int], by_rows: bool, size: int
) -> Callable[[AnyArray], list[AnyArray]]:
    """Offsets in bytes of a lane's elements, (32, warps) each, by the stride in elements."""
    place = np.arange(shape[0] * shape[1]).reshape(_LANES, -1).T[..., None]
    rows, columns = place // shape[1], place % shape[1]
    outer, inner = (rows, columns) if by_rows else (columns, rows)
    return lambda stride: [(o * stride + i) * size for o, i in zip(outer, inner, strict=True)]


class _Memory:
    """A matrix in memory: the address of its first element and the stride of its rows or columns,
    which are the same for all lanes of a warp.
    """

    def __init__(self, b: Binder, m: Modifiers, index: int, matrix: str, last: int) -> None:
        self._machine, self._space = b.machine, m["space"].split("::")[0]
        if self._space == "shared":
            self._address = b.address(b.operand(index), ".shared")
        else:
            self._address = access.wide_address(b, index, self._space and ".global")
        element = m["type"]
        self._size, self._in_one = _PATTERNS[element].itemsize, _IN_WORDS.get(element, 1)
        rows, columns = shape = _extents(m, matrix, element)
        self._aligned = _fragment_bytes(m, matrix, element)
        self._rows_aligned = min(self._aligned, _ROWS_ALIGNED)
        by_rows = m["layout"] == "row" or self._in_one > 1
        self._distances = _distances(shape, by_rows, self._size)
        dense = (columns if by_rows else rows) * self._in_one
        packed = np.full(b.machine.shape, dense, np.uint32)
        has_stride = b.operands > last
        self._stride = b.whole(b.operand(last), TYPES["u32"]) if has_stride else packed

    def places(self, mask: Mask) -> list[AnyArray]:
        """Addresses of the elements of each lane."""
        begin, stride = self._address(), self._stride.astype(np.int64)
        for values, name in ((begin, "addresses"), (stride, "strides")):
            if (other := _unlike(values, mask)).any():
                raise Fault(f"the lanes of a warp name different {name} of a matrix", other)
        placed = begin if self._space == "shared" else self._machine.global_memory.placed(begin)
        wrong = (placed % placed.dtype.type(self._aligned) != 0) | (
            stride * self._size % (self._rows_aligned * self._in_one) != 0
        )
        if (lanes := wrong if mask is None else wrong & mask).any():
            raise Fault(
                f"a matrix begins at a multiple of {self._aligned} bytes, its rows or columns at "
                f"multiples of {self._rows_aligned}",
                lanes,
            )
        return [
            begin + each.astype(begin.dtype) for each in self._distances(stride // self._in_one)
        ]

    def load(self, at: AnyArray, mask: Mask) -> AnyArray:
        memory, size = self._machine.global_memory, self._size
        shared, own = self._shared(at, mask)
        if shared is None:
            return memory.load(at, size, mask)
        found = np.zeros(self._machine.shape, unit_dtype(size))
        rest = ~shared if mask is None else mask & ~shared
        if rest.any():
            np.copyto(found, memory.load(at, size, rest), where=rest)
        indices = self._machine.shared.indices(own, size, shared)
        np.copyto(found, self._machine.shared.load(indices, size, shared), where=shared)
        return found

    def store(self, at: AnyArray, values: AnyArray, mask: Mask) -> None:
        memory, size = self._machine.global_memory, self._size
        shared, own = self._shared(at, mask)
        if shared is None:
            memory.store(at, size, values, mask)
            return
        rest = ~shared if mask is None else mask & ~shared
        if rest.any():
            memory.store(at, size, values, rest)
        indices = self._machine.shared.indices(own, size, shared)
        self._machine.shared.store(indices, size, values, shared)

    def _shared(self, at: AnyArray, mask: Mask) -> tuple[AnyArray | None, AnyArray]:
        """Lanes whose address is in shared memory, None for none of them; addresses there."""
        here = np.ones(self._machine.shape, np.bool_) if mask is None else mask
        if self._space == "shared":
            return here, at
        lanes = here & (at >= np.uint64(FIRST))
        if self._space == "global" or not lanes.any():
            return None, at
        return lanes, at - np.uint64(WINDOWS["shared"])


def _unlike(values: AnyArray, mask: Mask) -> AnyArray:
    """Lanes whose value is another than that of the first one that takes part."""
    first = np.zeros((1, values.shape[1]), np.intp) if mask is None else mask.argmax(axis=0)[None]
    differs: AnyArray = values != np.take_along_axis(values, first, axis=0)
    return differs if mask is None else differs & mask


def load(b: Binder, m: Modifiers) -> Step:
    """``registers, [p]{, stride}``"""
    scalar = _register_type(m["type"])
    destinations = [
        b.destination(each, scalar) for each in _fragment(b, 0, m, m["matrix"], m["type"])
    ]
    memory, machine = _Memory(b, m, 1, m["matrix"], 2), b.machine

    def step(mask: Mask) -> None:
        whole_warps(machine, mask)
        loaded = [np.array(memory.load(at, mask)) for at in memory.places(mask)]
        _fill(destinations, np.stack(loaded), mask)

    return step


def store(b: Binder, m: Modifiers) -> Step:
    """``[p], registers{, stride}``"""
    scalar, dtype = _register_type(m["type"]), _PATTERNS[m["type"]]
    sources = [b.whole(each, scalar) for each in _fragment(b, 1, m, "d", m["type"])]
    memory, machine = _Memory(b, m, 0, "d", 2), b.machine
    unit = unit_dtype(dtype.itemsize)

    def step(mask: Mask) -> None:
        whole_warps(machine, mask)
        elements = _lanes(_matrix(sources, _extents(m, "d", m["type"]), dtype))
        for at, values in zip(memory.places(mask), elements, strict=True):
            memory.store(at, np.ascontiguousarray(values).view(unit), mask)

    return step


def multiply(b: Binder, m: Modifiers) -> Step:
    """``d, a, b, c``: added up as `mma` does, f64 by an fma for each product, in their order."""
    types = {name: m.get(name) or "f16" for name in "abcd"}
    registers = {
        name: [
            b.whole(each, _register_type(types[name]))
            for each in _fragment(b, index, m, name, types[name])
        ]
        for index, name in enumerate("abc", 1)
    }
    destinations = [
        b.destination(each, _register_type(types["d"]))
        for each in _fragment(b, 0, m, "d", types["d"])
    ]
    product, machine = _product(b, m, types), b.machine

    def step(mask: Mask) -> None:
        warps = whole_warps(machine, mask)
        given = []
        for name, held in registers.items():
            taken = held if warps is None else [each.take(warps, axis=1) for each in held]
            dtype = np.dtype(np.float16) if types[name] == "f16" else _PATTERNS[types[name]]
            pattern = _PATTERNS[types[name]] if name in "ab" else dtype
            given.append(_matrix(taken, _extents(m, name, types[name]), pattern))
        result = _lanes(product(*given))
        whole = np.zeros((len(result), *machine.shape), result.dtype)
        whole[..., slice(None) if warps is None else warps] = result
        _fill(destinations, whole, mask)

    return step


def _product(
    b: Binder, m: Modifiers, types: dict[str, str]
) -> Callable[[AnyArray, AnyArray, AnyArray], AnyArray]:
    if types["a"] == "b1":
        return lambda left, right, c: bit_product(left, right, c, m["op"])
    saturates = bool(m.get("satfinite"))
    if types["a"] in ("s4", "u4"):
        return lambda left, right, c: nibble_product(left, right, c, saturates)
    if types["a"] in ("s8", "u8"):
        return lambda left, right, c: integer_product(left, right, c, saturates)
    if types["a"] == "f64":
        mode = m.get("round") or "rn"
        return lambda left, right, c: _double_product(left, right, c, mode)
    dtype = OPERAND_TYPES[types["a"]]
    arithmetic = block(b.arch, dtype)
    if types["a"] == "tf32":
        # Two products of 4 terms, as ptxas makes of it, and not one of 8.
        arithmetic = replace(arithmetic, terms=4)
    into: AnyDType = np.dtype(np.float16 if types["c"] == types["d"] == "f16" else np.float32)
    result: AnyDType = np.dtype(np.float16 if types["d"] == "f16" else np.float32)

    def floats(left: AnyArray, right: AnyArray, c: AnyArray) -> AnyArray:
        found = multiply_accumulate(left, right, c.astype(into), dtype, arithmetic)
        return np.ascontiguousarray(found.astype(result))

    return floats


def _double_product(left: AnyArray, right: AnyArray, c: AnyArray, mode: str) -> AnyArray:
    total = c
    for k in range(left.shape[1]):
        x = np.broadcast_to(left[:, k, None], total.shape)
        total = float64.fma(x, np.broadcast_to(right[k][None], total.shape), total, mode)
    return np.ascontiguousarray(total)
