from types import SimpleNamespace

import numpy as np
import pytest
from cuda.bindings import driver

from backends import MASKED, DriverBackend, pool_peak_bytes
from workloads import Workload

pytestmark = pytest.mark.unit


class Pool:
    """A memory pool that counts, in place of the driver's."""

    names = driver.CUmemPool_attribute

    def __init__(self, monkeypatch, used):
        self.used = self.high = used
        succeeded = SimpleNamespace(name="CUDA_SUCCESS")
        functions = {
            "cuDeviceGet": lambda ordinal: (succeeded, ordinal),
            "cuDeviceGetMemPool": lambda device: (succeeded, self),
            "cuMemPoolGetAttribute": lambda pool, which: (succeeded, self.read(which)),
            "cuMemPoolSetAttribute": lambda pool, which, value: (self.reset(which, value),),
        }
        self.succeeded = succeeded
        for name, function in functions.items():
            monkeypatch.setattr(driver, name, function)

    def read(self, which):
        current = which == self.names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        assert current or which == self.names.CU_MEMPOOL_ATTR_USED_MEM_HIGH
        return self.used if current else self.high

    def reset(self, which, value):
        assert which == self.names.CU_MEMPOOL_ATTR_USED_MEM_HIGH
        assert int(value) == 0
        self.high = self.used
        return self.succeeded

    def take(self, nbytes):
        self.used += nbytes
        self.high = max(self.high, self.used)


def test_the_peak_is_what_a_call_adds_to_what_is_in_use(monkeypatch):
    pool = Pool(monkeypatch, used=1000)
    pool.take(5000)
    pool.take(-5000)

    def call():
        pool.take(300)
        pool.take(40)
        pool.take(-40)

    assert pool_peak_bytes(0, call, lambda: None) == 340


def test_a_driver_that_refuses_is_an_error(monkeypatch):
    Pool(monkeypatch, used=0)
    refused = (SimpleNamespace(name="CUDA_ERROR_NOT_SUPPORTED"), None)
    monkeypatch.setattr(driver, "cuDeviceGetMemPool", lambda device: refused)
    with pytest.raises(RuntimeError, match="memory pool of CUDA device 0: CUDA_ERROR_NOT_SUPP"):
        pool_peak_bytes(0, lambda: None, lambda: None)


@pytest.mark.parametrize("pads", [False, True])
def test_a_mask_takes_out_keys_at_random_or_the_last_ones(monkeypatch, pads):
    monkeypatch.setattr(DriverBackend, "_upload", lambda self, array: array)
    backend = DriverBackend.__new__(DriverBackend)
    backend._pads = pads
    masked = backend.inputs(Workload(20, 1, 300, 8), "bf16", 0).mask_bias.astype(np.float32) < 0.0
    assert abs(masked.mean() - MASKED) < 0.02
    begins = (masked[..., 1:] > masked[..., :-1]).sum(axis=-1)
    ends = (masked[..., 1:] < masked[..., :-1]).sum(axis=-1)
    assert (begins.max() == 1 and ends.max() == 0) if pads else (begins.min() > 5)
