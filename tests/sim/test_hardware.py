"""The CPU executor and a GPU of its architecture agree bit for bit, instruction by instruction.

Only what the PTX ISA defines to the bit, and tensor cores, is compared; of the approximate
functions no bits are promised.
"""

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sim.instructions.wgmma_kernels import FENCE, ISSUE, WAIT, Product, around
from sim.instructions.wgmma_kernels import FORMS as WGMMA_FORMS

from cuevo import layouts
from cuevo.arrays import view
from cuevo.driver import DriverExecutor
from cuevo.header import parse_header
from cuevo.sim import SimExecutor
from cuevo.template import RenderedKernel

pytestmark = pytest.mark.gpu

HEADER = "struct probe_params {{ {fields} }}; void probe(const struct probe_params params);"
THREADS = 64


def kernel(body: str, arrays: int, version: str, target: str) -> RenderedKernel:
    """An entry whose parameters are the addresses of `arrays`, ``[params+8*i]``."""
    fields = " ".join(f"void *p{i};" for i in range(arrays))
    params = parse_header(HEADER.format(fields=fields), "probe.h").kernels["probe"]
    text = (
        f".version {version}\n.target {target}\n.address_size 64\n"
        f".visible .entry probe(.param .align 8 .b8 params[{8 * arrays}])\n{{\n{body}\n}}\n"
    )
    return RenderedKernel("probe", text, (None,) * text.count("\n"), {}, params)


def on_both(
    executor: DriverExecutor,
    body: str,
    inputs: list[Any],
    outputs: list[Any],
    grid: int,
    *,
    threads: int = THREADS,
    version: str = "7.8",
    target: str = "sm_80",
) -> tuple[list[Any], list[Any]]:
    """Results of the GPU and of the CPU executor; `outputs` are zeros of the right size."""
    rendered = kernel(body, len(inputs) + len(outputs), version, target)
    on_device = [executor.copy_to_device(view(x)) for x in inputs]
    results = [executor.empty(x.shape, x.dtype) for x in outputs]
    pointers = [x.pointer for x in (*on_device, *results)]
    packed = struct.pack(f"<{len(pointers)}Q", *pointers)
    executor.load(rendered).launch((grid, 1, 1), (threads, 1, 1), 0, packed)
    gpu = [x.to_numpy() for x in results]
    cpu = [np.zeros_like(x) for x in outputs]
    views = [view(x) for x in (*inputs, *cpu)]
    packed = struct.pack(f"<{len(views)}Q", *(x.pointer for x in views))
    arch = target if target.endswith("a") else executor.arch
    sim = SimExecutor(arch).load(rendered)
    sim.launch((grid, 1, 1), (threads, 1, 1), 0, packed, buffers=views)
    return gpu, cpu


