"""PTX text to a `Module`: declarations, scopes, labels, instructions with resolved operands.

Only syntax and names are checked here; the meaning of instructions is in
`cuevo.sim.instructions`. A text is first read with its one-line statements remembered from other
kernels (`cuevo.sim.text.statements`); only a text that this refuses is read token by token, so that
the error names the token.
"""

from typing import Any

from cuevo.sim.faults import PtxError
from cuevo.sim.text.call_graph import CallGraph, callees_first
from cuevo.sim.text.declarations import AddressError, DeclarationReader
from cuevo.sim.text.lex import Token, tokens
from cuevo.sim.text.statements import condensed, declaration, kinds_of, statement
from cuevo.sim.text.syntax import (
    SYSTEM_FUNCTIONS,
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
    VectorOperand,
)
from cuevo.sim.text.types import TYPES, ScalarType

_COMPONENTS = (("x", "r"), ("y", "g"), ("z", "b"), ("w", "a"))
"""Names of the registers of a vector, by place: ``v.x`` is ``v.r``."""
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
    parser = _Parser(stream)
    try:
        return parser.module(entry)
    except RecursionError:
        raise PtxError(parser.token.line, "blocks or parentheses nest too deeply") from None


class _Parser(DeclarationReader):
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
        self._external = False
        """Whether ``.extern`` stands before what is declared."""
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
                    module.address_size = self.integer()
                case ".file":
                    self._file()
                case ".visible" | ".weak":
                    continue
                case ".common":
                    if self.token.text != ".global":
                        raise PtxError(token.line, ".common variables are in .global")
                    continue
                case ".extern":
                    self._external = True
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
                case ".pragma":
                    self._pragma()
                case other:
                    raise PtxError(
                        token.line, f"the CPU executor does not support {other} at module level"
                    )
            self._external = False
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
                variable = self.parameter(".param")
                function.parameters[variable.name] = variable
                self.declare(variable.name, variable, variable.line)
                if self.token.text != ")":
                    self.expect(",")
                    self.refuse(")")
        while self.token.kind == "directive":
            token = self.take()
            match token.text:
                case ".maxntid":
                    function.maximum_threads = self._extent(token)
                case ".reqntid":
                    function.required_threads = self._extent(token)
                case ".reqnctapercluster":
                    function.cluster = self._extent(token)
                case ".explicitcluster":
                    pass
                case ".minnctapersm" | ".maxnctapersm" | ".maxnreg":
                    self._positive(token)
                case ".pragma":
                    self._pragma()
                case other:
                    raise PtxError(
                        token.line, f"the CPU executor does not support the directive {other}"
                    )
        self.expect("{")
        self._block(function)
        self.close_scope()
        graph = self._read_subroutines(function)
        for index, path in self._branches:
            function.instructions[index] = self._resolve_branch(function.instructions[index], path)
        function.labels = {
            _label_key(path, name): index for (path, name), index in self._labels.items()
        }
        if function.subroutines:
            callees_first(function, graph)
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
        if name.text not in self.visible:
            self.declare(name.text, Variable(name.text, ".func", 0, 1, name.line), name.line)
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
        for position, (kind, text, line) in enumerate(self._tokens[self.position :], self.position):
            depth += (text == opening) - (text == closing)
            if depth == 0:
                self.go_to(position + 1)
                return
            if kind == "end":
                raise PtxError(line, f"{opening!r} without {closing!r}")

    def _read_subroutines(self, function: Function) -> CallGraph:
        """Append the bodies of all functions that are called or may be, directly or not."""
        graph = CallGraph()
        position, done = self.position, 0
        while True:
            for instruction in function.instructions[done:]:
                if instruction.pattern is None:  # on more than registers and constants
                    graph.add(instruction)
            done = len(function.instructions)
            wanted = [name for name in graph.reached if name in self._subroutines]
            unread = [name for name in wanted if name not in function.subroutines]
            if not unread:
                break
            if not function.subroutines:
                # A label at the entry's end is not that of a function's beginning.
                self._return_at_end(function, 0, self._tokens[position - 1].line)
            self.go_to(self._subroutines[unread[0]])
            self._read_subroutine(function)
        self.go_to(position)
        self._subroutine = ""
        return graph

    def _read_subroutine(self, function: Function) -> None:
        self._scope_count += 1
        self._scope_path = (self._scope_count,)
        self.open_scope()
        registers, variables = len(function.registers), len(function.local)
        results = self._formals(function)
        name = self.kind("word")
        parameters = self._formals(function)
        while self.token.text != "{":
            self.take()
        self.expect("{")
        self._subroutine = name.text
        begin = len(function.instructions)
        self._block(function)
        self._return_at_end(function, begin, self._tokens[self.position - 1].line, name.text)
        function.subroutines[name.text] = Subroutine(
            name.text,
            begin,
            results,
            parameters,
            tuple(function.registers[registers:]),
            tuple(function.local[variables:]),
        )
        self.close_scope()
        self._scope_path = ()

    def _return_at_end(self, function: Function, begin: int, line: int, name: str = "") -> None:
        """Append what the closing brace of a body does, where control may come to it."""
        end = len(function.instructions)
        ends = begin < end and not function.instructions[-1].goes_on
        if not ends or end in self._labels.values():
            function.instructions.append(Instruction("ret", (), None, line, name))

    def _formals(self, function: Function) -> tuple[Register | Variable, ...]:
        """``(.reg .b32 a, .param .b32 b)``, or nothing."""
        found: list[Register | Variable] = []
        if not self.accept("("):
            return ()
        while not self.accept(")"):
            token = self.take()
            if token.text == ".param":
                variable = self.parameter(".local")
                function.local.append(variable)
                self.declare(variable.name, variable, variable.line)
                found.append(variable)
            elif token.text == ".reg":
                scalar = self.register_type()
                found.append(self._register(function, self.kind("word").text, scalar, token.line))
            else:
                raise PtxError(token.line, f"expected '.reg' or '.param', found {token.text!r}")
            if self.token.text != ")":
                self.expect(",")
        return tuple(found)

    def _call(self, function: Function) -> CallOperand:
        """``call (results), f, (arguments)``, or with a register for f and what it may point to
        behind.
        """
        results: tuple[Operand, ...] = ()
        if self.accept("("):
            results = self._actuals()
            self.expect(",")
        name = self.kind("word")
        pointer = self.visible.get(name.text)
        if not isinstance(pointer, RegisterOperand):
            self._check_callee(name)
            pointer = None
        arguments: tuple[Operand, ...] = ()
        has_prototype = False
        while self.accept(","):
            if pointer is not None and self.token.kind == "word":
                self.take()  # prototype, or list of targets: the functions themselves say it
                has_prototype = True
                break
            self.expect("(")
            arguments = self._actuals()
        if pointer is not None and not has_prototype:
            raise PtxError(name.line, f"a call through {name.text} needs a prototype behind it")
        return CallOperand(name.text, results, arguments, pointer)

    def _check_callee(self, name: Token) -> None:
        if name.text in self._subroutines or name.text in SYSTEM_FUNCTIONS:
            return
        known = name.text in self._declared
        message = f"the function {name.text!r} is declared, and nowhere defined"
        raise PtxError(name.line, message if known else f"there is no function {name.text!r}")

    def _actuals(self) -> tuple[Operand, ...]:
        found: list[Operand] = []
        while not self.accept(")"):
            found.append(self.scalar())
            if self.token.text != ")":
                self.expect(",")
        return tuple(found)

    def _extent(self, directive: Token) -> tuple[int, int, int]:
        sizes = [self._positive(directive)]
        while len(sizes) < 3 and self.accept(","):
            sizes.append(self._positive(directive))
        x, y, z = [*sizes, 1, 1][:3]
        return x, y, z

    def _positive(self, directive: Token) -> int:
        number = self.integer()
        if not 0 < number < 2**32:
            raise PtxError(directive.line, f"{directive.text} takes positive numbers of 32 bits")
        return number

    def _pragma(self) -> None:
        self.kind("string")
        while self.accept(","):
            self.kind("string")
        self.accept(";")

    # -- Declarations -----------------------------------------------------------------------------

    def _memory(self, space: str, into: list[Variable]) -> None:
        for variable in self.variables(space, external=self._external):
            self.declare(variable.name, variable, variable.line)
            into.append(variable)
        self._external = False

    def _module_memory(self, space: str) -> None:
        try:
            self._memory(space, self._module[space])
        except AddressError as error:
            self.refused[error.name] = error
            while self.token.kind != "end" and not self.accept(";"):
                self.take()

    def _register(self, function: Function, name: str, scalar: ScalarType, line: int) -> Register:
        register = Register(name, scalar, len(function.registers))
        function.registers.append(register)
        self.declare(name, RegisterOperand(register), line)
        return register

    def _registers(self, function: Function) -> None:
        vector = {".v2": _COMPONENTS[:2], ".v4": _COMPONENTS}.get(self.token.text)
        if vector is not None:
            self.take()
        scalar = self.register_type()
        if vector is not None and (scalar.kind == "p" or len(vector) * scalar.bits > 128):
            raise PtxError(self.token.line, f"no vector of {len(vector)} .{scalar.name}")
        while True:
            name = self.kind("word")
            names = [name.text]
            if self.accept("<"):
                count = self.integer()
                if len(function.registers) + count > _MOST_REGISTERS:
                    raise PtxError(
                        name.line,
                        f"{name.text}<{count}>: the CPU executor takes at most "
                        f"{_MOST_REGISTERS:,} registers in a function",
                    )
                names = [f"{name.text}{i}" for i in range(count)]
                self.expect(">")
            for each in names:
                if vector is None:
                    self._register(function, each, scalar, name.line)
                else:
                    self._vector(function, each, scalar, vector, name.line)
            if not self.accept(","):
                break
        self.expect(";")

    def _vector(
        self,
        function: Function,
        name: str,
        scalar: ScalarType,
        components: tuple[tuple[str, str], ...],
        line: int,
    ) -> None:
        """A ``.reg .v4``: a name for its registers together, and two for each of them."""
        elements = []
        for one, other in components:
            register = self._register(function, f"{name}.{one}", scalar, line)
            elements.append(RegisterOperand(register))
            self.declare(f"{name}.{other}", elements[-1], line)
        self.declare(name, VectorOperand(tuple(elements)), line)

    # -- Statements -------------------------------------------------------------------------------

    def _block(self, function: Function) -> None:
        """The statements up to the closing brace."""
        while True:
            token = self.token
            if token.kind in ("statement", "registers"):
                self._lines(function)
            elif self.accept("}"):
                break
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
                elif self.token.text in (".callprototype", ".calltargets"):
                    while self.token.kind != "end" and not self.accept(";"):
                        self.take()
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
                self._memory(".shared", function.shared)
            case ".global" | ".const":
                into = function.module_memory if token.text == ".global" else function.constant
                self._memory(token.text, into)
            case ".local" | ".param":
                self._memory(".local", function.local)
            case ".extern":
                if self.token.text != ".shared":
                    raise PtxError(token.line, "in a function .extern stands before .shared")
                self._external = True
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
        carries = word in ("addc", "subc", "madc") or ".cc" in opcode.text
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

    def _lines(self, function: Function) -> None:
        """Lines that are one instruction each, or one declaration, most of them known from
        elsewhere.
        """
        stream, position = self._tokens, self.position
        meaning, append = self.visible.get, function.instructions.append
        while True:
            kind, text, line = stream[position]
            if kind == "statement":
                known = statement(text)
                assert known is not None
                registers: tuple[Any, ...] = tuple(map(meaning, known.names))
                pattern = None
                try:
                    pattern = known.pattern(tuple([each.register.type for each in registers]))
                except AttributeError:  # a name of something else, or of nothing
                    if (kinds := kinds_of(registers)) is not None:
                        pattern = known.pattern(kinds)
                        registers = tuple(x for x in registers if isinstance(x, RegisterOperand))
                if pattern is not None:
                    append(pattern.on(registers, line, self._subroutine))
                else:
                    self.change_stream(known.at_line(line), 0)
                    self._instruction(function)
                    self.change_stream(stream, position)
            elif kind == "registers":
                declared = declaration(text)
                assert declared is not None
                for name in declared.names:
                    self._register(function, name, declared.type, line)
            else:
                break
            position += 1
        self.go_to(position)


def _label_key(path: tuple[int, ...], name: str) -> str:
    return ".".join(map(str, path)) + ":" + name
