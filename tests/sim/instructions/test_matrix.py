"""cuevo.sim.instructions.matrix: ldmatrix, stmatrix, mma."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuevo import layouts
from cuevo.errors import SimulatorError
from cuevo.sim.arithmetic.quad_product import quad_product
from cuevo.sim.arithmetic.tensor_core import BF16, F16, TF32, block, multiply_accumulate

pytestmark = pytest.mark.unit

WARPS = 3

# p = address of this lane's part of p0, `each` bytes a lane; n = number of the thread in the grid.
PROLOGUE = """
.reg .b64 p; .reg .b32 n, x, lane; .extern .shared .align 16 .b8 smem[];
mov.u32 lane, %laneid; mov.u32 n, %ctaid.x; mov.u32 x, %tid.x; mad.lo.u32 n, n, 32, x;
"""


def registers(name: str, count: int) -> str:
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


def loads(parameter: int, name: str, count: int) -> str:
    lines = [f"ld.param.u64 p, [p{parameter}]; mad.wide.u32 p, n, {4 * count}, p;"]
    lines += [f"ld.global.b32 {name}{i}, [p+{4 * i}];" for i in range(count)]
    return "\n".join(lines)


def stores(parameter: int, name: str, count: int) -> str:
    lines = [f"ld.param.u64 p, [p{parameter}]; mad.wide.u32 p, n, {4 * count}, p;"]
    lines += [f"st.global.b32 [p+{4 * i}], {name}{i};" for i in range(count)]
    return "\n".join(lines)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(run_kernel: Any, numbers: Any, count: int, trans: str) -> None:
    # A block's 32 rows of 8 halves, in an order of their own in shared memory.
    rows = numbers.rng.integers(0, 65536, (WARPS, 32, 8)).astype(np.uint16)
    place = numbers.rng.permutation(32).astype(np.uint32)
    out = np.zeros((WARPS, 32, count), np.uint32)
    # Lanes without a row of their own have an address that nobody may use.
    body = f"""
    {PROLOGUE} .reg .b32 w<4>, r<{count}>, at; .reg .b64 q; .reg .pred none;
    ld.param.u64 p, [p0]; mad.wide.u32 p, n, 16, p; ld.global.v4.b32 {{w0, w1, w2, w3}}, [p];
    ld.param.u64 q, [p1]; mad.wide.u32 q, lane, 4, q; ld.global.b32 at, [q];
    mov.u32 x, smem; mad.lo.u32 at, at, 16, x;
    st.shared.v4.b32 [at], {{w0, w1, w2, w3}};
    setp.ge.u32 none, lane, {8 * count}; @none mov.b32 at, 3;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers("r", count)}, [at];
    {stores(2, "r", count)} ret;
    """
    run_kernel(body, rows, place, out, grid=WARPS, shared=512)
    fragment = layouts.LDMATRIX_TRANS if trans else layouts.LDMATRIX
    for w in range(WARPS):
        for i in range(count):
            matrix = rows[w, 8 * i : 8 * i + 8]
            expected = fragment.gather(matrix)[:, 0, :].copy().view(np.uint32)[:, 0]
            np.testing.assert_array_equal(out[w, :, i], expected)


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_is_the_inverse_of_ldmatrix(run_kernel: Any, numbers: Any, trans: str) -> None:
    given = numbers.rng.integers(0, 2**32, (WARPS, 32, 4)).astype(np.uint32)
    out = np.zeros_like(given)
    body = f"""
    {PROLOGUE} .reg .b32 r<4>, s<4>, at; {loads(0, "r", 4)}
    mov.u32 x, smem; mad.lo.u32 at, lane, 16, x;
    stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [at], {registers("r", 4)};
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {registers("s", 4)}, [at];
    {stores(1, "s", 4)} ret;
    """
    run_kernel(body, given, out, grid=WARPS, shared=512, arch="sm_90")
    np.testing.assert_array_equal(out, given)


def packed(fragment: layouts.Fragment, matrices: Any) -> Any:
    """Matrices (warps, rows, columns) as what the lanes hold: (warps, 32, registers) of 32 bits."""
    elements = np.stack([fragment.gather(matrix) for matrix in matrices])
    if (bits := 32 // elements.shape[-1]) < 8:
        place = bits * np.arange(elements.shape[-1])
        words = ((elements.astype(np.int64) & 2**bits - 1) << place).sum(axis=-1)
        return words.astype(np.uint32)
    return np.ascontiguousarray(elements).view(np.uint32).reshape(len(matrices), 32, -1)


def run_mma(
    run_kernel: Any,
    arch: str,
    form: str,
    fragments: tuple[layouts.Fragment, ...],
    *matrices: Any,
) -> Any:
    """Results of ``mma.sync.aligned.<form>`` in the lanes; `fragments` are those of A, B, C, D."""
    counts = tuple(fragment.registers for fragment in fragments)
    inputs = (packed(of, matrix) for of, matrix in zip(fragments, matrices, strict=False))
    out = np.zeros((WARPS, 32, counts[3]), np.uint32)
    body = f"""
    {PROLOGUE} .reg .b32 a<4>, b<2>, c<8>, d<8>;
    {loads(0, "a", counts[0])} {loads(1, "b", counts[1])} {loads(2, "c", counts[2])}
    mma.sync.aligned.{form} {registers("d", counts[3])},
        {registers("a", counts[0])}, {registers("b", counts[1])}, {registers("c", counts[2])};
    {stores(3, "d", counts[3])} ret;
    """
    run_kernel(body, *inputs, out, grid=WARPS, arch=arch)
    return out


def patterns(matrix: Any) -> Any:
    """(warps, rows, columns) as the arithmetic wants it: bits, warps last."""
    return np.ascontiguousarray(np.moveaxis(matrix, 0, -1)).view(f"u{matrix.itemsize}")


ACCUMULATOR = {"f32": np.float32, "f16": np.float16}


@pytest.mark.parametrize(
    ("depth", "name", "accumulator", "arch"),
    [
        *((8, "f16", accumulator, "sm_75") for accumulator in ("f32", "f16")),
        *(
            (depth, name, accumulator, arch)
            for depth in (8, 16)
            for name, accumulator in (("f16", "f32"), ("f16", "f16"), ("bf16", "f32"))
            for arch in ("sm_80", "sm_90")
        ),
    ],
)
def test_mma(
    run_kernel: Any, numbers: Any, depth: int, name: str, accumulator: str, arch: str
) -> None:
    dtype = np.float16 if name == "f16" else ml_dtypes.bfloat16
    rng = numbers.rng
    a, b = (rng.standard_normal((WARPS, *s)).astype(dtype) for s in ((16, depth), (depth, 8)))
    c = rng.standard_normal((WARPS, 16, 8)).astype(ACCUMULATOR[accumulator])
    of_a, of_b = {
        8: (layouts.MMA_M16N8K8_A, layouts.MMA_M16N8K8_B),
        16: (layouts.MMA_M16N8K16_A, layouts.MMA_M16N8K16_B),
    }[depth]
    of_c = layouts.MMA_M16N8_F32 if accumulator == "f32" else layouts.MMA_M16N8_F16
    form = f"m16n8k{depth}.row.col.{accumulator}.{name}.{name}.{accumulator}"
    out = run_mma(run_kernel, arch, form, (of_a, of_b, of_c, of_c), a, b, c)
    result = multiply_accumulate(
        patterns(a),
        patterns(b),
        np.moveaxis(c, 0, -1).copy(),
        F16 if name == "f16" else BF16,
        block(int(arch[3:])),
    )
    np.testing.assert_array_equal(out, packed(of_c, np.moveaxis(result, -1, 0)))
    exact = np.einsum("wik,wkj->wij", a.astype(float), b.astype(float)) + c
    np.testing.assert_allclose(np.moveaxis(result, -1, 0), exact, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize(("d", "c"), [("f32", "f32"), ("f16", "f16"), ("f32", "f16")])
@pytest.mark.parametrize("of_b", ["row", "col"])
@pytest.mark.parametrize("of_a", ["row", "col"])
def test_mma_of_quads(
    run_kernel: Any, numbers: Any, of_a: str, of_b: str, d: str, c: str, arch: str
) -> None:
    rng = numbers.rng
    # The matrices of the four quad pairs, stacked.
    left, right = (
        rng.standard_normal((WARPS, *shape)).astype(np.float16) for shape in ((32, 4), (16, 8))
    )
    start = rng.standard_normal((WARPS, 32, 8)).astype(ACCUMULATOR[c])
    fragments = tuple(
        getattr(layouts, f"MMA_M8N8K4_{name.upper()}") for name in (f"a_{of_a}", f"b_{of_b}", c, d)
    )
    form = f"m8n8k4.{of_a}.{of_b}.{d}.f16.f16.{c}"
    out = run_mma(run_kernel, arch, form, fragments, left, right, start)
    result = np.empty((WARPS, 32, 8), ACCUMULATOR[d])
    for pair in range(4):
        rows = slice(8 * pair, 8 * pair + 8)
        # An fp16 accumulator of an fp32 result is widened, which is exact, and is then fp32.
        widened = np.moveaxis(start[:, rows], 0, -1).astype(ACCUMULATOR[d])
        product = quad_product(
            patterns(left[:, rows]),
            patterns(right[:, 4 * pair : 4 * pair + 4]),
            widened,
            int(arch[3:]),
        )
        result[:, rows] = np.moveaxis(product, -1, 0)
        a, b = left[:, rows].astype(float), right[:, 4 * pair : 4 * pair + 4].astype(float)
        exact = np.einsum("wik,wkj->wij", a, b) + start[:, rows]
        np.testing.assert_allclose(result[:, rows], exact, rtol=2e-3, atol=1e-2)
    np.testing.assert_array_equal(out, packed(fragments[3], result))


def test_a_wide_result_of_a_narrow_accumulator(run_kernel: Any) -> None:
    """C in fp16 is not rounded again: 2^-24, its smallest, and 65504 + 65504 come out in fp32."""
    left, right = np.zeros((WARPS, 32, 4), np.float16), np.zeros((WARPS, 16, 8), np.float16)
    start = np.full((WARPS, 32, 8), 2.0**-24, np.float16)
    left[:, 8:16, 0], right[:, 4, :], start[:, 8:16] = 65504, 1, 65504
    fragments = (
        *(layouts.MMA_M8N8K4_A_ROW, layouts.MMA_M8N8K4_B_COL),
        *(layouts.MMA_M8N8K4_F16, layouts.MMA_M8N8K4_F32),
    )
    for arch in ("sm_70", "sm_75", "sm_80", "sm_90"):
        form = "m8n8k4.row.col.f32.f16.f16.f16"
        out = run_mma(run_kernel, arch, form, fragments, left, right, start)
        for warp in out.view(np.float32):
            found = layouts.MMA_M8N8K4_F32.scatter(warp[..., None])
            assert (found[8:16] == 131008).all()
            assert (found[:8] == 2.0**-24).all() and (found[16:] == 2.0**-24).all()


def test_mma_in_some_warps_only(run_kernel: Any) -> None:
    out = np.zeros((4, 32), np.float32)
    body = f"""
    {PROLOGUE} .reg .b32 a, one; .reg .f32 c<4>; .reg .pred odd;
    mov.b32 one, 0x3f803f80;
    mov.f32 c0, 0f00000000; mov.f32 c1, c0; mov.f32 c2, c0; mov.f32 c3, c0;
    mov.u32 x, %warpid; and.b32 x, x, 1; setp.ne.u32 odd, x, 0; @odd bra.uni JOIN;
    mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
        {registers("c", 4)}, {{one, one}}, {{one}}, {registers("c", 4)};
    JOIN: ld.param.u64 p, [p0]; mad.wide.u32 p, n, 4, p; st.global.f32 [p], c0; ret;
    """
    run_kernel(body, out, block=128)
    assert (out[::2] == 8).all() and (out[1::2] == 0).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("depth", [4, 8])
def test_mma_of_tf32(run_kernel: Any, numbers: Any, depth: int, arch: str) -> None:
    rng = numbers.rng
    a, b, c = (
        rng.standard_normal((WARPS, *shape)).astype(np.float32)
        for shape in ((16, depth), (depth, 8), (16, 8))
    )
    of_a, of_b = {
        4: (layouts.MMA_M16N8K4_A_TF32, layouts.MMA_M16N8K4_B_TF32),
        8: (layouts.MMA_M16N8K8_A_TF32, layouts.MMA_M16N8K8_B_TF32),
    }[depth]
    of_c = layouts.MMA_M16N8_F32
    form = f"m16n8k{depth}.row.col.f32.tf32.tf32.f32"
    out = run_mma(run_kernel, arch, form, (of_a, of_b, of_c, of_c), a, b, c)
    start, arithmetic = np.moveaxis(c, 0, -1).copy(), block(int(arch[3:]), TF32)
    result = multiply_accumulate(patterns(a), patterns(b), start, TF32, arithmetic)
    np.testing.assert_array_equal(out, packed(of_c, np.moveaxis(result, -1, 0)))
    exact = np.einsum("wik,wkj->wij", a.astype(float), b.astype(float)) + c
    np.testing.assert_allclose(np.moveaxis(result, -1, 0), exact, rtol=1e-2, atol=1e-2)


def of_shape(name: str, element: str) -> tuple[layouts.Fragment, ...]:
    """The fragments of A, B, C and D of integers or bits."""
    shape = layouts.mma_shape(name, element)
    return shape.a["row"], shape.b["col"], *[shape.accumulators["s32"]] * 2


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize(
    "shape", ["m8n8k16", "m16n8k16", "m16n8k32", "m8n8k32", "m16n8k32 ", "m16n8k64"]
)
def test_mma_of_integers(run_kernel: Any, numbers: Any, shape: str, satfinite: str) -> None:
    """The first three are of bytes, the others of four bits; with and without signs."""
    bits = 8 if shape in ("m8n8k16", "m16n8k16", "m16n8k32") else 4
    rng, rows, depth = numbers.rng, int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    for types in itertools.product("su", repeat=2):
        a, b = (
            rng.integers(0, 2**bits, (WARPS, *size)) - 2 ** (bits - 1) * (sign == "s")
            for sign, size in zip(types, ((rows, depth), (depth, 8)), strict=True)
        )
        # The first warp's sums are near the ends of the range.
        ends = np.where(rng.random((WARPS, rows, 8)) < 0.5, 2**31 - 100, -(2**31) + 100)
        c = rng.integers(-1000, 1000, ends.shape)
        c[0] = ends[0]
        of_a, of_b = (f"{sign}{bits}" for sign in types)
        form = f"{shape.strip()}.row.col{satfinite}.s32.{of_a}.{of_b}.s32"
        fragments = of_shape(shape.strip(), of_a)
        matrices = a.astype(np.int8), b.astype(np.int8), c.astype(np.int32)
        out = run_mma(run_kernel, "sm_80", form, fragments, *matrices)
        exact = np.einsum("wik,wkj->wij", a, b) + c
        low, high = -(2**31), 2**31 - 1
        assert (exact < low).any() or (exact > high).any()
        wanted = np.clip(exact, low, high) if satfinite else (exact - low) % 2**32 + low
        np.testing.assert_array_equal(out, packed(fragments[3], wanted.astype(np.int32)))


@pytest.mark.parametrize("op", ["xor", "and"])
@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
def test_mma_of_bits(run_kernel: Any, numbers: Any, shape: str, op: str) -> None:
    rng, rows, depth = numbers.rng, int(shape[1:].split("n")[0]), int(shape.split("k")[1])
    a, b = (rng.integers(0, 2, (WARPS, *size)) for size in ((rows, depth), (depth, 8)))
    c = rng.integers(-1000, 1000, (WARPS, rows, 8)).astype(np.int32)
    form, fragments = f"{shape}.row.col.s32.b1.b1.s32.{op}.popc", of_shape(shape, "b1")
    out = run_mma(run_kernel, "sm_80", form, fragments, a, b, c)
    pairs = a[:, :, :, None], b[:, None]
    both = (pairs[0] ^ pairs[1] if op == "xor" else pairs[0] & pairs[1]).sum(axis=2)
    np.testing.assert_array_equal(out, packed(fragments[3], (both + c).astype(np.int32)))


MMA = "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {c,c,c,c}, {a,a}, {a}, {c,c,c,c};"
EIGHT = "{c,c,c,c,c,c,c,c}"
QUADS = f"mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {EIGHT}, {{a,a}}, {{a,a}}, {EIGHT};"
LDMATRIX = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {a}, [x];"


@pytest.mark.parametrize("instruction", [MMA, QUADS, LDMATRIX])
def test_divergent_aligned_instructions_are_refused(run_kernel: Any, instruction: str) -> None:
    start = f"{PROLOGUE} .reg .b32 a; .reg .f32 c; .reg .pred some;"
    start += "mov.b32 a, 0; mov.f32 c, 0f00000000;"
    start += "mov.u32 x, smem; st.shared.v4.b32 [x], {a, a, a, a}; setp.lt.u32 some, lane, 7;"
    message = "aligned instruction is run by 7 of the 32 lanes"
    with pytest.raises(SimulatorError, match=message):
        run_kernel(f"{start} @some {instruction} ret;", np.zeros(1), shared=256)
    with pytest.raises(SimulatorError, match="by 25 of the 32 lanes"):
        run_kernel(f"{start} @some ret; {instruction} ret;", np.zeros(1), shared=256)


@pytest.mark.parametrize(
    ("instruction", "arch", "message"),
    [
        (MMA, "sm_75", "needs sm_80"),
        (LDMATRIX, "sm_70", "needs sm_75"),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [x], {a};", "sm_80", "needs sm_90"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {a}, [x];", "sm_80", "needs 2 registers"),
        (MMA.replace("{a,a}", "{a,1.0}"), "sm_80", "is no operand of type .b32"),
        (MMA.replace("m16n8k8", "m16n8k4"), "sm_80", "does not support"),
        (MMA.replace("bf16", "tf32"), "sm_75", "needs sm_80"),
        (MMA.replace("bf16", "tf32"), "sm_80", "needs 4 registers"),
        (QUADS.replace("f32.f16.f16.f32", "f16.f16.f16.f32"), "sm_70", "does not support"),
        (QUADS.replace("{a,a}", "{a,%tid.x}"), "sm_70", "mma does not take %tid.x; a mov does"),
        (QUADS.replace("{a,a}", "{a,a,a,a}"), "sm_70", "needs 2 registers"),
        (QUADS.replace("f16.f16", "bf16.bf16"), "sm_80", "does not support"),
        (MMA.replace("row.col", "col.row"), "sm_80", "does not support"),
    ],
)
def test_what_is_refused_at_load(
    run_kernel: Any, instruction: str, arch: str, message: str
) -> None:
    with pytest.raises(SimulatorError, match=message):
        run_kernel(f".reg .b32 a, x; .reg .f32 c; {instruction}", arch=arch)


def test_rows_of_ldmatrix_are_aligned(run_kernel: Any) -> None:
    body = f"{PROLOGUE} .reg .b32 a; mov.u32 x, smem; add.u32 x, x, 8; {LDMATRIX} ret;"
    with pytest.raises(SimulatorError, match="misaligned shared access"):
        run_kernel(body, np.zeros(1), shared=64)
