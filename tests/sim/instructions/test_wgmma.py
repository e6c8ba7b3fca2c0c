"""cuevo.sim.instructions.wgmma: what is computed, of which operands."""

import re
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim.conftest import Buffer, kernel_text
from sim.instructions.wgmma_kernels import (
    ACCUMULATORS,
    B_AT,
    BYTES,
    FENCE,
    FORMS,
    ISSUE,
    WAIT,
    Image,
    Product,
    around,
    braces,
    compact,
    epilogue,
    freed,
    held,
    prologue,
    run,
)

from cuevo.errors import SimulatorError
from cuevo.layouts import MatrixDescriptor
from cuevo.sim import SimExecutor
from cuevo.sim.arithmetic.tensor_core import block, multiply_accumulate
from cuevo.sim.memory.shared_memory import WINDOW, SharedMemory

pytestmark = pytest.mark.unit


def integers(rng: Any, product: Product) -> tuple[Any, Any, Any]:
    """A, B and C of small integers, whose product is exact in every format."""
    a = rng.integers(-4, 5, (64, product.depth)).astype(product.dtype)
    b = rng.integers(-4, 5, (product.depth, product.n)).astype(product.dtype)
    c = rng.integers(-64, 65, (64, product.n)).astype(ACCUMULATORS[product.d])
    return a, b, c