ELEMENTWISE = {
    "f32": """
    add.f32; sub.f32; mul.f32; add.ftz.f32; mul.ftz.f32; add.rz.f32; sub.rm.f32; mul.rp.f32;
    mul.rz.ftz.f32; add.sat.f32; mul.ftz.sat.f32; min.f32; max.f32; min.ftz.f32; max.NaN.f32;
    div.rn.f32; div.rz.f32; div.rp.ftz.f32; copysign.f32
    """,
    "f32 one": """
    neg.f32; abs.f32; neg.ftz.f32; rcp.rn.f32; sqrt.rn.f32; rcp.rn.ftz.f32; rcp.rz.f32;
    rcp.rm.ftz.f32; sqrt.rp.f32; sqrt.rz.f32; cvt.rna.tf32.f32; cvt.rni.f32.f32;
    cvt.rzi.s32.f32; cvt.rni.u32.f32; cvt.rmi.ftz.s32.f32; cvt.rn.f32.s32; cvt.rz.f32.u32
    """,
    "f32 three": "fma.rn.f32; fma.rn.ftz.f32; fma.rz.f32; fma.rm.f32; fma.rp.sat.f32",
    "to half": "cvt.rn.bf16x2.f32; cvt.rz.bf16x2.f32; cvt.rn.relu.bf16x2.f32; cvt.rn.f16x2.f32;"
    "cvt.rz.f16x2.f32; cvt.rn.relu.f16x2.f32",
    "halves": "add.f16x2; mul.f16x2; sub.ftz.f16x2; min.f16x2; max.NaN.f16x2; min.bf16x2;"
    "max.bf16x2",
    "words of halves": "set.lt.u32.f16x2; set.gtu.f16x2.f16x2; set.ne.ftz.u32.f16x2",
    "halves one": "neg.f16x2; neg.bf16x2; abs.bf16x2",
    "halves three": "fma.rn.f16x2; fma.rn.bf16x2; fma.rn.relu.f16x2; fma.rn.sat.f16x2;"
    "fma.rn.ftz.f16x2",
    "integers": "mul.hi.s32; mul.hi.u32; min.s32; max.u32; shl.b32; shr.s32; shr.u32; prmt.b32 3;"
    "add.sat.s32; sub.sat.s32; mul24.lo.s32; mul24.hi.u32; bmsk.clamp.b32; bmsk.wrap.b32;"
    "szext.clamp.s32; szext.wrap.u32; cvt.pack.sat.s16.s32; cvt.pack.sat.u8.s32.b32 3",
    "integers one": "abs.s32; neg.s32; clz.b32; brev.b32; popc.b32; bfind.s32; bfind.u32; cnot.b32;"
    "bfind.shiftamt.u32; bfind.shiftamt.s32;"
    "cvt.sat.s8.s32; cvt.sat.u8.s32; cvt.s16.s32; cvt.sat.u16.u32",
    "integers three": "bfe.s32; bfe.u32; shf.l.clamp.b32; shf.r.wrap.b32; prmt.b32; prmt.b32.ecl;"
    "prmt.b32.ecr; prmt.b32.b4e; mad.hi.s32; mad.hi.sat.s32; mad24.hi.s32; mad24.hi.sat.s32;"
    "sad.s32; sad.u32; dp4a.u32.s32; dp4a.s32.s32; dp2a.lo.u32.u32; dp2a.hi.s32.u32; fns.b32",
}


def cases() -> list[Any]:
    found = []
    for kind, listed in ELEMENTWISE.items():
        for opcode in listed.replace("\n", " ").split(";"):
            name, _, count = opcode.strip().partition(" ")
            operands = int(count or {"one": 1, "three": 3}.get(kind.split()[-1], 2))
            found.append(pytest.param(name, kind.split()[0], operands, id=f"{name}-{kind}"))
    return found


