"""Threadblock products: their parameters, and what one tile must come to, bit for bit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import ceil
from typing import Any

import numpy as np
from blocks.harness import array, assert_no_conflicts, empty, instance, run, same
from helpers.covering import covering, every
from helpers.guarded import DTYPES, Strided

from cuevo.architectures import architecture
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.layouts import M8N8K4, M8N8K4_F16, M16N8, M16N8_F16, Accumulator
from cuevo.layouts.tiles import INSTRUCTIONS, Operand, ThreadblockMma
from cuevo.sim.arithmetic import tensor_core
from cuevo.sim.arithmetic.quad_product import quad_product


def broken(x: Operand) -> Iterator[str]:
    """Why the macros cannot do what `Operand.violations` lets pass."""
    if x.instruction == "m16n8k8" and x.warp_extent % 32 == 24:
        yield "there is no ldmatrix.x3"


@dataclass(frozen=True)
class Product:
    """A threadblock product, and how it is used."""

    stages: int
    tile: tuple[int, int, int, int]
    """m and n of the threadblock, and of a warp."""
    depth: int
    instruction: str
    a_transposed: bool
    b_transposed: bool
    layout: str
    bounds: str
    """`ThreadblockMma.clear`, and "resident" where the stages hold all of k."""
    whole_steps: bool
    types: tuple[str, str]
    """Types of the operands and of the accumulators."""
    cache_a: str
    cache_b: str
    access: tuple[int, int]
    """Bytes that rows of A and of B are aligned to."""
    order: str
    """Order of the prologues: "ab", "a b", "b a" or "a early"."""
    uses: int

    @property
    def mma(self) -> ThreadblockMma:
        m, n, warp_m, warp_n = self.tile
        common = (self.instruction, 32 * (m // warp_m) * (n // warp_n), self.layout)
        a = Operand(
            "a", m, self.depth, warp_m, self.a_transposed, *common, self.cache_a, self.access[0],
        )  # fmt: skip
        b = Operand(
            "b", n, self.depth, warp_n, self.b_transposed, *common, self.cache_b, self.access[1],
        )  # fmt: skip
        clear, _, resident = self.bounds.partition(", ")
        held = self.stages * self.depth if resident else 0
        return ThreadblockMma(a, b, self.stages, clear, held, self.whole_steps)

    @property
    def accumulator(self) -> Accumulator:
        narrow = self.types[1] == "f16"
        if self.instruction == "m8n8k4":
            return M8N8K4_F16 if narrow else M8N8K4
        return M16N8_F16 if narrow else M16N8

    def violations(self, room: int) -> Iterator[str]:
        """Why it cannot be in `room` bytes of shared memory."""
        yield from self.mma.violations()
        yield from broken(self.mma.a)
        yield from broken(self.mma.b)
        if self.mma.threads > 1024 or self.mma.shared_bytes > room:
            yield "no device has so much"
        if self.types == ("bf16", "f16"):
            yield "accumulators of bf16 are fp32"


Values = Mapping[str, Sequence[Any]]
"""Values of each parameter."""

TILINGS: dict[str, Any] = {
    "stages": (2, 3, 4, 5, 6),
    "tile": (
        (16, 16, 16, 16),
        (16, 64, 16, 16),
        (32, 32, 32, 32),
        (32, 32, 16, 8),
        (48, 32, 48, 32),
        (64, 32, 16, 32),
        (64, 64, 32, 32),
        (64, 96, 32, 48),
        (64, 128, 32, 64),
        (96, 64, 48, 64),
        (128, 64, 64, 32),
    ),
    "depth": (16, 32, 64, 96, 128),
    "instruction": ("m16n8k16", "m16n8k8"),
    "a_transposed": (False, True),
    "b_transposed": (False, True),
    "layout": ("swizzled", "padded"),
}
"""m and n of the tile are those of the threadblock, then those of a warp."""
DETAILS: dict[str, Any] = {
    "bounds": ("zfill", "zfill, resident", "last_stage, resident", "none", "none, resident"),
    "whole_steps": (True, False),
    "types": (("bf16", "f32"), ("f16", "f32"), ("f16", "f16")),
    "cache_a": ("cg", "ca"),
    "cache_b": ("cg", "ca"),
    "access": ((16, 16), (16, 8), (8, 4), (4, 16), (2, 2), (16, 2)),
    "order": ("ab", "a b", "b a", "a early"),
    "uses": (1, 2),
}


def drawn(tilings: Values, details: Values, arch: str) -> tuple[Product, ...]:
    """A product for each tiling that can be, with details of those that go with it; and more, as
    long as two values of two parameters do not meet.
    """
    rng, room = np.random.default_rng(0), architecture(arch).shared_per_block
    plain = {name: values[0] for name, values in details.items()}
    found = []
    for tiling in every(dict, **tilings):
        if not list(Product(**tiling, **plain).violations(room)):
            chosen = plain
            for _ in range(100):
                draw = {name: values[rng.integers(len(values))] for name, values in details.items()}
                if not list(Product(**tiling, **draw).violations(room)):
                    chosen = draw
                    break
            found.append(Product(**tiling, **chosen))
    found += [Product(**missing) for missing in strangers(found, {**tilings, **details}, arch)]
    return tuple(found)


def sample(cases: Sequence[Product]) -> list[Product]:
    """Every two values of two parameters, in products that do not take long."""

    def cost(case: Product) -> float:
        m, n, _, _ = case.tile
        return m * n * case.depth * (case.stages + 2) * case.uses

    return covering(cases, cost=cost)


def strangers(
    cases: Sequence[Product], values: Values, arch: str, seed: int = 0
) -> list[dict[str, Any]]:
    """Products with two values of two parameters that never meet in the cases."""
    rng, room = np.random.default_rng(seed), architecture(arch).shared_per_block
    found = []
    for one, other in combinations(values, 2):
        seen = {(getattr(case, one), getattr(case, other)) for case in cases}
        for pair in product(values[one], values[other]):
            if pair not in seen:
                for _ in range(200):
                    draw = {name: few[rng.integers(len(few))] for name, few in values.items()}
                    draw |= {one: pair[0], other: pair[1]}
                    if not list(Product(**draw).violations(room)):
                        found.append(draw)
                        break
    return found


def extents(case: Product) -> Iterator[tuple[int, int, int]]:
    """m, n and k that exist: fewer K tiles than stages, and more unless all of k is resident."""
    m, n, _, _ = case.tile
    depth, mma = case.depth, case.mma
    most = case.stages if mma.resident else case.stages + 2
    if mma.clear == "none":
        yield m, n, max(case.stages - 1, 1) * depth
        yield m, n, most * depth
    elif mma.clear == "last_stage":
        yield m, n, max(case.stages - 2, 0) * depth + depth // 2 + 1
        yield m, n, most * depth - 3
    else:
        yield m - 5, n - 3, max(case.stages - 2, 0) * depth + 5
        yield m, n, most * depth - 7
        if not mma.resident and case.access == (16, 16):
            # Where whole tiles are copied in another way, each bound is crossed by itself, too.
            yield m - 5, n, most * depth
            yield m, n - 3, most * depth


def sums(case: Product, arch: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[m, n]: a [m, k] . b [k, n] of whole tiles, as the tensor cores add it up."""
    dtype, accumulate = case.types
    name = {"f16": tensor_core.F16, "bf16": tensor_core.BF16}[dtype]
    number = architecture(arch).number
    block = tensor_core.block(number)
    step = 4 if case.instruction == "m8n8k4" else INSTRUCTIONS[case.instruction]
    kind = np.float16 if accumulate == "f16" else np.float32
    a = np.ascontiguousarray(a[:, :, None]).view(np.uint16)
    b = np.ascontiguousarray(b[:, :, None]).view(np.uint16)
    total = np.zeros((len(a), b.shape[1], 1), kind)
    with np.errstate(all="ignore"):
        for k in range(0, len(b), step):
            left, right = a[:, k : k + step], b[k : k + step]
            if case.instruction == "m8n8k4":
                total = quad_product(left, right, total, number)
            else:
                total = tensor_core.multiply_accumulate(left, right, total, name, block)
    return np.ascontiguousarray(total[:, :, 0])


