"""PTX text to a `Module`: declarations, scopes, labels, instructions with resolved operands.

Only syntax and names are checked here; the meaning of instructions is in
`cuevo.sim.instructions`. A text is first read with its one-line statements remembered from other
kernels (`cuevo.sim.text.statements`); only a text that this refuses is read token by token, so that
the error names the token.
"""

import struct
from typing import TypeGuard

from cuevo.sim.faults import PtxError
from cuevo.sim.text.call_graph import callees_first, check_recursion
from cuevo.sim.text.cursor import float_literal
from cuevo.sim.text.lex import Token, tokens
from cuevo.sim.text.operands import OperandReader
from cuevo.sim.text.statements import condensed, statement
from cuevo.sim.text.syntax import (
    CallOperand,
    Function,
    Instruction,
    LabelOperand,
    Module,
    Operand,
    Register,
    RegisterOperand,
    Subroutine,
    TargetsOperand,
    Variable,
)
from cuevo.sim.text.types import REGISTER_TYPES, TYPES, ScalarType

_MOST_REGISTERS = 2**20
"""Of a function: each costs the host some hundred bytes before the first instruction."""


def parse(text: str, entry: str | None = None) -> Module:
    """Parse a PTX module; of its functions only the `entry` of that name, if one is given, and what
    it calls. Raises `PtxError`, with the line, for what is no PTX or is not supported.
    """
    if "/*" not in text:
        try:
            return parse_tokens(list(condensed(text)), entry)
        except PtxError:
            pass
    # What is wrong, and at which line, is said of single tokens.
    return parse_tokens(tokens(text), entry)


def parse_tokens(stream: list[Token], entry: str | None = None) -> Module:
    """Parse a module of tokens, all of them or `condensed` ones."""
    return _Parser(stream).module(entry)


class AddressError(PtxError):
    """A variable that is initialised with an address."""


