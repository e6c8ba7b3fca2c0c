"""Device memory, random inputs and events for the benchmark, through torch or through
cuevo.executors.driver.

With torch, its own contenders take part and its allocator serves all; without it cuevo is measured
alone, and no peer is needed to do so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cuevo.ops.tuning.measure import Clock
from workloads import Workload

MASKED = 0.1
"""Share of the keys that the mask bias takes out."""

MASKS = ("random", "padding")
"""Which keys these are: any, or the last ones of each row N, as in a batch of several lengths."""

MASK_VALUE = -1e9


@dataclass(frozen=True)
class Inputs:
    """One set of inputs on the device, in the layout of `cuevo.attention`."""

    q: Any  # [1, N, L, H, D]
    k: Any
    v: Any
    mask_bias: Any  # [1, N, 1, 1, L], 0 or MASK_VALUE
    pair_bias: Any  # [1, 1, H, L, L]
    dout: Any = None  # as q; in backward
    pack: bool | None = None
    """What cuevo is told about packing the pair bias."""


@dataclass(frozen=True)
class DeviceFacts:
    """The device's own attributes that the figures refer to."""

    name: str
    arch: str
    multiprocessors: int
    clock_hz: float
    l2_bytes: int


class Backend(Clock, Protocol):
    """A device to measure on, as one library presents it."""

    name: str
    facts: DeviceFacts

    def inputs(self, workload: Workload, dtype: str, seed: int) -> Inputs:
        """A set of random inputs; `dtype` is "bf16" or "fp16"."""

    def normal(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        """A normally distributed array; `dtype` is "bf16", "fp16" or "fp32"."""

    def head_last(self, pair_bias: Any) -> Any:
        """The bias again, [1, 1, H, L, L], as a linear layer makes it: heads side by side."""

    def slices(self, array: Any, rows: slice, queries: slice) -> np.ndarray:
        """`array[0, rows, queries]` on the host, in float64."""

    def part(self, array: Any, index: tuple[Any, ...]) -> np.ndarray:
        """`array[index]` on the host, in float64; `index` has integers and slices."""

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        """Device memory that cuevo takes at its peak in a call, the results included; None where
        that is not known.
        """

    def free_bytes(self) -> int:
        """Device memory that is free now."""

    def release(self) -> None:
        """Give cached memory back between workloads."""


def open_backend(*, use_torch: bool = True, mask: str = "random") -> Backend:
    """torch's backend if torch is there and sees a device, else that of cuevo's own executor.

    mask : which keys the mask bias of inputs takes out, of `MASKS`.

    Raises:
        RuntimeError: no CUDA device.
    """
    if use_torch:
        try:
            import torch
        except ImportError:
            pass
        else:
            if torch.cuda.is_available():
                return TorchBackend(mask)
    return DriverBackend(mask)


class TorchBackend:
    """torch tensors, torch events, torch's current stream."""

    name = "torch"

    def __init__(self, mask: str = "random") -> None:
        import torch

        self._torch, self._pads = torch, mask == "padding"
        torch.cuda.init()
        self.facts = read_facts(torch.cuda.current_device())

    def inputs(self, workload: Workload, dtype: str, seed: int) -> Inputs:
        torch = self._torch
        generator = torch.Generator(device="cuda").manual_seed(seed)
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        rows, heads, length = workload.rows, workload.heads, workload.length

        def normal(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", dtype=kind, generator=generator)

        shape = (1, rows, length, heads, workload.head_dim)
        chance = torch.rand((1, rows, 1, 1, length), device="cuda", generator=generator)
        if self._pads:
            chance = chance.sort(descending=True).values
        lowest = max(MASK_VALUE, torch.finfo(kind).min)
        return Inputs(
            normal(*shape),
            normal(*shape),
            normal(*shape),
            torch.where(chance < MASKED, lowest, 0.0).to(kind),
            normal(1, 1, heads, length, length),
        )

    def normal(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        torch = self._torch
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
        generator = torch.Generator(device="cuda").manual_seed(seed)
        return torch.randn(shape, device="cuda", dtype=kind, generator=generator)

    def head_last(self, pair_bias: Any) -> Any:
        return pair_bias.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)

    def slices(self, array: Any, rows: slice, queries: slice) -> np.ndarray:
        return self.part(array, (0, rows, queries))

    def part(self, array: Any, index: tuple[Any, ...]) -> np.ndarray:
        tensor = array if isinstance(array, self._torch.Tensor) else self._torch.from_dlpack(array)
        return np.asarray(tensor[index].to(self._torch.float64).cpu().numpy())

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        return pool_peak_bytes(self._torch.cuda.current_device(), call, self.synchronize)

    def record(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end))

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def hold(self) -> None:
        self._torch.cuda._sleep(int(self.facts.clock_hz * 1e-3))

    def free_bytes(self) -> int:
        return int(self._torch.cuda.mem_get_info()[0])

    def release(self) -> None:
        self._torch.cuda.empty_cache()


class DriverBackend:
    """Memory and events of cuevo's own driver executor; only cuevo runs on it."""

    name = "cuevo.executors.driver"

    def __init__(self, mask: str = "random") -> None:
        from cuevo.errors import CuevoError
        from cuevo.executors.driver import executor

        try:
            self._executor = executor(0)
        except CuevoError as error:
            raise RuntimeError(str(error)) from error
        self._pads = mask == "padding"
        self.facts = read_facts(0)

    def inputs(self, workload: Workload, dtype: str, seed: int) -> Inputs:
        import ml_dtypes

        kind = np.dtype({"bf16": ml_dtypes.bfloat16, "fp16": np.float16}[dtype])
        generator = np.random.default_rng(seed)
        rows, heads, length = workload.rows, workload.heads, workload.length
        # Random numbers cost more time here than anything else: a long block of them repeats.
        block = generator.standard_normal(2**24 + 1, dtype=np.float32).astype(kind)

        def normal(*shape: int) -> Any:
            start = int(generator.integers(block.size))
            return self._upload(np.resize(np.roll(block, start), shape))

        shape = (1, rows, length, heads, workload.head_dim)
        chance = generator.random((1, rows, 1, 1, length))
        if self._pads:
            chance = -np.sort(-chance)
        lowest = max(MASK_VALUE, float(ml_dtypes.finfo(kind).min))
        return Inputs(
            normal(*shape),
            normal(*shape),
            normal(*shape),
            self._upload(np.where(chance < MASKED, lowest, 0.0).astype(kind)),
            normal(1, 1, heads, length, length),
        )

    def normal(self, shape: tuple[int, ...], dtype: str, seed: int) -> Any:
        import ml_dtypes

        kind = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}[dtype]
        drawn = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
        return self._upload(drawn.astype(kind))

    def _upload(self, array: np.ndarray) -> Any:
        from cuevo.arrays import view

        copy = self._executor.copy_to_device(view(array))
        self._executor.synchronize()
        return copy

    def slices(self, array: Any, rows: slice, queries: slice) -> np.ndarray:
        return self.part(array, (0, rows, queries))

    def head_last(self, pair_bias: Any) -> Any:
        return self._upload(heads_side_by_side(self._fetch(pair_bias)))

    def _fetch(self, array: Any) -> np.ndarray:
        from cuevo.arrays import view
        from cuevo.arrays.device_array import copy_to_host
        from cuevo.cuda.stream import resolve_stream

        return copy_to_host(view(array), resolve_stream())

    def part(self, array: Any, index: tuple[Any, ...]) -> np.ndarray:
        return np.asarray(self._fetch(array)[index].astype(np.float64))

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        return pool_peak_bytes(0, call, self.synchronize)

    def record(self) -> Any:
        return self._executor.record_event()

    def elapsed(self, start: Any, end: Any) -> float:
        return float(end - start)

    def synchronize(self) -> None:
        self._executor.synchronize()

    def hold(self) -> None:
        """Nothing to hold the stream with: gaps between short launches are part of the figure."""

    def free_bytes(self) -> int:
        from cuda.bindings import driver

        with self._executor.context.current():
            _, free, _ = driver.cuMemGetInfo()
        return int(free)

    def release(self) -> None:
        """Buffers are freed with their owners."""


