"""Rates of a multiprocessor's pipes, by architecture: the one table of them.

Rates are clocks of an SM sub-partition for an instruction of a warp; those of what all four share,
such as shared memory, are four times as many as the multiprocessor takes. Sources, by letter:

[G] CUDA C++ Programming Guide, "Arithmetic Instructions": results a clock of a multiprocessor.
[A] NVIDIA A100 whitepaper: 1024 fp16 multiply-adds a clock of a multiprocessor; Turing and GA10x
    whitepapers: 512, of which GeForce boards do half with fp32 sums.
[M] Measured on an H200, 2026-11-20: loops of PTX whose machine code was checked, 5,000 variants.
    mma.m16n8k16 6.0 clocks, wgmma 512 multiply-adds a clock and never less than 13 clocks, ex2 8,
    ldmatrix.x4 and 16-byte accesses of shared memory 4 clocks of the multiprocessor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cuevo.architectures import Architecture
from cuevo.toolchain.sass import MachineInstruction

__all__ = ["PIPES", "Units", "clocks", "units"]

PIPES = ("issue", "tensor", "xu", "lsu", "alu", "fma")
"""What bounds a kernel: slots of the scheduler, then the pipes as `cuevo.toolchain.sass` has them.
"""


@dataclass(frozen=True)
class Units:
    """Rates of an architecture, and where they come from."""

    mma: Mapping[str, float]
    """Clocks of an HMMA, by shape."""
    wgmma: float
    """Multiply-adds a clock of warpgroup instructions; 0 where there are none."""
    fp32: float
    """Clocks of an instruction of the pipe for fp32."""
    integer: float
    """The same of the ALU."""
    xu: float
    """The same of transcendental functions and conversions that are theirs."""
    clock_hz: float
    """Under load with products, of the largest common device."""
    bytes_per_second: float
    """Of its memory."""
    launch_seconds: float
    """What a call takes besides: its launch, and waiting for the first and the last bytes."""
    source: str


_MMA_80 = {"16816": 8.0, "1688": 4.0}
_UNITS = {
    75: Units({"1688": 8.0, "884": 4.0}, 0, 2, 2, 8, 1.55e9, 6.2e11, 4e-6, "[G], [A]"),
    80: Units(_MMA_80, 0, 2, 2, 8, 1.41e9, 1.5e12, 4e-6, "[G], [A]"),
    86: Units({"16816": 16.0, "1688": 8.0}, 0, 1, 2, 8, 1.7e9, 9.0e11, 4e-6, "[G], [A]"),
    89: Units({"16816": 16.0, "1688": 8.0}, 0, 1, 2, 8, 2.4e9, 9.6e11, 4e-6, "[G], [A]"),
    90: Units({"16816": 6.0, "1688": 4.0}, 512, 1, 2, 8, 1.755e9, 4.0e12, 5e-6, "[M]"),
}
_LEAST_WGMMA = 13.0
_SHARED_BYTES = 128
"""Bytes of shared memory a clock of a multiprocessor."""
_SHARED_BY_ALL = 4
_WIDTHS = {"U8": 32, "U16": 64, "64": 256, "128": 512}
"""Bytes of an access of a warp, by modifier; 128 without one."""
_NO_BYTES = (
    *("ARRIVES", "CCTL", "DEPBAR", "ERRBAR", "FENCE", "LDGDEPBAR", "MEMBAR", "QSPC", "S2R", "S2UR"),
    *("SYNCS",),
)


def units(arch: Architecture) -> Units:
    """The rates of `arch`; ValueError where they are not known."""
    found = _UNITS.get(arch.number)
    if found is None:
        known = ", ".join(f"sm_{number}" for number in _UNITS)
        raise ValueError(f"the rates of {arch.name} are not known; those of {known} are")
    return found


def clocks(instruction: MachineInstruction, rates: Units) -> dict[str, float]:
    """What an instruction of a warp takes of the pipes."""
    pipe, (base, *modifiers) = instruction.pipe, instruction.opcode.split(".")
    if pipe == "none":
        return {}
    taken = {"issue": 1.0}
    if pipe == "tensor":
        taken["tensor"] = _product(base, modifiers, rates)
    elif pipe == "xu":
        taken["xu"] = rates.xu
    elif pipe == "alu":
        taken["alu"] = rates.integer
    elif pipe in ("fma", "fma heavy"):
        taken["fma"] = rates.fp32
    elif pipe == "lsu" and base not in _NO_BYTES:
        taken["lsu"] = _SHARED_BY_ALL * _access(base, modifiers) / _SHARED_BYTES
    return taken


def _product(base: str, modifiers: list[str], rates: Units) -> float:
    shape = modifiers[0] if modifiers else ""
    if base == "HGMMA" and rates.wgmma:
        m, n, k = map(int, shape.split("x"))
        # A warp has a quarter of the rows, and a sub-partition a quarter of the warps.
        return max(_LEAST_WGMMA, m * n * k / 4 / rates.wgmma)
    return rates.mma.get(shape, max(rates.mma.values()))


def _access(base: str, modifiers: list[str]) -> float:
    """Bytes that an access of a warp takes the way through shared memory and L1 for."""
    if base in ("LDSM", "STSM"):
        return 128.0 * int(next((x for x in modifiers if x in ("2", "4")), 1))
    if base in ("SHFL", "MOVM"):
        return 128.0
    return float(next((_WIDTHS[x] for x in modifiers if x in _WIDTHS), 128))
