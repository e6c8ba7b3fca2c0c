"""Host half of ``ptx/partial_sums_sm70.ptx``: sums of what several threadblocks have left."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, gcd

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.toolchain.division import magic_fields

__all__ = [
    "MINIMUM_ARCH",
    "MOST_GROUPS",
    "NAME",
    "SUMMARY",
    "Config",
    "choose",
    "fields",
    "parameters",
    "row_threads",
    "terms_at_once",
    "values",
    "violations",
]

NAME = "partial_sums_sm70"
SUMMARY = "fp32 partial sums added in a fixed order, rounded once"
MINIMUM_ARCH = 70

_SIZES = {"f32": 4, "f16": 2, "bf16": 2}
_THREAD_COLUMNS = 8
_MOST_LINES = 2**31 - 1024
MOST_GROUPS = 65535
"""Of one launch: threadblocks in y."""


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    out_dtype: str = "f32"
    """Type of the sums: f32, f16 or bf16."""
    width: int = 4
    """Neighbouring columns that are stored at once: a divisor of the columns."""
    terms: int = 4
    """Terms that a thread loads before it adds them."""
    row_threads: int = 32
    """Threads that share a row."""
    threads: int = 256
    """Threads of a block."""

    @property
    def accesses(self) -> int:
        """Times that a thread has `width` columns."""
        return _THREAD_COLUMNS // self.width

    @property
    def block_columns(self) -> int:
        """Columns of a threadblock."""
        return self.row_threads * _THREAD_COLUMNS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: none."""
        return 0

    def grid(self, outer: int, rows: int, columns: int, groups: int = 1) -> tuple[int, int, int]:
        """Threadblocks of a launch: in x columns, fastest, and lines; in y groups of terms."""
        lines = ceil(outer * rows / (self.threads // self.row_threads))
        return (lines * ceil(columns / self.block_columns), groups, 1)


def choose(out_dtype: str, count: int, columns: int, alignment: int = 16) -> Config:
    """The configuration for groups of `count` terms and sums that begin at a multiple of
    `alignment` bytes: the widest stores that are aligned in every row.
    """
    size = _SIZES[out_dtype]
    return Config(
        out_dtype,
        width=gcd(columns, 16 // size, max(1, alignment // size)),
        terms=terms_at_once(count),
        row_threads=row_threads(columns),
    )


def row_threads(columns: int) -> int:
    """Threads that share a row of so many columns."""
    return min(32, 1 << (ceil(columns / _THREAD_COLUMNS) - 1).bit_length())


def terms_at_once(count: int) -> int:
    """Terms that a thread loads before it adds them, of groups of so many."""
    return min(count, 2) if count < 3 else 4


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {**asdict(config), "accesses": config.accesses}


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"needs sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.out_dtype not in _SIZES:
        yield f"out_dtype must be one of {', '.join(_SIZES)}, not {c.out_dtype!r}"
        return
    if c.out_dtype == "bf16" and arch.number < 80:
        yield f"rounding to bf16 needs sm_80; this is {arch.name}"
    if c.width not in (1, 2, 4, 8) or c.width * _SIZES[c.out_dtype] > 16:
        yield f"width must be 1, 2, 4 or 8, of 16 bytes at most, not {c.width} of {c.out_dtype}"
    if not 1 <= c.terms <= 8:
        yield f"terms must be 1 to 8, not {c.terms}"
    if c.threads % 32 or not 32 <= c.threads <= 1024:
        yield f"threads must be a multiple of 32 from 32 to 1024, not {c.threads}"
    elif c.row_threads < 1 or c.threads % c.row_threads:
        yield f"row_threads must divide {c.threads} threads, not {c.row_threads}"


def parameters(
    config: Config, *, partials: ArrayView, sums: ArrayView, groups: int = 1
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name: partials [outer, terms, rows, columns], sums
    [groups, outer, rows, columns], in which group g has the terms g, g + groups, g + 2 groups ...

    Raises ValueError for what the instance cannot do: groups without terms, or too many of them,
    columns that are no multiple of ``width``, rows that are not aligned to its loads or stores, or
    too many of them.
    """
    outer, terms, rows, columns = partials.shape
    if not 1 <= groups <= min(terms, MOST_GROUPS):
        raise ValueError(
            f"partials: each of 1 to {MOST_GROUPS} groups has at least one term; this is {terms} "
            f"terms in {groups} groups"
        )
    if columns % config.width or sums.pointer % (config.width * sums.dtype.itemsize):
        raise ValueError(
            f"stores of {config.width} sums do not fit {columns} columns of {sums.dtype.name} "
            f"at address {sums.pointer:#x}"
        )
    load_bytes = min(4 * config.width, 16)
    if any(stride % load_bytes for stride in (partials.pointer, *partials.strides[:3])):
        raise ValueError(f"partials: rows do not begin at multiples of {load_bytes} bytes")
    if outer * rows > _MOST_LINES:
        raise ValueError(f"partials: {outer} * {rows} lines; {_MOST_LINES} are the most")
    return fields(config, partials=partials, sums=sums, groups=groups)


def fields(
    config: Config, *, partials: ArrayView, sums: ArrayView, groups: int
) -> dict[str, int | float]:
    """`parameters` of what the instance can do."""
    outer, terms, rows, columns = partials.shape
    tiles = ceil(columns / config.block_columns)
    return {
        "partials": partials.pointer,
        "sums": sums.pointer,
        "partials_stride_outer": partials.strides[0],
        "partials_stride_group": partials.strides[1],
        "partials_stride_term": partials.strides[1] * groups,
        "partials_stride_row": partials.strides[2],
        "count": ceil(terms / groups),
        "longer_groups": (terms - 1) % groups + 1,
        "rows": rows,
        "columns": columns,
        "lines": outer * rows,
        "column_tiles": tiles,
        **magic_fields(rows=rows, column_tiles=tiles),
    }
