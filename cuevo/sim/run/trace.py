"""What threads do while a kernel runs, told as it happens, for those who look for a mistake."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import KernelText, first_thread, place
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.global_memory import GlobalMemory
from cuevo.sim.run.program import Program
from cuevo.sim.text.syntax import Register

_PLACE = re.compile(r"(?:(?P<file>.+):)?(?P<line>\d+)")
_ELEMENT = re.compile(r"(?P<name>\w+)\[(?P<index>\d+(?: *, *\d+)*)\]")
_MEMORY = re.compile(r"(?P<space>shared|global):(?P<at>\w+)(?::(?P<size>\d+))?")
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Trace:
    """What to tell of a kernel, one line of text each time, to `write`.

    >>> Trace(lines=("softmax.ptx:41",), watch=("sum", "shared:256:16"), thread=(5, 0, 0))
    ... # doctest: +ELLIPSIS
    Trace(...)
    """

    lines: tuple[str, ...] = ()
    """Source lines, ``file:line``, of which the end of the file's path is enough, or ``line`` of
    the text: registers that the instructions there read and write, of one thread, those of macros
    and inlined functions that are called there, too.
    """
    watch: tuple[str, ...] = ()
    """Names of registers: what is written to them, of one thread. Memory: accesses of any threads
    to ``shared:offset:bytes`` of the block, ``global:address:bytes`` (4 bytes where nothing is
    said), or an element of an array of a parameter, ``k[0, 2, 5]``; of asynchronous units only
    those to shared memory.
    """
    block: Triple = (0, 0, 0)
    """The block that it is about."""
    thread: Triple = (0, 0, 0)
    kernel: str = ""
    """The entry that it is about; any if empty."""
    write: Callable[[str], object] = field(default=print, compare=False)
    most: int = 10_000
    """Lines told of a launch."""

    def __post_init__(self) -> None:
        for line in self.lines:
            if not _PLACE.fullmatch(line):
                raise ValueError(
                    f"a line to trace is file:line, such as softmax.ptx:41; not {line}"
                )
        for each in self.watch:
            if ":" in each:
                _range(each)
            elif "[" in each and not _ELEMENT.fullmatch(each):
                raise ValueError(f"an element to watch is such as k[0, 2, 5]; not {each}")


def _range(watched: str) -> tuple[str, int, int]:
    """Space, first byte and number of bytes of ``shared:offset:bytes``."""
    match = _MEMORY.fullmatch(watched)
    try:
        if match is not None:
            return match["space"], int(match["at"], 0), int(match["size"] or 4)
    except ValueError:
        pass
    raise ValueError(
        "what is watched is a register, an element such as k[0, 2, 5], shared:offset:bytes or "
        f"global:address:bytes; not {watched}"
    )


class Tracer:
    """Tells what a `trace` asks for of one kernel. Raises ValueError for lines and registers that
    the kernel does not have.
    """

    def __init__(self, trace: Trace, program: Program, kernel: KernelText) -> None:
        self._trace, self._program, self._kernel = trace, program, kernel
        self._told = 0
        operations = program.operations
        places = [place(kernel, each.instruction.line) for each in operations]
        text = kernel.text.splitlines()
        self._at = [
            f"{where}: {text[each.instruction.line - 1].strip()}"
            for where, each in zip(places, operations, strict=True)
        ]
        self._lines: set[int] = set()
        for line in trace.lines:
            found = {
                index
                for index, (where, each) in enumerate(zip(places, operations, strict=True))
                if _is_at(line, where, each.instruction.line, kernel)
            }
            if not found:
                message = f"no instruction of {kernel.name} is at {line}{_near(line, places)}"
                raise ValueError(message)
            self._lines |= found
        names = {each for each in trace.watch if not re.search(r"[:\[]", each)}
        registers = program.function.registers
        if missing := names - {each.name for each in registers}:
            raise ValueError(f"{kernel.name} has no register {min(missing)}")
        self._watched = sum(1 << each.slot for each in registers if each.name in names)
        ranges = [_range(each) for each in trace.watch if ":" in each]
        self._shared = [each for space, *each in ranges if space == "shared"]
        self._elements = [each for each in map(_ELEMENT.fullmatch, trace.watch) if each is not None]
        self._addresses = [each for space, *each in ranges if space == "global"]
        self._global = list(self._addresses)

    def observed(self, index: int, step: Step, machine: Machine) -> Step:
        """The instruction, made to tell."""
        operation = self._program.operations[index]
        written = operation.writes & self._watched
        if index in self._lines:
            step = self._telling(index, step, machine, operation.reads, operation.writes)
        elif written:
            step = self._telling(index, step, machine, 0, written)
        watches = self._shared or self._addresses or self._elements
        return self._watching(index, step, machine) if watches else step

    # -- Registers --------------------------------------------------------------------------------

    def _telling(self, index: int, step: Step, machine: Machine, reads: int, writes: int) -> Step:
        registers = self._program.function.registers
        read = [each for each in registers if reads >> each.slot & 1]
        wrote = [each for each in registers if writes >> each.slot & 1]

        def telling(mask: Mask) -> None:
            at = self._thread(machine)
            if at is None or not (machine.alive if mask is None else mask)[at]:
                step(mask)
                return
            before = [_value(machine, each, at) for each in read]
            step(mask)
            after = [_value(machine, each, at) for each in wrote]
            told = ", ".join(before) + (" -> " if before and after else "") + ", ".join(after)
            self._tell(index, told)

        return telling

    def _thread(self, machine: Machine) -> tuple[int, int] | None:
        """Lane and warp of the thread to tell of; None if it is not in this chunk of blocks."""
        found = np.ones(machine.shape, np.bool_)
        for name, wanted in (("%ctaid", self._trace.block), ("%tid", self._trace.thread)):
            for axis, coordinate in zip("xyz", wanted, strict=True):
                found &= machine.special[f"{name}.{axis}"] == coordinate
        return first_thread(found) if found.any() else None

    # -- Memory -----------------------------------------------------------------------------------

    def _watching(self, index: int, step: Step, machine: Machine) -> Step:
        opcode = self._program.operations[index].opcode
        does = {"st": "writes", "ld": "reads", "cp": "reads"}.get(opcode.split(".")[0], "touches")

        def shared(
            did: str, indices: AnyArray, size: int, mask: Mask, warps: AnyArray | None
        ) -> None:
            blocks, offsets = np.divmod(indices * size, machine.shared.stride)
            own = self._block(machine)
            verb = "writes" if did == "wrote" else "reads"
            for begin, count in self._shared:
                touched = (offsets < begin + count) & (offsets + size > begin) & (blocks == own)
                if warps is None:
                    lanes = touched if mask is None else touched & mask
                else:
                    lanes = np.zeros(machine.shape, np.bool_)
                    lanes[0, warps[touched]] = True
                    verb = f"asynchronously {verb}"
                if lanes.any():
                    at = offsets[touched][0] if warps is not None else offsets[first_thread(lanes)]
                    self._access(
                        machine, index, f"{verb} {size} bytes at shared offset {at}", lanes
                    )

        def memory(addresses: AnyArray, size: int, mask: Mask) -> None:
            for begin, count in self._global:
                low, high = np.uint64(max(begin - size + 1, 0)), np.uint64(begin + count)
                lanes = (addresses >= low) & (addresses < high)
                lanes &= machine.alive if mask is None else mask
                if lanes.any():
                    at = int(addresses[first_thread(lanes)])
                    what = machine.global_memory.element(at) or f"{at:#x}"
                    self._access(machine, index, f"{does} {size} bytes at {what}", lanes)

        def watching(mask: Mask) -> None:
            counting, times = machine.global_memory.watch, 0

            def both(addresses: AnyArray, size: int, mask: Mask) -> None:
                nonlocal times
                if counting is not None:
                    counting(addresses, size, mask)
                # Atomics come by again, to write.
                if does != "touches" or times == 0:
                    memory(addresses, size, mask)
                times += 1

            machine.shared.observe, machine.global_memory.watch = shared, both
            try:
                step(mask)
            finally:
                machine.shared.observe, machine.global_memory.watch = None, counting

        return watching

    def _block(self, machine: Machine) -> int:
        """The block to tell of, counted from the chunk's first; -1 if it is not in this chunk."""
        axes = zip("xyz", self._trace.block, strict=True)
        wanted = [machine.special[f"%ctaid.{axis}"] == each for axis, each in axes]
        warps = np.broadcast_to(np.logical_and.reduce(wanted), machine.shape).any(axis=0)
        return int(machine.block_of_warp[warps.argmax()]) if warps.any() else -1

    def _access(self, machine: Machine, index: int, what: str, lanes: AnyArray) -> None:
        more = int(np.count_nonzero(lanes)) - 1
        others = f" and {more} more" if more else ""
        self._tell(index, f"{what}, by {machine.thread_name(lanes)}{others}")

    def _tell(self, index: int, what: str) -> None:
        self._told += 1
        if self._told <= self._trace.most:
            self._trace.write(f"{self._at[index]}  {what}")
        elif self._told == self._trace.most + 1:
            self._trace.write(f"nothing is told any more, after {self._trace.most} lines")

    def begin(self, memory: GlobalMemory) -> None:
        """Another launch, with that memory. Raises ValueError where an array to watch is not of
        it.
        """
        self._told = 0
        self._global = list(self._addresses)
        for each in self._elements:
            found = memory.find(each["name"], [int(i) for i in each["index"].split(",")])
            if found is None:
                raise ValueError(f"the launch has no array with an element {each[0]}")
            self._global.append([*found])


