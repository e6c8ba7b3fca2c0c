"""Tables in C, and what all planners find in them."""

from collections.abc import Iterator, Sequence

from cuevo.architectures import KNOWN, Architecture, architecture
from cuevo.kernels.gemm_mma import Problem as Product
from cuevo.ops.export.selection import Selection

__all__ = [
    "CHOICE",
    "PRODUCT_CHOICE",
    "SHORT_STEP",
    "TYPES",
    "ShortTiles",
    "Table",
    "product_choice",
    "served",
]

TYPES = {
    "none": "CUEVO_ABSENT",
    "f16": "CUEVO_F16",
    "bf16": "CUEVO_BF16",
    "f32": "CUEVO_F32",
    "bool": "CUEVO_BOOL",
    "i32": "CUEVO_I32",
    "i64": "CUEVO_I64",
}
"""cuevo_type of what host halves call a type."""

CHOICE = """\
/* Tilings for the problems of a kind. */
typedef struct choice {
    int64_t architecture, head_dim;
    cuevo_type type, mask, pair;
    int64_t first, count;
    int64_t sums; /* whether a side of backward has those of the gradient of a bias */
} choice;
"""

PRODUCT_CHOICE = """\
/* Tilings for the products of a kind. */
typedef struct product_choice {
    int64_t architecture;
    cuevo_type type, result, added, bias, scatter;
    int64_t a_columns, b_columns;
    int64_t operands_aligned, results_aligned; /* bytes */
    int64_t first, count;
} product_choice;
"""


def product_choice(
    arch: Architecture, problem: Product, first: int, count: int
) -> tuple[object, ...]:
    """The row of a `PRODUCT_CHOICE` for products like `problem`."""
    bias = problem.dtype if problem.bias_of_inputs else problem.out_dtype
    return (
        arch.number,
        *(TYPES[problem.dtype], TYPES[problem.out_dtype], TYPES[problem.c]),
        TYPES[bias if problem.bias else "none"],
        TYPES[f"i{8 * problem.index_bytes}" if problem.scatter else "none"],
        *(int(problem.a_columns), int(problem.b_columns)),
        *(problem.a_alignment, min(problem.c_alignment, problem.d_alignment)),
        *(first, count),
    )


class Table:
    """A constant array of structs in C."""

    def __init__(self, name: str, struct: str) -> None:
        self._name, self._struct = name, struct
        self._rows: list[tuple[object, ...]] = []
        self._numbers: dict[tuple[object, ...], int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: Sequence[object]) -> None:
        """A row more."""
        self._rows.append(tuple(row))

    def add(self, row: Sequence[object]) -> int:
        """The number of that row, which is appended where it is new."""
        number = self._numbers.setdefault(tuple(row), len(self._rows))
        if number == len(self._rows):
            self.append(row)
        return number

    def text(self) -> str:
        """The array, which has one row at least in C, and how many it has here."""
        lines = [] if self._rows else ["    0\n"]
        for row in self._rows:
            values = ", ".join(map(str, row))
            lines.append(f"    {values},\n" if len(row) == 1 else f"    {{{values}}},\n")
        array = f"{self._struct} {self._name}[{len(self._rows) or 1}]"
        return (
            f"static const {array} = {{\n{''.join(lines)}}};\n"
            f"enum {{ {self._name}_count = {len(self._rows)} }};\n"
        )


SHORT_STEP = 16
"""Positions by which last tiles differ: those of an mma. Fewer make no other tile."""


class ShortTiles:
    """The instances for last tiles, by tiling and by how many steps of positions they have."""

    def __init__(self, name: str) -> None:
        self._table = Table(name, "int16_t")
        self._runs: dict[tuple[int, ...], int] = {}

    def add(self, instances: Sequence[int]) -> int:
        """Where those of a tiling begin, for 1 step and more; -1 where all are -1, none."""
        run = tuple(instances)
        if set(run) == {-1}:
            return -1
        at = self._runs.setdefault(run, len(self._table))
        if at == len(self._table):
            for each in run:
                self._table.append((each,))
        return at

    def text(self) -> str:
        """The array in C."""
        return f"enum {{ SHORT_STEP = {SHORT_STEP} }};\n{self._table.text()}"


def served(selection: Selection) -> Iterator[str]:
    """By which architecture of the folder devices are served: by the highest of those that are not
    above theirs, and whose threadblocks have no more shared memory.
    """
    rows = Table("served", "service")
    for number in sorted({*KNOWN, *(each.number for each in selection.limits)}, reverse=True):
        device = architecture(f"sm_{number}")
        fitting = [
            each
            for each in selection.limits
            if each.number <= number and each.shared_per_block <= device.shared_per_block
        ]
        by = (fitting[-1].number, fitting[-1].shared_per_multiprocessor) if fitting else (0, 0)
        rows.append((number, *by))
    yield "typedef struct service {\n    int64_t from, by, shared_per_multiprocessor;\n} service;\n"
    yield rows.text()
