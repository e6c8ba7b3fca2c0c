"""ptx/partial_sums_sm70.ptx: sums in order, every bit, and compared with float64."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from blocks.harness import check_all, empty, parts, run
from helpers.covering import covering
from helpers.guarded import DTYPES, Strided, fail, host_views, lay_out

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.executors.protocol import Executor
from cuevo.kernels import partial_sums_sm70 as partial_sums
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

F32 = np.dtype(np.float32)
OUT_DTYPES = ("f32", "f16", "bf16")
ORDERS = {
    "terms first": (1, 0, 2, 3),  # chunks of rows: [chunks, B * H, Lq, Lk]
    "terms inside": (0, 1, 2, 3),  # heads: [B * N, H, 1, Lk]
    "rows first": (2, 0, 1, 3),
}


@dataclass(frozen=True)
class Case:
    """One problem; what is printed of it makes it again."""

    out_dtype: str
    columns: int
    count: int = 1
    """Terms of all groups."""
    groups: int = 1
    outer: int = 1
    rows: int = 1
    order: str = "terms first"
    values: str = "normal"
    alignment: int = 16
    """Alignment of the sums' first byte."""
    changes: tuple[tuple[str, int], ...] = ()
    """Fields of the configuration that differ from those chosen."""

    @property
    def config(self) -> partial_sums.Config:
        alignment = max(self.alignment, DTYPES[self.out_dtype].itemsize)
        terms = -(-self.count // self.groups)
        chosen = partial_sums.choose(self.out_dtype, terms, self.columns, alignment)
        changes: dict[str, Any] = dict(self.changes)
        return replace(chosen, **changes)


def operand(case: Case) -> Strided:
    """Partial sums with rows aligned to 16 bytes, and gaps between them."""
    shape = (case.outer, case.count, case.rows, case.columns)
    row_bytes = -(-case.columns // 4) * 16 + 32
    found = lay_out(shape, F32, order=ORDERS[case.order], row_bytes=row_bytes, gaps=True)
    rng = np.random.default_rng(case.columns)
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)
    if case.values == "not finite":
        for value in (np.inf, -np.inf, np.nan, 3e38, 1e5):
            x[rng.random(shape) < 0.05] = value
        x[rng.random(shape) < 0.2] = -0.0
    elif case.values == "zeros":
        x = np.where(rng.random(shape) < 0.5, -0.0, 0.0)
    elif case.values == "halfway":
        # Sums that lie between two 16-bit floats, and ones just beside.
        x = np.zeros(shape)
        x[:, 0] = 1.0 + rng.integers(0, 1 << 12, shape[:1] + shape[2:]) * 2.0**-12
    found.array[...] = x.astype(F32)
    return found


def check(place: Executor, case: Case) -> None:
    config = case.config
    assert not partial_sums.violations(config, architecture_of(place))
    source = operand(case)
    dtype = DTYPES[case.out_dtype]
    shift = case.alignment % 16
    shape = (case.groups, case.outer, case.rows, case.columns)
    result = empty(shape, dtype, shift=max(shift, 0))
    everything = host_views(dict(partials=source, sums=result), readonly=False)
    numbers = partial_sums.parameters(config, **everything, groups=case.groups)
    run(
        place,
        render(partial_sums.NAME, partial_sums.values(config)),
        dict(partials=source),
        dict(sums=result),
        threads=config.threads,
        grid=config.grid(case.outer, case.rows, case.columns, case.groups),
        **{name: value for name, value in numbers.items() if name not in everything},
    )
    with np.errstate(all="ignore"):
        in_order = np.full(shape, -0.0, F32)
        exact, size = np.zeros(shape), np.zeros(shape)
        for t in range(case.count):
            term = source.array[:, t]
            in_order[t % case.groups] += term
            exact[t % case.groups] += term
            size[t % case.groups] += np.abs(term)
        rounded = in_order.astype(dtype)
        found = np.ascontiguousarray(result.array)
        bits = f"u{dtype.itemsize}"
        differs = found.view(bits) != np.ascontiguousarray(rounded).view(bits)
        differs &= ~(np.isnan(found) & np.isnan(rounded))
        if differs.any():
            fail(case, "sums", differs, found, rounded)
        step = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}[case.out_dtype]
        allowed = (case.count * 2.0**-24 + step) * size + 2.0**-24
        wide = found.astype(np.float64)
        far = np.isfinite(wide) & (np.abs(wide - exact) > allowed)
        if far.any():
            fail(case, "sums: far from float64", far, wide, exact)


FIELDS: dict[str, tuple[Any, ...]] = dict(
    out_dtype=OUT_DTYPES,
    columns=(1, 2, 3, 4, 5, 8, 12, 62, 64, 104, 256, 257, 264, 514),
    count=(1, 2, 3, 4, 5, 9),
    groups=(1, 2, 3),
    outer=(1, 3),
    rows=(1, 7, 33),
    order=tuple(ORDERS),
    values=("normal", "not finite", "zeros", "halfway"),
    alignment=(16, 8, 4, 2),
    changes=((), (("threads", 64),), (("terms", 1),), (("terms", 8),), (("row_threads", 4),)),
)