@pytest.mark.parametrize(("opcode", "kind", "operands"), cases())
def test_elementwise(
    executor: DriverExecutor, numbers: Any, opcode: str, kind: str, operands: int
) -> None:
    size = 64 * THREADS
    values = [
        numbers.floats(size).view(np.uint32)
        if kind in ("f32", "to")
        else numbers.integers("u32", size)
        for _ in range(operands)
    ]
    if opcode.startswith(("bfe", "shf", "shl", "shr")):
        values[1:] = [x % 70 for x in values[1:]]
    if opcode.startswith("shf"):
        values[1] = numbers.integers("u32", size)
    if kind == "halves":
        # Patterns of either type, with their specials.
        values = [
            numbers.rng.permutation(np.arange(2 * size).astype(np.uint16)).view(np.uint32)
        ] * 3
        values = [np.roll(x, 7 * i) for i, x in enumerate(values)][:operands]
    loads = "".join(
        f"ld.param.u64 p, [params+{8 * i}]; add.u64 p, p, w; ld.global.b32 x{i}, [p];"
        for i in range(operands)
    )
    sources = ", ".join(f"x{i}" for i in range(operands))
    body = f"""
    .reg .b64 p, w; .reg .b32 x<4>, d, n, t;
    mov.u32 n, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 n, n, {THREADS}, t; mul.wide.u32 w, n, 4;
    {loads} {opcode} d, {sources};
    ld.param.u64 p, [params+{8 * operands}]; add.u64 p, p, w; st.global.b32 [p], d; ret;
    """
    gpu, cpu = on_both(executor, body, values, [np.zeros(size, np.uint32)], size // THREADS)
    wrong = np.flatnonzero(gpu[0] != cpu[0])
    if wrong.size:
        i = int(wrong[0])
        shown = ", ".join(f"{int(x[i]):#010x}" for x in values)
        raise AssertionError(
            f"{opcode}: {wrong.size} of {size} differ; ({shown}) gives {int(gpu[0][i]):#010x} on "
            f"{executor.name}, {int(cpu[0][i]):#010x} here"
        )


def fill(rng: Any, kind: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Patterns (uint16) of `dtype`."""
    if kind == "normal":
        return rng.standard_normal(shape).astype(dtype).view(np.uint16)
    patterns = rng.integers(0, 65536, shape).astype(np.uint16)
    if kind == "specials":
        # Mostly tame, so that one special term does not hide the others.
        tame = rng.standard_normal(shape).astype(dtype).view(np.uint16)
        return np.where(rng.random(shape) < 0.02, patterns, tame)
    finite = np.isfinite(patterns.view(dtype).astype(np.float32))
    patterns = np.where(finite, patterns, np.uint16(0))
    if kind == "subnormals":
        fraction = 10 if dtype == np.float16 else 7
        small = (patterns & np.uint16(0x8000 | (2 << fraction) - 1)).astype(np.uint16)
        patterns = np.where(rng.random(shape) < 0.7, small, patterns)
    if kind == "tiny":
        # Products of a few bits around the smallest accumulator: sums that end in a tie, and terms
        # that are cut by what a block is aligned to at least.
        places = rng.integers(*((-12, -1) if dtype == np.float16 else (-80, -61)), shape)
        signs = rng.choice([-1.0, 1.0], shape)
        x = signs * rng.integers(1, 4, shape) * 2.0**places
        return np.where(rng.random(shape) < 0.4, 0.0, x).astype(dtype).view(np.uint16)
    if kind == "sparse":
        patterns = np.where(rng.random(shape) < 0.8, np.uint16(0), patterns)
    return patterns


def operand(rng: Any, kind: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Registers (uint32) of `shape` full of elements of `dtype`; float32 stands for tf32."""
    if dtype == np.float32:
        # The bits below those of bfloat16: three that count, and 13 that do not.
        low = rng.integers(0, 65536, shape).astype(np.uint32)
        return fill(rng, kind, shape, ml_dtypes.bfloat16).astype(np.uint32) << 16 | low
    if dtype in (np.int8, np.uint8):
        return rng.integers(0, 2**32, shape).astype(np.uint32)
    return fill(rng, kind, (*shape[:-1], 2 * shape[-1]), dtype).view(np.uint32)


KINDS = ("normal", "patterns", "subnormals", "tiny", "sparse", "specials")
WARPS = 512


def accumulator(rng: Any, kind: str, fragment: layouts.Fragment, warps: int = WARPS) -> Any:
    """Accumulator registers (uint32), fp16 in pairs or fp32 by the fragment."""
    shape = (warps, *fragment.rows.shape[:2])
    if fragment.rows.shape[2] == 2:
        c = fill(rng, kind, (*shape[:2], 2 * shape[2]), np.float16).view(np.uint32)
        if kind == "tiny":
            c[warps // 2 :] = 0
        return c
    c = rng.integers(0, 2**32, shape).astype(np.uint32)
    if kind == "normal":
        c = rng.standard_normal(c.shape).astype(np.float32).view(np.uint32)
    elif kind == "tiny":
        c[...] = 0
    elif kind != "specials":
        small = rng.integers(-4, 4, c.shape) * 2.0 ** rng.integers(-149, 10, c.shape)
        wild = ~np.isfinite(c.view(np.float32)) | (rng.random(c.shape) < 0.7)
        c = np.where(wild, small.astype(np.float32).view(np.uint32), c)
    return c


def compare_mma(
    executor: DriverExecutor,
    numbers: Any,
    form: str,
    fragments: tuple[layouts.Fragment, ...],
    kind: str,
    dtype: Any = np.float16,
) -> None:
    """Runs ``mma.sync.aligned.<form>``; `fragments` are those of A, B, C and D."""
    rng, (of_a, of_b, of_c, of_d) = numbers.rng, fragments
    a, b = (operand(rng, kind, (WARPS, 32, of.registers), dtype) for of in (of_a, of_b))
    c = accumulator(rng, kind, of_c)

    def registers(x: str, of: layouts.Fragment) -> str:
        return "{" + ", ".join(f"{x}{i}" for i in range(of.registers)) + "}"

    def at(parameter: int, of: layouts.Fragment) -> str:
        return f"ld.param.u64 p, [params+{8 * parameter}];mad.wide.u32 p, n, {4 * of.registers}, p;"

    loads = "".join(
        at(i, of) + "".join(f"ld.global.b32 {x}{k}, [p+{4 * k}];" for k in range(of.registers))
        for i, (x, of) in enumerate(zip("abc", fragments[:3], strict=True))
    )
    stores = "".join(f"st.global.b32 [p+{4 * k}], d{k};" for k in range(of_d.registers))
    body = f"""
    .reg .b64 p; .reg .b32 a<4>, b<2>, c<8>, d<8>, n, t;
    mov.u32 n, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 n, n, {THREADS}, t; {loads}
    mma.sync.aligned.{form} {registers("d", of_d)},
        {registers("a", of_a)}, {registers("b", of_b)}, {registers("c", of_c)};
    {at(3, of_d)} {stores} ret;
    """
    result = np.zeros((WARPS, 32, of_d.registers), np.uint32)
    gpu, cpu = on_both(executor, body, [a, b, c], [result], WARPS * 32 // THREADS)
    wrong = np.argwhere(gpu[0] != cpu[0])
    if len(wrong):
        w, lane, r = wrong[0]
        row, column = int(of_d.rows[lane, r, 0]), int(of_d.columns[lane, r, 0])
        pair = row // 8 if "m8n8k4" in form else 0
        left = of_a.scatter(a[w].view(dtype).reshape(of_a.rows.shape)).astype(float)
        right = of_b.scatter(b[w].view(dtype).reshape(of_b.rows.shape)).astype(float)
        terms = right[4 * pair : 4 * pair + 4] if "m8n8k4" in form else right
        before = np.ascontiguousarray(c[w]).view(np.float16 if of_c.rows.shape[2] == 2 else "f4")
        start = of_c.scatter(before.reshape(of_c.rows.shape))[row, column]
        raise AssertionError(
            f"{len(wrong)} of {result.size} registers differ, first register {r} of lane {lane}: "
            f"{int(gpu[0][w, lane, r]):#010x} on {executor.name}, {int(cpu[0][w, lane, r]):#010x} "
            f"here\nrow {row} of A {left[row]}\ncolumn {column} of B {terms[:, column]}\n"
            f"C {start!r}"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize(("name", "out"), [("f16", "f32"), ("bf16", "f32"), ("f16", "f16")])
def test_mma(
    executor: DriverExecutor, numbers: Any, name: str, out: str, depth: int, kind: str
) -> None:
    of_a, of_b = {
        8: (layouts.MMA_M16N8K8_A, layouts.MMA_M16N8K8_B),
        16: (layouts.MMA_M16N8K16_A, layouts.MMA_M16N8K16_B),
    }[depth]
    of_c = layouts.MMA_M16N8_F32 if out == "f32" else layouts.MMA_M16N8_F16
    form = f"m16n8k{depth}.row.col.{out}.{name}.{name}.{out}"
    dtype = np.float16 if name == "f16" else ml_dtypes.bfloat16
    compare_mma(executor, numbers, form, (of_a, of_b, of_c, of_c), kind, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d, c", [("f32", "f32"), ("f16", "f16"), ("f32", "f16")])
@pytest.mark.parametrize("b", ["row", "col"])
@pytest.mark.parametrize("a", ["row", "col"])
def test_mma_of_quads(
    executor: DriverExecutor, numbers: Any, a: str, b: str, d: str, c: str, kind: str
) -> None:
    fragments = tuple(
        getattr(layouts, f"MMA_M8N8K4_{name.upper()}") for name in (f"a_{a}", f"b_{b}", c, d)
    )
    compare_mma(executor, numbers, f"m8n8k4.{a}.{b}.{d}.f16.f16.{c}", fragments, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [4, 8])
def test_mma_of_tf32(executor: DriverExecutor, numbers: Any, depth: int, kind: str) -> None:
    of_a, of_b = {
        4: (layouts.MMA_M16N8K4_A_TF32, layouts.MMA_M16N8K4_B_TF32),
        8: (layouts.MMA_M16N8K8_A_TF32, layouts.MMA_M16N8K8_B_TF32),
    }[depth]
    of_c = layouts.MMA_M16N8_F32
    form = f"m16n8k{depth}.row.col.f32.tf32.tf32.f32"
    compare_mma(executor, numbers, form, (of_a, of_b, of_c, of_c), kind, np.float32)


@pytest.mark.parametrize("types", ["s8.s8", "s8.u8", "u8.s8", "u8.u8"])
@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("depth", [16, 32])
def test_mma_of_bytes(
    executor: DriverExecutor, numbers: Any, depth: int, satfinite: str, types: str
) -> None:
    of_a, of_b = {
        16: (layouts.MMA_M16N8K16_A_8BIT, layouts.MMA_M16N8K16_B_8BIT),
        32: (layouts.MMA_M16N8K32_A_8BIT, layouts.MMA_M16N8K32_B_8BIT),
    }[depth]
    of_c = layouts.MMA_M16N8_F32
    form = f"m16n8k{depth}.row.col{satfinite}.s32.{types}.s32"
    compare_mma(executor, numbers, form, (of_a, of_b, of_c, of_c), "specials", np.int8)


def wgmma_operand(rng: Any, kind: str, shape: tuple[int, int], dtype: Any) -> Any:
    """A matrix of `dtype`."""
    bits = operand(rng, kind, (shape[0], shape[1] * dtype.itemsize // 4), dtype)
    return np.ascontiguousarray(bits).view(dtype).reshape(shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "product",
    [
        *(Product(n, d, ab) for n in (8, 64, 256) for d, ab in WGMMA_FORMS),
        *(Product(24, ab=ab, swizzle_a=-1, scale_b=-1) for ab in ("f16", "tf32")),
        *(Product(96, swizzle_a=x, swizzle_b=y) for x in (0, 32, 64) for y in (0, 32, 64)),
        *(Product(96, ab="tf32", swizzle_a=x, swizzle_b=x) for x in (0, 32, 64)),
        *(
            Product(n, mn_major_a=True, mn_major_b=True, swizzle_a=x, swizzle_b=x)
            for n in (24, 256)
            for x in (0, 32, 64, 128)
        ),
    ],
    ids=lambda each: each.name,
)
def test_wgmma(executor: DriverExecutor, numbers: Any, product: Product, kind: str) -> None:
    """Two of them, the second on the results of the first, of all types, layouts and swizzles."""
    if not executor.arch.startswith("sm_90"):
        pytest.skip(f"wgmma is of sm_90a; this is {executor.arch}")
    rng = numbers.rng
    a = wgmma_operand(rng, kind, (64, product.depth), product.dtype)
    b = wgmma_operand(rng, kind, (product.n, product.depth), product.dtype).T
    packed = product.d == "f16"
    c = accumulator(rng, kind, layouts.wgmma_accumulator(product.n, packed=packed), 1)[0]
    body = f"{FENCE} {product.statement()} {product.statement()} {ISSUE} {WAIT}"
    text, inputs = around(product, a, b, c, body)
    for i in range(len(inputs) + 1):
        text = text.replace(f"[p{i}]", f"[params+{8 * i}]")
    out = [np.zeros_like(c)]
    asked: Any = {"threads": 128, "version": "8.0", "target": "sm_90a"}
    gpu, cpu = on_both(executor, text, inputs, out, 1, **asked)
    wrong = np.argwhere(gpu[0] != cpu[0])
    if len(wrong):
        thread, r = wrong[0]
        raise AssertionError(
            f"{len(wrong)} of {c.size} registers differ, first register {r} of thread {thread}: "
            f"{int(gpu[0][thread, r]):#010x} on {executor.name}, {int(cpu[0][thread, r]):#010x} "
            "here"
        )
