"""PTX text to a `Module`: declarations, scopes, labels, instructions with resolved operands.

Only syntax and names are looked at here; what an instruction means is the affair of
`cuevo.sim.instructions`.
"""

import operator
import struct
from collections.abc import Callable
from dataclasses import replace

from cuevo.sim.faults import PtxError
from cuevo.sim.lex import Token, tokens
from cuevo.sim.syntax import (
    AddressOperand,
    CallOperand,
    FloatOperand,
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
from cuevo.sim.types import REGISTER_TYPES, TYPES, ScalarType

SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + ["%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid"]
    + [f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")]
    + ["%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"]
    + ["%dynamic_smem_size", "%total_smem_size"]
)
_WARP_SIZE = 32

# Binary operators of constant expressions, loosest first.
_PRECEDENCE: list[dict[str, Callable[[int, int], int]]] = [
    {"^": operator.xor},
    {"&": operator.and_},
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {
        "*": operator.mul,
        "/": lambda a, b: int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1),
        "%": lambda a, b: a - b * (int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)),
    },
]


def parse(text: str) -> Module:
    """Parse a PTX module. Raises `PtxError`, with the line, for what is no PTX or is not
    supported.
    """
    return _Parser(tokens(text)).module()


class _Parser:
    def __init__(self, stream: list[Token]) -> None:
        self._tokens = stream
        self._next = 0
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

    # -- Tokens -----------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _accept(self, text: str) -> bool:
        if self._token.text == text and self._token.kind != "string":
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        token = self._take()
        if token.text != text:
            raise PtxError(token.line, f"expected {text!r}, found {token.text!r}")
        return token

    def _kind(self, kind: str) -> Token:
        token = self._take()
        if token.kind != kind:
            raise PtxError(token.line, f"expected a {kind}, found {token.text!r}")
        return token

    # -- Module -----------------------------------------------------------------------------------

    def module(self) -> Module:
        module = Module("", "", 0, {})
        while self._token.kind != "end":
            token = self._kind("directive")
            match token.text:
                case ".version":
                    module.version = self._take().text
                case ".target":
                    module.target = self._take().text
                    while self._accept(","):
                        self._take()
                case ".address_size":
                    module.address_size = int(self._kind("integer").text)
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
        self._kind("integer")
        self._kind("string")
        while self._accept(","):
            self._take()

    def _function(self, line: int) -> Function:
        function = Function(
            self._kind("word").text,
            line,
            shared=list(self._module[".shared"]),
            constant=list(self._module[".const"]),
            module_memory=list(self._module[".global"]),
        )
        self._labels.clear()
        self._branches.clear()
        self._targets.clear()
        self._scopes.append({})
        if self._accept("("):
            while not self._accept(")"):
                self._expect(".param")
                variable = self._variable(".param")
                function.parameters[variable.name] = variable
                self._declare(variable.name, variable, variable.line)
                if self._token.text != ")":
                    self._expect(",")
        while self._token.kind == "directive":
            token = self._take()
            match token.text:
                case ".maxntid":
                    function.maximum_threads = self._extent()
                case ".reqntid":
                    function.required_threads = self._extent()
                case ".minnctapersm" | ".maxnctapersm" | ".maxnreg":
                    self._kind("integer")
                case ".pragma":
                    self._pragma()
                case other:
                    raise PtxError(
                        token.line, f"the CPU executor does not know the directive {other}"
                    )
        self._expect("{")
        self._block(function)
        self._scopes.pop()
        self._read_subroutines(function)
        for index, path in self._branches:
            function.instructions[index] = self._resolve_branch(function.instructions[index], path)
        function.labels = {
            _label_key(path, name): index for (path, name), index in self._labels.items()
        }
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
        begin, results = self._next, self._token.text == "("
        if results:
            self._skip("(", ")")
        name = self._kind("word")
        if self._token.text == "(":
            self._skip("(", ")")
        while self._token.text not in ("{", ";"):
            self._kind("directive")
        if self._accept(";"):
            return
        if name.text in self._subroutines:
            raise PtxError(name.line, f"the function {name.text!r} is there twice")
        self._subroutines[name.text] = begin
        self._skip("{", "}")

    def _skip(self, opening: str, closing: str) -> None:
        depth = 0
        while True:
            token = self._take()
            depth += (token.text == opening) - (token.text == closing)
            if depth == 0:
                return
            if token.kind == "end":
                raise PtxError(token.line, f"{opening!r} without {closing!r}")

    def _read_subroutines(self, function: Function) -> None:
        """Append the bodies of all functions that are called, directly or not."""
        calls: dict[str, set[str]] = {"": set()}
        position, done = self._next, 0
        while True:
            for instruction in function.instructions[done:]:
                for operand in instruction.operands:
                    if isinstance(operand, CallOperand):
                        calls[instruction.subroutine].add(operand.function)
                        self._check_recursion(calls, operand.function, instruction.line)
            done = len(function.instructions)
            wanted = [n for called in calls.values() for n in called if n not in calls]
            if not wanted:
                break
            if len(calls) == 1:
                # The entry ends here, and does not run on into a function.
                end = self._tokens[position - 1].line
                function.instructions.append(Instruction("ret", (), None, end))
            calls[wanted[0]] = set()
            self._next = self._subroutines[wanted[0]]
            self._read_subroutine(function)
        self._next, self._subroutine = position, ""

    @staticmethod
    def _check_recursion(calls: dict[str, set[str]], name: str, line: int) -> None:
        reached, work = set(), [name]
        while work:
            for each in calls.get(work.pop(), ()):
                if each == name:
                    raise PtxError(line, f"{name} calls itself; the CPU executor has no recursion")
                if each not in reached:
                    reached.add(each)
                    work.append(each)

    def _read_subroutine(self, function: Function) -> None:
        self._scope_count += 1
        self._scope_path = (self._scope_count,)
        self._scopes.append({})
        results = self._formals(function)
        name = self._kind("word")
        parameters = self._formals(function)
        while self._token.text != "{":
            self._take()
        self._expect("{")
        self._subroutine = name.text
        begin = len(function.instructions)
        self._block(function)
        end = self._tokens[self._next - 1].line
        function.instructions.append(Instruction("ret", (), None, end, name.text))
        function.subroutines[name.text] = Subroutine(name.text, begin, results, parameters)
        self._scopes.pop()
        self._scope_path = ()

    def _formals(self, function: Function) -> tuple[Register | Variable, ...]:
        """``(.reg .b32 a, .param .b32 b)``, or nothing."""
        found: list[Register | Variable] = []
        if not self._accept("("):
            return ()
        while not self._accept(")"):
            token = self._take()
            if token.text == ".param":
                variable = self._variable(".local")
                function.local.append(variable)
                self._declare(variable.name, variable, variable.line)
                found.append(variable)
            elif token.text == ".reg":
                scalar = self._register_type()
                register = Register(self._kind("word").text, scalar, len(function.registers))
                function.registers.append(register)
                self._declare(register.name, register, token.line)
                found.append(register)
            else:
                raise PtxError(token.line, f"expected '.reg' or '.param', found {token.text!r}")
            if self._token.text != ")":
                self._expect(",")
        return tuple(found)

    def _call(self, function: Function) -> CallOperand:
        """``call (results), f, (arguments)``"""
        results: tuple[Operand, ...] = ()
        if self._accept("("):
            results = self._actuals()
            self._expect(",")
        name = self._kind("word")
        if name.text not in self._subroutines:
            raise PtxError(name.line, f"there is no function {name.text!r} before this call")
        arguments: tuple[Operand, ...] = ()
        if self._accept(","):
            self._expect("(")
            arguments = self._actuals()
        return CallOperand(name.text, results, arguments)

    def _actuals(self) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self._accept(")"):
            found.append(self._scalar())
            if self._token.text != ")":
                self._expect(",")
        return tuple(found)

    def _extent(self) -> tuple[int, int, int]:
        sizes = [int(self._kind("integer").text)]
        while self._accept(","):
            sizes.append(int(self._kind("integer").text))
        x, y, z = [*sizes, 1, 1][:3]
        return x, y, z

    def _pragma(self) -> None:
        self._kind("string")
        while self._accept(","):
            self._kind("string")
        self._accept(";")

    # -- Declarations -----------------------------------------------------------------------------

    def _declare(self, name: str, what: Register | Variable, line: int) -> None:
        if name in self._scopes[-1]:
            raise PtxError(line, f"{name!r} is declared twice in one scope")
        self._scopes[-1][name] = what

    def _variable(self, space: str) -> Variable:
        """After ``.param`` or ``.shared``: ``.align 8 .b8 name[24]``."""
        alignment, element = None, None
        while self._token.kind == "directive":
            token = self._take()
            if token.text == ".align":
                alignment = int(self._kind("integer").text)
            elif token.text[1:] in TYPES and token.text != ".pred":
                element = TYPES[token.text[1:]].bits // 8
            elif token.text not in (".ptr", ".global", ".const"):
                raise PtxError(token.line, f"cannot declare a variable with {token.text}")
        name = self._kind("word")
        if element is None:
            raise PtxError(name.line, f"the variable {name.text!r} has no type")
        size: int | None = element
        while self._accept("["):
            if self._accept("]"):
                size = None
                break
            assert size is not None
            size *= self._constant()
            self._expect("]")
        content = self._initializer(element) if self._accept("=") else b""
        if content and space not in (".const", ".global"):
            raise PtxError(name.line, f"a variable in {space} cannot be initialised")
        if content and size is not None and len(content) > size:
            raise PtxError(name.line, f"{name.text!r} has {size} bytes, its content more")
        return Variable(name.text, space, size, alignment or element, name.line, content)

    def _initializer(self, size: int) -> bytes:
        """A number, or numbers in braces, nested or not; `size` bytes each."""
        if self._accept("{"):
            content = self._initializer(size)
            while self._accept(","):
                content += self._initializer(size)
            self._expect("}")
            return content
        if self._token.kind == "float":
            literal = _float_literal(self._take())
            if literal.bits is None and size == 4:
                return struct.pack("<f", literal.value)
            return literal.pattern.to_bytes(size, "little")
        mask = (1 << 8 * size) - 1
        return (self._constant() & mask).to_bytes(size, "little")

    def _memory(self, space: str) -> Variable:
        variable = self._variable(space)
        self._declare(variable.name, variable, variable.line)
        self._expect(";")
        return variable

    def _register_type(self) -> ScalarType:
        token = self._kind("directive")
        if token.text[1:] not in REGISTER_TYPES:
            raise PtxError(token.line, f"there are no registers of type {token.text}")
        return TYPES[token.text[1:]]

    def _registers(self, function: Function) -> None:
        scalar = self._register_type()
        while True:
            name = self._kind("word")
            names = [name.text]
            if self._accept("<"):
                names = [f"{name.text}{i}" for i in range(self._constant())]
                self._expect(">")
            for each in names:
                register = Register(each, scalar, len(function.registers))
                function.registers.append(register)
                self._declare(each, register, name.line)
            if not self._accept(","):
                break
        self._expect(";")

    # -- Statements -------------------------------------------------------------------------------

    def _block(self, function: Function) -> None:
        """The statements up to the closing brace."""
        while not self._accept("}"):
            token = self._token
            if token.kind == "directive":
                self._directive(function)
            elif self._accept("{"):
                self._scope_count += 1
                self._scopes.append({})
                self._scope_path = (*self._scope_path, self._scope_count)
                self._block(function)
                self._scope_path = self._scope_path[:-1]
                self._scopes.pop()
            elif token.kind == "word" and self._tokens[self._next + 1].text == ":":
                self._next += 2
                key = (self._scope_path, token.text)
                if key in self._labels:
                    raise PtxError(token.line, f"the label {token.text!r} is there twice")
                if self._accept(".branchtargets"):
                    self._targets[key] = self._names()
                else:
                    self._labels[key] = len(function.instructions)
            elif token.kind == "end":
                raise PtxError(token.line, "the body of the function does not end")
            else:
                self._instruction(function)

    def _directive(self, function: Function) -> None:
        token = self._take()
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
                while self._token.kind == "integer":
                    self._take()
            case ".pragma":
                self._pragma()
            case other:
                raise PtxError(token.line, f"the CPU executor does not know the directive {other}")

    def _names(self) -> tuple[str, ...]:
        names = [self._kind("word").text]
        while self._accept(","):
            names.append(self._kind("word").text)
        self._expect(";")
        return tuple(names)

    def _instruction(self, function: Function) -> None:
        guard = None
        if self._accept("@"):
            negated = self._accept("!")
            guard = self._predicate(self._kind("word"), negated)
        opcode = self._kind("word")
        operands: list[Operand] = []
        word = opcode.text.split(".")[0]
        if word in ("bra", "brx"):
            if word == "brx":
                operands.append(self._scalar())
                self._expect(",")
            operands.append(LabelOperand(self._kind("word").text))
            self._branches.append((len(function.instructions), self._scope_path))
        elif word == "call":
            operands.append(self._call(function))
        elif self._token.text != ";":
            operands.append(self._operand())
            while self._accept(","):
                operands.append(self._operand())
        end = self._take()
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

    def _operand(self) -> Operand:
        if self._accept("["):
            return self._address()
        if self._accept("{"):
            elements = [self._scalar()]
            while self._accept(","):
                elements.append(self._scalar())
            self._expect("}")
            return VectorOperand(tuple(elements))
        first = self._scalar()
        if isinstance(first, RegisterOperand | SinkOperand) and self._accept("|"):
            second = self._scalar()
            if not isinstance(second, RegisterOperand | SinkOperand):
                raise PtxError(self._token.line, "the second destination after '|' is no register")
            return PairOperand(first, second)
        return first

    def _scalar(self) -> ScalarOperand:
        token = self._token
        if self._accept("!"):
            return self._predicate(self._kind("word"), True)
        if self._accept("_"):
            return SinkOperand()
        if token.kind == "word":
            self._take()
            if token.text in SPECIAL_REGISTERS:
                return SpecialOperand(token.text)
            if token.text == "WARP_SZ":
                return IntegerOperand(_WARP_SIZE)
            found = self._lookup(token)
            if isinstance(found, Register):
                return RegisterOperand(found)
            return SymbolOperand(found, self._offset())
        negative = token.text == "-" and self._tokens[self._next + 1].kind == "float"
        if negative or token.kind == "float":
            self._next += negative
            literal = _float_literal(self._take())
            return literal if not negative else _negated(literal)
        return IntegerOperand(self._constant())

    def _offset(self) -> int:
        """``+ constant`` or ``- constant`` or nothing."""
        offset = 0
        while self._token.text in ("+", "-"):
            sign = -1 if self._take().text == "-" else 1
            offset += sign * self._binary(len(_PRECEDENCE) - 1)
        return offset

    def _address(self) -> AddressOperand:
        base: RegisterOperand | SymbolOperand | None = None
        if self._token.kind == "word":
            token = self._take()
            found = self._lookup(token)
            base = RegisterOperand(found) if isinstance(found, Register) else SymbolOperand(found)
            offset = self._offset()
        else:
            offset = self._constant()
        self._expect("]")
        return AddressOperand(base, offset)

    # -- Constant expressions ---------------------------------------------------------------------

    def _constant(self) -> int:
        return self._binary(0)

    def _binary(self, level: int) -> int:
        if level == len(_PRECEDENCE):
            return self._unary()
        value = self._binary(level + 1)
        while self._token.text in _PRECEDENCE[level]:
            function = _PRECEDENCE[level][self._take().text]
            value = function(value, self._binary(level + 1))
        return value

    def _unary(self) -> int:
        token = self._take()
        match token.text:
            case "-":
                return -self._unary()
            case "+":
                return self._unary()
            case "~":
                return ~self._unary()
            case "(":
                value = self._constant()
                self._expect(")")
                return value
        if token.kind != "integer":
            raise PtxError(token.line, f"expected an operand, found {token.text!r}")
        digits = token.text.rstrip("U").lower()
        is_octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
        return int(digits, 8 if is_octal else 0)


def _label_key(path: tuple[int, ...], name: str) -> str:
    return ".".join(map(str, path)) + ":" + name


def _float_literal(token: Token) -> FloatOperand:
    text = token.text.lower()
    if text.startswith("0f"):
        pattern = int(text[2:], 16)
        return FloatOperand(struct.unpack("<f", struct.pack("<I", pattern))[0], pattern, 32)
    if text.startswith("0d"):
        pattern = int(text[2:], 16)
        return FloatOperand(struct.unpack("<d", struct.pack("<Q", pattern))[0], pattern, 64)
    value = float(text)
    return FloatOperand(value, struct.unpack("<Q", struct.pack("<d", value))[0], None)


def _negated(literal: FloatOperand) -> FloatOperand:
    sign = 1 << ((literal.bits or 64) - 1)
    return FloatOperand(-literal.value, literal.pattern ^ sign, literal.bits)
