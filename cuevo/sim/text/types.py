"""Scalar types of PTX, and the NumPy types that hold their bits."""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from cuevo.sim.aliases import AnyDType


@dataclass(frozen=True, eq=False)
class ScalarType:
    """A fundamental type of PTX, or a packed one that instructions take (``f16x2``); one of each is
    in `TYPES`.
    """

    name: str
    bits: int
    kind: str
    """One of ``b`` (untyped bits), ``u``, ``s``, ``f``, ``p`` (predicate) and ``h`` (formats whose
    registers are of untyped bits).
    """
    dtype: AnyDType
    """NumPy type that registers are viewed as to compute in this type; packed types have no finer
    view than bits.
    """

    def agrees_with(self, register: "ScalarType") -> bool:
        """Whether an operand of this type may be a register declared as `register` (PTX ISA,
        operand type checking).

        Sizes must be equal; untyped agrees with all, the two integer kinds with each other.
        """
        return self.bits == register.bits and (self is register or _mix(self, register))

    def widens_to(self, register: "ScalarType") -> bool:
        """Whether an operand that may be wider than its type may be the wider `register`.

        An integer gets longer by its sign or by zeros, a pattern by zeros; a number of one
        floating-point type is none of another.
        """
        return self.kind != "h" and self.bits < register.bits and _mix(self, register)


@cache
def _mix(one: ScalarType, other: ScalarType) -> bool:
    kinds = {one.kind, other.kind}
    if "p" in kinds:
        return False
    return "b" in kinds or (one.kind in "us" and other.kind in "ush")


def _types() -> dict[str, ScalarType]:
    table = [ScalarType("pred", 1, "p", np.dtype(np.bool_))]
    for bits in (8, 16, 32, 64):
        table.append(ScalarType(f"b{bits}", bits, "b", np.dtype(f"u{bits // 8}")))
        table.append(ScalarType(f"u{bits}", bits, "u", np.dtype(f"u{bits // 8}")))
        table.append(ScalarType(f"s{bits}", bits, "s", np.dtype(f"i{bits // 8}")))
    # 16 bytes travel as a complex number, with which nothing is computed.
    table.append(ScalarType("b128", 128, "b", np.dtype(np.complex128)))
    table.append(ScalarType("f16", 16, "f", np.dtype(np.float16)))
    table.append(ScalarType("bf16", 16, "h", np.dtype(ml_dtypes.bfloat16)))
    for packed in ("e4m3x2", "e5m2x2"):
        table.append(ScalarType(packed, 16, "h", np.dtype(np.uint16)))
    for packed in ("f16x2", "bf16x2", "u16x2", "s16x2", "tf32"):
        table.append(ScalarType(packed, 32, "h", np.dtype(np.uint32)))
    table.append(ScalarType("f32", 32, "f", np.dtype(np.float32)))
    table.append(ScalarType("f64", 64, "f", np.dtype(np.float64)))
    return {scalar.name: scalar for scalar in table}


TYPES = _types()

REGISTER_TYPES = frozenset(
    name for name, scalar in TYPES.items() if scalar.kind != "h" or name == "f16x2"
)
"""Types that ``.reg`` may declare."""
