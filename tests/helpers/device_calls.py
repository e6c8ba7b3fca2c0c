"""Calls on a GPU in tests: their arrays there, as tensors of torch too, threads, host time."""

import threading
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.arrays import ArrayView, DeviceArray, view
from cuevo.cuda.context import check
from cuevo.executors.driver import DriverExecutor
from workloads import Workload

LARGE = 2**28
"""Bytes of q from which on the arrays of a problem are more than a process may keep."""


def moved(call: Mapping[str, Any], place: DriverExecutor) -> dict[str, Any]:
    """The call with copies of its arrays on the device, ready for every stream."""
    copies = {
        key: place.copy_to_device(view(x), place.stream) if isinstance(x, np.ndarray) else x
        for key, x in call.items()
    }
    place.synchronize(place.stream)
    return copies


def overwrite(target: ArrayView, host: np.ndarray, place: DriverExecutor) -> None:
    """New contents for a packed array on the device."""
    packed = np.ascontiguousarray(host)
    with place.context.current():
        check(cuda.cuMemcpyHtoD(target.pointer, packed.ctypes.data, packed.nbytes), "copying")
        check(cuda.cuCtxSynchronize(), "copying")


def results_of_threads(
    call: Callable[..., DeviceArray], copies: Sequence[Mapping[str, Any]], place: DriverExecutor
) -> list[list[np.ndarray]]:
    """The results of 50 calls with each of the `copies`, by threads at the same time, each on a
    stream of its own.
    """
    streams = [place.new_stream() for _ in copies]
    found: list[list[np.ndarray]] = [[] for _ in copies]

    def work(index: int) -> None:
        results = [call(**copies[index], stream=streams[index]) for _ in range(50)]
        found[index] = [x.to_numpy() for x in results]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(copies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(results) == 50 for results in found)
    return found


def host_time(call: Callable[[], object], place: DriverExecutor, calls: int = 200) -> str:
    """Time of one of `calls`, which are fewer launches than the queue of the device holds."""
    times = timeit.repeat(call, setup=place.synchronize, number=calls, repeat=20)
    return f"{min(times) / calls * 1e6:.2f} us"


# -- torch -----------------------------------------------------------------------------------------

STREAMS: dict[str, Callable[[Any], Any]] = {
    "torch": lambda stream: stream,
    "handle": lambda stream: stream.cuda_stream,
}
"""Ways to name a stream of torch."""


def tensors(torch: Any, call: Mapping[str, Any]) -> dict[str, Any]:
    """The call with packed copies of its arrays on the device."""
    found = {key: _tensor(torch, x) if isinstance(x, np.ndarray) else x for key, x in call.items()}
    torch.cuda.synchronize()
    return found


def _tensor(torch: Any, x: np.ndarray) -> Any:
    packed = np.ascontiguousarray(x)
    if packed.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(packed.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(packed).cuda()


def to_numpy(torch: Any, tensor: Any) -> np.ndarray:
    host = tensor.contiguous().cpu()
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    found: np.ndarray = host.numpy()
    return found


def measured(workloads: Iterable[Workload]) -> list[Any]:
    """Measured problems as parameters of a test; large ones have the device's memory for them."""
    whole = pytest.mark.whole_device
    return [
        pytest.param(x, marks=whole if x.tensor_bytes() >= LARGE else (), id=str(x))
        for x in workloads
    ]