class _Parser(OperandReader):
    def __init__(self, stream: list[Token]) -> None:
        super().__init__(stream)
        self._scope_path: tuple[int, ...] = ()
        self._scope_count = 0
        self._module: dict[str, list[Variable]] = {".shared": [], ".const": [], ".global": []}
        # Where the head of a .func is in the text; bodies are read into the entries that call them.
        self._subroutines: dict[str, int] = {}
        self._declared: set[str] = set()
        self._targets: dict[tuple[tuple[int, ...], str], tuple[str, ...]] = {}
        self._subroutine = ""
        self._labels: dict[tuple[tuple[int, ...], str], int] = {}
        self._branches: list[tuple[int, tuple[int, ...]]] = []

    # -- Module -----------------------------------------------------------------------------------

    def module(self, entry: str | None) -> Module:
        module = Module("", "", 0, {})
        entries: list[tuple[str, int, int]] = []
        while self.token.kind != "end":
            token = self.kind("directive")
            match token.text:
                case ".version":
                    module.version = self.take().text
                case ".target":
                    module.target = self.take().text
                    while self.accept(","):
                        self.take()
                case ".address_size":
                    module.address_size = int(self.kind("integer").text)
                case ".file":
                    self._file()
                case ".visible" | ".weak" | ".extern":
                    continue
                case ".entry":
                    # Read last: what it calls may be defined after it.
                    entries.append((self.token.text, token.line, self.position))
                    self._skip_entry()
                case ".func":
                    self._skip_subroutine()
                case ".section":
                    self.kind("directive")
                    self._skip("{", "}")
                case ".shared" | ".const" | ".global":
                    self._module_memory(token.text)
                case other:
                    raise PtxError(
                        token.line, f"the CPU executor does not support {other} at module level"
                    )
        if module.address_size != 64:
            raise PtxError(1, "the CPU executor needs .address_size 64")
        module.entries = tuple(name for name, _, _ in entries)
        for name, line, position in entries:
            if entry in (None, name):
                self.go_to(position)
                module.functions[name] = self._function(line)
        return module

    def _file(self) -> None:
        self.kind("integer")
        self.kind("string")
        while self.accept(","):
            self.take()

    def _function(self, line: int) -> Function:
        function = Function(
            self.kind("word").text,
            line,
            shared=list(self._module[".shared"]),
            constant=list(self._module[".const"]),
            module_memory=list(self._module[".global"]),
        )
        self._labels.clear()
        self._branches.clear()
        self._targets.clear()
        self.open_scope()
        if self.accept("("):
            while not self.accept(")"):
                self.expect(".param")
                variable = self._variable(".param")
                function.parameters[variable.name] = variable
                self.declare(variable.name, variable, variable.line)
                if self.token.text != ")":
                    self.expect(",")
        while self.token.kind == "directive":
            token = self.take()
            match token.text:
                case ".maxntid":
                    function.maximum_threads = self._extent()
                case ".reqntid":
                    function.required_threads = self._extent()
                case ".reqnctapercluster":
                    function.cluster = self._extent()
                case ".explicitcluster":
                    pass
                case ".minnctapersm" | ".maxnctapersm" | ".maxnreg":
                    self.kind("integer")
                case ".pragma":
                    self._pragma()
                case other:
                    raise PtxError(
                        token.line, f"the CPU executor does not support the directive {other}"
                    )
        self.expect("{")
        self._block(function)
        self.close_scope()
        self._read_subroutines(function)
        for index, path in self._branches:
            function.instructions[index] = self._resolve_branch(function.instructions[index], path)
        function.labels = {
            _label_key(path, name): index for (path, name), index in self._labels.items()
        }
        if function.subroutines:
            callees_first(function)
        return function

    def _resolve_branch(self, instruction: Instruction, path: tuple[int, ...]) -> Instruction:
        *others, target = instruction.operands
        assert isinstance(target, LabelOperand)
        if instruction.opcode.startswith("bra"):
            key = self._find_label(target.name, path, instruction.line)
            return instruction._replace(operands=(LabelOperand(key),))
        scope = path
        while (scope, target.name) not in self._targets:
            if not scope:
                raise PtxError(instruction.line, f"there are no .branchtargets {target.name!r}")
            scope = scope[:-1]
        keys = [
            self._find_label(name, scope, instruction.line)
            for name in self._targets[scope, target.name]
        ]
        return instruction._replace(operands=(*others, TargetsOperand(tuple(keys))))

    def _find_label(self, name: str, path: tuple[int, ...], line: int) -> str:
        while (path, name) not in self._labels:
            if not path:
                raise PtxError(line, f"there is no label {name!r} in scope")
            path = path[:-1]
        return _label_key(path, name)

    # -- Device functions -------------------------------------------------------------------------

    def _skip_entry(self) -> None:
        self.kind("word")
        if self.token.text == "(":
            self._skip("(", ")")
        while self.token.text != "{" and self.token.kind != "end":
            self.take()
        self._skip("{", "}")

    def _skip_subroutine(self) -> None:
        """Remember where a ``.func`` begins; what is no more than declared has no body."""
        begin, results = self.position, self.token.text == "("
        if results:
            self._skip("(", ")")
        name = self.kind("word")
        if self.token.text == "(":
            self._skip("(", ")")
        while self.token.text not in ("{", ";"):
            self.kind("directive")
        if self.accept(";"):
            self._declared.add(name.text)
            return
        if name.text in self._subroutines:
            raise PtxError(name.line, f"the function {name.text!r} is there twice")
        self._subroutines[name.text] = begin
        self._skip("{", "}")

    def _skip(self, opening: str, closing: str) -> None:
        if self.token.text != opening:
            self.expect(opening)
        depth = 0
        while True:
            token = self.take()
            depth += (token.text == opening) - (token.text == closing)
            if depth == 0:
                return
            if token.kind == "end":
                raise PtxError(token.line, f"{opening!r} without {closing!r}")

    def _read_subroutines(self, function: Function) -> None:
        """Append the bodies of all functions that are called, directly or not."""
        if not self._subroutines:
            return
        calls: dict[str, set[str]] = {"": set()}
        position, done = self.position, 0
        while True:
            for instruction in function.instructions[done:]:
                for operand in instruction.operands:
                    if isinstance(operand, CallOperand):
                        calls[instruction.subroutine].add(operand.function)
                        check_recursion(calls, operand.function, instruction.line)
            done = len(function.instructions)
            wanted = [n for called in calls.values() for n in called if n not in calls]
            if not wanted:
                break
            if len(calls) == 1:
                # A label at the entry's end is not that of a function's beginning.
                end = self._tokens[position - 1].line
                function.instructions.append(Instruction("ret", (), None, end))
            calls[wanted[0]] = set()
            self.go_to(self._subroutines[wanted[0]])
            self._read_subroutine(function)
        self.go_to(position)
        self._subroutine = ""

    def _read_subroutine(self, function: Function) -> None:
        self._scope_count += 1
        self._scope_path = (self._scope_count,)
        self.open_scope()
        results = self._formals(function)
        name = self.kind("word")
        parameters = self._formals(function)
        while self.token.text != "{":
            self.take()
        self.expect("{")
        self._subroutine = name.text
        begin = len(function.instructions)
        self._block(function)
        end = self._tokens[self.position - 1].line
        function.instructions.append(Instruction("ret", (), None, end, name.text))
        function.subroutines[name.text] = Subroutine(name.text, begin, results, parameters)
        self.close_scope()
        self._scope_path = ()

    def _formals(self, function: Function) -> tuple[Register | Variable, ...]:
        """``(.reg .b32 a, .param .b32 b)``, or nothing."""
        found: list[Register | Variable] = []
        if not self.accept("("):
            return ()
        while not self.accept(")"):
            token = self.take()
            if token.text == ".param":
                variable = self._variable(".local")
                function.local.append(variable)
                self.declare(variable.name, variable, variable.line)
                found.append(variable)
            elif token.text == ".reg":
                scalar = self._register_type()
                found.append(self._register(function, self.kind("word").text, scalar, token.line))
            else:
                raise PtxError(token.line, f"expected '.reg' or '.param', found {token.text!r}")
            if self.token.text != ")":
                self.expect(",")
        return tuple(found)

    def _call(self, function: Function) -> CallOperand:
        """``call (results), f, (arguments)``"""
        results: tuple[Operand, ...] = ()
        if self.accept("("):
            results = self._actuals()
            self.expect(",")
        name = self.kind("word")
        if name.text not in self._subroutines:
            known = name.text in self._declared
            message = f"the function {name.text!r} is declared, and nowhere defined"
            raise PtxError(name.line, message if known else f"there is no function {name.text!r}")
        arguments: tuple[Operand, ...] = ()
        if self.accept(","):
            self.expect("(")
            arguments = self._actuals()
        return CallOperand(name.text, results, arguments)

    def _actuals(self) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self.accept(")"):
            found.append(self.scalar())
            if self.token.text != ")":
                self.expect(",")
        return tuple(found)

    def _extent(self) -> tuple[int, int, int]:
        sizes = [int(self.kind("integer").text)]
        while self.accept(","):
            sizes.append(int(self.kind("integer").text))
        x, y, z = [*sizes, 1, 1][:3]
        return x, y, z

    def _pragma(self) -> None:
        self.kind("string")
        while self.accept(","):
            self.kind("string")
        self.accept(";")

    # -- Declarations -----------------------------------------------------------------------------

    def _variable(self, space: str) -> Variable:
        """After ``.param`` or ``.shared``: ``.align 8 .b8 name[24]``."""
        alignment, element, of_pointee = None, None, False
        while self.token.kind == "directive":
            token = self.take()
            if token.text == ".align":
                stated = int(self.kind("integer").text)
                alignment = alignment if of_pointee else stated
            elif token.text == ".ptr":
                of_pointee = True
            elif of_pointee and token.text in (".global", ".const", ".shared", ".local"):
                pass
            elif token.text[1:] in TYPES and token.text != ".pred":
                element = TYPES[token.text[1:]].bits // 8
            else:
                raise PtxError(token.line, f"cannot declare a variable with {token.text}")
        name = self.kind("word")
        if element is None:
            raise PtxError(name.line, f"the variable {name.text!r} has no type")
        size: int | None = element
        while self.accept("["):
            if self.accept("]"):
                size = None
                break
            assert size is not None
            size *= self.constant()
            self.expect("]")
        content = b""
        if self.accept("="):
            self._find_addresses(name)
            content = self._initializer(element)
        if content and space not in (".const", ".global"):
            raise PtxError(name.line, f"a variable in {space} cannot be initialised")
        if content and size is not None and len(content) > size:
            raise PtxError(name.line, f"{name.text!r} has {size} bytes, its content more")
        return Variable(name.text, space, size, alignment or element, name.line, content)

    def _find_addresses(self, name: Token) -> None:
        """Refuse addresses of functions and variables in what follows."""
        place = self.position
        while self._tokens[place].text != ";" and self._tokens[place].kind != "end":
            if self._tokens[place].kind == "word":
                raise AddressError(
                    name.line,
                    f"{name.text!r} is initialised with the address {self._tokens[place].text}, "
                    "which the CPU executor does not support",
                )
            place += 1

    def _initializer(self, size: int) -> bytes:
        """A number, or numbers in braces, nested or not; `size` bytes each."""
        if self.accept("{"):
            content = self._initializer(size)
            while self.accept(","):
                content += self._initializer(size)
            self.expect("}")
            return content
        if self.token.kind == "float":
            literal = float_literal(self.take())
            if literal.bits is None and size == 4:
                return struct.pack("<f", literal.value)
            return literal.pattern.to_bytes(size, "little")
        mask = (1 << 8 * size) - 1
        return (self.constant() & mask).to_bytes(size, "little")

    def _memory(self, space: str) -> Variable:
        variable = self._variable(space)
        self.declare(variable.name, variable, variable.line)
        self.expect(";")
        return variable

    def _module_memory(self, space: str) -> None:
        begin = self.position
        try:
            self._module[space].append(self._memory(space))
        except AddressError as error:
            self.go_to(begin)
            while self.token.kind == "directive":
                self.take()
                if self.token.kind == "integer":
                    self.take()
            self.refused[self.take().text] = error
            while self.token.kind != "end" and not self.accept(";"):
                self.take()

    def _register_type(self) -> ScalarType:
        token = self.kind("directive")
        if token.text[1:] not in REGISTER_TYPES:
            raise PtxError(token.line, f"there are no registers of type {token.text}")
        return TYPES[token.text[1:]]

    def _register(self, function: Function, name: str, scalar: ScalarType, line: int) -> Register:
        register = Register(name, scalar, len(function.registers))
        function.registers.append(register)
        self.declare(name, RegisterOperand(register), line)
        return register

    def _registers(self, function: Function) -> None:
        scalar = self._register_type()
        while True:
            name = self.kind("word")
            names = [name.text]
            if self.accept("<"):
                count = self.constant()
                if len(function.registers) + count > _MOST_REGISTERS:
                    raise PtxError(
                        name.line,
                        f"{name.text}<{count}>: the CPU executor takes at most "
                        f"{_MOST_REGISTERS:,} registers in a function",
                    )
                names = [f"{name.text}{i}" for i in range(count)]
                self.expect(">")
            for each in names:
                self._register(function, each, scalar, name.line)
            if not self.accept(","):
                break
        self.expect(";")

    # -- Statements -------------------------------------------------------------------------------

    def _block(self, function: Function) -> None:
        """The statements up to the closing brace."""
        while not self.accept("}"):
            token = self.token
            if token.kind == "statement":
                self._statement(function)
            elif token.kind == "location":
                self.take()
            elif token.kind == "directive":
                self._directive(function)
            elif self.accept("{"):
                self._scope_count += 1
                self.open_scope()
                self._scope_path = (*self._scope_path, self._scope_count)
                self._block(function)
                self._scope_path = self._scope_path[:-1]
                self.close_scope()
            elif token.kind == "word" and self.following.text == ":":
                self.take()
                self.take()
                key = (self._scope_path, token.text)
                if key in self._labels:
                    raise PtxError(token.line, f"the label {token.text!r} is there twice")
                if self.accept(".branchtargets"):
                    self._targets[key] = self._names()
                else:
                    self._labels[key] = len(function.instructions)
            elif token.kind == "end":
                raise PtxError(token.line, "the body of the function does not end")
            else:
                self._instruction(function)

    def _directive(self, function: Function) -> None:
        token = self.take()
        match token.text:
            case ".reg":
                self._registers(function)
            case ".shared":
                function.shared.append(self._memory(".shared"))
            case ".local" | ".param":
                function.local.append(self._memory(".local"))
            case ".extern":
                pass
            case ".loc":
                while self.token.kind == "integer":
                    self.take()
            case ".pragma":
                self._pragma()
            case other:
                raise PtxError(
                    token.line, f"the CPU executor does not support the directive {other}"
                )

    def _names(self) -> tuple[str, ...]:
        names = [self.kind("word").text]
        while self.accept(","):
            names.append(self.kind("word").text)
        self.expect(";")
        return tuple(names)

    def _instruction(self, function: Function) -> None:
        guard = self.guard()
        opcode = self.kind("word")
        word = opcode.text.split(".")[0]
        operands: tuple[Operand, ...]
        if word in ("bra", "brx"):
            operands = self._branch(function, word)
        elif word == "call":
            operands = (self._call(function),)
        else:
            operands = self.operands()
        self.end()
        carries = word in ("addc", "subc", "madc") or ".cc." in opcode.text
        if carries and function.carry is None:
            function.carry = Register("CC.CF", TYPES["pred"], len(function.registers))
            function.registers.append(function.carry)
        function.instructions.append(
            Instruction(opcode.text, operands, guard, opcode.line, self._subroutine)
        )

    def _branch(self, function: Function, word: str) -> tuple[Operand, ...]:
        """The operands of ``bra`` and ``brx``; their labels are found in the end."""
        self._branches.append((len(function.instructions), self._scope_path))
        index: tuple[Operand, ...] = ()
        if word == "brx":
            index = (self.scalar(),)
            self.expect(",")
        return (*index, LabelOperand(self.kind("word").text))

    def _statement(self, function: Function) -> None:
        """A line that is one instruction, perhaps known from elsewhere."""
        token = self.take()
        known = statement(token.text)
        assert known is not None
        registers = tuple(map(self.visible.get, known.names))
        if _all_registers(registers):
            pattern = known.pattern(tuple([each.register.type for each in registers]))
            if pattern is not None:
                function.instructions.append(pattern.on(registers, token.line, self._subroutine))
                return
        stream, position = self.change_stream(known.at_line(token.line), 0)
        self._instruction(function)
        self.change_stream(stream, position)


_REGISTER = frozenset((RegisterOperand,))


def _all_registers(
    found: tuple[RegisterOperand | Variable | None, ...],
) -> TypeGuard[tuple[RegisterOperand, ...]]:
    """Whether these meanings of names are nothing but registers."""
    return _REGISTER.issuperset(map(type, found))


def _label_key(path: tuple[int, ...], name: str) -> str:
    return ".".join(map(str, path)) + ":" + name
