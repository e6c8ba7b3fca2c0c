"""The distinct kernels that the sweeps load, counted in each run of all tests: a sweep whose cases
come to share a kernel finds less, and nothing else tells.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cuevo.sim import LoadedKernel, SimExecutor

SWEEPS = re.compile("sweep|every_bit")
"""The functions that are sweeps, by name."""
LEAST: Mapping[str, int] = {
    "attention_delta_sm70": 36,
    "evoformer_backward_sm70": 49,
    "evoformer_backward_sm75": 73,
    "evoformer_backward_sm80": 231,
    "evoformer_forward_sm70": 48,
    "evoformer_forward_sm75": 45,
    "evoformer_forward_sm80": 130,
    "gemm_sm70": 81,
    "gemm_sm75": 82,
    "gemm_sm80": 205,
    "gemm_sm90a": 104,
    "key_bias_sm70": 5,
    "pack_sm70": 78,
    "partial_sums_sm70": 60,
}
"""By kernel, how many instances of it the sweeps load at least."""


@contextmanager
def recorded(loaded: dict[str, list[str]]) -> Iterator[None]:
    """Add to `loaded`, by the kernel's name, a digest of each text that a CPU executor loads."""
    load = SimExecutor.load

    def record(executor: SimExecutor, kernel: Any) -> LoadedKernel:
        digest = hashlib.blake2b(kernel.text.encode(), digest_size=12).hexdigest()
        loaded.setdefault(kernel.name, []).append(digest)
        return load(executor, kernel)

    SimExecutor.load = record  # type: ignore[method-assign]
    try:
        yield
    finally:
        SimExecutor.load = load  # type: ignore[method-assign]


def counts(parts: Iterable[Mapping[str, list[str]]]) -> dict[str, int]:
    """Distinct texts by kernel, of what `recorded` found in each of many tests."""
    found = defaultdict(set)
    for part in parts:
        for name, digests in part.items():
            found[name].update(digests)
    return {name: len(digests) for name, digests in sorted(found.items())}


def missing(found: Mapping[str, int]) -> list[str]:
    """Complaints about the counts of a run of all tests: a line for each kernel."""
    return [
        f"{name}: {found.get(name, 0)} kernels in the sweeps, where there were {least}"
        for name, least in LEAST.items()
        if found.get(name, 0) < least
    ]
