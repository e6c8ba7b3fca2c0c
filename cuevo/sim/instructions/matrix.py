"""Warp-wide matrix instructions: ldmatrix, stmatrix, mma."""

from collections.abc import Callable

import numpy as np

from cuevo.layouts import LDMATRIX, LDMATRIX_TRANS, Fragment, mma_shape
from cuevo.sim.aliases import AnyArray, AnyDType, Mask, Step
from cuevo.sim.arithmetic.integer_product import bit_product, integer_product, nibble_product
from cuevo.sim.arithmetic.quad_product import quad_product
from cuevo.sim.arithmetic.tensor_core import OPERAND_TYPES, block, multiply_accumulate
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.fragments import elements, matrix_of, registers_of
from cuevo.sim.text.syntax import Operand, RegisterOperand
from cuevo.sim.text.types import TYPES, ScalarType


def whole_warps(machine: Machine, mask: Mask) -> AnyArray | None:
    """The warps that take part, None for all of them. Every lane of a warp must, none may have
    exited.
    """
    if mask is None:
        return None
    first: AnyArray = mask[0]
    if np.count_nonzero(mask != first):
        present = np.count_nonzero(mask, axis=0)
        wrong = (present != 0) & (present != 32)
        raise Fault(
            f"an .aligned instruction is run by {int(present[wrong][0])} of the 32 lanes of a warp",
            mask & wrong[None, :],
        )
    return np.flatnonzero(first)


def load(b: Binder, m: Modifiers) -> Step:
    """Lane 8 i + r has the address of row r of matrix i; lane l gets row l / 4, columns 2 (l % 4)
    and the next.
    """
    count = int(m["count"][1:])
    destinations = [
        b.destination(operand, TYPES["b32"]) for operand in b.vector(b.operand(0), count)
    ]
    address, machine = b.address(b.operand(1)), b.machine
    warps = machine.warps
    rows = np.zeros(machine.shape, np.bool_)
    rows[: 8 * count] = True

    def step(mask: Mask) -> None:
        whole_warps(machine, mask)
        used = rows if mask is None else rows & mask
        used_mask = None if count == 4 and mask is None else used
        indices = machine.shared.indices(address(), 16, used_mask)
        loaded = machine.shared.load(indices, 16, used_mask)
        for i, d in enumerate(destinations):
            rows_of_matrix = loaded[8 * i : 8 * i + 8]
            if m["trans"]:
                # (row, element, warp)
                matrix = rows_of_matrix.view(np.uint16).reshape(8, warps, 8).transpose(0, 2, 1)
                (bits,) = registers_of(matrix, LDMATRIX_TRANS)
            else:
                # Neighbours of a row are a register already: (row, pair of elements, warp).
                pairs = rows_of_matrix.view(np.uint32).reshape(8, warps, 4).transpose(0, 2, 1)
                bits = pairs.reshape(machine.shape)
            np.copyto(d, bits, where=True if mask is None else mask)

    return step


def store(b: Binder, m: Modifiers) -> Step:
    count = int(m["count"][1:])
    sources = [b.source(operand, TYPES["b32"]) for operand in b.vector(b.operand(1), count)]
    address, machine = b.address(b.operand(0)), b.machine
    warps = machine.warps
    rows = np.zeros(machine.shape, np.bool_)
    rows[: 8 * count] = True
    layout = LDMATRIX_TRANS if m["trans"] else LDMATRIX

    def step(mask: Mask) -> None:
        whole_warps(machine, mask)
        used = rows if mask is None else rows & mask
        indices = machine.shared.indices(address(), 16, used)
        values = np.zeros(machine.shape, np.complex128)
        matrices = values.view(np.uint16).reshape(-1, warps, 8).transpose(0, 2, 1)
        for i, source in enumerate(sources):
            register = np.broadcast_to(source, machine.shape)
            matrices[8 * i : 8 * i + 8] = matrix_of([register], layout, np.dtype(np.uint16))
        machine.shared.store(indices, 16, values, used)

    return step


def transpose(b: Binder, m: Modifiers) -> Step:
    """movmatrix: the fragment of an 8 x 8 matrix becomes that of its transpose."""
    x, d = b.source(b.operand(1), TYPES["b32"]), b.destination(b.operand(0), TYPES["b32"])
    if not isinstance(b.operand(1), RegisterOperand):
        raise b.refusal("movmatrix takes a register")
    machine = b.machine

    def step(mask: Mask) -> None:
        whole_warps(machine, mask)
        halves = np.ascontiguousarray(np.broadcast_to(x, machine.shape))
        # (row, pair of columns, warp, half) to the same of columns.
        matrix = halves.view(np.uint16).reshape(8, 4, machine.warps, 2)
        turned = matrix.transpose(1, 3, 0, 2).reshape(8, 4, 2, machine.warps)
        result = np.ascontiguousarray(turned.transpose(0, 1, 3, 2)).view(np.uint32)
        np.copyto(d, result.reshape(machine.shape), where=True if mask is None else mask)

    return step


# -- mma -----------------------------------------------------------------------------------------


