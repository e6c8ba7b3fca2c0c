"""Kernels in Triton that work on one element at a time."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add_vectors(x, y, out, count, TILE: tl.constexpr):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = place < count
    total = tl.load(x + place, mask=there) + tl.load(y + place, mask=there)
    tl.store(out + place, total, mask=there)


@triton.jit
def drop(x, out, count, share, seed, TILE: tl.constexpr):
    """Zeros in the place of a share of `x`, and the rest that much larger."""
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = place < count
    values = tl.load(x + place, mask=there)
    kept = tl.rand(seed, place) >= share
    tl.store(out + place, tl.where(kept, values / (1 - share), 0.0), mask=there)


@triton.jit
def arc_sine(x, out, count, TILE: tl.constexpr):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = place < count
    tl.store(out + place, libdevice.asin(tl.load(x + place, mask=there)), mask=there)


@triton.jit
def add_dependent(x, y, out, count, TILE: tl.constexpr):
    """A sum that begins while the kernel before it ends, and lets the next one begin."""
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = place < count
    tl.extra.cuda.gdc_wait()
    total = tl.load(x + place, mask=there) + tl.load(y + place, mask=there)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(out + place, total, mask=there)
