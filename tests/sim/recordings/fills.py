"""Operands of recorded instructions: patterns made from a seed, the hard ones among them.

Operands of one element type are made together, so that they can cancel or end in a tie. All is
made by integer arithmetic and exact operations of IEEE 754, and is the same on every machine; a
recording holds a checksum of it.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sim.recordings.probes import Source

Array = NDArray[Any]

EACH = 2048
"""Lanes of each kind of values."""
FEW = 256
"""The same, of instructions that have thousands of forms: comparisons."""


class Format(NamedTuple):
    """A binary floating-point format."""

    bits: int
    fraction: int

    @property
    def one(self) -> int:
        return ((1 << self.bits - 2 - self.fraction) - 1) << self.fraction

    @property
    def infinity(self) -> int:
        return ((1 << self.bits - 1 - self.fraction) - 1) << self.fraction

    @property
    def sign(self) -> int:
        return 1 << self.bits - 1

    @property
    def specials(self) -> list[int]:
        """Zeros, ends of ranges, ones and their neighbours, infinities, NaNs of all sorts."""
        normal, half = 1 << self.fraction, 1 << self.fraction - 1
        positive = [
            *[0, 1, normal - 1, normal, normal + 1, self.one - normal, self.one - 1, self.one],
            *[self.one + 1, self.one + normal, self.one + normal + half, self.infinity - 1],
            *[self.infinity, self.infinity | 1, self.infinity | half, self.infinity | normal - 1],
        ]
        return [*positive, *(self.sign | x for x in positive)]


FORMATS = {
    "f16": Format(16, 10),
    "bf16": Format(16, 7),
    "f32": Format(32, 23),
    "f64": Format(64, 52),
    "tf32": Format(32, 23),
}
_PACKED = {"f16x2": "f16", "bf16x2": "bf16", "u16x2": "u16", "s16x2": "s16"}


def inputs(sources: Sequence[Source], *, few: bool = False) -> list[Array]:
    """Unsigned integers of shape (registers, lanes) for each source."""
    if sources[0].role.startswith("octave"):
        first = int(sources[0].role.split()[1], 16)
        return [np.arange(first, first + (1 << 23), dtype=np.uint32)[None]]
    signature = ", ".join(map(str, sources))
    return list(_inputs(signature, tuple(sources), FEW if few else EACH))


def checksum(arrays: Sequence[Array]) -> int:
    """64 bits that tell whether the inputs are the same."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return int.from_bytes(digest.digest(), "little")


def generator(*words: object) -> np.random.Generator:
    """Random numbers that depend on the words alone."""
    seed = hashlib.blake2b(" ".join(map(str, words)).encode(), digest_size=8).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(seed, "little")))


@cache
def _inputs(signature: str, sources: tuple[Source, ...], each: int) -> tuple[Array, ...]:
    if len(sources) == 1 and (every := _every_pattern(sources[0].scalar)) is not None:
        return (every[None],)
    groups: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        scalar = source.role if source.role in ("count", "members") else source.scalar
        groups.setdefault(scalar, []).append(i)
    kinds = KINDS if len(sources) > 1 else ALONE
    if sources[0].role == "argument":
        kinds, each = ARGUMENTS, 4 * each
    found: list[Array] = [np.zeros(0)] * len(sources)
    for scalar, members in groups.items():
        values = _group(scalar, len(members), kinds, each, signature)
        for i, value in zip(members, values, strict=True):
            if sources[i].role == "divisor":
                value = np.where(value == 0, np.uint64(1), value)  # PTX leaves x / 0 open
            found[i] = value.astype(f"u{width(sources[i].scalar) // 8}")[None]
    return tuple(found)


def width(scalar: str) -> int:
    """Bits of the register that a value is loaded into and stored from."""
    if scalar == "pred" or scalar in _PACKED or scalar == "tf32":
        return 32
    return max(16, int(scalar.removeprefix("bf").lstrip("bsuf")))


def _every_pattern(scalar: str) -> Array | None:
    """All patterns of 16 bits; of two halves, each with another beside it."""
    patterns = np.arange(1 << 16, dtype=np.uint32)
    if scalar in _PACKED:
        return patterns << np.uint32(16) | (patterns * np.uint32(40503) + np.uint32(7)) & 0xFFFF
    return patterns.astype(np.uint16) if scalar != "pred" and width(scalar) == 16 else None


