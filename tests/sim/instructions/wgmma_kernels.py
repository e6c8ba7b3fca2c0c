"""Kernels around wgmma: operands placed in shared memory, accumulators in and out."""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from cuevo.layouts import WGMMA_A, WGMMA_A_TF32, MatrixDescriptor, MatrixOperand, wgmma_accumulator
from cuevo.sim.memory.shared_memory import WINDOW

DTYPES: dict[str, Any] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32),
}
FORMS = [("f32", "f16"), ("f32", "bf16"), ("f16", "f16"), ("f32", "tf32")]
"""Types of the accumulators and of the operands."""
ACCUMULATORS: dict[str, Any] = {"f32": np.float32, "f16": np.float16}
BYTES = 40960
A_AT, B_AT = 0, 8192
"""Offsets of the operands in shared memory, where there are both."""


def braces(name: str, count: int) -> str:
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


@dataclass(frozen=True)
class Product:
    """A form of wgmma.mma_async."""

    n: int
    d: str = "f32"
    ab: str = "f16"
    mn_major_a: bool = False
    mn_major_b: bool = False
    swizzle_a: int = 128
    """-1: from registers."""
    swizzle_b: int = 128
    scale_a: int = 1
    scale_b: int = 1

    @property
    def name(self) -> str:
        """Number for tests."""
        majors = "".join("k-" if not each else "mn" for each in (self.mn_major_a, self.mn_major_b))
        return f"n{self.n}-{self.d}-{self.ab}-{majors}-{self.swizzle_a}-{self.swizzle_b}"

    @property
    def dtype(self) -> Any:
        return DTYPES[self.ab]

    @property
    def depth(self) -> int:
        return 32 // int(self.dtype.itemsize)

    @property
    def registers(self) -> int:
        """Registers of accumulators."""
        return self.n // (4 if self.d == "f16" else 2)

    @property
    def opcode(self) -> str:
        shape = f"m64n{self.n}k{self.depth}"
        return f"wgmma.mma_async.sync.aligned.{shape}.{self.d}.{self.ab}.{self.ab}"

    def statement(self, d: str = "d", a: str = "a", b: str = "b", scale: str = "scale") -> str:
        """A wgmma of descriptors `a` and `b`, or of registers a0 and so on."""
        of_a = braces(a, 4) if self.swizzle_a < 0 else a
        constants = [self.scale_a, self.scale_b]
        if self.ab != "tf32":
            constants += [int(self.mn_major_a)] * (self.swizzle_a >= 0) + [int(self.mn_major_b)]
        listed = ", ".join(map(str, constants))
        return f"{self.opcode} {braces(d, self.registers)}, {of_a}, {b}, {scale}, {listed};"

    def operand_a(self) -> MatrixOperand:
        return MatrixOperand(64, self.dtype.itemsize, self.mn_major_a)

    def operand_b(self) -> MatrixOperand:
        return MatrixOperand(self.n, self.dtype.itemsize, self.mn_major_b)


def compact(operand: MatrixOperand, swizzle: int, offset: int) -> MatrixDescriptor:
    """The descriptor of an operand at an offset in shared memory, its parts without gaps."""
    start, row = WINDOW + offset, max(swizzle, 16)
    if not operand.mn_major:
        # With a swizzle the leading distance means nothing.
        leading = 16 if swizzle else operand.rows // 8 * 128
        return MatrixDescriptor(start, leading, 8 * row, swizzle)
    if not swizzle:
        cores = operand.rows * operand.element_bytes // 16
        return MatrixDescriptor(start, cores * 128, 128, swizzle)
    return MatrixDescriptor(start, 16 * row, 8 * row, swizzle)