def _is_at(wanted: str, where: str, line: int, kernel: KernelText) -> bool:
    """Whether an instruction is at that place, or in a macro or function that is called there."""
    if ":" not in wanted:
        return int(wanted) == line
    calls = (f"{each.file}:{each.line}" for each in kernel.callers(line))
    return any(each == wanted or each.endswith(f"/{wanted}") for each in (where, *calls))


def _near(wanted: str, places: list[str]) -> str:
    """The nearest lines of that file, in words; "" if there are none."""
    file, _, line = wanted.rpartition(":")
    lines = {int(each.rpartition(":")[2]) for each in places if f"/{each}".find(f"/{file}:") >= 0}
    near = sorted(sorted(lines, key=lambda each: abs(each - int(line)))[:2])
    return f"; the nearest are at {' and '.join(map(str, near))}" if near and file else ""


def _value(machine: Machine, register: Register, at: tuple[int, int]) -> str:
    """``name = bits``, and what these are as a number; true or false for a predicate."""
    value, kind = machine.register(register)[at], register.type
    if kind.bits == 1:
        return f"{register.name} = {'true' if value else 'false'}"
    shown = f"{register.name} = 0x{value.tobytes()[::-1].hex().lstrip('0') or '0'}"
    if kind.kind == "f":
        return f"{shown} ({value.view(kind.dtype)})"
    if kind.bits == 32:
        number = float(value.view(np.float32))
        return f"{shown} ({value}, or {number:.7g})" if _is_usual(number) else f"{shown} ({value})"
    return f"{shown} ({value})" if kind.bits < 128 else shown


def _is_usual(number: float) -> bool:
    """Whether bits that may be a number's or an integer's are likely to be this one."""
    return not np.isfinite(number) or 1e-20 < abs(number) < 1e20
