"""Runs of compiled kernels, and what is wrong with their results.

python tests/sim/compiled/running.py [NAME ...]      all of them in all modes, or some
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parents[2])]

from sim.compiled.kernels import KERNELS, Kernel
from sim.compiled.texts import MODES, architecture, stored
from sim.conftest import Buffer

from cuevo.sim import SimExecutor


def result(kernel: Kernel, mode: str, text: str = "") -> Any:
    """What the kernel writes, compiled in `mode`; or `text`."""
    executor = SimExecutor(architecture(kernel.source))
    loaded = executor.load_text(kernel.name, text or stored()[f"{kernel.source}.{mode}"])
    given, out = aligned(kernel.given), aligned(np.zeros_like(kernel.expected))
    parameters = np.array([given.ctypes.data, out.ctypes.data], np.uint64).tobytes()
    parameters += np.array([kernel.n], np.int32).tobytes()
    x, y, z = [*kernel.threads, 1, 1][:3]
    u, v, w = [*kernel.blocks, 1, 1][:3]
    buffers = [Buffer(given, True), Buffer(out)]
    loaded.launch((u, v, w), (x, y, z), kernel.shared, parameters, buffers=buffers)
    return out


def aligned(array: Any) -> Any:
    """A copy at a multiple of 256 bytes, as devices allocate."""
    space = np.zeros(array.nbytes + 256, np.uint8)
    start = -space.ctypes.data % 256
    copy = space[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def complaint(kernel: Kernel, out: Any) -> str:
    """What is wrong with a result; "" if nothing is."""
    expected, found = kernel.expected, out
    if kernel.tolerance == 0:
        wrong = expected.view(f"u{expected.itemsize}") != found.view(f"u{found.itemsize}")
    else:
        wrong = ~(np.abs(found - expected) <= kernel.tolerance * np.abs(expected).max())
    if not wrong.any():
        return ""
    at = int(wrong.argmax())
    return f"{int(wrong.sum())} of {wrong.size} differ: [{at}] is {found[at]}, not {expected[at]}"


def main(names: list[str]) -> int:
    failed = 0
    for name in names or KERNELS:
        for mode in MODES:
            begun = time.monotonic()
            try:
                said = complaint(KERNELS[name], result(KERNELS[name], mode))
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            took = time.monotonic() - begun
            failed += bool(said)
            print(f"{name:20} {mode:9} {1000 * took:6.0f} ms  {said or 'right'}")
    print(f"{failed} are wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
