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
    SymbolOperand,
    Variable,
    VectorOperand,
)
from cuevo.sim.types import REGISTER_TYPES, TYPES

SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + ["%laneid", "%warpid", "%nwarpid"]
    + [f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")]
)

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
_ENDS = frozenset(",;]})>")
"""What may follow an operand that is no expression."""


def parse(text: str) -> Module:
    """Parse a PTX module. Raises `PtxError`, with the line, for what is no PTX or is not
    supported.
    """
    return _Parser(tokens(text)).module()


class _Parser:
    def __init__(self, stream: list[Token]) -> None:
        self._tokens = stream
        self._next = 0
        self._token = stream[0]
        """The next one, at position `_next`."""
        # Innermost scope last; the first one is the module's.
        self._scopes: list[dict[str, Register | Variable]] = [{}]
        self._scope_path: tuple[int, ...] = ()
        self._scope_count = 0
        self._module_shared: list[Variable] = []
        self._labels: dict[tuple[tuple[int, ...], str], int] = {}
        self._branches: list[tuple[int, tuple[int, ...]]] = []
        self._operands: dict[int, RegisterOperand] = {}
        """Operands that are a register of the present function, by slot."""

    # -- Tokens -----------------------------------------------------------------------------------

    def _take(self) -> Token:
        token = self._token
        if token.kind != "end":
            self._next += 1
            self._token = self._tokens[self._next]
        return token

    def _accept(self, text: str) -> bool:
        if self._token.text == text and self._token.kind != "string":
            self._take()
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
                case ".shared":
                    self._module_shared.append(self._shared(token.line))
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
        function = Function(self._kind("word").text, line, shared=list(self._module_shared))
        self._labels.clear()
        self._branches.clear()
        self._operands.clear()
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
        for index, path in self._branches:
            function.instructions[index] = self._resolve_branch(function.instructions[index], path)
        function.labels = {
            _label_key(path, name): index for (path, name), index in self._labels.items()
        }
        return function

    def _resolve_branch(self, instruction: Instruction, path: tuple[int, ...]) -> Instruction:
        (target,) = instruction.operands
        assert isinstance(target, LabelOperand)
        while (path, target.name) not in self._labels:
            if not path:
                raise PtxError(instruction.line, f"there is no label {target.name!r} in scope")
            path = path[:-1]
        return replace(instruction, operands=(LabelOperand(_label_key(path, target.name)),))

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
        return Variable(name.text, space, size, alignment or element, name.line)

    def _shared(self, line: int) -> Variable:
        variable = self._variable(".shared")
        self._declare(variable.name, variable, line)
        self._expect(";")
        return variable

    def _registers(self, function: Function) -> None:
        token = self._kind("directive")
        if token.text[1:] not in REGISTER_TYPES:
            raise PtxError(token.line, f"there are no registers of type {token.text}")
        scalar = TYPES[token.text[1:]]
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
            if token.kind == "location":
                self._take()
            elif token.kind == "directive":
                self._directive(function)
            elif self._accept("{"):
                self._scope_count += 1
                self._scopes.append({})
                self._scope_path = (*self._scope_path, self._scope_count)
                self._block(function)
                self._scope_path = self._scope_path[:-1]
                self._scopes.pop()
            elif token.kind == "word" and self._tokens[self._next + 1].text == ":":
                self._take()
                self._take()
                key = (self._scope_path, token.text)
                if key in self._labels:
                    raise PtxError(token.line, f"the label {token.text!r} is there twice")
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
                function.shared.append(self._shared(token.line))
            case ".extern":
                pass
            case ".loc":
                while self._token.kind == "integer":
                    self._take()
            case ".pragma":
                self._pragma()
            case other:
                raise PtxError(token.line, f"the CPU executor does not know the directive {other}")

    def _instruction(self, function: Function) -> None:
        guard = None
        if self._accept("@"):
            negated = self._accept("!")
            guard = self._predicate(self._kind("word"), negated)
        opcode = self._kind("word")
        operands: list[Operand] = []
        if opcode.text.split(".")[0] == "bra":
            operands.append(LabelOperand(self._kind("word").text))
            self._branches.append((len(function.instructions), self._scope_path))
        elif self._token.text != ";":
            operands.append(self._operand())
            while self._accept(","):
                operands.append(self._operand())
        end = self._take()
        if end.text != ";":
            raise PtxError(end.line, f"expected ',' or ';' after an operand, found {end.text!r}")
        function.instructions.append(Instruction(opcode.text, tuple(operands), guard, opcode.line))

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
        if token.kind == "word":
            self._take()
            if token.text == "_":
                return SinkOperand()
            if token.text in SPECIAL_REGISTERS:
                return SpecialOperand(token.text)
            found = self._lookup(token)
            if isinstance(found, Register):
                return self._register_operand(found)
            return SymbolOperand(found, self._offset())
        if self._accept("!"):
            return self._predicate(self._kind("word"), True)
        negative = token.text == "-" and self._tokens[self._next + 1].kind == "float"
        if negative or token.kind == "float":
            if negative:
                self._take()
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
            if isinstance(found, Register):
                base = self._register_operand(found)
            else:
                base = SymbolOperand(found)
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
        if self._token.kind == "integer" and self._tokens[self._next + 1].text in _ENDS:
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
