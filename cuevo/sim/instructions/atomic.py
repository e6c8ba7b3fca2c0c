"""atom and red. Lanes take their turns in the order of blocks, warps, lanes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.arithmetic import float32, halves
from cuevo.sim.instructions import access
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.memory.spaces import FIRST, WINDOWS
from cuevo.sim.text.syntax import Operand
from cuevo.sim.text.types import TYPES, ScalarType

Function = Callable[..., Any]
"""Maps the value found and the operands to the value left; on scalars or arrays."""

_FUNCTIONS: dict[str, Function] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda found, value: value,
    "cas": lambda found, expected, value: value if found == expected else found,
    # Counters that wrap around at the operand.
    "inc": lambda found, last: 0 if found >= last else found + 1,
    "dec": lambda found, last: last if found == 0 or found > last else found - 1,
}


def _halves(name: str, op: str) -> Function:
    """`op` on bit patterns of ``f16`` or ``bf16``: subnormals are kept, NaNs become canonical."""
    functions: dict[str, Function] = {"add": np.add, "min": np.fmin, "max": np.fmax}
    function = functions[op]

    def combine(found: Any, value: Any) -> Any:
        x = halves.widen(np.atleast_1d(found).view(np.uint16), name)
        y = halves.widen(np.atleast_1d(value).view(np.uint16), name)
        if op == "add":
            exact = float32.sum_to_odd(x.astype(np.float64), y.astype(np.float64))
        else:
            exact = function(x, y).astype(np.float64)
        return halves.narrow_exact(exact, name).view(np.atleast_1d(found).dtype)[0]

    return combine


def _swap_bits(found: Any, expected: Any, value: Any) -> Any:
    """cas.b128: what holds 16 bytes compares them as numbers."""
    return value if found.tobytes() == expected.tobytes() else found


def _function(m: Modifiers, scalar: ScalarType) -> Function:
    name = m["type"].removesuffix("x2")
    if (m["op"], name) == ("cas", "b128"):
        return _swap_bits
    return _halves(name, m["op"]) if name in ("f16", "bf16") else _FUNCTIONS[m["op"]]


def combining(op: str, name: str) -> tuple[Callable[[AnyArray, AnyArray], AnyArray], ScalarType]:
    """The function of arrays that `op` on elements of the type `name` is, and their NumPy type."""
    m = {"op": op, "type": name}
    scalar = _operand_type(m)
    function = _function(m, scalar)
    if not isinstance(function, np.ufunc):
        function = np.vectorize(function, otypes=[scalar.dtype])
    return function, scalar


def combine_in_turn(op: str, memory: AnyArray, places: AnyArray, values: AnyArray) -> None:
    """Each of `values` is combined with the integer at its place, one after the other."""
    function = _FUNCTIONS[op]
    if isinstance(function, np.ufunc):
        function.at(memory, places, values)
        return
    for place, value in zip(places, values, strict=True):
        memory[place] = function(memory[place], value)


def _flushing_sum(found: Any, value: Any) -> Any:
    """add.f32 on global memory: subnormals are zeros, also as results."""
    x, y = (np.atleast_1d(np.asarray(each, np.float32)) for each in (found, value))
    total = float32.flushed(x) + float32.flushed(y)
    float32.flush(total)
    return total[0]


def _is_ordinary(x: AnyArray) -> bool:
    """Whether no sum or difference of such numbers can be subnormal."""
    return bool(((np.abs(x) > 2.0**-100) | (x == 0)).all())


def _operand_type(m: Modifiers) -> ScalarType:
    """The type whose bits or numbers are computed with."""
    scalar = TYPES[m["type"]]
    return TYPES[f"b{scalar.bits}"] if m["type"].startswith(("f16", "bf16")) else scalar


def _given(b: Binder, m: Modifiers, operand: Operand) -> AnyArray:
    """A source, of the instruction's own type, as bits or numbers to compute with."""
    return b.whole(operand, TYPES[m["type"]]).view(_operand_type(m).dtype)


def _result(b: Binder, m: Modifiers, operand: Operand) -> AnyArray:
    return b.destination(operand, TYPES[m["type"]]).view(_operand_type(m).dtype)


