"""Trees of decisions (`cuevo.ops.export.trace`) as functions in C."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cuevo.ops.export.trace import (
    COMPARISONS,
    Leaf,
    Raised,
    Symbol,
    Tree,
    any_float,
    symbol,
    trace,
)
from cuevo.toolchain.structs import Struct

__all__ = ["fields_function", "number_function", "values_function"]

_CALLS = ("floor_div", "floor_mod", "ceil_div", "bit_length", "pow", "fabs")


def number_function(name: str, inputs: str, function: Callable[[], Any]) -> str:
    """The C function of that name which returns what `function` makes of symbols.

    inputs : the declarations of its parameters.
    """
    guards: list[tuple[Symbol, ...]] = []
    found = _resolve(trace(lambda: {"": function()}), (), guards)
    assert found is not None and not guards, f"{name} raises"
    result = found[""]
    kind = "double" if result.is_float else "int64_t"
    body = _Body([result])
    lines = [*body.define(result), f"    return {body.text(result)};"]
    return f"static {kind} {name}({inputs})\n{{\n{_joined(lines)}}}\n"


def fields_function(
    name: str, inputs: str, struct: Struct, function: Callable[[], Mapping[str, Any]]
) -> str:
    """The C function of that name which fills a struct at ``p`` with what `function` makes of
    symbols, by field, and returns a status: where it raises, CUEVO_TOO_LARGE.
    """
    guards: list[tuple[Symbol, ...]] = []
    found = _resolve(trace(lambda: dict(function())), (), guards)
    assert found is not None, f"{name} always raises"
    guards = _simplified(guards)
    body = _Body([*found.values(), *(each for guard in guards for each in guard)])
    lines: list[str] = []
    for guard in guards:
        for condition in guard:
            lines += body.define(condition)
        lines.append(f"    if {_bracketed(' && '.join(map(body.text, guard)))}")
        lines.append("        return CUEVO_TOO_LARGE;")
    kinds = {field.name: _kind(field.ctype.__name__) for field in struct.fields}
    for field, value in found.items():
        lines += body.define(value)
        lines.append(f"    p->{field} = {kinds[field]}{body.text(value)};")
    lines.append("    return CUEVO_OK;")
    return f"static cuevo_status {name}({struct.name} *p, {inputs})\n{{\n{_joined(lines)}}}\n"


def values_function(name: str, inputs: str, function: Callable[[], Sequence[Any]]) -> str:
    """The C function of that name which fills an array of integers at ``p``."""
    guards: list[tuple[Symbol, ...]] = []
    found = _resolve(trace(lambda: dict(enumerate(function()))), (), guards)
    assert found is not None and not guards, f"{name} raises"
    body = _Body([*found.values()])
    lines: list[str] = []
    for place, value in found.items():
        lines += body.define(value)
        lines.append(f"    p[{place}] = {body.text(value)};")
    return f"static void {name}(int64_t *p, {inputs})\n{{\n{_joined(lines)}}}\n"


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _bracketed(text: str) -> str:
    """`text` in brackets, where it is not in some already."""
    depth, ends = 0, []
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            ends.append(place)
    return text if text.startswith("(") and ends[0] == len(text) - 1 else f"({text})"


def _kind(ctype: str) -> str:
    """The cast to the type of a field; pointers are assigned as they are."""
    names = {"c_uint": "uint32_t", "c_long": "int64_t", "c_float": "float"}
    return f"({names[ctype]})" if ctype in names else ""


def _resolve(
    tree: Tree, under: tuple[Symbol, ...], guards: list[tuple[Symbol, ...]]
) -> dict[Any, Symbol] | None:
    """The values of a tree, each of one expression; None where it only raises. What has to hold for
    it to raise comes into `guards`.
    """
    if isinstance(tree, Leaf):
        return {name: symbol(value) for name, value in tree.value.items()}
    if isinstance(tree, Raised):
        guards.append(under)
        return None
    sides = [
        (tree.true, (*under, tree.condition)),
        (tree.false, (*under, _negated(tree.condition))),
    ]
    results: list[dict[Any, Symbol] | None] = [None, None]
    # What raises comes first: what follows may divide by what was found to be none.
    for i in sorted((0, 1), key=lambda i: not isinstance(sides[i][0], Raised)):
        results[i] = _resolve(*sides[i], guards)
    true, false = results
    if true is None or false is None:
        return true or false
    return {
        name: value
        if value is false[name]
        else Symbol("?", (tree.condition, value, false[name]), any_float((value, false[name])))
        for name, value in true.items()
    }


def _negated(condition: Symbol) -> Symbol:
    return (
        condition.arguments[0] if condition.operation == "!" else Symbol("!", (condition,), False)
    )


def _simplified(guards: list[tuple[Symbol, ...]]) -> list[tuple[Symbol, ...]]:
    """Guards of which some hold where some of these do, without conditions that do not matter: with
    the opposite, another guard holds.
    """
    found = [*dict.fromkeys(map(frozenset, guards))]
    order = [*dict.fromkeys(condition for guard in guards for condition in guard)]
    changed = True
    while changed:
        changed = False
        for place, guard in enumerate(found):
            for condition in (x for x in order if x in guard):
                rest = guard - {condition}
                opposite = rest | {_negated(condition)}
                if any(map(opposite.issuperset, found)):
                    found[place], changed = rest, True
                    break
        found = [*dict.fromkeys(found)]
    least = [x for x in found if not any(each < x for each in found)]
    return [tuple(x for x in order if x in each) for each in least]


class _Body:
    """The statements of a function: what is used more than once gets a name."""

    def __init__(self, results: list[Symbol]) -> None:
        self._uses: Counter[int] = Counter()
        self._names: dict[int, str] = {}
        for each in results:
            self._count(each)

    def _count(self, value: Symbol) -> None:
        self._uses[id(value)] += 1
        if self._uses[id(value)] == 1:
            for argument in value.arguments:
                self._count(argument)

    def define(self, value: Symbol) -> Iterator[str]:
        """Definitions of what `value` is made of."""
        if id(value) in self._names:
            return
        for argument in value.arguments:
            yield from self.define(argument)
        if value.arguments and self._uses[id(value)] > 1:
            text = self.text(value)
            name = self._names[id(value)] = f"t{len(self._names)}"
            kind = "double" if value.is_float else "int64_t"
            yield f"    const {kind} {name} = {text};"

    def _operand(self, value: Symbol, of: Symbol) -> str:
        """An operand of an operation: a double, where the others or the result are doubles."""
        as_double = of.is_float or (of.operation in COMPARISONS and any_float(of.arguments))
        condition = of.operation == "?" and value is of.arguments[0]
        if value.is_float or condition or value.operation == "constant" or not as_double:
            return self.text(value)
        return f"(double){self.text(value)}"

    def text(self, value: Symbol) -> str:
        """What C computes the value by."""
        if id(value) in self._names:
            return self._names[id(value)]
        if not value.arguments:
            return value.text
        parts = [self._operand(each, value) for each in value.arguments]
        if value.operation in _CALLS:
            return f"{value.operation}({', '.join(parts)})"
        if value.operation == "?":
            return f"({parts[0]} ? {parts[1]} : {parts[2]})"
        if value.operation in ("!", "negative"):
            return f"{'!' if value.operation == '!' else '-'}{_bracketed(parts[0])}"
        if value.operation == "<<":
            parts[0] = f"(int64_t){parts[0]}"
        return f"({parts[0]} {value.operation} {parts[1]})"
