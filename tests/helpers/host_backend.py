"""Host memory in the place of a device's, for the benchmarks."""

import ml_dtypes
import numpy as np

from backends import DeviceFacts, Inputs


class HostBackend:
    """NumPy arrays in place of device memory; a call takes as long as it says."""

    name = "numpy"
    facts = DeviceFacts("host", "sm_80", multiprocessors=1, clock_hz=1e9, l2_bytes=2**12)

    def __init__(self, tick=0.0):
        self.now = 0.0
        self.tick = tick  # milliseconds from one reading of the clock to the next

    def inputs(self, workload, dtype, seed):
        generator = np.random.default_rng(seed)
        shape = (1, workload.rows, workload.length, workload.heads, workload.head_dim)
        pair = (1, 1, workload.heads, workload.length, workload.length)
        mask = (1, workload.rows, 1, 1, workload.length)
        sizes = (shape, shape, shape, mask, pair)
        return Inputs(
            *(generator.standard_normal(size).astype(ml_dtypes.bfloat16) for size in sizes)
        )

    def normal(self, shape, dtype, seed):
        kind = np.float32 if dtype == "fp32" else ml_dtypes.bfloat16
        return np.random.default_rng(seed).standard_normal(shape).astype(kind)

    def part(self, array, index):
        return array[index].astype(np.float64)

    def peak_bytes(self, call):
        return None

    def record(self):
        self.now += self.tick
        return self.now

    def elapsed(self, start, end):
        return end - start

    def synchronize(self):
        pass

    def hold(self):
        pass

    def free_bytes(self):
        return 2**30

    def release(self):
        pass
