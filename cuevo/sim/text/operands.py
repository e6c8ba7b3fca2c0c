"""Operands of instructions, and the names in scope."""

from cuevo.sim.faults import PtxError
from cuevo.sim.text.cursor import Cursor, float_literal, negated
from cuevo.sim.text.lex import Token
from cuevo.sim.text.syntax import (
    SPECIAL_REGISTERS,
    VECTOR_REGISTERS,
    AddressOperand,
    IntegerOperand,
    Operand,
    PairOperand,
    RegisterOperand,
    ScalarOperand,
    SinkOperand,
    SpecialOperand,
    SymbolOperand,
    Variable,
    VectorOperand,
)

Meaning = RegisterOperand | VectorOperand | Variable


class OperandReader(Cursor):
    """Reads operands, their names resolved by the scopes that are open."""

    def __init__(self, stream: list[Token]) -> None:
        super().__init__(stream)
        self.visible: dict[str, Meaning] = {}
        """Meaning of each name in the innermost scope."""
        self.refused: dict[str, PtxError] = {}
        """What is wrong with variables that cannot be had."""
        # Of each open scope the names that it declares, and what they meant outside of it; the
        # innermost last, the first one is the module's.
        self._scopes: list[dict[str, Meaning | None]] = [{}]

    # -- Scopes -----------------------------------------------------------------------------------

    def open_scope(self) -> None:
        self._scopes.append({})

    def close_scope(self) -> None:
        for name, outer in self._scopes.pop().items():
            if outer is None:
                del self.visible[name]
            else:
                self.visible[name] = outer

    def declare(self, name: str, what: Meaning, line: int) -> None:
        scope = self._scopes[-1]
        if name in scope:
            raise PtxError(line, f"{name!r} is declared twice in one scope")
        scope[name] = self.visible.get(name)
        self.visible[name] = what

    def _lookup(self, token: Token) -> Meaning:
        found = self.visible.get(token.text)
        if found is None and token.text in self.refused:
            raise self.refused[token.text]
        if found is None:
            raise PtxError(token.line, f"unknown symbol {token.text!r}")
        return found

    # -- Operands ---------------------------------------------------------------------------------

    def guard(self) -> RegisterOperand | None:
        """``@p`` or ``@!p`` or nothing."""
        if not self.accept("@"):
            return None
        negated = self.accept("!")
        return self._predicate(self.kind("word"), negated)

    def operands(self) -> tuple[Operand, ...]:
        """Operands between an opcode and the semicolon."""
        if self.token.text == ";":
            return ()
        found = [self._operand()]
        while self.accept(","):
            found.append(self._operand())
        return tuple(found)

    def end(self) -> None:
        """The semicolon."""
        token = self.take()
        if token.text != ";":
            raise PtxError(
                token.line, f"expected ',' or ';' after an operand, found {token.text!r}"
            )

    def _predicate(self, token: Token, negated: bool) -> RegisterOperand:
        found = self._lookup(token)
        if not isinstance(found, RegisterOperand) or found.register.type.kind != "p":
            raise PtxError(token.line, f"{token.text!r} is no predicate")
        return found if not negated else RegisterOperand(found.register, negated)

    def _operand(self) -> Operand:
        if self.accept("["):
            return self._address()
        if self.accept("{"):
            return VectorOperand(self._elements())
        if self.token.kind == "word":
            vector = self._vector_named(self.token.text)
            if vector is not None:
                self.take()
                return vector
        first = self.scalar()
        if isinstance(first, RegisterOperand | SinkOperand) and self.accept("|"):
            second = self.scalar()
            if not isinstance(second, RegisterOperand | SinkOperand):
                raise PtxError(self.token.line, "the second destination after '|' is no register")
            return PairOperand(first, second)
        return first

    def _vector_named(self, name: str) -> VectorOperand | None:
        found = self.visible.get(name)
        if found is None and name in VECTOR_REGISTERS:
            return VectorOperand(tuple(SpecialOperand(f"{name}.{axis}") for axis in "xyzw"))
        return found if isinstance(found, VectorOperand) else None

    def scalar(self) -> ScalarOperand:
        token = self.token
        if token.kind == "word" and token.text != "WARP_SZ":
            self.take()
            if token.text == "_":
                return SinkOperand()
            if token.text in SPECIAL_REGISTERS:
                return SpecialOperand(token.text)
            found = self._lookup(token)
            if isinstance(found, Variable):
                return SymbolOperand(found, self._offset())
            if isinstance(found, RegisterOperand):
                return found
            raise PtxError(token.line, f"{token.text!r} is a vector of registers")
        if token.text == "!" and self.following.kind == "word":
            self.take()
            return self._predicate(self.kind("word"), True)
        negative = token.text == "-" and self.following.kind == "float"
        if negative or token.kind == "float":
            if negative:
                self.take()
            literal = float_literal(self.take())
            return literal if not negative else negated(literal)
        return IntegerOperand(self.constant())

    def _offset(self) -> int:
        """``+ constant`` or nothing; less is ``+ -4``."""
        return self.constant() if self.token.text == "+" else 0

    def _address(self) -> AddressOperand:
        base: RegisterOperand | SymbolOperand | None = None
        if self.token.kind == "word":
            token = self.take()
            found = self._lookup(token)
            if isinstance(found, VectorOperand):
                raise PtxError(token.line, f"{token.text!r} is a vector of registers")
            base = found if isinstance(found, RegisterOperand) else SymbolOperand(found)
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
        """Operands between braces, the opening one read."""
        elements = [self.scalar()]
        while self.accept(","):
            elements.append(self.scalar())
        if any(isinstance(each, SymbolOperand) and each.offset for each in elements):
            raise PtxError(self.token.line, "an address with an offset cannot stand in braces")
        self.expect("}")
        return tuple(elements)
