"""Formulas of the host halves, as C: their own functions are called with symbols in the place of
numbers, and what they do with these is written down.

A function that asks whether a symbol is true is called again and again, until every answer has been
given: `trace` returns the tree of its decisions. What it raises is a leaf, too. It may do anything
with what is no symbol: loops over names, dataclasses, strings.

Numbers are int64_t or double in C. An integer that is divided, and its divisor, are below 2^53 in
magnitude: ``ceil(a / b)`` is that of the exact quotient then, which is what C computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

__all__ = [
    "COMPARISONS",
    "Branch",
    "Leaf",
    "Raised",
    "Symbol",
    "Tree",
    "any_float",
    "input_float",
    "input_int",
    "symbol",
    "trace",
]

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class Symbol:
    """A number that is known when the program in C runs: an operation on others, a name of C, or a
    constant. Equal ones are one object.
    """

    _made: ClassVar[dict[tuple[object, ...], Symbol]] = {}
    operation: str
    arguments: tuple[Symbol, ...]
    is_float: bool
    text: str
    """What C calls it, where it is no operation."""

    def __new__(
        cls, operation: str, arguments: tuple[Symbol, ...], is_float: bool, text: str = ""
    ) -> Symbol:
        key = (operation, tuple([id(each) for each in arguments]), is_float, text)
        found = cls._made.get(key)
        if found is None:
            found = cls._made[key] = super().__new__(cls)
            found.operation, found.arguments = operation, arguments
            found.is_float, found.text = is_float, text
        return found

    # -- What Python does with numbers -------------------------------------------------------------

    def __add__(self, other: Any) -> Symbol:
        return _arithmetic("+", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return _arithmetic("+", other, self)

    def __sub__(self, other: Any) -> Symbol:
        return _arithmetic("-", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return _arithmetic("-", other, self)

    def __mul__(self, other: Any) -> Symbol:
        return _arithmetic("*", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return _arithmetic("*", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return Symbol("/", (symbol(self), symbol(other)), True)

    def __rtruediv__(self, other: Any) -> Symbol:
        return Symbol("/", (symbol(other), self), True)

    def __floordiv__(self, other: Any) -> Symbol:
        return _integers("floor_div", self, other)

    def __rfloordiv__(self, other: Any) -> Symbol:
        return _integers("floor_div", other, self)

    def __mod__(self, other: Any) -> Symbol:
        return _integers("floor_mod", self, other)

    def __rmod__(self, other: Any) -> Symbol:
        return _integers("floor_mod", other, self)

    def __divmod__(self, other: Any) -> tuple[Symbol, Symbol]:
        return self // other, self % other

    def __lshift__(self, other: Any) -> Symbol:
        return _integers("<<", self, other)

    def __rlshift__(self, other: Any) -> Symbol:
        return _integers("<<", other, self)

    def __or__(self, other: Any) -> Symbol:
        return _integers("|", self, other)

    __ror__ = __or__

    def __pow__(self, other: Any) -> Symbol:
        return Symbol("pow", (self, symbol(other)), True)

    def __neg__(self) -> Symbol:
        return Symbol("negative", (self,), self.is_float)

    def __abs__(self) -> Symbol:
        return Symbol("fabs", (self,), True) if self.is_float else _unknown("abs of an integer")

    def __ceil__(self) -> Symbol:
        quotient = self.operation == "/" and not any_float(self.arguments)
        return _integers("ceil_div", *self.arguments) if quotient else _unknown("ceil of a float")

    def bit_length(self) -> Symbol:
        """As that of int."""
        return _integers("bit_length", self)

    def __lt__(self, other: Any) -> Any:
        return _comparison("<", self, other)

    def __le__(self, other: Any) -> Any:
        return _comparison("<=", self, other)

    def __gt__(self, other: Any) -> Any:
        return _comparison(">", self, other)

    def __ge__(self, other: Any) -> Any:
        return _comparison(">=", self, other)

    def __eq__(self, other: Any) -> Any:
        return _comparison("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return _comparison("!=", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        truth = self if self.operation in COMPARISONS else _comparison("!=", self, 0)
        return _Path.current.decide(truth)

    def __index__(self) -> NoReturn:
        _unknown("an integer that Python needs")

    __int__ = __float__ = __index__


def _unknown(what: str) -> NoReturn:
    raise TypeError(f"{what} is not known while a formula is traced")


def input_int(text: str) -> Symbol:
    """The integer that C calls so."""
    return Symbol("name", (), False, text)


def input_float(text: str) -> Symbol:
    """The double that C calls so."""
    return Symbol("name", (), True, text)


def symbol(value: Any) -> Symbol:
    """`value`, which may be a number that is known already."""
    if isinstance(value, Symbol):
        return value
    if isinstance(value, float):
        return Symbol("constant", (), True, _double(value))
    if isinstance(value, int):
        text = str(int(value)) if abs(value) < 2**31 else f"INT64_C({value})"
        return Symbol("constant", (), False, text)
    raise TypeError(f"{value!r} is no number")


def any_float(values: Iterable[Symbol]) -> bool:
    """Whether one of them is a double."""
    return any(each.is_float for each in values)


def _double(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return repr(value)


def _arithmetic(operation: str, *values: Any) -> Symbol:
    arguments = tuple(map(symbol, values))
    one = {"+": 0, "-": 0, "*": 1}[operation]
    if isinstance(values[1], int) and values[1] == one:
        return arguments[0]
    if isinstance(values[0], int) and values[0] == one and operation != "-":
        return arguments[1]
    return Symbol(operation, arguments, any_float(arguments))


def _integers(operation: str, *values: Any) -> Symbol:
    arguments = tuple(map(symbol, values))
    if any_float(arguments):
        _unknown(f"{operation} of floats")
    return Symbol(operation, arguments, False)


def _comparison(operation: str, *values: Any) -> Symbol:
    return Symbol(operation, tuple(map(symbol, values)), False)


# -- The tree of decisions -------------------------------------------------------------------------


@dataclass(frozen=True)
class Leaf:
    """What the function returned."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """What it raised."""

    message: str


@dataclass(frozen=True)
class Branch:
    """A decision, and what follows from either answer."""

    condition: Symbol
    true: Tree
    false: Tree


Tree = Leaf | Raised | Branch


@dataclass
class _Path:
    """One call of the function, and the answers that it is given."""

    current: ClassVar[_Path]

    answers: list[bool]
    conditions: list[Symbol] = field(default_factory=list)
    _known: dict[int, bool] = field(default_factory=dict)

    def decide(self, condition: Symbol) -> bool:
        if id(condition) not in self._known:
            given = len(self.conditions)
            self._known[id(condition)] = self.answers[given] if given < len(self.answers) else True
            self.conditions.append(condition)
        return self._known[id(condition)]


def trace(function: Callable[[], Any]) -> Tree:
    """What `function` makes of the symbols that it works with."""
    return _explore(function, [])


def _explore(function: Callable[[], Any], answers: list[bool]) -> Tree:
    path = _Path.current = _Path(answers)
    tree: Tree
    try:
        value = function()
        tree = Leaf([*value] if isinstance(value, Iterator) else value)
    except ValueError as error:
        tree = Raised(str(error))
    new = path.conditions[len(answers) :]
    for i in reversed(range(len(new))):
        other = _explore(function, [*answers, *[True] * i, False])
        tree = Branch(new[i], tree, other)
    return tree