def _mma(
    b: Binder,
    fragments: tuple[Fragment, Fragment, Fragment, Fragment],
    types: tuple[AnyDType, AnyDType, AnyDType],
    multiply: Callable[[AnyArray, AnyArray, AnyArray], AnyArray],
) -> Step:
    """``d, a, b, c`` by `multiply`: A, B and C to D. `fragments` are of A, B, C and D; `types` are
    those of the elements of A, B and C, of A and B as patterns.
    """
    of_a, of_b, of_c, of_d = fragments
    type_a, type_b, type_c = types

    def listed(index: int, fragment: Fragment) -> tuple[Operand, ...]:
        return b.vector(b.operand(index), fragment.registers)

    def accumulates(fragment: Fragment) -> ScalarType:
        if elements(fragment) == 2:
            return TYPES["b32"]
        return TYPES["s32" if type_c == np.int32 else "f32"]

    left = [b.whole(x, TYPES["b32"]) for x in listed(1, of_a)]
    right = [b.whole(x, TYPES["b32"]) for x in listed(2, of_b)]
    before, after = accumulates(of_c), accumulates(of_d)
    c = [b.whole(x, before) for x in listed(3, of_c)]
    d = [b.destination(x, after).view(np.uint32) for x in listed(0, of_d)]
    machine = b.machine

    def step(mask: Mask) -> None:
        warps = whole_warps(machine, mask)

        def taken(registers: list[AnyArray]) -> list[AnyArray]:
            return registers if warps is None else [x.take(warps, axis=1) for x in registers]

        result = multiply(
            matrix_of(taken(left), of_a, type_a),
            matrix_of(taken(right), of_b, type_b),
            matrix_of(taken(c), of_c, type_c),
        )
        for register, bits in zip(d, registers_of(result, of_d), strict=True):
            if warps is None:
                np.copyto(register, bits)
            else:
                register[:, warps] = bits

    return step


_FLOATS: dict[str, AnyDType] = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}
_BYTES: dict[str, AnyDType] = {"s8": np.dtype(np.int8), "u8": np.dtype(np.uint8)}
_WORDS: dict[str, AnyDType] = {
    "s4": np.dtype(np.int32),
    **dict.fromkeys(("u4", "b1"), np.dtype(np.uint32)),
}


def multiply(b: Binder, m: Modifiers) -> Step:
    shape, dtype = mma_shape(m["shape"], m["a"]), OPERAND_TYPES[m["a"]]
    arithmetic = block(b.arch, dtype)
    of_c = shape.accumulators[m["c"]]
    pattern = np.dtype(f"u{dtype.itemsize}")
    return _mma(
        b,
        (shape.a["row"], shape.b["col"], of_c, of_c),
        (pattern, pattern, _FLOATS[m["c"]]),
        lambda left, right, c: multiply_accumulate(left, right, c, dtype, arithmetic),
    )


def multiply_bytes(b: Binder, m: Modifiers) -> Step:
    """Integers of 8 bits."""
    shape, saturates = mma_shape(m["shape"], m["a"]), bool(m["satfinite"])
    of_c = shape.accumulators["s32"]
    return _mma(
        b,
        (shape.a["row"], shape.b["col"], of_c, of_c),
        (_BYTES[m["a"]], _BYTES[m["b"]], np.dtype(np.int32)),
        lambda left, right, c: integer_product(left, right, c, saturates),
    )


def multiply_words(b: Binder, m: Modifiers) -> Step:
    """Integers of 4 bits, and bits: a register is a word of a row of A or of a column of B."""
    shape, saturates = mma_shape(m["shape"], m["a"]), bool(m.get("satfinite"))
    of_c = shape.accumulators["s32"]
    of_a, of_b = shape.a["row"], shape.b["col"]
    in_word = elements(of_a)
    rows, columns = (
        Fragment.from_places(each.name, outer[..., :1], inner[..., :1] // in_word)
        for each, outer, inner in (
            (of_a, of_a.rows, of_a.columns),
            (of_b, of_b.columns, of_b.rows),
        )
    )

    def product(left: AnyArray, right: AnyArray, c: AnyArray) -> AnyArray:
        if m["a"] == "b1":
            return bit_product(left, right, c, m["op"])
        return nibble_product(left, right, c, saturates)

    types = _WORDS[m["a"]], _WORDS[m["b"]], np.dtype(np.int32)
    return _mma(b, (rows, columns, of_c, of_c), types, product)


def multiply_quads(b: Binder, m: Modifiers) -> Step:
    """Four products, one a quad pair; C in fp16 may become D in fp32."""
    shape = mma_shape("m8n8k4", "f16")
    of_a, of_b = shape.a[m["a"]], shape.b[m["b"]]
    of_c, of_d = (shape.accumulators[m[each]] for each in "cd")
    arch, result = b.arch, _FLOATS[m["d"]]
    halves = np.dtype(np.uint16)

    def apart(stacked: AnyArray) -> AnyArray:
        """(rows, columns, quad pairs of all warps)"""
        each = stacked.reshape(4, -1, *stacked.shape[1:]).transpose(1, 2, 0, 3)
        return each.reshape(*each.shape[:2], -1)

    def multiply(left: AnyArray, right: AnyArray, c: AnyArray) -> AnyArray:
        products = quad_product(apart(left), apart(right), apart(c.astype(result)), arch)
        return products.reshape(8, 8, 4, -1).transpose(2, 0, 1, 3).reshape(32, 8, -1)

    return _mma(b, (of_a, of_b, of_c, of_d), (halves, halves, _FLOATS[m["c"]]), multiply)
