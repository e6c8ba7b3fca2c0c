"""The call graph of device functions."""

from collections.abc import Iterator
from dataclasses import replace

from cuevo.sim.text.syntax import (
    AddressOperand,
    CallOperand,
    Function,
    Instruction,
    Operand,
    SymbolOperand,
    Variable,
)


class CallGraph:
    """Which functions call which; "" is the entry. Through a pointer every function may be called
    whose address is taken: by an instruction, or in the content of a variable that one names.
    """

    def __init__(self) -> None:
        # Names in the order of the text, for the same program each time.
        self._direct: dict[str, dict[str, None]] = {"": {}}
        self._by_pointer: set[str] = set()
        self._taken: dict[str, None] = {}
        self._seen: set[int] = set()

    def add(self, instruction: Instruction) -> None:
        for operand in instruction.operands:
            if isinstance(operand, CallOperand):
                if operand.pointer is not None:
                    self._by_pointer.add(instruction.subroutine)
                else:
                    self._direct.setdefault(instruction.subroutine, {})[operand.function] = None
            else:
                self._take(variables_of(operand))

    @property
    def reached(self) -> list[str]:
        """All functions that may be called."""
        direct = (name for called in self._direct.values() for name in called)
        return list(dict.fromkeys([*direct, *self._taken]))

    def called_by(self, name: str) -> list[str]:
        found = list(self._direct.get(name, ()))
        return [*found, *self._taken] if name in self._by_pointer else found

    def is_recursive(self, name: str) -> bool:
        """Whether it may call itself, by way of others or not."""
        reached, work = set[str](), [name]
        while work:
            for each in self.called_by(work.pop()):
                if each == name:
                    return True
                if each not in reached:
                    reached.add(each)
                    work.append(each)
        return False

    def _take(self, variables: Iterator[Variable]) -> None:
        for variable in variables:
            if variable.space == ".func":
                self._taken[variable.name] = None
            elif variable.addresses and id(variable) not in self._seen:
                self._seen.add(id(variable))
                self._take(each.variable for each in variable.addresses)


def variables_of(operand: Operand) -> Iterator[Variable]:
    """The variables that an operand names."""
    match operand:
        case SymbolOperand(variable) | AddressOperand(SymbolOperand(variable)):
            yield variable


def callees_first(function: Function, graph: CallGraph) -> None:
    """Order the bodies so that a function comes before its callers: as the lowest instruction goes
    first, lanes that are in a function go on before those that wait for them behind the call.
    """
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        seen.add(name)
        for each in graph.called_by(name):
            if each not in seen and each in function.subroutines:
                visit(each)
        order.append(name)

    visit("")
    order[:0] = [name for name in function.subroutines if name not in seen]
    old = [
        index
        for name in order
        for index, instruction in enumerate(function.instructions)
        if instruction.subroutine == name
    ]
    new = {index: place for place, index in enumerate(old)}
    function.instructions = [function.instructions[index] for index in old]
    function.labels = {name: new[index] for name, index in function.labels.items()}
    function.subroutines = {
        name: replace(each, begin=new[each.begin], recursive=graph.is_recursive(name))
        for name, each in function.subroutines.items()
    }
    function.start = new[0]