@dataclass
class Image:
    """Shared memory as a kernel is to fill it."""

    content: Any = field(default_factory=lambda: np.zeros(BYTES, np.uint8))

    def put(self, matrix: Any, operand: MatrixOperand, descriptor: MatrixDescriptor) -> None:
        """`matrix` is (rows, depth)."""
        places = operand.addresses(descriptor) - WINDOW
        view = self.content.view(f"u{operand.element_bytes}")
        assert not view[places // operand.element_bytes].any(), "operands overlap"
        view[places // operand.element_bytes] = matrix.view(view.dtype)


def held_a(a: Any) -> Any:
    """(128, 4) registers of A, which is (64, depth)."""
    fragment = WGMMA_A_TF32 if a.itemsize == 4 else WGMMA_A
    return np.ascontiguousarray(fragment.gather(a)).view(np.uint32).reshape(128, 4)


def held(c: Any) -> Any:
    """The registers (128, registers) of accumulators (64, n)."""
    fragment = wgmma_accumulator(c.shape[1], packed=c.dtype == np.float16)
    return np.ascontiguousarray(fragment.gather(c)).view(np.uint32).reshape(128, -1)


def freed(registers: Any, dtype: Any) -> Any:
    """The inverse: accumulators (64, n)."""
    packed = dtype == np.float16
    fragment = wgmma_accumulator(registers.shape[1] * (4 if packed else 2), packed=packed)
    return fragment.scatter(registers.view(dtype).reshape(fragment.rows.shape))


FENCES = "fence.proxy.async.shared::cta; bar.sync 0;"


def prologue(registers: int, filled: int, *, fences: str = FENCES, warpgroup: int = 128) -> str:
    """`filled` bytes of shared memory from p0, descriptors a and b from p1, registers of A from p2,
    accumulators d from p3, scale-d true; `warpgroup` threads take part in the filling.
    """
    copies = "".join(
        f"ld.global.v4.b32 {{x, y, z, w}}, [from+{at}]; st.shared.v4.b32 [to+{at}], {{x, y, z, w}};"
        for at in range(0, filled, 16 * warpgroup)
    )
    loads = "".join(f"ld.global.b32 d{i}, [at+{4 * i}];" for i in range(registers))
    return f"""
    .reg .b64 p, from, at, a, b; .reg .b32 t, x, y, z, w, to, d<{registers}>, a<4>, e<128>;
    .reg .pred scale, first, odd; .shared .align 1024 .b8 smem[{BYTES}];
    mov.u32 t, %tid.x; setp.ge.u32 scale, t, 0; mov.u32 to, smem; mad.lo.u32 to, t, 16, to;
    ld.param.u64 p, [p0]; mad.wide.u32 from, t, 16, p; {copies}
    ld.param.u64 p, [p1]; ld.global.v2.b64 {{a, b}}, [p];
    ld.param.u64 p, [p2]; mad.wide.u32 at, t, 16, p;
    ld.global.v4.b32 {{a0, a1, a2, a3}}, [at];
    ld.param.u64 p, [p3]; mad.wide.u32 at, t, {4 * registers}, p; {loads}
    shr.u32 x, t, 5; setp.eq.u32 first, x, 0; and.b32 x, t, 1; setp.ne.u32 odd, x, 0;
    {fences}
    """


def epilogue(registers: int) -> str:
    """The accumulators to p4."""
    stores = "".join(f"st.global.b32 [at+{4 * i}], d{i};" for i in range(registers))
    return f"ld.param.u64 p, [p4]; mad.wide.u32 at, t, {4 * registers}, p; {stores} ret;"


ISSUE = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
FENCE = "wgmma.fence.sync.aligned;"


def around(product: Product, a: Any, b: Any, c: Any, body: str) -> tuple[str, list[Any]]:
    """A kernel with `body`, and its arrays but for the results, which are those of p4. A is (64,
    depth), B (depth, n), `c` what `held` makes of C.
    """
    image, descriptors = Image(), np.zeros(2, np.uint64)
    of_b = compact(product.operand_b(), product.swizzle_b, B_AT)
    image.put(b.T, product.operand_b(), of_b)
    descriptors[1] = of_b.bits
    registers = np.zeros((128, 4), np.uint32)
    if product.swizzle_a < 0:
        registers[...] = held_a(a)
    else:
        of_a = compact(product.operand_a(), product.swizzle_a, A_AT)
        image.put(a, product.operand_a(), of_a)
        descriptors[0] = of_a.bits
    text = prologue(product.registers, BYTES) + body + epilogue(product.registers)
    return text, [image.content, descriptors, registers, c]


def run(run_kernel: Any, product: Product, a: Any, b: Any, c: Any, body: str = "") -> Any:
    """D of A (64, depth), B (depth, n), which are of one dtype, and C (64, n); of the wgmma alone,
    or of `body`.
    """
    out = np.zeros((128, product.registers), np.uint32)
    body = body or f"{FENCE} {product.statement()} {ISSUE} {WAIT}"
    text, arrays = around(product, a, b, held(c), body)
    run_kernel(text, *arrays, out, block=128, arch="sm_90a")
    return freed(out, c.dtype)