@cache
def cases() -> tuple[Case, ...]:
    """Every two values of different fields meet."""
    rng = np.random.default_rng(0)
    drawn = (
        Case(**{name: values[rng.integers(len(values))] for name, values in FIELDS.items()})
        for _ in range(8000)
    )
    found = [
        case
        for case in drawn
        if case.groups <= case.count and case.alignment >= DTYPES[case.out_dtype].itemsize
    ]
    return tuple(
        covering(found, cost=lambda case: case.outer * case.count * case.rows * case.columns)
    )


@pytest.mark.kernel
@parts(3)
def test_sums_on_the_cpu_executor(part: slice) -> None:
    check_all(check, cases()[part], SimExecutor("sm_80"))


@pytest.mark.kernel
def test_sums_on_the_lowest_architecture() -> None:
    chosen = [case for case in cases() if case.out_dtype != "bf16"]
    check_all(check, chosen[::3], SimExecutor("sm_70"))


@pytest.mark.gpu
def test_sums_on_a_device(executor: DriverExecutor) -> None:
    check_all(check, cases(), executor)


# -- The host half ---------------------------------------------------------------------------------

SM_80 = architecture("sm_80")


def views(columns: int = 8, count: int = 2, shift: int = 0, row_bytes: int = 64) -> Any:
    arrays = {
        "partials": lay_out((1, count, 3, columns), F32, row_bytes=row_bytes),
        "sums": lay_out((1, 3, columns), F32, shift=shift),
    }
    return host_views(arrays, readonly=False)


@pytest.mark.unit
def test_the_parameter_block_is_that_of_the_header() -> None:
    names = set(partial_sums.parameters(partial_sums.Config(), **views()))
    assert names == {field.name for field in load_header().kernels[partial_sums.NAME].fields}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("out_dtype", "columns", "alignment", "width"),
    [
        ("f32", 256, 16, 4),
        ("f32", 254, 16, 2),
        ("f32", 256, 8, 2),
        ("f32", 257, 16, 1),
        ("bf16", 256, 16, 8),
        ("bf16", 260, 16, 4),
        ("f16", 256, 4, 2),
        ("f16", 256, 2, 1),
        ("f16", 257, 16, 1),
    ],
)
def test_stores_are_as_wide_as_every_row_allows(
    out_dtype: str, columns: int, alignment: int, width: int
) -> None:
    for count in (1, 2, 3, 100):
        config = partial_sums.choose(out_dtype, count, columns, alignment)
        assert config.width == width
        assert config.terms == {1: 1, 2: 2}.get(count, 4)
        assert not partial_sums.violations(config, SM_80)


@pytest.mark.unit
def test_short_rows_share_a_warp() -> None:
    threads = [
        partial_sums.choose("f32", 4, columns).row_threads
        for columns in (1, 8, 9, 64, 65, 256, 999)
    ]
    assert threads == [1, 1, 2, 8, 16, 32, 32]
    assert partial_sums.choose("f32", 4, 8).grid(3, 100, 8) == (2, 1, 1)
    assert partial_sums.choose("f32", 4, 257).grid(3, 100, 257) == (76, 1, 1)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        (dict(out_dtype="f64"), "sm_80", "out_dtype must be one of f32, f16, bf16, not 'f64'"),
        (dict(out_dtype="bf16"), "sm_75", "rounding to bf16 needs sm_80; this is sm_75"),
        (dict(width=3), "sm_80", "width must be 1, 2, 4 or 8"),
        (dict(width=8), "sm_80", "of 16 bytes at most, not 8 of f32"),
        (dict(terms=9), "sm_80", "terms must be 1 to 8, not 9"),
        (dict(threads=48), "sm_80", "threads must be a multiple of 32 from 32 to 1024, not 48"),
        (dict(row_threads=3), "sm_80", "row_threads must divide 256 threads, not 3"),
    ],
)
def test_each_constraint(changes: dict[str, Any], arch: str, reason: str) -> None:
    base = partial_sums.Config()
    assert not partial_sums.violations(base, architecture("sm_70"))
    (found,) = partial_sums.violations(replace(base, **changes), architecture(arch))
    assert reason in found


@pytest.mark.unit
def test_what_an_instance_cannot_do_is_refused() -> None:
    config = partial_sums.Config()
    for count, groups in ((0, 1), (2, 3), (2, 0), (70000, 65536)):
        words = f"1 to 65535 groups has at least one term; this is {count} terms in {groups} groups"
        with pytest.raises(ValueError, match=words):
            partial_sums.parameters(config, **views(count=count), groups=groups)
    for wrong in (views(columns=6), views(shift=8)):
        with pytest.raises(ValueError, match=r"stores of 4 sums do not fit \d columns of"):
            partial_sums.parameters(config, **wrong)
    with pytest.raises(ValueError, match="rows do not begin at multiples of 16 bytes"):
        partial_sums.parameters(config, **views(row_bytes=40))
    many = {
        name: replace(view, shape=(2**16, *view.shape[1:-2], 2**16, view.shape[-1]))
        for name, view in views().items()
    }
    with pytest.raises(
        ValueError, match=r"partials: 65536 \* 65536 lines; 2147482624 are the most"
    ):
        partial_sums.parameters(config, **many)
