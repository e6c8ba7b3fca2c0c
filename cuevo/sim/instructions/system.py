"""Functions of the system that kernels call: vprintf, __assertfail, and the heap, which there is
none of.
"""

import re
import struct
import sys
from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray
from cuevo.sim.faults import Fault
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.spaces import WINDOWS
from cuevo.sim.text.syntax import CallOperand, SymbolOperand, Variable

Enter = Callable[[AnyArray, int], None]
"""Calls a function, for the lanes that are given, which go on at the counter that is given."""

_MOST_CHARACTERS = 1 << 16
_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+)?)?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaAcsp%])"
)


def function(b: Binder, operand: CallOperand) -> Enter:
    """The function that `operand` names."""
    if operand.function == "vprintf":
        form, arguments = _parameters(b, operand, 2)
        return lambda lanes, back: _print(b.machine, form, arguments, operand, lanes)
    if operand.function == "__assertfail":
        return _assertion(b, _parameters(b, operand, 5))

    def no_heap(lanes: AnyArray, back: int) -> None:
        raise Fault(f"calls {operand.function}; the CPU executor has no heap on the device", lanes)

    return no_heap


def _parameters(b: Binder, operand: CallOperand, count: int) -> list[Variable]:
    found = [each.variable for each in operand.arguments if isinstance(each, SymbolOperand)]
    if len(found) != count or any(each.space != ".local" for each in found):
        raise b.refusal(f"{operand.function} takes {count} .param variables")
    return found


def _assertion(b: Binder, parameters: list[Variable]) -> Enter:
    machine = b.machine

    def fail(lanes: AnyArray, back: int) -> None:
        first = np.zeros_like(lanes)
        first[_first(lanes)] = True
        message, file, line, name, _ = (_value(machine, each, first) for each in parameters)
        texts = [_text(machine, address, first) for address in (message, file, name)]
        raise Fault(f"assertion {texts[0]!r} failed, {texts[1]}:{line}, in {texts[2]}", lanes)

    return fail


def _print(
    machine: Machine, form: Variable, arguments: Variable, operand: CallOperand, lanes: AnyArray
) -> None:
    """Print for one thread after the other; the result is the number of arguments."""
    counts = np.zeros(lanes.shape, np.int32)
    for warp, lane in np.argwhere(lanes.T):
        one = np.zeros_like(lanes)
        one[lane, warp] = True
        reader = _Arguments(machine, _value(machine, arguments, one), one)
        text = _text(machine, _value(machine, form, one), one)
        printed = _CONVERSION.sub(reader.conversion, text)
        if not machine.quiet:
            sys.stdout.write(printed)
        counts[lane, warp] = reader.count
    for result in operand.results:
        if isinstance(result, SymbolOperand):
            place = machine.local.places(result.variable)
            machine.local.store(place, 4, counts.view(np.uint32), lanes)


class _Arguments:
    """Those of one thread, as they lie in memory: integers of 4 or 8 bytes, doubles, pointers, each
    at a multiple of its size.
    """

    def __init__(self, machine: Machine, address: int, lane: AnyArray) -> None:
        self._machine = machine
        self._at = address
        self._lane = lane
        self.count = 0

    def conversion(self, match: re.Match[str]) -> str:
        """What a conversion such as ``%5.2f`` becomes."""
        kind, length = match["kind"], match["length"] or ""
        if kind == "%":
            return "%"
        width, precision = (
            str(self._integer("d", "")) if match[name] == "*" else match[name]
            for name in ("width", "precision")
        )
        form = f"%{match['flags']}{width or ''}"
        form += f".{precision or 0}" if "." in match[0] else ""
        if kind in "eEfFgG":
            return (form + kind) % self._double()
        if kind in "aA":
            return float(self._double()).hex()
        if kind == "c":
            return (form + "s") % chr(self._integer("u", "") & 255)
        if kind == "s":
            return (form + "s") % _text(self._machine, self._integer("u", "ll"), self._lane)
        if kind == "p":
            return (form + "s") % hex(self._integer("u", "ll"))
        if kind in "oxX" and "#" in form and kind == "o":
            return f"0{self._integer('u', length):o}"
        return (form + ("d" if kind in "diu" else kind)) % self._integer(kind, length)

    def _integer(self, kind: str, length: str) -> int:
        size = 8 if length in ("l", "ll", "j", "z", "t") else 4
        return int.from_bytes(self._take(size), "little", signed=kind in "di")

    def _double(self) -> float:
        value: float = struct.unpack("<d", self._take(8))[0]
        return value

    def _take(self, size: int) -> bytes:
        self.count += 1
        at = -(-self._at // size) * size
        self._at = at + size
        return _bytes(self._machine, at, size, self._lane)


def _first(lanes: AnyArray) -> tuple[int, int]:
    warp = int(lanes.any(axis=0).argmax())
    return int(lanes[:, warp].argmax()), warp


def _value(machine: Machine, variable: Variable, lane: AnyArray) -> int:
    """What a parameter of a call is."""
    assert variable.size is not None
    place = machine.local.places(variable)
    return int(machine.local.load(place, variable.size, lane)[lane][0])


def _text(machine: Machine, address: int, lane: AnyArray) -> str:
    """The characters up to the one that is zero."""
    found = bytearray()
    while len(found) < _MOST_CHARACTERS:
        byte = _bytes(machine, address + len(found), 1, lane)
        if byte == b"\0":
            break
        found += byte
    return found.decode(errors="replace")


def _bytes(machine: Machine, address: int, size: int, lane: AnyArray) -> bytes:
    """Memory at a generic address, as one lane sees it."""
    machine.global_memory.watch = None
    for space, begin in WINDOWS.items():
        if 0 <= address - begin < 1 << 32 and space in ("local", "const"):
            at = np.full(lane.shape, address - begin, np.uint64)
            memory = machine.local if space == "local" else machine.constant
            return bytes(memory.load(at, size, lane)[lane].tobytes())
    at = np.full(lane.shape, address, np.uint64)
    return bytes(machine.global_memory.load(at, size, lane)[lane].tobytes())
