"""The problems that are measured, and how much work each of them is.

A workload is written N,H,L,D: rows, heads, residues (queries and keys alike), head dim; one batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BIASES = ("both", "pair", "none")
"""Which biases a call has, or which gradients of biases: mask and pair, the pair bias alone,
neither.
"""


def key_of(contender: str, biases: str, gradients: str = "") -> str:
    """Key of a contender: its name, the biases it has, and their gradients in backward."""
    return f"{contender}, {biases}" + (f", bias grads {gradients}" if gradients else "")


@dataclass(frozen=True)
class Workload:
    """One problem with B = 1 and as many keys as queries."""

    rows: int
    heads: int
    length: int
    head_dim: int

    def __str__(self) -> str:
        return f"{self.rows},{self.heads},{self.length},{self.head_dim}"

    @property
    def scores(self) -> int:
        """Elements of the attention matrix: as many exponentials as the softmax needs."""
        return self.rows * self.heads * self.length * self.length

    @property
    def operations(self) -> int:
        """Floating-point operations of forward: a multiply and an add, in two products."""
        return 4 * self.scores * self.head_dim

    @property
    def backward_operations(self) -> int:
        """Floating-point operations of backward: five products."""
        return 10 * self.scores * self.head_dim

    def tensor_bytes(self, element_size: int = 2) -> int:
        """Bytes of one of q, k, v, out."""
        return self.rows * self.length * self.heads * self.head_dim * element_size

    def traffic_bytes(self, element_size: int = 2) -> int:
        """Bytes of one set of inputs and its output, each counted once."""
        pair = self.heads * self.length * self.length * element_size
        mask = self.rows * self.length * element_size
        return 4 * self.tensor_bytes(element_size) + pair + mask

    def backward_traffic_bytes(self, element_size: int = 2) -> int:
        """Likewise of backward: dout, q, k, v, out, lse and the biases, and the gradients."""
        pair = self.heads * self.length * self.length * element_size
        mask = self.rows * self.length * element_size
        lse = self.rows * self.heads * self.length * 4
        return 8 * self.tensor_bytes(element_size) + lse + 2 * (pair + mask)


FORWARD = tuple(
    Workload(*sizes)
    for sizes in (
        (128, 8, 256, 32),
        (512, 8, 384, 32),
        (256, 4, 256, 32),
        (384, 4, 384, 32),
        (768, 4, 768, 32),
        (1024, 4, 1024, 32),
        (2048, 4, 2048, 32),
        (512, 4, 512, 64),
        (48, 16, 768, 24),
        (48, 16, 768, 48),
        (16, 8, 2048, 32),
    )
)
"""MSA rows, triangle attention from small to large crops, and templates or long chains."""

QUICK = (FORWARD[0], FORWARD[4], FORWARD[7])

BACKWARD = tuple(
    Workload(*sizes)
    for sizes in (
        (128, 8, 256, 32),
        (384, 4, 384, 32),
        (768, 4, 768, 32),
        (1024, 4, 1024, 32),
        (512, 4, 512, 64),
        (512, 8, 512, 8),
        (1, 16, 768, 32),
    )
)
"""MSA rows, triangle attention at three crops, large and small head dims, a single row."""

QUICK_BACKWARD = (BACKWARD[1], BACKWARD[2])

_FIELDS = {"N": "rows", "H": "heads", "L": "length", "D": "head_dim"}


def select(filters: Sequence[str], workloads: Iterable[Workload] = FORWARD) -> list[Workload]:
    """The workloads that the filters ask for, in the order of the filters.

    A filter is a whole workload (`768,4,768,32`, known or not) or conditions that known ones
    must meet (`L=768`, `H=4,D=32`). No filter selects all.

    Raises:
        ValueError: a filter of neither form, or one that selects nothing.
    """
    known = list(workloads)
    if not filters:
        return known
    chosen: dict[Workload, None] = {}
    for text in filters:
        if re.fullmatch(r"\d+(,\d+){3}", text):
            chosen[_positive(Workload(*map(int, text.split(","))))] = None
            continue
        conditions = dict(re.findall(r"([NHLD])=(\d+)", text))
        if not text or ",".join(f"{name}={value}" for name, value in conditions.items()) != text:
            raise ValueError(f"a workload is written N,H,L,D or L=768,D=32, not {text!r}")
        matching = [workload for workload in known if _meets(workload, conditions)]
        if not matching:
            raise ValueError(f"no workload has {text}; there are {'  '.join(map(str, known))}")
        chosen.update(dict.fromkeys(matching))
    return list(chosen)


def _meets(workload: Workload, conditions: dict[str, str]) -> bool:
    return all(getattr(workload, _FIELDS[name]) == int(value) for name, value in conditions.items())


def _positive(workload: Workload) -> Workload:
    if min(workload.rows, workload.heads, workload.length, workload.head_dim) < 1:
        raise ValueError(f"every extent of {workload} must be 1 or more")
    return workload
