"""Limits of GPU architectures that decide which configurations fit."""

import difflib
import re
from dataclasses import dataclass

__all__ = ["Architecture", "Occupancy", "architecture", "check_block", "check_exists"]


_KIB = 1024
_RESERVED = _KIB
"""Bytes of shared memory that a resident threadblock takes beside its own."""
_REGISTERS = 65536
"""Registers of a multiprocessor."""
_QUARTERS = 4
"""SM sub-partitions, each with its own registers."""


@dataclass(frozen=True)
class Occupancy:
    """What a multiprocessor holds at a time of one kind of threadblock."""

    blocks: int
    warps: int
    most_warps: int
    """Warps that it could hold."""
    limit: str
    """What allows no further block: "threads", "registers", "shared memory", "blocks", or several
    of them, as in "threads and registers".
    """


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
    blocks_per_multiprocessor: int
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

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> Occupancy:
        """Threadblocks of `threads` threads that are resident at a time.

        `registers` are those of a thread, `shared_bytes` the static and dynamic shared memory of a
        block. A warp's registers come in units of 256, from one SM sub-partition.
        """
        warps = -(-threads // 32)
        of_a_warp = -(-registers * 32 // 256) * 256
        fitting = {
            "threads": self.threads_per_multiprocessor // (32 * warps),
            "registers": _QUARTERS * (_REGISTERS // _QUARTERS // max(of_a_warp, 1)) // warps,
            "shared memory": self.fitting_in_shared(shared_bytes),
            "blocks": self.blocks_per_multiprocessor,
        }
        blocks, most = min(fitting.values()), self.threads_per_multiprocessor // 32
        limit = " and ".join(name for name, count in fitting.items() if count == blocks)
        return Occupancy(blocks, blocks * warps, most, limit)


_LIMITS = {
    # number: shared a block, shared a multiprocessor, threads, blocks, multiprocessors
    70: (96, 96, 2048, 32, 80),
    75: (64, 64, 1024, 16, 72),
    80: (163, 164, 2048, 32, 108),
    86: (99, 100, 1536, 16, 84),
    87: (163, 164, 1536, 16, 16),
    89: (99, 100, 1536, 24, 142),
    90: (227, 228, 2048, 32, 132),
    100: (227, 228, 2048, 32, 148),
    103: (227, 228, 2048, 32, 160),
    120: (99, 100, 1536, 24, 188),
}

KNOWN = (70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
_WITH_OWN = 90
"""From here on an architecture has features of its own, asked for by an "a"."""
_WITH_FAMILY = 100
"""From here on it shares some with its family, asked for by an "f"."""


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
    block, multiprocessor, threads, blocks, count = _LIMITS[max(known)]
    return Architecture(name, number, block * _KIB, multiprocessor * _KIB, threads, blocks, count)


def check_exists(name: str) -> None:
    """ValueError for what is no architecture from sm_70 on, such as "sm_85"."""
    architecture(name)
    names = [f"sm_{number}" for number in KNOWN]
    names += [f"sm_{number}a" for number in KNOWN if number >= _WITH_OWN]
    families = [f"sm_{number}f" for number in KNOWN if number >= _WITH_FAMILY]
    if name not in (*names, *families):
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ValueError(f"there is no architecture {name}.{hint} Known: {', '.join(names)}.")


_MOST_THREADS, _MOST_DEEP = 1024, 64
Block = tuple[int, int, int]


def check_block(
    kernel: str, block: Block, required: Block | None = None, maximum: Block | None = None
) -> None:
    """ValueError for a threadblock that no device takes, or that is not the one that `kernel`
    requires (``.reqntid``), or larger than it allows (``.maxntid``).
    """
    threads = block[0] * block[1] * block[2]
    if min(block) < 1:
        raise ValueError(f"{kernel}: block {block} must be positive")
    if threads > _MOST_THREADS:
        raise ValueError(f"{kernel}: {threads} threads in a block; {_MOST_THREADS} are the most")
    if block[2] > _MOST_DEEP:
        raise ValueError(f"{kernel}: a block is {block[2]} threads deep; {_MOST_DEEP} are the most")
    if required not in (None, block):
        raise ValueError(f"{kernel}: block {block}; the kernel requires {required}")
    if maximum is not None and threads > maximum[0] * maximum[1] * maximum[2]:
        raise ValueError(f"{kernel}: {threads} threads in a block; .maxntid allows {maximum}")