def stored(matrix: np.ndarray, transposed: bool, access: int) -> Strided:
    """In memory by rows, or transposed; rows are an odd multiple of the access apart."""
    rows = matrix.T if transposed else matrix
    pitch = (ceil(2 * rows.shape[1] / access) | 1) * access
    return array(np.ascontiguousarray(rows), row_bytes=pitch, shift=access)


def padded(matrix: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """With zeros around it, or cut."""
    found = np.zeros((rows, columns), matrix.dtype)
    part = matrix[:rows, :columns]
    found[: part.shape[0], : part.shape[1]] = part
    return found


def check(kernel: str, place: Executor, case: Product) -> LoadedKernel:
    """All uses of a product on tile (1, 1), of extents that fill it and others."""
    mma = case.mma
    dtype, accumulate = case.types
    m_tile, n_tile, _, _ = case.tile
    text = instance(
        kernel,
        mma=mma,
        layout=case.accumulator,
        dtype=dtype,
        accumulate=accumulate,
        order=case.order,
        uses=case.uses,
    )
    rng = np.random.default_rng(mma.stage_bytes)
    for m, n, k in extents(case):
        # What lies before the tile is there, and not a part of it.
        a = rng.standard_normal((m_tile + m, k)).astype(DTYPES[dtype])
        b = rng.standard_normal((case.uses, k, n_tile + n)).astype(DTYPES[dtype])
        inputs = {"a": stored(a, case.a_transposed, case.access[0])}
        for name, matrix in zip(("b", "other"), b, strict=False):
            inputs[name] = stored(matrix, not case.b_transposed, case.access[1])
        numbers: dict[str, Any] = {}
        for x in (mma.a, mma.b):
            stride = inputs[x.name].array.strides[0]
            numbers[f"{x.name}_stride"] = stride
            numbers[f"{x.name}_step_pass"] = stride * x.pass_rows
            numbers[f"{x.name}_step_tile"] = stride * x.depth if x.transposed else 2 * x.depth
        kind = np.float16 if accumulate == "f16" else np.float32
        products = empty((case.uses, m_tile, n_tile), kind)
        dirty = empty((mma.threads,), np.uint32)
        loaded = run(
            place,
            text,
            inputs,
            {"products": products, "dirty": dirty},
            threads=mma.threads,
            shared_bytes=mma.shared_bytes,
            m=m_tile + m,
            n=n_tile + n,
            k=k,
            first_m=m_tile,
            first_n=n_tile,
            **numbers,
        )
        depth = ceil(k / case.depth) * case.depth
        own = padded(a[m_tile:], m_tile, depth)
        for use in range(case.uses):
            other = padded(b[use, :, n_tile:], depth, n_tile)
            expected = sums(case, place.arch, own, other)
            same(f"{m} x {n} x {k}: products of use {use}", products.array[use], expected)
        assert not dirty.array.any(), f"{m} x {n} x {k}: a copy landed after drain"
        # The narrow copies of a chunk go to every fourth, or second, bank.
        narrow = {8, 4} & set(case.access)
        if not narrow:
            assert_no_conflicts(loaded)
    return loaded