def heads_side_by_side(pair_bias: np.ndarray) -> np.ndarray:
    """The same array [1, 1, H, L, L] with its heads next to each other in memory."""
    return np.ascontiguousarray(pair_bias.transpose(0, 1, 3, 4, 2)).transpose(0, 1, 4, 2, 3)


def read_facts(ordinal: int) -> DeviceFacts:
    """Attributes of a device."""
    from cuda.bindings import driver

    from cuevo.cuda.device_info import require_device

    names = driver.CUdevice_attribute

    def attribute(which: Any) -> int:
        return int(_value(driver.cuDeviceGetAttribute(which, device), doing))

    doing = f"reading the attributes of CUDA device {ordinal}"
    device = _value(driver.cuDeviceGet(ordinal), doing)
    info = require_device(ordinal)
    return DeviceFacts(
        name=info.name,
        arch=info.arch,
        multiprocessors=info.sm_count,
        clock_hz=attribute(names.CU_DEVICE_ATTRIBUTE_CLOCK_RATE) * 1e3,
        l2_bytes=attribute(names.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
    )


def pool_peak_bytes(ordinal: int, call: Callable[[], Any], synchronize: Callable[[], None]) -> int:
    """Rise of the use of a device's current memory pool, which cuevo allocates from, at the
    peak of a call.
    """
    from cuda.bindings import driver

    names = driver.CUmemPool_attribute
    doing = f"reading the memory pool of CUDA device {ordinal}"

    def attribute(which: Any) -> int:
        return int(_value(driver.cuMemPoolGetAttribute(pool, which), doing))

    pool = _value(driver.cuDeviceGetMemPool(_value(driver.cuDeviceGet(ordinal), doing)), doing)
    synchronize()
    before = attribute(names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    high = names.CU_MEMPOOL_ATTR_USED_MEM_HIGH
    _value(driver.cuMemPoolSetAttribute(pool, high, driver.cuuint64_t(0)), doing)
    result = call()
    synchronize()
    del result
    return attribute(high) - before


def _value(result: tuple[Any, ...], doing: str) -> Any:
    """The value that a function of the driver returned beside its status, if any."""
    status, *values = result
    if status.name != "CUDA_SUCCESS":
        raise RuntimeError(f"{doing}: {status.name}")
    return values[0] if values else None