def exact(a: Any, b: Any, c: Any) -> Any:
    return (a.astype(float) @ b.astype(float) + c.astype(float)).astype(c.dtype)


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_shapes(run_kernel: Any, numbers: Any, n: int) -> None:
    d, ab = FORMS[n // 8 % len(FORMS)]
    for swizzle_a in (-1, 64):
        product = Product(n, d, ab, swizzle_a=swizzle_a)
        a, b, c = integers(numbers.rng, product)
        np.testing.assert_array_equal(run(run_kernel, product, a, b, c), exact(a, b, c))


@pytest.mark.parametrize("swizzle_b", [0, 32, 64, 128])
@pytest.mark.parametrize("swizzle_a", [-1, 0, 32, 64, 128])
def test_operands(run_kernel: Any, numbers: Any, swizzle_a: int, swizzle_b: int) -> None:
    base = Product(80, swizzle_a=swizzle_a, swizzle_b=swizzle_b)
    majors = [(x, y) for x in (False, True)[: 1 + (swizzle_a >= 0)] for y in (False, True)]
    products = [replace(base, mn_major_a=x, mn_major_b=y) for x, y in majors]
    for product in (*products, replace(base, ab="tf32")):
        a, b, c = integers(numbers.rng, product)
        np.testing.assert_array_equal(run(run_kernel, product, a, b, c), exact(a, b, c))


@pytest.mark.parametrize(("d", "ab"), FORMS)
@pytest.mark.parametrize("n", [24, 256])
def test_bits(run_kernel: Any, numbers: Any, n: int, d: str, ab: str) -> None:
    """Numbers that are rounded, zeros, infinities and NaNs among them."""
    product, rng = Product(n, d, ab), numbers.rng

    def wide(*shape: int) -> Any:
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
        x[rng.random(shape) < 0.1] = 0
        return x

    a, b = wide(64, product.depth).astype(product.dtype), wide(product.depth, n)
    b, c = b.astype(product.dtype), wide(64, n).astype(ACCUMULATORS[d])
    a[5, 3], b[2, 7], c[9, 1], c[5, 7] = np.inf, np.nan, -np.inf, np.nan
    found = run(run_kernel, product, a, b, c)
    bits = f"u{product.dtype.itemsize}"
    with np.errstate(all="ignore"):
        wanted = multiply_accumulate(
            a.view(bits)[..., None],
            b.view(bits)[..., None],
            c[..., None],
            product.dtype,
            block(90, product.dtype),
        )[..., 0]
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("swizzle_a", [-1, 128])
@pytest.mark.parametrize(("scale_a", "scale_b"), [(1, -1), (-1, 1), (-1, -1)])
def test_signs(run_kernel: Any, numbers: Any, scale_a: int, scale_b: int, swizzle_a: int) -> None:
    for ab in ("f16", "tf32"):
        product = Product(16, ab=ab, swizzle_a=swizzle_a, scale_a=scale_a, scale_b=scale_b)
        a, b, c = integers(numbers.rng, product)
        wanted = exact(scale_a * a, scale_b * b, c)
        np.testing.assert_array_equal(run(run_kernel, product, a, b, c), wanted)


@pytest.mark.parametrize("scale", ["0", "!scale"])
@pytest.mark.parametrize(("d", "ab"), FORMS)
def test_without_what_was_there(run_kernel: Any, numbers: Any, d: str, ab: str, scale: str) -> None:
    product = Product(32, d, ab)
    a, b, c = integers(numbers.rng, product)
    c[3, 4] = np.nan
    body = f"{FENCE} {product.statement(scale=scale)} {ISSUE} {WAIT}"
    found = run(run_kernel, product, a, b, c, body)
    np.testing.assert_array_equal(found, exact(a, b, np.zeros_like(c)))
    assert not np.signbit(found[found == 0]).any()


def test_accumulators_that_nobody_has_written(run_kernel: Any, numbers: Any) -> None:
    product = Product(32)
    a, b, c = integers(numbers.rng, product)
    first, second = (product.statement(d="e", scale=scale) for scale in ("!scale", "scale"))
    moves = "".join(f"mov.b32 d{i}, e{i};" for i in range(product.registers))
    body = f"{FENCE} {first} {second} {ISSUE} {WAIT} {moves}"
    found = run(run_kernel, product, a, b, c, body)
    np.testing.assert_array_equal(found, exact(a, b, exact(a, b, np.zeros_like(c))))


@pytest.mark.parametrize(("d", "ab"), FORMS)
def test_chains(run_kernel: Any, numbers: Any, d: str, ab: str) -> None:
    """Each goes on from what the one before leaves, in one group or several, with fences or not."""
    product = Product(40, d, ab)
    a, b, c = integers(numbers.rng, product)
    one = product.statement()
    negative = replace(product, scale_b=-1).statement()
    body = f"""
    {FENCE} {one} {one} {ISSUE} {one} {ISSUE} {FENCE} {one} {ISSUE} {negative} {ISSUE}
    wgmma.wait_group.sync.aligned 2; {FENCE} {one} {ISSUE} {WAIT} {one} {ISSUE} {WAIT}
    """
    found = run(run_kernel, product, a, b, c, body)
    wanted = c.astype(float) + 5 * (a.astype(float) @ b.astype(float))
    np.testing.assert_array_equal(found, wanted.astype(c.dtype))


def test_several_accumulators(run_kernel: Any, numbers: Any) -> None:
    """Two sets of them, retired one after the other."""
    product = Product(16, swizzle_a=-1)
    a, b, c = integers(numbers.rng, product)
    count = product.registers
    adds = "".join(f"add.f32 d{i}, d{i}, e{i};" for i in range(count))
    body = f"""
    {"".join(f"mov.b32 e{i}, d{i};" for i in range(count))}
    {FENCE} {product.statement(d="e")} {ISSUE} {product.statement()} {product.statement()} {ISSUE}
    wgmma.wait_group.sync.aligned 1; {"".join(f"add.f32 e{i}, e{i}, e{i};" for i in range(count))}
    {WAIT} {adds}
    """
    found = run(run_kernel, product, a, b, c, body)
    wanted = 3 * c.astype(float) + 4 * (a.astype(float) @ b.astype(float))
    np.testing.assert_array_equal(found, wanted)


def tile(image: Image, matrix: Any, offset: int) -> int:
    """Put (rows, 64) there, in rows of 128 swizzled bytes; the bits of its descriptor."""
    rows = np.arange(matrix.shape[0])[:, None]
    chunk = np.arange(8)[None, :] ^ rows % 8
    to = image.content[offset : offset + 128 * len(rows)].reshape(-1, 8, 16)
    to[rows, chunk] = np.ascontiguousarray(matrix).view(np.uint8).reshape(-1, 8, 16)
    return MatrixDescriptor(WINDOW + offset, 16, 1024, 128).bits


@pytest.mark.parametrize("grid", [1, 3])
def test_warpgroups_and_steps_of_k(run_kernel: Any, numbers: Any, grid: int) -> None:
    """Two warpgroups with halves of A, B of both, k = 64 in a loop that moves the descriptors."""
    product, rng = Product(48), numbers.rng
    a = rng.integers(-4, 5, (128, 64)).astype(np.float16)
    b = rng.integers(-4, 5, (48, 64)).astype(np.float16)
    c = rng.integers(-9, 10, (2, grid, 64, 48)).astype(np.float32)
    image = Image()
    descriptors = np.array([tile(image, a, 0), tile(image, b, 16384)], np.uint64)
    body = f"""
    shr.u32 x, t, 7; mul.wide.u32 from, x, {64 * 128 // 16}; add.u64 a, a, from; mov.u32 y, 0;
    {FENCE}
    NEXT: {product.statement()} {ISSUE}
    add.u64 a, a, 2; add.u64 b, b, 2; add.u32 y, y, 1; setp.lt.u32 odd, y, 4; @odd bra NEXT;
    {WAIT}
    """
    # Blocks have their own accumulators: (block, thread, register).
    start = np.stack([[held(part) for part in c[:, g]] for g in range(grid)])
    out = np.zeros_like(start)
    text = prologue(product.registers, BYTES, warpgroup=256) + body + epilogue(product.registers)
    place = f"mov.u32 x, %ctaid.x; mad.wide.u32 p, x, {256 * 4 * product.registers}, p;"
    for parameter in ("p3", "p4"):
        text = text.replace(f"[{parameter}];", f"[{parameter}]; {place}")
    arrays = image.content, descriptors, np.zeros((256, 4), np.uint32), start, out
    run_kernel(text, *arrays, grid=grid, block=256, arch="sm_90a")
    for block_number, half in np.ndindex(grid, 2):
        rows = a[64 * half : 64 * half + 64]
        wanted = exact(rows, b.T, c[half, block_number])
        np.testing.assert_array_equal(freed(out[block_number, half], np.float32), wanted)


def test_warps_that_come_one_after_the_other(run_kernel: Any, numbers: Any) -> None:
    """Each warp runs all of it before the next, and is compared with the first."""
    product = Product(16)
    a, b, c = integers(numbers.rng, product)
    body = f"""
    mov.u32 y, 0; shr.u32 x, t, 5;
    TURN: setp.ne.u32 odd, x, y; @odd bra.uni NEXT;
    {FENCE} {product.statement()} {product.statement()} {ISSUE} {WAIT}
    NEXT: add.u32 y, y, 1; setp.lt.u32 odd, y, 4; @odd bra.uni TURN;
    """
    found = run(run_kernel, product, a, b, c, body)
    np.testing.assert_array_equal(found, exact(a, b, exact(a, b, c)))


def two_warpgroups(
    run_kernel: Any, product: Product, swizzles: tuple[int, int], body: str
) -> tuple[Any, Any]:
    """Accumulators after `body` in two warpgroups, each with a B of its own swizzle, and
    A . B of each; `odd` marks the second one. The accumulators begin as zeros.
    """
    rng, image, descriptors = np.random.default_rng(1), Image(), np.zeros((2, 2), np.uint64)
    a, of_a = rng.integers(-4, 5, (64, product.depth)).astype(product.dtype), product.operand_a()
    at_a = compact(of_a, 128, 0)
    image.put(a, of_a, at_a)
    wanted = []
    for i, swizzle in enumerate(swizzles):
        b = rng.integers(-4, 5, (product.depth, product.n)).astype(product.dtype)
        at_b = compact(product.operand_b(), swizzle, 8192 * (i + 1))
        image.put(b.T, product.operand_b(), at_b)
        descriptors[i] = at_a.bits, at_b.bits
        wanted.append(a.astype(float) @ b.astype(float))
    start = np.zeros((2, 128, product.registers), np.uint32)
    out = np.zeros_like(start)
    text = f"""
    {prologue(product.registers, BYTES, warpgroup=256)}
    shr.u32 x, t, 7; setp.ne.u32 odd, x, 0; mul.wide.u32 from, x, 16;
    ld.param.u64 p, [p1]; add.u64 p, p, from; ld.global.v2.b64 {{a, b}}, [p];
    {body} {epilogue(product.registers)}
    """
    arrays = image.content, descriptors, np.zeros((256, 4), np.uint32), start, out
    run_kernel(text, *arrays, block=256, arch="sm_90a")
    return np.stack([freed(each, np.float32) for each in out]), np.stack(wanted)


@pytest.mark.parametrize("swizzles", [(128, 128), (32, 128), (64, 0)])
def test_warpgroups_with_their_own_descriptors(run_kernel: Any, swizzles: tuple[int, int]) -> None:
    product = Product(40)
    body = f"{FENCE} {product.statement()} {ISSUE} {WAIT}"
    found, wanted = two_warpgroups(run_kernel, product, swizzles, body)
    np.testing.assert_array_equal(found, wanted)


def test_warpgroups_that_go_on_from_different_results(run_kernel: Any) -> None:
    """One from a result that is pending, the other from its registers; then one from nothing."""
    product = Product(40)
    one, fresh = product.statement(), product.statement(scale="odd")
    first = f"{FENCE} @odd {one} {one} {ISSUE} {WAIT}"
    found, wanted = two_warpgroups(run_kernel, product, (128, 128), first)
    np.testing.assert_array_equal(found, wanted * np.array([1, 2])[:, None, None])
    body = f"{first} {FENCE} {fresh} {ISSUE} {WAIT}"
    found, wanted = two_warpgroups(run_kernel, product, (128, 128), body)
    np.testing.assert_array_equal(found, wanted * np.array([1, 3])[:, None, None])


def test_many_of_them(run_kernel: Any, numbers: Any) -> None:
    product = Product(8)
    a, b, c = integers(numbers.rng, product)
    body = f"""
    mov.u32 y, 0;
    AGAIN: {FENCE} {product.statement()} {ISSUE} {WAIT}
    add.u32 y, y, 1; setp.lt.u32 odd, y, 300; @odd bra AGAIN;
    """
    found = run(run_kernel, product, a, b, c, body)
    wanted = c.astype(float) + 300 * (a.astype(float) @ b.astype(float))
    np.testing.assert_array_equal(found, wanted)


def test_a_launch_after_a_fault(numbers: Any) -> None:
    """A kernel of which one launch does not wait, one has no fence, in one a warp passes by, as the
    first register of A says; nothing of it is there in the next launch.
    """
    product = Product(16)
    a, b, c = integers(numbers.rng, product)
    body = f"""
    .reg .pred third; setp.eq.u32 third, a0, 3; @third bra END;
    setp.eq.u32 first, a0, 1; setp.eq.u32 odd, a0, 2; @!odd {FENCE}
    {product.statement(d="e", scale="0")} {product.statement()} {ISSUE} @!first {WAIT}
    {"".join(f"add.f32 d{i}, d{i}, e{i};" for i in range(product.registers))} {WAIT}
    END:
    """
    text, arrays = around(product, a, b, held(c), body)
    loaded = SimExecutor("sm_90a").load_text("test", kernel_text(text, 5, "sm_90a"))
    out = np.zeros_like(arrays[3])
    buffers = [Buffer(each) for each in (*arrays, out)]
    params = struct.pack("<5Q", *(each.pointer for each in buffers))
    wrong = {
        1: "touches the register d0, which a wgmma in flight",
        2: "a wgmma without a wgmma.fence before",
        3: "exits after 0 of the 6 instructions of wgmma",
    }
    for kind in (0, 2, 0, 1, 0, 3, 0):
        arrays[2][...], out[...] = kind % 3, 0
        arrays[2][:32] = kind
        if kind:
            with pytest.raises(SimulatorError, match=re.escape(wrong[kind])):
                loaded.launch((1, 1, 1), (128, 1, 1), 0, params, buffers=buffers)
            continue
        loaded.launch((1, 1, 1), (128, 1, 1), 0, params, buffers=buffers)
        np.testing.assert_array_equal(freed(out, np.float32), exact(2 * a, b, c))


def test_the_end_of_the_text_is_an_exit(run_kernel: Any) -> None:
    product = Product(8, swizzle_a=-1)
    body = f"""
    .reg .f32 d<4>; .reg .b32 a<4>; .reg .b64 b; .shared .align 128 .b8 smem[2048]; .reg .b32 x;
    mov.u32 x, %tid.x; shl.b32 x, x, 4; add.u32 x, x, 1024; st.shared.v4.b32 [x], {{x, x, x, x}};
    {"".join(f"mov.b32 a{i}, 0; mov.f32 d{i}, 0f00000000;" for i in range(4))}
    mov.b64 b, {MatrixDescriptor(1024, 128, 128).bits}; fence.proxy.async; bar.sync 0; {FENCE}
    {product.statement(scale="0")}
    {ISSUE}
    """
    with pytest.raises(SimulatorError, match=r"no wgmma.wait_group waits(?s:.*)commit_group"):
        run_kernel(body, block=128, arch="sm_90a")


def test_no_wavefronts_of_lanes(profile_of: Any, numbers: Any) -> None:
    """Reads of wgmma are not counted as those of an instruction before it."""
    product = Product(64)
    a, b, c = integers(numbers.rng, product)
    counted = []
    for times in (1, 3):
        body = f"{FENCE} {product.statement() * times} {ISSUE} {WAIT}"
        text, arrays = around(product, a, b, held(c), body)
        profile = profile_of(text, *arrays, np.zeros_like(arrays[3]), block=128, arch="sm_90a")
        counted.append(sum(use.wavefronts for use in profile.banks))
        assert profile.by_opcode()[product.opcode] == 4 * times
    assert counted[0] == counted[1] == 8 * BYTES // 1024


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (Product(8).statement().replace("d0, d1", "d0, d0"), "twice among the accumulators"),
        (Product(8, swizzle_a=-1).statement(a="d"), "is an accumulator and holds elements of A"),
        (Product(8, "f16").statement(d="f"), r"f0 is declared .f32; wgmma needs .b32 here"),
        (Product(8).statement(d="s"), r"s0 is declared .s32; wgmma needs .b32 or .f32 here"),
        (Product(8, swizzle_a=-1).statement(a="f"), r"f0 is declared .f32; wgmma needs .b32"),
        (Product(8, ab="tf32", swizzle_a=-1).statement(a="s"), "s0 is declared .s32"),
        (Product(8).statement(scale="2"), "scale-d is a predicate, or 0 or 1, not 2"),
        (Product(8, scale_a=2).statement(), "imm-scale is 1 or -1"),
        (Product(8).statement().replace("0, 0;", "0, 2;"), "imm-trans is 0 or 1"),
        (Product(8).statement().replace("d3", "_"), "fragments of wgmma must be registers"),
        (Product(8, swizzle_a=-1).statement().replace("a3", "7"), "must be registers"),
        (Product(16).statement().replace(braces("d", 8), braces("d", 4)), "needs 8 registers"),
        (Product(8).statement().replace(", a, b,", ", x, b,"), "x is declared .b32"),
        (Product(8).statement().replace(" b,", " x,"), "x is declared .b32"),
        (Product(8).statement().replace("0, 0;", "0;"), "imm-trans-a is there if A is in shared"),
        (Product(8, swizzle_a=-1).statement().replace(";", ", 0;"), "imm-trans-a is there if A is"),
        (Product(8).statement().replace("0, 0;", "0, 0, 0;"), "takes 7 to 8 operands, not 9"),
        (Product(8, ab="tf32").statement().replace(";", ", 0;"), "takes 6 operands, not 7"),
        ("wgmma.wait_group.sync.aligned -1;", "there are no -1 groups"),
        (Product(8).statement().replace("n8", "n12"), "does not support"),
    ],
)
def test_what_is_refused_at_load(run_kernel: Any, statement: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        declared = ".reg .f32 f<4>; .reg .s32 s<4>;"
        run_kernel(f"{prologue(16, 0)} {declared} {statement}", *[np.zeros(1)] * 4, arch="sm_90a")


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
def test_other_architectures_have_none(run_kernel: Any, arch: str) -> None:
    with pytest.raises(SimulatorError, match=r"wgmma\.fence\.sync\.aligned needs sm_90a"):
        run_kernel(FENCE, arch=arch)


def test_what_is_read_until_when(run_kernel: Any, numbers: Any, monkeypatch: Any) -> None:
    """Shared memory is told of each byte, once when a wgmma is issued and once when it is waited
    for.
    """
    events: list[tuple[str, Any]] = []

    def noting(name: str) -> Any:
        told = getattr(SharedMemory, name)

        def note(memory: Any, units: Any, warps: Any) -> Any:
            events.append((name, set((units * 16).tolist())))
            return told(memory, units, warps)

        return note

    monkeypatch.setattr(SharedMemory, "begin_async_read", noting("begin_async_read"))
    monkeypatch.setattr(SharedMemory, "end_async_read", noting("end_async_read"))
    product = Product(40, swizzle_a=32, swizzle_b=0)
    a, b, c = integers(numbers.rng, product)
    body = f"""
    {FENCE} {product.statement()} {ISSUE} {product.statement()} {ISSUE}
    wgmma.wait_group.sync.aligned 1; @first bar.sync 1, 128; {WAIT} @!first bar.arrive 1, 128;
    """
    run(run_kernel, product, a, b, c, body)
    every = set(range(0, 64 * 32, 16)) | set(range(B_AT, B_AT + 40 * 32, 16))
    # A in one pass, B in three.
    names = [name for name, _ in events]
    assert names == ["begin_async_read"] * 8 + ["end_async_read"] * 12
    for part in (events[:4], events[4:8], events[8:12], events[12:]):
        assert set().union(*(places for _, places in part)) == every
