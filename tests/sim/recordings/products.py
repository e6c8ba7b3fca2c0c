"""Operands of tensor cores, and the kernel of a warpgroup's product.

What a register holds where does not matter here: kinds of values are kinds of elements.
"""

from collections.abc import Sequence

import numpy as np
from sim.recordings.fills import FORMATS, Array, Format, generator
from sim.recordings.probes import Source

KINDS = ("normal", "patterns", "subnormals", "tiny", "sparse", "specials", "cancelling")
WARPS = 64
"""Count of each kind; a quarter of it for integers, whose sums are exact."""


def operands(sources: Sequence[Source]) -> list[Array]:
    """Words (registers, lanes) of each source: all kinds, one after the other."""
    return [
        np.concatenate([_operand(source, kind) for kind in KINDS], axis=1) for source in sources
    ]


def _operand(source: Source, kind: str) -> Array:
    _, place, element = source.role.split()
    rng = generator("product", source, kind)
    warps = WARPS if element in FORMATS else WARPS // 4
    return words(rng, kind, element, place, (source.registers, 32 * warps))


def words(
    rng: np.random.Generator, kind: str, element: str, place: str, shape: tuple[int, int]
) -> Array:
    """32-bit words of elements of A, B or C (`place`) in a kind's values."""
    if element not in FORMATS:
        return _integers(rng, kind, element, shape)
    of = FORMATS[element]
    count = 32 // of.bits
    if place == "c" and kind == "tiny":
        # Half of the sums begin at zero, so that nothing hides their last bits.
        x = elements(rng, kind, element, (*shape, count))
        x[:, : shape[1] // 2] = 0
    elif place == "c" and of.bits == 32 and kind not in ("normal", "specials"):
        x = _sums(rng, of, (*shape, count))
    elif kind == "cancelling":
        x = elements(rng, "normal", element, (*shape, count))
        if place == "a" and count == 2:
            x[..., 1] = x[..., 0] ^ np.uint64(of.sign)
            x[..., 1] += rng.integers(0, 3, shape, np.uint64)
        elif place == "b" and count == 2:
            x[..., 1] = x[..., 0]
        elif place == "a":
            x[shape[0] // 2 :] = x[: shape[0] // 2] ^ np.uint64(of.sign)
        elif place == "b" and shape[0] > 1:
            x[1] = x[0] + (rng.integers(0, 3, x[0].shape, np.uint64) << np.uint64(13))
    else:
        x = elements(rng, kind, element, (*shape, count))
    parts = [x[..., i] << np.uint64(of.bits * i) for i in range(count)]
    return np.bitwise_or.reduce(parts).astype(np.uint32)


def elements(rng: np.random.Generator, kind: str, element: str, shape: tuple[int, ...]) -> Array:
    """Patterns (uint64) of `element`."""
    of = FORMATS[element]
    bias = of.one >> of.fraction
    sign = rng.integers(0, 2, shape, np.uint64) << np.uint64(of.bits - 1)
    fraction = rng.integers(0, 1 << of.fraction, shape, np.uint64)
    # About the spread of a normal distribution: small ones are rarer by the size.
    exponent = np.uint64(bias + 1) - np.minimum(rng.geometric(0.5, shape), 12).astype(np.uint64)
    normal = sign | exponent << np.uint64(of.fraction) | fraction
    if kind in ("normal", "cancelling"):
        return np.asarray(normal)
    patterns = rng.integers(0, 2**of.bits, shape, np.uint64)
    if kind == "specials":
        # Mostly tame, so that one special term does not hide the others.
        return np.where(rng.random(shape) < 0.02, patterns, normal)
    wild = patterns & np.uint64(of.infinity) == np.uint64(of.infinity)
    patterns = np.where(wild, np.uint64(0), patterns)
    if kind == "subnormals":
        small = patterns & np.uint64(of.sign | (2 << of.fraction) - 1)
        return np.where(rng.random(shape) < 0.7, small, patterns)
    if kind == "tiny":
        # Products of a few bits around the smallest accumulator: sums that end in a tie, and terms
        # that are cut by what a block is aligned to at least.
        places = rng.integers(*((-12, -1) if element == "f16" else (-80, -61)), shape)
        few = rng.integers(0, 2, shape, np.uint64) << np.uint64(of.fraction - 1)
        x = sign | (bias + places).astype(np.uint64) << np.uint64(of.fraction) | few
        return np.where(rng.random(shape) < 0.4, np.uint64(0), x)
    if kind == "sparse":
        return np.where(rng.random(shape) < 0.8, np.uint64(0), patterns)
    return patterns


def _integers(rng: np.random.Generator, kind: str, element: str, shape: tuple[int, int]) -> Array:
    """Words of bytes, or whole ones: any, small ones, those at the ends of the range."""
    x = rng.integers(0, 2**32, shape, np.uint32)
    if kind in ("tiny", "sparse"):
        return x & rng.integers(0, 2**32, shape, np.uint32) & np.uint32(0x0F0F0F0F)
    if kind == "specials":
        ends = [0x7FFFFFFF, 0x80000000, 0x7F7F7F7F, 0x80808080, 0xFFFFFFFF, 0, 0x80000100]
        return np.array(ends, np.uint32)[rng.integers(0, len(ends), shape)]
    if kind == "cancelling" and element in ("s32", "u32"):
        return np.uint32(0x7FFFFFFF) - (x >> np.uint32(14))
    return x


def _sums(rng: np.random.Generator, of: Format, shape: tuple[int, ...]) -> Array:
    """Small whole multiples of powers of two, some of them any finite number."""
    wild = rng.integers(0, 2**of.bits, shape, np.uint64)
    finite = wild & np.uint64(of.infinity) != np.uint64(of.infinity)
    exponent = rng.integers(-149, 10, shape)
    small = np.ldexp(rng.integers(-4, 4, shape).astype(np.float32), exponent.astype(np.int32))
    tame = small.view(np.uint32).astype(np.uint64)
    return np.where(finite & (rng.random(shape) < 0.3), wild, tame)


# -- wgmma -----------------------------------------------------------------------------------------

WARPGROUP_FORMS = (
    ("m64n8k16.f32.bf16.bf16", "bf16", "f32", 4),
    ("m64n8k16.f32.f16.f16", "f16", "f32", 4),
    ("m64n8k16.f16.f16.f16", "f16", "f16", 2),
    ("m64n8k8.f32.tf32.tf32", "tf32", "f32", 4),
)
"""Shape and types; the elements of A and B, those of C and D, and their registers."""
GROUPS = 8
"""Warpgroups of each kind."""


def warpgroup_inputs(element: str, accumulator: str, registers: int) -> list[Array]:
    """Words of A (512 a warpgroup), of B (64) and the registers of C (registers, lanes).

    A is 64 rows, B is 8 columns, of 32 bytes each. They are in shared memory as they are here:
    16-byte pieces of 8 rows follow each other, then the second pieces of the same 8 rows.
    """
    rng = generator("wgmma", element, accumulator)
    shapes = {"a": (GROUPS, 512), "b": (GROUPS, 64), "c": (registers, GROUPS * 128)}
    found = []
    for place, shape in shapes.items():
        kind_of = accumulator if place == "c" else element
        parts = [words(rng, kind, kind_of, place, shape) for kind in KINDS]
        found.append(np.concatenate(parts, axis=1 if place == "c" else 0))
    return [found[0].reshape(1, -1), found[1].reshape(1, -1), found[2]]


def warpgroup_body(form: str, registers: int) -> str:
    """Between the loads of c0, c1, ... and the stores of d0, d1, ...: one wgmma.

    A is at `left`, B at `right` in global memory, `group` the number of the warpgroup, `t` that of
    the thread in it.
    """
    accumulators = ", ".join(f"d{i}" for i in range(registers))
    # The operands' majors are for 16-bit elements alone.
    majors = "" if "tf32" in form else ", 0, 0"
    return f"""
    .shared .align 128 .b8 tiles[2304];
    .reg .b32 s; .reg .b64 at, where, from_a, from_b; .reg .b32 v<4>; .reg .pred of_b, add;
    mov.u32 s, tiles; cvt.u64.u32 from_a, s; shr.u64 from_a, from_a, 4;
    add.u64 from_b, from_a, 128;
    // Pieces are 128 bytes apart along K, groups of 8 rows 256 bytes.
    or.b64 from_a, from_a, {(256 >> 4) << 32 | (128 >> 4) << 16};
    or.b64 from_b, from_b, {(256 >> 4) << 32 | (128 >> 4) << 16};
    mul.wide.u32 where, group, 2048; add.u64 at, left, where;
    mul.wide.u32 where, t, 16; add.u64 at, at, where;
    ld.global.v4.b32 {{v0, v1, v2, v3}}, [at];
    mad.lo.u32 s, t, 16, s;
    st.shared.v4.b32 [s], {{v0, v1, v2, v3}};
    setp.lt.u32 of_b, t, 16;
    mul.wide.u32 where, group, 256; add.u64 at, right, where;
    mul.wide.u32 where, t, 16; add.u64 at, at, where;
    @of_b ld.global.v4.b32 {{v0, v1, v2, v3}}, [at];
    @of_b st.shared.v4.b32 [s+2048], {{v0, v1, v2, v3}};
    {" ".join(f"mov.b32 d{i}, c{i};" for i in range(registers))}
    fence.proxy.async;
    bar.sync 0;
    setp.eq.u32 add, 0, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.{form} {{{accumulators}}}, from_a, from_b, add, 1, 1{majors};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    """
