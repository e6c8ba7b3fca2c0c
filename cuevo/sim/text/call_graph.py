"""The call graph of device functions."""

from collections.abc import Mapping
from dataclasses import replace

from cuevo.sim.faults import PtxError
from cuevo.sim.text.syntax import CallOperand, Function


def check_recursion(calls: Mapping[str, set[str]], name: str, line: int) -> None:
    """Raise `PtxError` if `name` calls itself, by way of others or not."""
    reached, work = set(), [name]
    while work:
        for each in calls.get(work.pop(), ()):
            if each == name:
                raise PtxError(line, f"{name} calls itself; the CPU executor has no recursion")
            if each not in reached:
                reached.add(each)
                work.append(each)


def callees_first(function: Function) -> None:
    """Order the bodies so that a function comes before its callers: as the lowest instruction goes
    first, lanes that are in a function go on before those that wait for them behind the call.
    """
    order: list[str] = []

    def visit(name: str) -> None:
        for instruction in function.instructions:
            if instruction.subroutine != name:
                continue
            for operand in instruction.operands:
                if isinstance(operand, CallOperand) and operand.function not in order:
                    visit(operand.function)
        order.append(name)

    visit("")
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
        name: replace(each, begin=new[each.begin]) for name, each in function.subroutines.items()
    }
    function.start = new[0]
