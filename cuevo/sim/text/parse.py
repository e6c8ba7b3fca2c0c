"""PTX text to a `Module`: declarations, scopes, labels, instructions with resolved operands.

Only syntax and names are looked at here; what an instruction means is the affair of
`cuevo.sim.instructions`.
"""

import struct
from dataclasses import replace

from cuevo.sim.faults import PtxError
from cuevo.sim.text.call_graph import callees_first, check_recursion
from cuevo.sim.text.cursor import Cursor, float_literal, negated
from cuevo.sim.text.lex import Token, tokens
from cuevo.sim.text.syntax import (
    AddressOperand,
    CallOperand,
    Function,
    Instruction,
    IntegerOperand,
    LabelOperand,
    Module,
    Operand,
    PairOperand,
    Register,
    RegisterOperand,
    ScalarOperand,
    SinkOperand,
    SpecialOperand,
    Subroutine,
    SymbolOperand,
    TargetsOperand,
    Variable,
    VectorOperand,
)
from cuevo.sim.text.types import REGISTER_TYPES, TYPES, ScalarType

SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + ["%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid"]
    + [f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")]
    + ["%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"]
    + ["%dynamic_smem_size", "%total_smem_size", "%cluster_ctarank", "%cluster_nctarank"]
    + [
        f"%{name}.{axis}"
        for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
        for axis in "xyz"
    ]
)
_WARP_SIZE = 32


def parse(text: str) -> Module:
    """Parse a PTX module. Raises `PtxError`, with the line, for what is no PTX or is not
    supported.
    """
    return _Parser(tokens(text)).module()


