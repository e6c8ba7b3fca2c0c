"""ptx/pack_sm70.ptx: every bit of arrays of any strides, in rows that begin at multiples of 16
bytes.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks.harness import assert_no_conflicts, check_all, empty, on_cpu, run
from helpers.guarded import DTYPES, Strided, assert_same_bytes, lay_out
from helpers.ledgers import opcodes

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView, view
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.kernels import pack_sm70 as pack
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

IN_ORDER = (0, 1, 2, 3, 4)
KEYS_FIRST = (0, 1, 4, 2, 3)
HEADS_LAST = (0, 1, 3, 4, 2)
QUERIES_LAST = (0, 1, 2, 4, 3)
SHAPES = (
    (1, 1, 1, 1, 1),
    (2, 1, 3, 2, 33),
    (1, 2, 4, 9, 70),
    (3, 2, 2, 3, 8),
    (1, 1, 2, 65, 9),
    (2, 3, 1, 5, 130),
    (1, 1, 16, 3, 40),
    (1, 2, 5, 1, 257),
)


@dataclass(frozen=True)
class Case:
    """One array; what is printed of it makes it again."""

    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...] = IN_ORDER
    """Axes from the slowest to the fastest."""
    more: tuple[tuple[str, Any], ...] = ()
    """Other arguments of `lay_out`."""
    seed: int = 0


def operand(case: Case) -> Strided:
    """Memory with random bits for elements, NaNs of every payload among them."""
    dtype = DTYPES[case.dtype]
    found = lay_out(case.shape, dtype, order=case.order, **dict(case.more))
    part = found.array[once(found.array)]
    rng = np.random.default_rng(case.seed)
    bits = rng.integers(0, 256, (*part.shape, dtype.itemsize), np.uint8)
    part[...] = (bits % 2 if case.dtype == "bool" else bits).view(dtype)[..., 0]
    return found


def once(x: np.ndarray) -> tuple[slice, ...]:
    """Every element of an array once, along all axes but the last."""
    return (*(slice(1) if step == 0 else slice(None) for step in x.strides[:-1]), slice(None))


def check(place: Executor, case: Case) -> pack.Config:
    source = operand(case)
    seen = view(source.array)
    config = pack.choose(seen)
    assert not pack.violations(config, architecture("sm_70"))
    memory = empty(pack.packed_memory(seen), seen.dtype)
    expected = memory.array.copy()
    strides = pack.packed_strides(seen)
    packed = replace(view(memory.array), shape=seen.shape, strides=strides)
    values = pack.parameters(config, source=seen, packed=packed)
    loaded = run(
        place,
        render(pack.NAME, pack.values(config)),
        dict(source=source),
        dict(packed=memory),
        threads=config.threads,
        grid=config.grid(int(values["parts"]))[0],
        **{name: x for name, x in values.items() if name not in ("source", "packed")},
    )
    size, columns = seen.dtype.itemsize, case.shape[-1]
    unit = 64 if columns * size >= 256 else 16
    assert strides[-1] == size and not any(step % unit for step in strides[:-1])
    expected[..., : -(columns * size // -16) * 16 // size] = 0
    expected[..., :columns] = source.array[once(source.array)]
    assert_same_bytes(case, "packed", memory.array, expected)
    in_view = np.ndarray(seen.shape, seen.dtype, memory.memory, memory.offset, strides)
    assert_same_bytes(case, "packed", in_view, source.array)
    if config.reads == "tile":
        assert_no_conflicts(loaded)
    return config


def layout(**arguments: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(arguments.items())


ODD = (
    layout(),
    layout(gaps=True, unit=2, shift=2),
    layout(gaps=True, unit=4, shift=8),
    layout(backwards=(0, 3)),
    layout(backwards=(4,)),
    layout(stepped=(4,)),
    layout(stepped=(2, 3), backwards=(2,)),
    layout(broadcast=(0,)),
    layout(broadcast=(1, 2)),
    layout(broadcast=(4,)),
    layout(broadcast=(0, 1, 2, 3, 4)),
    layout(gaps=True, unit=1, shift=1),
    layout(shift=3),
)


@cache
def cases() -> tuple[Case, ...]:
    """Every order of axes, and every odd layout in the orders that models have; types in turn."""
    types = ("f16", "f32", "bool")
    found = [
        Case(types[i % 3], SHAPES[i % len(SHAPES)], order, ODD[i % 3], seed=i)
        for i, order in enumerate(permutations(range(5)))
    ]
    for i, more in enumerate(ODD):
        for j, order in enumerate((IN_ORDER, HEADS_LAST, QUERIES_LAST, KEYS_FIRST)):
            shape = SHAPES[1 + (i + 2 * j) % (len(SHAPES) - 1)]
            found.append(Case(types[(i + j) % 3], shape, order, more, seed=i))
    for heads in (2, 3, 4, 5, 6, 8, 12, 16, 20, 32, 48):
        for dtype in types:
            found.append(Case(dtype, (1, 1, heads, 2, 37), HEADS_LAST, seed=heads))
    found += [Case("bf16", (1, 1, 2, 140, 77), QUERIES_LAST, more) for more in ODD[:2]]
    found += [
        Case(dtype, (1, 1, 2, 5, 21), order, layout(gaps=True, unit=1, shift=1))
        for dtype in ("bf16", "f32")
        for order in (IN_ORDER, HEADS_LAST)
    ]
    found += [Case("bf16", (1, 1, 2, 7, 769), order) for order in (IN_ORDER, HEADS_LAST)]
    return tuple(found)


@pytest.mark.kernel
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
def test_every_bit_on_the_cpu_executor(arch: str) -> None:
    check_all(check, cases(), on_cpu(arch))


@pytest.mark.gpu
def test_every_bit_on_a_device(executor: DriverExecutor) -> None:
    check_all(check, cases(), executor)


@pytest.mark.unit
def test_the_cases_have_every_way_to_read() -> None:
    chosen = {pack.choose(view(operand(case).array)) for case in cases()}
    seen = {(c.reads, c.size, c.unit) for c in chosen}
    assert seen >= {(reads, size, size) for reads in ("chunks", "elements") for size in (1, 2, 4)}
    assert seen >= {(reads, size, 1) for reads in ("chunks", "elements") for size in (2, 4)}
    tiles = {c for c in chosen if c.reads == "tile"}
    assert {c.size for c in tiles} == {1, 2, 4}
    assert {c.width * c.size for c in tiles} == {1, 2, 4, 8, 16}
    assert {c.lanes for c in tiles} == {1, 2, 4, 8, 16, 32}
    assert {c.axes for c in chosen} == {1, 2, 3, 4}


@pytest.mark.kernel
def test_strides_beyond_32_bits() -> None:
    """Two rows that are 2^33 bytes apart; the memory between them is never touched."""
    memory = np.zeros(2**33 + 64, np.uint8)
    x = np.ndarray((2, 9), np.float16, memory, 16, (2**33, 2))
    x[...] = np.arange(18).reshape(2, 9)
    seen = view(x)
    result = np.zeros((2, 16), np.float16)
    packed = replace(view(result), shape=seen.shape, strides=pack.packed_strides(seen))
    config = pack.choose(seen)
    values = pack.parameters(config, source=seen, packed=packed)
    kernel = SimExecutor("sm_80").load(render(pack.NAME, pack.values(config)))
    block = load_header().kernels[pack.NAME].pack(values)
    grid = config.grid(int(values["parts"]))
    kernel.launch(grid, (config.threads, 1, 1), 0, block, buffers=[seen, view(result)])
    np.testing.assert_array_equal(result[:, :9], x)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "counts"),
    [
        (pack.Config(2, 2, "tile", 2, 4, 1), {"LDG": 4, "STS": 8, "LDS": 2, "STG": 2}),
        (pack.Config(2, 2, "tile", 2, 2, 32), {"LDG": 16, "STS": 4, "LDS": 4, "STG": 4}),
        (pack.Config(2, 1, "chunks", 2), {"LDG": 20, "STS": 0, "LDS": 0, "STG": 2}),
        (pack.Config(4, 1, "elements", 2), {"LDG": 16, "STS": 0, "LDS": 0, "STG": 2}),
    ],
    ids=lambda x: getattr(x, "reads", ""),
)
def test_the_ledger(config: pack.Config, counts: dict[str, int], tmp_path: Path) -> None:
    """The machine code has the accesses to memory that the head of the text says."""
    kernel = render(pack.NAME, pack.values(config))
    (ledger,) = re.findall(r"^// Ledger.*?: (.*)$", kernel.text, re.MULTILINE)
    found = opcodes(assemble(kernel, "sm_90", cache=None).code, tmp_path)
    each = {
        name: sum(count for code, count in found.items() if code.startswith(name))
        for name in counts
    }
    assert each == counts
    times = 1 if config.reads == "tile" else config.accesses
    loads = sum(map(int, re.findall(r"(\d+) (?:loads )?of [0-9]+ bytes", ledger)))
    assert loads * times == counts["LDG"]
    (stores,) = re.findall(r"(\d+) (?:ld.shared and )?st.global", ledger)
    assert int(stores) * times == counts["STG"]


# -- The host half ---------------------------------------------------------------------------------


def seen(shape: tuple[int, ...], order: tuple[int, ...], dtype: Any, **more: Any) -> ArrayView:
    return view(lay_out(shape, np.dtype(dtype), order=order, **more).array)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # All axes in one; rows two bytes off.
        (seen((1, 1, 4, 65, 769), IN_ORDER, np.float16), pack.Config(2, 1, "chunks", 2)),
        (seen((1, 1, 4, 65, 769), IN_ORDER, np.float32), pack.Config(4, 1, "chunks", 4)),
        # Four heads are read at once, eight, or one; as many lanes lie along them as it takes.
        (seen((1, 1, 4, 65, 37), HEADS_LAST, np.float16), pack.Config(2, 2, "tile", 2, 4, 1)),
        (seen((1, 1, 16, 65, 37), HEADS_LAST, np.float16), pack.Config(2, 2, "tile", 2, 8, 2)),
        (seen((1, 1, 3, 65, 37), HEADS_LAST, np.float32), pack.Config(4, 2, "tile", 4, 1, 4)),
        # A line of the cache of queries, where they are aligned to more than one.
        (seen((1, 1, 4, 66, 37), QUERIES_LAST, np.float16), pack.Config(2, 2, "tile", 2, 2, 32)),
        (seen((1, 1, 4, 65, 37), QUERIES_LAST, np.float16), pack.Config(2, 2, "tile", 2, 1, 32)),
        (
            seen((1, 1, 4, 65, 37), HEADS_LAST, np.float16, shift=1),
            pack.Config(2, 2, "elements", 1),
        ),
        (
            seen((1, 1, 4, 65, 37), IN_ORDER, np.float32, stepped=(4,), shift=2),
            pack.Config(4, 1, "elements", 2),
        ),
    ],
)
def test_the_choice(source: ArrayView, expected: pack.Config) -> None:
    assert pack.choose(source) == expected


@pytest.mark.unit
def test_broadcast_axes_are_packed_once() -> None:
    source = seen((3, 1, 2, 4, 9), IN_ORDER, np.float16, broadcast=(0, 3))
    assert pack.packed_memory(source) == (1, 1, 2, 1, 16)
    assert pack.packed_strides(source) == (0, 64, 32, 0, 2)


@pytest.mark.unit
def test_the_parameter_block_is_that_of_the_header() -> None:
    source = seen((1, 1, 4, 5, 9), HEADS_LAST, np.float16)
    packed = view(np.zeros((1, 1, 4, 5, 16), np.float16))
    names = set(pack.parameters(pack.choose(source), source=source, packed=packed))
    assert names == {field.name for field in load_header().kernels[pack.NAME].fields}


SM_70 = architecture("sm_70")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(size=8), "size must be 1, 2 or 4 bytes, not 8"),
        (dict(axes=5), "axes must be 1 to 4, not 5"),
        (dict(reads="rows"), "reads must be chunks, tile or elements, not 'rows'"),
        (dict(reads="chunks", unit=4), "unit must be 1, 2 or 4 bytes of 2, not 4"),
        (dict(unit=1), "a tile has aligned elements: unit must be 2, not 1"),
        (dict(accesses=0), "accesses must be 1 to 4, not 0"),
        (dict(threads=48), "threads must be a multiple of 32 from 32 to 1024, not 48"),
        (dict(width=16), "width must be a power of two, 16 bytes at most, not 16 of 2"),
        (dict(lanes=12), "lanes must be a power of two up to 32, not 12"),
        (dict(accesses=1), "a row of the tile must be a power of two of 128 bytes or more"),
    ],
)
def test_each_constraint(changes: dict[str, Any], reason: str) -> None:
    base = pack.Config(reads="tile")
    assert not pack.violations(base, SM_70)
    (found,) = pack.violations(replace(base, **changes), SM_70)
    assert reason in found


@pytest.mark.unit
def test_what_is_for_another_array_is_refused() -> None:
    source = view(np.zeros((2, 9), np.float16))
    packed = view(np.zeros((2, 16), np.float16))
    with pytest.raises(ValueError, match="source: this instance is for another array"):
        pack.parameters(pack.Config(4), source=source, packed=packed)
    with pytest.raises(ValueError, match="packed: has to begin at a multiple of 16 bytes"):
        moved = replace(packed, pointer=2**20 + 8)
        pack.parameters(pack.choose(source), source=source, packed=moved)
    long = replace(source, shape=(2, 2**30), strides=(2**31, 2))
    with pytest.raises(ValueError, match=r"source: rows of 2147483648 bytes; fewer than 2\^31 are"):
        pack.parameters(pack.choose(long), source=long, packed=packed)
    large = replace(source, shape=(2**30, 17), strides=(34, 2))
    with pytest.raises(ValueError, match="source: 3221225472 chunks of 16 bytes; 2147479552 are"):
        pack.parameters(pack.choose(large), source=large, packed=packed)