def _group(scalar: str, count: int, kinds: Sequence[str], each: int, signature: str) -> Array:
    """(count, lanes) of uint64: `each` lanes of every kind."""
    if scalar in _PACKED:
        element = _PACKED[scalar]
        low, high = (_group(element, count, kinds, each, signature + x) for x in ("low", "high"))
        order = generator(signature, "beside").permutation(low.shape[1])
        return np.asarray(low | high[:, order] << np.uint64(16))
    rng = generator(signature, scalar)
    if scalar == "pred":
        return rng.integers(0, 2, (count, each * len(kinds)), np.uint64)
    if scalar == "count":
        return _counts(rng, (count, each * len(kinds)))
    if scalar == "members":
        return np.stack([_members(rng, each * len(kinds)) for _ in range(count)])
    make = _floats if scalar in FORMATS else _integers
    bits = width(scalar)
    values = [make(rng, kind, FORMATS.get(scalar, Format(bits, 0)), count, each) for kind in kinds]
    return np.concatenate(values, axis=1) & np.uint64(2**bits - 1)


def _counts(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Numbers of bits, those beyond 32 and 64 among them, and some of any size."""
    small, wild = rng.integers(0, 70, shape), rng.integers(0, 2**32, shape)
    return np.where(rng.random(shape) < 0.9, small, wild).astype(np.uint64)


def _members(rng: np.random.Generator, size: int) -> Array:
    """Member masks of the lanes of warps that are parted into groups, each lane in its own: tiles
    of 1, 2, 4 lanes and so on, every other lane, any lanes.
    """
    lane = np.arange(32)
    tiles = [lane // tile for tile in (1, 2, 4, 8, 16, 32)]
    regular = np.stack([*tiles, *(lane % many for many in (2, 4, 16))])
    warps = size // 32
    any_lanes = rng.integers(0, rng.integers(1, 33, (warps, 1)), (warps, 32))
    chosen = regular[rng.integers(0, len(regular), warps)]
    group = np.where(rng.random((warps, 1)) < 0.5, chosen, any_lanes)
    together = group[:, :, None] == group[:, None, :]
    return np.asarray((together << lane).sum(axis=-1).astype(np.uint64).reshape(-1))


# -- Kinds -----------------------------------------------------------------------------------------

KINDS = ("special", "bits", "normal", "tiny", "huge", "cancelling", "ties", "mixed")
ALONE = ("special", "bits", "normal", "tiny", "huge", "whole", "narrow", "mixed")
"""Fills of instructions with one operand."""
ARGUMENTS = ("special", "bits", "normal", "tiny", "huge", "span", "turns", "near")
"""Fills of approximate functions in f32."""


def _crossed(rng: np.random.Generator, values: Sequence[int], count: int, size: int) -> Array:
    """Each of the values with each; where they are too many, some."""
    listed = np.array(values, np.uint64)
    found = listed[rng.integers(0, len(listed), (count, size))]
    if len(listed) ** count <= size:
        grid = np.stack(np.meshgrid(*[listed] * count, indexing="ij")).reshape(count, -1)
        found[:, : grid.shape[1]] = grid
    return np.asarray(found)


def _floats(rng: np.random.Generator, kind: str, of: Format, count: int, size: int) -> Array:
    if kind == "special":
        return _crossed(rng, of.specials, count, size)
    if kind == "mixed":
        chosen = [x for x in ("special", "bits", "normal", "tiny", "huge", "few") if x != kind]
        choices = np.stack([_floats(rng, x, of, count, size) for x in chosen])
        return np.take_along_axis(choices, rng.integers(0, len(chosen), (1, count, size)), 0)[0]
    return np.asarray(_FLOATS[kind](rng, of, (count, size))).astype(np.uint64)


_Shape = tuple[int, int]


def _assembled(of: Format, negative: Array, exponent: Array, fraction: Array) -> Array:
    """Patterns of biased exponents, kept in range, and fractions."""
    top = (1 << of.bits - 1 - of.fraction) - 2
    exponent = np.clip(exponent, 0, top).astype(np.uint64)
    patterns = exponent << np.uint64(of.fraction) | fraction.astype(np.uint64)
    return np.asarray(patterns | np.where(negative, np.uint64(of.sign), np.uint64(0)))


def _parts(rng: np.random.Generator, of: Format, shape: _Shape) -> tuple[Array, Array]:
    """Signs, and fractions of random bits."""
    return rng.random(shape) < 0.5, rng.integers(0, 1 << of.fraction, shape)


def _bits(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    return rng.integers(0, 2**of.bits, shape, np.uint64, endpoint=False)


def _normal(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    sign, fraction = _parts(rng, of, shape)
    bias = of.one >> of.fraction
    return _assembled(of, sign, bias + rng.integers(-6, 5, shape), fraction)


def _tiny(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    sign, fraction = _parts(rng, of, shape)
    # Also subnormals with many leading zeros.
    fraction >>= np.where(rng.random(shape) < 0.5, 0, rng.integers(0, of.fraction + 1, shape))
    return _assembled(of, sign, rng.choice([0, 0, 0, 1, 2], shape), fraction)


def _huge(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    sign, fraction = _parts(rng, of, shape)
    top = (of.infinity >> of.fraction) - 1
    return _assembled(of, sign, top - rng.choice([0, 0, 1, 2], shape), fraction)


def _cancelling(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    """The second is the first of the other sign, but for the last places; so is the third, to the
    product of the others where the first two are near to one.
    """
    x = _normal(rng, of, shape)
    near = rng.integers(-4, 5, shape[1]).astype(np.uint64)
    if shape[0] == 2:
        x[1] = (x[0] ^ np.uint64(of.sign)) + near
    elif shape[0] == 3:
        # (1 + a)(1 + b) is 1 + a + b but for a b, far below.
        small = of.fraction // 2
        a, b = rng.integers(0, 1 << small, (2, shape[1])).astype(np.uint64)
        one = np.uint64(of.one)
        x[0], x[1] = one + a, one + b
        x[2] = (one + a + b + near // np.uint64(2) % np.uint64(3)) | np.uint64(of.sign)
    return x


def _few(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    """Fractions of a few bits: their products are exact, or end in a tie."""
    sign, fraction = _parts(rng, of, shape)
    kept = rng.integers(1, of.fraction // 2 + 3, shape)
    fraction &= -(1 << (of.fraction - np.minimum(kept, of.fraction)))
    bias = of.one >> of.fraction
    return _assembled(of, sign, bias + rng.integers(-3, 4, shape), fraction)


def _ties(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    """The last one is about half of a last place of the others, or of their product."""
    x = _few(rng, of, shape)
    if shape[0] == 1:
        return x
    sign, fraction = _parts(rng, of, shape)
    place = (x[0] & np.uint64(of.infinity)) >> np.uint64(of.fraction)
    exponent = place.astype(np.int64) - of.fraction - 1 + rng.integers(-1, 2, shape[1])
    ends = np.where(rng.random(shape[1]) < 0.7, 0, fraction[-1] & 1)
    x[-1] = _assembled(of, sign[-1], exponent, ends)
    if shape[0] == 2:
        # A first one with all its places, half of the time.
        full = _normal(rng, of, shape)[0]
        x[0] = np.where(rng.random(shape[1]) < 0.5, full, x[0])
        # The other half multiplies without a third.
        products = rng.random(shape[1]) < 0.4
        x[1] = np.where(products, _few(rng, of, shape)[1], x[1])
    return x


def _whole(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    """About whole numbers and their halves, of all sizes, and about the ends of integer types."""
    sign, fraction = _parts(rng, of, shape)
    size = rng.integers(-2, min(70, (of.one >> of.fraction) - 1), shape)
    # Bits below one half are kept seldom.
    kept = np.clip(size + rng.integers(0, 3, shape), 0, of.fraction)
    fraction &= -(1 << (of.fraction - kept))
    ends = rng.random(shape) < 0.3
    size = np.where(ends, rng.choice([0, 6, 7, 8, 14, 15, 16, 30, 31, 32, 62, 63, 64], shape), size)
    fraction = np.where(ends, 0, fraction)
    x = _assembled(of, sign, (of.one >> of.fraction) + size, fraction)
    return np.asarray(x + np.where(ends, rng.integers(-3, 4, shape), 0).astype(np.uint64))


def _narrow(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    """About the middle between two neighbours of a narrower format, also where that one has
    subnormals.
    """
    sign, fraction = _parts(rng, of, shape)
    places = [p for p in (7, 10, 2, 3, 23) if p < of.fraction]
    place = of.fraction - rng.choice(places, shape) + rng.integers(-1, 12, shape).clip(0)
    place = np.minimum(place, of.fraction)
    fraction = fraction >> place << place
    bias = of.one >> of.fraction
    lowest = [-14, -15, -20, -24, -25, -126, -130, -149, -150, 0, 5, 15, 16, 127]
    exponent = np.where(
        rng.random(shape) < 0.5, rng.choice(lowest, shape), rng.integers(-27, 17, shape)
    )
    x = _assembled(of, sign, bias + exponent, fraction)
    half = np.uint64(1) << (place - 1).astype(np.uint64)
    return np.asarray((x ^ half) + rng.choice([-1, 0, 0, 1], shape).astype(np.uint64))


def _spread(reach: int) -> Callable[[np.random.Generator, Format, _Shape], Array]:
    """float32 numbers spread evenly from -reach to reach."""

    def make(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
        steps = rng.integers(-reach << 24, reach << 24, shape)
        return np.ldexp(steps.astype(np.float64), -24).astype(np.float32).view(np.uint32)

    return make


def _near(rng: np.random.Generator, of: Format, shape: _Shape) -> Array:
    """About 1, at all distances."""
    away = rng.integers(0, 1 << of.fraction, shape) >> rng.integers(0, of.fraction, shape)
    return np.asarray(of.one + np.where(rng.random(shape) < 0.5, away, -away))


_FLOATS: dict[str, Callable[[np.random.Generator, Format, _Shape], Array]] = {
    "bits": _bits,
    "normal": _normal,
    "tiny": _tiny,
    "huge": _huge,
    "cancelling": _cancelling,
    "ties": _ties,
    "few": _few,
    "whole": _whole,
    "narrow": _narrow,
    "span": _spread(160),
    "turns": _spread(8),
    "near": _near,
}


def _integers(rng: np.random.Generator, kind: str, of: Format, count: int, size: int) -> Array:
    shape, bits = (count, size), of.bits
    powers = np.uint64(1) << rng.integers(0, bits, shape, np.uint64)
    if kind == "special":
        middle, top = 1 << bits - 1, (1 << bits) - 1
        thirds = top // 3
        ends = [0, 1, 2, 3, middle - 1, middle, middle + 1, top - 1, top, thirds, 2 * thirds, 7]
        ends += [1 << bits // 2, (1 << bits // 2) - 1, top << bits // 2 & top, 31, 32, 33]
        return _crossed(rng, ends, count, size)
    if kind == "normal":
        return rng.integers(-20, 21, shape).astype(np.uint64)
    if kind in ("tiny", "whole"):
        return np.asarray(powers - np.uint64(1) + rng.integers(0, 3, shape, np.uint64))
    if kind in ("huge", "narrow"):
        # About the ends of narrower types, of either sign.
        ends = np.uint64(1) << rng.choice([7, 8, 15, 16, 24, 31, 32, 63], shape).astype(np.uint64)
        ends = ends + rng.integers(-3, 4, shape).astype(np.uint64)
        return np.where(rng.random(shape) < 0.5, ends, np.uint64(0) - ends)
    x = rng.integers(0, 2**bits, shape, np.uint64, endpoint=False)
    if kind == "cancelling" and count > 1:
        near = rng.integers(-2, 3, size).astype(np.uint64)
        same = rng.random(size) < 0.5
        x[1] = np.where(same, x[0], np.uint64(0) - x[0]) + near
    if kind == "ties":
        x >>= rng.integers(0, bits, shape, np.uint64)
    if kind == "mixed":
        x = np.where(rng.random(shape) < 0.5, powers * rng.integers(1, 4, shape, np.uint64), x)
    return x
