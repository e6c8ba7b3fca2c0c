"""Products that an assembler may fuse with a sum.

A mul and an add or sub without a rounding modifier may become one fma, which rounds once: then the
bits of a result are a matter of the assembler. ``.rn`` on either of the two, or an fma, says what
is meant.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

_TYPE = r"(\.ftz)?\.(f32|f64|f16|f16x2|bf16|bf16x2)"
_PRODUCT = re.compile(rf"mul{_TYPE}")
_SUM = re.compile(rf"(add|sub){_TYPE}")
_COPY = re.compile(rf"neg{_TYPE}|mov\.(f32|f64|b16|b32|b64)")


@dataclass(frozen=True)
class Contraction:
    """A product and a sum that may become one fma."""

    origin: str
    """``ptx/<file>:<line>`` of the product."""
    opcode: str
    sum_origin: str
    sum_opcode: str


class Operation(Protocol):
    """An instruction's effects; sets of registers are integers with a bit for each."""

    @property
    def opcode(self) -> str: ...
    @property
    def guarded(self) -> bool: ...
    @property
    def reads(self) -> int: ...
    @property
    def writes(self) -> int: ...


def contractions(
    operations: Sequence[Operation], successors: Sequence[Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Indices of products, and of the sums that they reach as they are or negated; `successors`
    are those of each of the `operations`.
    """
    for index, operation in enumerate(operations):
        if not _PRODUCT.fullmatch(operation.opcode):
            continue
        copies, seen = [index], {index}
        while copies:
            for reader in _readers(copies.pop(), operations, successors):
                opcode = operations[reader].opcode
                if _SUM.fullmatch(opcode):
                    yield index, reader
                elif _COPY.fullmatch(opcode) and reader not in seen:
                    seen.add(reader)
                    copies.append(reader)


def _readers(
    index: int, operations: Sequence[Operation], successors: Sequence[Sequence[int]]
) -> Iterator[int]:
    """Instructions that may read what the one at `index` writes."""
    written = operations[index].writes
    seen: set[int] = set()
    work = list(successors[index])
    while work:
        at = work.pop()
        if at in seen:
            continue
        seen.add(at)
        operation = operations[at]
        if written & operation.reads:
            yield at
        if operation.guarded or not written & operation.writes:
            work += successors[at]
