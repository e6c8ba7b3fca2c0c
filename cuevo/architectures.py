"""Limits of GPU architectures that decide which configurations fit."""

import re
from dataclasses import dataclass

__all__ = ["Architecture", "architecture"]


_KIB = 1024
_RESERVED = _KIB
"""Bytes of shared memory that a resident threadblock takes beside its own."""


@dataclass(frozen=True)
class Architecture:
    """Limits of one compute capability. Source: CUDA C++ Programming Guide, "Technical
    Specifications per Compute Capability".
    """

    name: str
    """Name as the assembler spells it: "sm_80", "sm_90a"."""
    number: int
    """10 * major + minor."""
    shared_per_block: int
    """Bytes of dynamic shared memory that one threadblock may ask for."""
    shared_per_multiprocessor: int
    """Bytes of shared memory of a multiprocessor."""
    threads_per_multiprocessor: int
    multiprocessors: int
    """Count of the largest common device of this architecture; a present device's own count
    replaces it.
    """

    @property
    def specific_name(self) -> str:
        """The name that also gives what no other architecture has: "sm_90a" for "sm_90"."""
        return f"sm_{self.number}a" if self.number >= 90 else self.name

    def fitting_in_shared(self, shared_bytes: int) -> int:
        """Threadblocks with `shared_bytes` of dynamic shared memory that a multiprocessor holds."""
        return self.shared_per_multiprocessor // (shared_bytes + _RESERVED)


_LIMITS = {
    # number: shared a block, shared a multiprocessor, threads, multiprocessors
    70: (96, 96, 2048, 80),
    75: (64, 64, 1024, 72),
    80: (163, 164, 2048, 108),
    86: (99, 100, 1536, 84),
    87: (163, 164, 1536, 16),
    89: (99, 100, 1536, 142),
    90: (227, 228, 2048, 132),
    100: (227, 228, 2048, 148),
    103: (227, 228, 2048, 160),
    120: (99, 100, 1536, 188),
}


def architecture(name: str) -> Architecture:
    """The limits of `name`, such as "sm_90" or "sm_90a"; of the next lower known one for a newer
    name.

    Raises ValueError for what is not an architecture name, or older than sm_70.
    """
    match = re.fullmatch(r"sm_(\d+)[af]?", name)
    number = int(match[1]) if match else 0
    known = [candidate for candidate in _LIMITS if candidate <= number]
    if not known:
        raise ValueError(
            f"architecture must be sm_70 or later, such as 'sm_80' or 'sm_90a'; got {name!r}"
        )
    block, multiprocessor, threads, count = _LIMITS[max(known)]
    return Architecture(name, number, block * _KIB, multiprocessor * _KIB, threads, count)
