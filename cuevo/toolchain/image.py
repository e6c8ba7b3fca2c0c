"""Facts about kernels in a cubin: the ELF image that an assembler makes and a driver loads.

The image has the facts whatever assembler made it, nvJitLink or a driver, and whatever its log
looks like. Sections and attributes are those that ``cuobjdump -elf`` prints, lines those that
``nvdisasm -gp`` does.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cuevo.errors import AssemblerError

# In ``.nv.info``: how an attribute that has more than two bytes is stored, and some attributes.
_SIZED_VALUE = 4
_FRAME_SIZE, _STACK_SIZE, _REGISTERS, _BARRIERS = 0x11, 0x12, 0x2F, 0x4C
_ENDLESS = 2**32 - 1
"""Stack of a kernel whose functions call themselves."""
_CALLED, _MAY_BE_CALLED = 2**32 - 1, 2**32 - 4
"""In ``.nv.callgraph``, instead of a function: what follows are pairs of a caller and what it calls
by name, or may call by its address.
"""
_LINES_OF_TEXT = "nv_debug_line_sass"
"""The section that says which line of the PTX text an instruction is from, as DWARF 3 lists lines.
"""
_RESERVED_SHARED = ".nv.reservedSmem.cap"
"""Shared memory of a block that is the system's, counted in a kernel's section from sm_90 on."""


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    link: int


class Image:
    """A little-endian ELF64 image. Raises AssemblerError where it is none."""

    def __init__(self, code: bytes) -> None:
        if code[:6] != b"\x7fELF\x02\x01":
            raise AssemblerError("the assembler's result is no 64-bit ELF image")
        self._code = code
        (table,) = struct.unpack_from("<Q", code, 40)
        entry_size, count, names = struct.unpack_from("<3H", code, 58)
        entries = [
            struct.unpack_from("<IIQQQQII", code, table + index * entry_size)
            for index in range(count)
        ]
        self._sections = [
            _Section(self._string(entries[names][4] + entry[0]), *entry[4:7]) for entry in entries
        ]

    def functions(self, kernel: str) -> tuple[str, ...]:
        """The kernel and the functions that it calls or may call, of those that have code here."""
        found = [kernel]
        for caller in found:
            found += (each for each in self._calls.get(caller, ()) if each not in found)
        return tuple(found)

    def code_size(self, kernel: str) -> int:
        """Bytes of machine code of the kernel and of the functions that it calls."""
        return sum(self._size(rf"\.text\.{re.escape(each)}") for each in self.functions(kernel))

    def registers(self, kernel: str) -> int | None:
        """Registers of a thread; None where there is no such kernel."""
        return self._function_attributes.get((kernel, _REGISTERS))

    def stack(self, kernel: str) -> int:
        """Bytes of local memory of a thread, at the deepest call; functions that call themselves
        count once.
        """
        deepest = self._function_attributes.get((kernel, _STACK_SIZE), _ENDLESS)
        if deepest != _ENDLESS:
            return deepest
        attributes, functions = self._function_attributes, self.functions(kernel)
        return sum(attributes.get((each, _FRAME_SIZE), 0) for each in functions)

    def barriers(self, kernel: str) -> int:
        """Barriers of a block, up to the highest that it uses."""
        info = self._content(f".nv.info.{kernel}")
        return next((value[0] for name, value in _attributes(info) if name == _BARRIERS), 0)

    def static_shared(self, kernel: str) -> int:
        """Bytes of a block's shared memory that the kernel declares."""
        size = self._size(rf"\.nv\.shared\.{re.escape(kernel)}")
        reserved = next((value for name, value in self._symbols if name == _RESERVED_SHARED), 0)
        return max(0, size - reserved)

    def constant(self, kernel: str) -> int:
        """Bytes of the kernel's own constant memory, parameters among them, of all banks."""
        return self._size(rf"\.nv\.constant\d+\.{re.escape(kernel)}")

    def lines(self, kernel: str) -> dict[int, int]:
        """The line of the assembled text that the instructions are from, from an address on; the
        addresses ascend. Empty without line information.
        """
        table = self._content(f".{_LINES_OF_TEXT}")
        functions = {}
        for prefix, entry in ((".rel.", "<QQ"), (".rela.", "<QQ8x")):
            for place, symbol in struct.iter_unpack(
                entry, self._content(f"{prefix}{_LINES_OF_TEXT}")
            ):
                functions[place] = self._symbols[symbol >> 32][0]
        found = {}
        for place, address, line in _line_table(table):
            if functions.get(place) == kernel:
                found[address] = line
        return dict(sorted(found.items()))

    @cached_property
    def _symbols(self) -> list[tuple[str, int]]:
        """Name and value of each symbol."""
        found = []
        for section in self._sections:
            if section.name == ".symtab":
                names = self._sections[section.link].offset
                for name, value in struct.iter_unpack("<I4xQ8x", self._content(".symtab")):
                    found.append((self._string(names + name), value))
        return found

    @cached_property
    def _calls(self) -> dict[str, list[str]]:
        """What each function calls, or may call."""
        code = {each.name.removeprefix(".text.") for each in self._sections}
        found: dict[str, list[str]] = {}
        kind = 0
        for first, second in struct.iter_unpack("<II", self._content(".nv.callgraph")):
            if not first:
                kind = second
            elif kind in (_CALLED, _MAY_BE_CALLED):
                caller, callee = self._symbols[first][0], self._symbols[second][0]
                if callee in code:
                    found.setdefault(caller, []).append(callee)
        return found

    @cached_property
    def _function_attributes(self) -> dict[tuple[str, int], int]:
        """Value of a function for an attribute of the whole image."""
        found = {}
        for name, value in _attributes(self._content(".nv.info")):
            if name in (_FRAME_SIZE, _STACK_SIZE, _REGISTERS):
                symbol, number = struct.unpack("<II", value)
                found[self._symbols[symbol][0], name] = number
        return found

    def _size(self, pattern: str) -> int:
        return sum(each.size for each in self._sections if re.fullmatch(pattern, each.name))

    def _content(self, name: str) -> bytes:
        for each in self._sections:
            if each.name == name:
                return self._code[each.offset : each.offset + each.size]
        return b""

    def _string(self, begin: int) -> str:
        return self._code[begin : self._code.index(b"\0", begin)].decode()


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in a section ``.nv.info``, each with its value."""
    position = 0
    while position < len(info):
        stored, name, size = struct.unpack_from("<BBH", info, position)
        value = info[position + 2 : position + 4]
        position += 4
        if stored == _SIZED_VALUE:
            value = info[position : position + size]
            position += size
        yield name, value


# -- Lists of lines, as DWARF 3 has them (section 6.2) ---------------------------------------------

_SET_ADDRESS = 2
_COPY, _ADVANCE_ADDRESS, _ADVANCE_LINE, _FIXED_ADVANCE, _CONST_ADD = 1, 2, 3, 9, 8


def _line_table(table: bytes) -> Iterator[tuple[int, int, int]]:
    """The rows of a list of lines: where in it the function's address is, address, line."""
    begin = 0
    while begin < len(table):
        length, _, header = struct.unpack_from("<IHI", table, begin)
        step, _, line_base, line_range, first_special = struct.unpack_from(
            "<BBbBB", table, begin + 10
        )
        operands = table[begin + 15 : begin + 15 + first_special - 1]
        position, begin = begin + 10 + header, begin + 4 + length
        place, address, line = 0, 0, 1
        while position < begin:
            code = table[position]
            position += 1
            if code >= first_special:
                advance, more = divmod(code - first_special, line_range)
                address, line = address + step * advance, line + line_base + more
                yield place, address, line
            elif code == 0:
                size, position = _uleb(table, position)
                if table[position] == _SET_ADDRESS:
                    place, address, line = position + 1, 0, 1
                position += size
            elif code == _COPY:
                yield place, address, line
            elif code == _ADVANCE_LINE:
                change, position = _sleb(table, position)
                line += change
            elif code == _ADVANCE_ADDRESS:
                advance, position = _uleb(table, position)
                address += step * advance
            elif code == _FIXED_ADVANCE:
                address += int.from_bytes(table[position : position + 2], "little")
                position += 2
            elif code == _CONST_ADD:
                address += step * ((255 - first_special) // line_range)
            else:
                for _ in range(operands[code - 1]):
                    _, position = _uleb(table, position)


def _uleb(data: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position


def _sleb(data: bytes, position: int) -> tuple[int, int]:
    """The same with a sign."""
    value, behind = _uleb(data, position)
    bits = 7 * (behind - position)
    return value - ((value >> (bits - 1)) << bits), behind