class _Parser(Cursor):
    def __init__(self, stream: list[Token]) -> None:
        super().__init__(stream)
        # Innermost scope last; the first one is the module's.
        self._scopes: list[dict[str, Register | Variable]] = [{}]
        self._scope_path: tuple[int, ...] = ()
        self._scope_count = 0
        self._module: dict[str, list[Variable]] = {".shared": [], ".const": [], ".global": []}
        # Where the head of a .func is in the text; bodies are read into the entries that call them.
        self._subroutines: dict[str, int] = {}
        self._targets: dict[tuple[tuple[int, ...], str], tuple[str, ...]] = {}
        self._subroutine = ""
        self._labels: dict[tuple[tuple[int, ...], str], int] = {}
        self._branches: list[tuple[int, tuple[int, ...]]] = []
        self._operands: dict[int, RegisterOperand] = {}
        """Operands that are a register of the present function, by slot."""

    # -- Module -----------------------------------------------------------------------------------

    def module(self) -> Module:
        module = Module("", "", 0, {})
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
                    function = self._function(token.line)
                    module.functions[function.name] = function
                case ".func":
                    self._skip_subroutine()
                case ".shared" | ".const" | ".global":
                    self._module[token.text].append(self._memory(token.text))
                case other:
                    raise PtxError(
                        token.line, f"the CPU executor does not know {other} at module level"
                    )
        if module.address_size != 64:
            raise PtxError(1, "the CPU executor needs .address_size 64")
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
        self._operands.clear()
        self._targets.clear()
        self._scopes.append({})
        if self.accept("("):
            while not self.accept(")"):
                self.expect(".param")
                variable = self._variable(".param")
                function.parameters[variable.name] = variable
                self._declare(variable.name, variable, variable.line)
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
                        token.line, f"the CPU executor does not know the directive {other}"
                    )
        self.expect("{")
        self._block(function)
        self._scopes.pop()
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
            return replace(instruction, operands=(LabelOperand(key),))
        scope = path
        while (scope, target.name) not in self._targets:
            if not scope:
                raise PtxError(instruction.line, f"there are no .branchtargets {target.name!r}")
            scope = scope[:-1]
        keys = [
            self._find_label(name, scope, instruction.line)
            for name in self._targets[scope, target.name]
        ]
        return replace(instruction, operands=(*others, TargetsOperand(tuple(keys))))

    def _find_label(self, name: str, path: tuple[int, ...], line: int) -> str:
        while (path, name) not in self._labels:
            if not path:
                raise PtxError(line, f"there is no label {name!r} in scope")
            path = path[:-1]
        return _label_key(path, name)

    # -- Device functions -------------------------------------------------------------------------

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
            return
        if name.text in self._subroutines:
            raise PtxError(name.line, f"the function {name.text!r} is there twice")
        self._subroutines[name.text] = begin
        self._skip("{", "}")

    def _skip(self, opening: str, closing: str) -> None:
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
        self._scopes.append({})
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
        self._scopes.pop()
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
                self._declare(variable.name, variable, variable.line)
                found.append(variable)
            elif token.text == ".reg":
                scalar = self._register_type()
                register = Register(self.kind("word").text, scalar, len(function.registers))
                function.registers.append(register)
                self._declare(register.name, register, token.line)
                found.append(register)
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
            raise PtxError(name.line, f"there is no function {name.text!r} before this call")
        arguments: tuple[Operand, ...] = ()
        if self.accept(","):
            self.expect("(")
            arguments = self._actuals()
        return CallOperand(name.text, results, arguments)

    def _actuals(self) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self.accept(")"):
            found.append(self._scalar())
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

    def _declare(self, name: str, what: Register | Variable, line: int) -> None:
        if name in self._scopes[-1]:
            raise PtxError(line, f"{name!r} is declared twice in one scope")
        self._scopes[-1][name] = what

    def _variable(self, space: str) -> Variable:
        """After ``.param`` or ``.shared``: ``.align 8 .b8 name[24]``."""
        alignment, element = None, None
        while self.token.kind == "directive":
            token = self.take()
            if token.text == ".align":
                alignment = int(self.kind("integer").text)
            elif token.text[1:] in TYPES and token.text != ".pred":
                element = TYPES[token.text[1:]].bits // 8
            elif token.text not in (".ptr", ".global", ".const"):
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
        content = self._initializer(element) if self.accept("=") else b""
        if content and space not in (".const", ".global"):
            raise PtxError(name.line, f"a variable in {space} cannot be initialised")
        if content and size is not None and len(content) > size:
            raise PtxError(name.line, f"{name.text!r} has {size} bytes, its content more")
        return Variable(name.text, space, size, alignment or element, name.line, content)

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
        self._declare(variable.name, variable, variable.line)
        self.expect(";")
        return variable

    def _register_type(self) -> ScalarType:
        token = self.kind("directive")
        if token.text[1:] not in REGISTER_TYPES:
            raise PtxError(token.line, f"there are no registers of type {token.text}")
        return TYPES[token.text[1:]]

    def _registers(self, function: Function) -> None:
        scalar = self._register_type()
        while True:
            name = self.kind("word")
            names = [name.text]
            if self.accept("<"):
                names = [f"{name.text}{i}" for i in range(self.constant())]
                self.expect(">")
            for each in names:
                register = Register(each, scalar, len(function.registers))
                function.registers.append(register)
                self._declare(each, register, name.line)
            if not self.accept(","):
                break
        self.expect(";")

    # -- Statements -------------------------------------------------------------------------------

    def _block(self, function: Function) -> None:
        """The statements up to the closing brace."""
        while not self.accept("}"):
            token = self.token
            if token.kind == "location":
                self.take()
            elif token.kind == "directive":
                self._directive(function)
            elif self.accept("{"):
                self._scope_count += 1
                self._scopes.append({})
                self._scope_path = (*self._scope_path, self._scope_count)
                self._block(function)
                self._scope_path = self._scope_path[:-1]
                self._scopes.pop()
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
                raise PtxError(token.line, f"the CPU executor does not know the directive {other}")

    def _names(self) -> tuple[str, ...]:
        names = [self.kind("word").text]
        while self.accept(","):
            names.append(self.kind("word").text)
        self.expect(";")
        return tuple(names)

    def _instruction(self, function: Function) -> None:
        guard = None
        if self.accept("@"):
            negated = self.accept("!")
            guard = self._predicate(self.kind("word"), negated)
        opcode = self.kind("word")
        operands: list[Operand] = []
        word = opcode.text.split(".")[0]
        if word in ("bra", "brx"):
            if word == "brx":
                operands.append(self._scalar())
                self.expect(",")
            operands.append(LabelOperand(self.kind("word").text))
            self._branches.append((len(function.instructions), self._scope_path))
        elif word == "call":
            operands.append(self._call(function))
        elif self.token.text != ";":
            operands.append(self._operand())
            while self.accept(","):
                operands.append(self._operand())
        end = self.take()
        if end.text != ";":
            raise PtxError(end.line, f"expected ',' or ';' after an operand, found {end.text!r}")
        carries = word in ("addc", "subc", "madc") or ".cc." in opcode.text
        if carries and function.carry is None:
            function.carry = Register("CC.CF", TYPES["pred"], len(function.registers))
            function.registers.append(function.carry)
        function.instructions.append(
            Instruction(opcode.text, tuple(operands), guard, opcode.line, self._subroutine)
        )

    # -- Operands ---------------------------------------------------------------------------------

    def _lookup(self, token: Token) -> Register | Variable:
        for scope in reversed(self._scopes):
            if token.text in scope:
                return scope[token.text]
        raise PtxError(token.line, f"unknown symbol {token.text!r}")

    def _predicate(self, token: Token, negated: bool) -> RegisterOperand:
        register = self._lookup(token)
        if not isinstance(register, Register) or register.type.kind != "p":
            raise PtxError(token.line, f"{token.text!r} is no predicate")
        return RegisterOperand(register, negated)

    def _register_operand(self, register: Register) -> RegisterOperand:
        operand = self._operands.get(register.slot)
        if operand is None:
            operand = self._operands[register.slot] = RegisterOperand(register)
        return operand

    def _operand(self) -> Operand:
        if self.accept("["):
            return self._address()
        if self.accept("{"):
            return VectorOperand(self._elements())
        first = self._scalar()
        if isinstance(first, RegisterOperand | SinkOperand) and self.accept("|"):
            second = self._scalar()
            if not isinstance(second, RegisterOperand | SinkOperand):
                raise PtxError(self.token.line, "the second destination after '|' is no register")
            return PairOperand(first, second)
        return first

    def _scalar(self) -> ScalarOperand:
        token = self.token
        if token.kind == "word":
            self.take()
            if token.text == "_":
                return SinkOperand()
            if token.text in SPECIAL_REGISTERS:
                return SpecialOperand(token.text)
            if token.text == "WARP_SZ":
                return IntegerOperand(_WARP_SIZE)
            found = self._lookup(token)
            if isinstance(found, Register):
                return self._register_operand(found)
            return SymbolOperand(found, self._offset())
        if self.accept("!"):
            return self._predicate(self.kind("word"), True)
        negative = token.text == "-" and self.following.kind == "float"
        if negative or token.kind == "float":
            if negative:
                self.take()
            literal = float_literal(self.take())
            return literal if not negative else negated(literal)
        return IntegerOperand(self.constant())

    def _offset(self) -> int:
        """``+ constant`` or ``- constant`` or nothing."""
        offset = 0
        while self.token.text in ("+", "-"):
            sign = -1 if self.take().text == "-" else 1
            offset += sign * self.product()
        return offset

    def _address(self) -> AddressOperand:
        base: RegisterOperand | SymbolOperand | None = None
        if self.token.kind == "word":
            token = self.take()
            found = self._lookup(token)
            if isinstance(found, Register):
                base = self._register_operand(found)
            else:
                base = SymbolOperand(found)
            offset = self._offset()
        else:
            offset = self.constant()
        coordinates: tuple[ScalarOperand, ...] = ()
        if self.accept(","):
            self.expect("{")
            coordinates = self._elements()
        self.expect("]")
        return AddressOperand(base, offset, coordinates)

    def _elements(self) -> tuple[ScalarOperand, ...]:
        """What stands between braces, the opening one read."""
        elements = [self._scalar()]
        while self.accept(","):
            elements.append(self._scalar())
        self.expect("}")
        return tuple(elements)


def _label_key(path: tuple[int, ...], name: str) -> str:
    return ".".join(map(str, path)) + ":" + name
