"""Rows of numbers that planners in C know of configurations, and stand-ins of these configurations,
whose numbers are symbols.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from cuevo.architectures import Architecture
from cuevo.kernels import gemm_mma
from cuevo.kernels.forward import Problem
from cuevo.ops.export.formulas import fields_function
from cuevo.ops.export.trace import Symbol, input_float, input_int
from cuevo.toolchain.structs import Struct

__all__ = ["Columns", "architecture_in_c", "array_in_c", "problem_in_c", "product_in_c"]

ARCHITECTURE = "const architecture *arch"
PROBLEM = "const problem *x"


class Columns:
    """What C knows of a configuration: a struct of integers."""

    def __init__(self, struct: str, *given: str, **columns: Callable[[Any], int]) -> None:
        """A struct of that name, with what each row is given and what configurations say."""
        self.struct = struct
        self._given = given
        self._columns = columns
        self._known: dict[Any, tuple[int, ...]] = {}

    @property
    def declaration(self) -> str:
        """The struct in C."""
        fields = "".join(f"    int64_t {name};\n" for name in self._names)
        return f"typedef struct {self.struct} {{\n{fields}}} {self.struct};\n"

    @property
    def parameter(self) -> str:
        """A row as a parameter of a function in C."""
        return f"const {self.struct} *c"

    @property
    def _names(self) -> tuple[str, ...]:
        return ("kernel", *self._given, *self._columns)

    def row(self, kernel: int, config: Any, *given: object) -> tuple[object, ...]:
        """The numbers of `config`, whose kernel in the folder has that number, -1 for none."""
        found = self._known.get(config)
        if found is None:
            found = tuple(int(column(config)) for column in self._columns.values())
            self._known[config] = found
        return (kernel, *given, *found)

    def symbols(self) -> dict[str, Symbol]:
        """The numbers of the row at ``c``, but for the kernel's."""
        return {name: input_int(f"c->{name}") for name in self._names[1:]}


def stand_in(kind: type, values: Mapping[str, Any]) -> Any:
    """An object of a subclass of `kind` that has `values`, also in the place of properties."""
    made = type(kind.__name__, (kind,), dict(values))
    return object.__new__(made)


def problem_in_c(**others: Any) -> Problem:
    """The problem at ``x``, with other values of fields that it has not."""
    extents = ("batch", "rows", "heads", "queries", "keys", "head_dim")
    names = (*extents, "mapped", "scaled", "power_of_two", "pair_mapped")
    sizes: dict[str, Any] = {name: input_int(f"x->{name}") for name in names}
    return Problem(**{"dtype": "", **sizes, **others})


def product_in_c(**others: Any) -> gemm_mma.Problem:
    """The product at ``x``, with other values of fields that it has not."""
    sizes: dict[str, Any] = {name: input_int(f"x->{name}") for name in ("batch", "m", "n", "k")}
    return gemm_mma.Problem(**{"dtype": "", "out_dtype": "", **sizes, **others})


def architecture_in_c() -> Architecture:
    """The device at ``arch``."""
    names = ("number", "shared_per_multiprocessor", "multiprocessors")
    return stand_in(Architecture, {name: input_int(f"arch->{name}") for name in names})  # type: ignore[no-any-return]


def array_in_c(name: str, shape: Sequence[Any] | None = None, *, axes: int = 5) -> Any:
    """The array at `name`, as `cuevo.arrays.ArrayView` has it.

    shape : where it is not the one that C has.
    axes : how many it has.
    """
    return SimpleNamespace(
        pointer=input_int(f"{name}->data"),
        shape=tuple(shape or (input_int(f"{name}->shape[{i}]") for i in range(axes))),
        strides=tuple(input_int(f"{name}->strides[{i}]") for i in range(axes)),
    )


def declared(arrays: Iterable[str]) -> str:
    """Arrays as parameters of a C function."""
    return ", ".join(f"const cuevo_array *{name}" for name in arrays)


def float_in_c(name: str) -> Any:
    """A double."""
    return input_float(name)


def dtype_in_c(name: str) -> str:
    """The 16-bit type that C calls so, asked for within a trace."""
    return "bf16" if input_int(name) == input_int("CUEVO_BF16") else "f16"


def product_fields_function(
    name: str,
    given: str,
    struct: Struct,
    fields: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *workspace: str,
) -> str:
    """The C function of that name which fills the parameter block of a product, from what is
    `given`, the arrays, those in the `workspace` behind them, and the factors: as `fields` does,
    which takes them by the names that host halves have for them.
    """
    names = {"a": "a", "b": "b", "c": "added", "d": "out", "bias": "bias", "scatter": "scatter"}
    names |= {each: each for each in workspace}
    operands = {name: array_in_c(in_c, axes=3) for name, in_c in names.items()}
    operands |= {name: float_in_c(name) for name in ("alpha", "beta")}
    inputs = f"{given}, {declared(names.values())}, double alpha, double beta"
    return fields_function(name, inputs, struct, lambda: fields(operands))