class _Places:
    """Places that an instruction reads and writes; generic addresses are all in one state space."""

    def __init__(self, b: Binder, m: Modifiers, index: int, size: int) -> None:
        self._space = m["space"].split("::")[0]
        self._of_cluster = m["space"] in ("shared::cluster", "")
        if self._space == "shared":
            self._address = b.address(b.operand(index), ".shared")
        else:
            self._address = access.wide_address(b, index, self._space and ".global")
        self._size, self._machine = size, b.machine

    def update(self, mask: Mask, change: Callable[[AnyArray, AnyArray, Mask], AnyArray]) -> None:
        """Replace what is found: change(places, found, mask) is what is left."""
        addresses = self._address()
        if self._space == "shared":
            self._in_shared(addresses, mask, change)
            return
        there = addresses >= np.uint64(FIRST) if self._space == "" else np.zeros(1, np.bool_)
        there = there if mask is None else there & mask
        if not there.any():
            memory = self._machine.global_memory
            found = memory.load(addresses, self._size, mask)
            memory.store(addresses, self._size, change(addresses, found, mask), mask)
            return
        rest = ~there if mask is None else mask & ~there
        if rest.any():
            memory = self._machine.global_memory
            found = memory.load(addresses, self._size, rest)
            memory.store(addresses, self._size, change(addresses, found, rest), rest)
        self._in_shared(addresses - np.uint64(WINDOWS["shared"]), there, change)

    def _in_shared(
        self,
        addresses: AnyArray,
        mask: Mask,
        change: Callable[[AnyArray, AnyArray, Mask], AnyArray],
    ) -> None:
        shared, size = self._machine.shared, self._size
        if self._of_cluster:
            indices = access.in_cluster(self._machine, addresses, size, mask)
        else:
            indices = shared.indices(addresses, size, mask)
        found = shared.load(indices, size, mask, ordered=True)
        shared.store(indices, size, change(indices, found, mask), mask, ordered=True)


def _update(b: Binder, m: Modifiers, index: int, operands: int, out: AnyArray | None) -> Step:
    """`operands` follow the address, which stands at `index`; `out` gets what each lane found."""
    scalar = _operand_type(m)
    size = scalar.bits // 8
    places = _Places(b, m, index, size)
    given = [_given(b, m, b.operand(index + 1 + i)) for i in range(operands)]
    check_policy = access.policy(b, m, index + 1 + operands)
    function, shape = _function(m, scalar), b.machine.shape
    flushes = m["type"] == "f32" and m["op"] == "add"

    def turns(places: AnyArray, found: AnyArray, mask: Mask) -> AnyArray:
        """The final value for each lane's place; with `out`, what each found goes there."""
        # Transposed: warps before lanes.
        chosen = (np.ones(shape, np.bool_) if mask is None else mask).T
        _, first, group = np.unique(places.T[chosen], return_index=True, return_inverse=True)
        values = [each.T[chosen] for each in given]
        memory = found.view(scalar.dtype).T[chosen][first]
        # Shared memory, whose places are indices and no addresses, keeps subnormals.
        tiny = flushes and places.dtype.kind == "u"
        tiny = tiny and not (_is_ordinary(memory) and _is_ordinary(values[0]))
        combine = _flushing_sum if tiny else function
        if out is None and isinstance(combine, np.ufunc):
            combine.at(memory, group, *values)
        else:
            before = np.empty_like(values[0])
            for i, g in enumerate(group):
                before[i] = memory[g]
                memory[g] = combine(memory[g], *(each[i] for each in values))
            if out is not None:
                out.T[chosen] = before
        final = np.zeros(shape, scalar.dtype)
        final.T[chosen] = memory[group]
        return final.view(unit_dtype(size))

    def step(mask: Mask) -> None:
        check_policy(mask)
        places.update(mask, turns)

    return step


def atom(b: Binder, m: Modifiers) -> Step:
    d = _result(b, m, b.operand(0))
    return _update(b, m, 1, 1, d)


def compare_and_swap(b: Binder, m: Modifiers) -> Step:
    d = _result(b, m, b.operand(0))
    return _update(b, m, 1, 2, d)


def red(b: Binder, m: Modifiers) -> Step:
    return _update(b, m, 0, 1, None)


# -- Vectors --------------------------------------------------------------------------------------


def vector(b: Binder, m: Modifiers) -> Step:
    operands = b.vector(b.operand(0), int(m["vector"][1:]))
    return _elements(b, m, 1, [_result(b, m, operand) for operand in operands])


def red_vector(b: Binder, m: Modifiers) -> Step:
    return _elements(b, m, 0, None)


def _elements(b: Binder, m: Modifiers, index: int, out: list[AnyArray] | None) -> Step:
    """Each element by itself, as the ISA has it; the whole must be aligned."""
    scalar, count = _operand_type(m), int(m["vector"][1:])
    size = scalar.bits // 8 * count
    places, function = _Places(b, m, index, size), _function(m, scalar)
    given = [_given(b, m, each) for each in b.vector(b.operand(index + 1), count)]
    check_policy = access.policy(b, m, index + 2)
    shape = b.machine.shape

    def turns(places: AnyArray, found: AnyArray, mask: Mask) -> AnyArray:
        chosen = (np.ones(shape, np.bool_) if mask is None else mask).T
        _, first, group = np.unique(places.T[chosen], return_index=True, return_inverse=True)
        memory = found.T[chosen][first].view(scalar.dtype).reshape(-1, count).copy()
        before = np.empty((group.size, count), scalar.dtype)
        for i, g in enumerate(group):
            before[i] = memory[g]
            for k, values in enumerate(given):
                memory[g, k] = function(memory[g, k], values.T[chosen][i])
        if out is not None:
            for k, d in enumerate(out):
                d.T[chosen] = before[:, k]
        final = np.zeros(shape, unit_dtype(size))
        final.T[chosen] = memory[group].view(unit_dtype(size))[:, 0]
        return final

    def step(mask: Mask) -> None:
        check_policy(mask)
        places.update(mask, turns)

    return step
