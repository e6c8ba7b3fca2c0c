"""Launches that are repeated become a CUDA graph, which does what they did."""

import ctypes
import gc
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

import cuevo
from cuevo.arrays import copy_to_host, view
from cuevo.errors import DriverError
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.driver_kernel import ParameterBlock
from cuevo.executors.replay import _FIRST_CALL, replayed
from cuevo.ops.plan import Launch

unit = pytest.mark.unit
gpu = pytest.mark.gpu
SUCCESS = cuda.CUresult.CUDA_SUCCESS
REFUSED = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
ADDRESSES = struct.Struct("<2Q")
CONFIG: Any = SimpleNamespace(threads=64, shared_bytes=16)
NONE = cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
ACTIVE = cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


# -- Without a device ------------------------------------------------------------------------------


class Driver:
    """The driver's graphs: what is in them, and what launches of them run."""

    def __init__(self) -> None:
        self.nodes: list[bytes] = []
        """Parameters, by node."""
        self.edges: list[tuple[int, int, bool]] = []
        self.urgent: list[int] = []
        self.launched: list[tuple[int, list[bytes]]] = []
        self.changed: list[int] = []
        self.destroyed: list[str] = []
        self.how = NONE
        self.answer = SUCCESS

    def parameters(self, given: Any) -> bytes:
        shape = (given.gridDimX, given.blockDimX, given.sharedMemBytes, int(given.func))
        assert shape == (3, 64, 16, 4096)
        # What the driver reads is where the pointers point to.
        pointers = ctypes.cast(int(given.kernelParams), ctypes.POINTER(ctypes.c_void_p))
        return ctypes.string_at(pointers[0] or 0, 20)

    def add(self, graph: str, behind: list[int], count: int, given: Any) -> Any:
        assert (graph, behind, count) == ("graph", [], 0)
        self.nodes.append(self.parameters(given))
        return SUCCESS, len(self.nodes) - 1

    def depend(self, graph: str, before: Any, behind: Any, edges: Any, count: int) -> Any:
        early = edges[0].type == 1
        assert count == 1 and early == (edges[0].from_port == 1)
        self.edges.append((*before, *behind, early))
        return (SUCCESS,)

    def prefer(self, node: int, name: Any, value: Any) -> Any:
        assert value.priority == -5
        self.urgent.append(node)
        return (SUCCESS,)

    def change(self, graph: str, node: int, given: Any) -> Any:
        self.changed.append(node)
        self.nodes[node] = self.parameters(given)
        return (SUCCESS,)

    def launch(self, graph: str, stream: int) -> Any:
        assert graph == "executable"
        self.launched.append((stream, [*self.nodes]))
        return (self.answer,)

    def destroy(self, graph: str) -> Any:
        self.destroyed.append(graph)
        return (SUCCESS,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    for name, call in {
        "cuCtxGetStreamPriorityRange": lambda: (SUCCESS, 0, -5),
        "cuGetErrorName": lambda status: (SUCCESS, status.name.encode()),
        "cuGetErrorString": lambda status: (SUCCESS, b"the driver's text"),
        "cuGraphAddDependencies": driver.depend,
        "cuGraphAddKernelNode": driver.add,
        "cuGraphCreate": lambda flags: (SUCCESS, "graph"),
        "cuGraphDestroy": driver.destroy,
        "cuGraphExecDestroy": driver.destroy,
        "cuGraphExecKernelNodeSetParams": driver.change,
        "cuGraphInstantiate": lambda graph, flags: (SUCCESS, "executable"),
        "cuGraphKernelNodeSetAttribute": driver.prefer,
        "cuGraphLaunch": driver.launch,
        "cuStreamIsCapturing": lambda stream: (SUCCESS, driver.how),
        "cuThreadExchangeStreamCaptureMode": lambda mode: (SUCCESS, mode),
    }.items():
        monkeypatch.setattr(cuda, name, call)
    yield driver
    gc.collect()  # while what graphs end with is this driver's


def make_launch(slots: tuple[int, int], constants: bytes, *, waits: bool = False) -> Launch:
    kernel: Any = SimpleNamespace(
        kernel=SimpleNamespace(describe=lambda: f"kernel of {constants.decode()}"),
        parameter_block=lambda constants: ParameterBlock(20, [0], constants),
        function=cuda.CUfunction(4096),
        waits_itself=waits,
    )
    return Launch("x", kernel, CONFIG, (3, 1, 1), slots, ADDRESSES, constants)


def packed(one: int, two: int, constants: bytes) -> bytes:
    return ADDRESSES.pack(one, two) + constants


class Repeated:
    """Launches, repeated; those that come one by one are remembered."""

    def __init__(self, *launches: Launch, beside: Any = (), after: Any = ()) -> None:
        self.once: list[tuple[list[int], int]] = []
        order = SimpleNamespace(launches=launches, beside=beside, after=after)
        self.queue = replayed(lambda table, stream: self.once.append((table, stream)), order)
        self._first = _FIRST_CALL if beside else _FIRST_CALL + 1

    def until_graph(self, table: list[int], stream: int = 5) -> None:
        """All calls before the first that launches a graph."""
        for _ in range(self._first - 1):
            self.queue(table, stream)
        assert self.once == [(table, stream)] * (self._first - 1)
        self.once.clear()


@unit
def test_repeated_launches_become_a_graph(driver: Driver) -> None:
    repeated = Repeated(make_launch((1, 2), b"once"), make_launch((2, 0), b"more", waits=True))
    repeated.until_graph([0, 7, 8])
    assert not driver.nodes and not driver.launched
    repeated.queue([0, 7, 8], 5)
    repeated.queue([0, 7, 8], 5, None)
    nodes = [packed(7, 8, b"once"), packed(8, 0, b"more")]
    assert driver.launched == [(5, nodes)] * 2
    assert driver.edges == [(0, 1, True)] and not driver.urgent
    assert driver.changed == [0, 1] and not repeated.once


@unit
def test_other_addresses_are_launched_until_they_repeat(driver: Driver) -> None:
    repeated = Repeated(make_launch((1, 2), b"once"), make_launch((2, 0), b"more"))
    repeated.until_graph([0, 7, 8])
    table = [0, 7, 8]
    repeated.queue(table, 5)
    table[1] = 6  # in the caller's own list
    repeated.queue(table, 5)
    assert repeated.once == [([0, 6, 8], 5)] and len(driver.launched) == 1
    repeated.queue(table, 5)
    assert driver.launched[-1] == (5, [packed(6, 8, b"once"), packed(8, 0, b"more")])
    repeated.queue([0, 7, 8], 5)
    assert repeated.once[1:] == [([0, 7, 8], 5)] and len(driver.launched) == 2
    assert driver.changed == [0, 1, 0] and driver.edges == [(0, 1, False)]


@unit
def test_launches_whose_addresses_change_become_no_graph(driver: Driver) -> None:
    repeated = Repeated(make_launch((1, 2), b"once"))
    for turn in range(4 * _FIRST_CALL):
        repeated.queue([0, 7, turn // 2], 5)
    assert len(repeated.once) == 4 * _FIRST_CALL and not driver.nodes


@unit
def test_launches_beside_others_are_branches(driver: Driver) -> None:
    """What is on a side stream begins when what is before both has ended, and before the other."""
    repeated = Repeated(
        make_launch((1, 2), b"head"),
        beside=[make_launch((0, 1), b"side", waits=True), make_launch((0, 2), b"next", waits=True)],
        after=[make_launch((1, 1), b"main", waits=True)],
    )
    repeated.until_graph([0, 7, 8])
    repeated.queue([0, 7, 8], 5)
    assert [node[-4:] for node in driver.nodes] == [b"head", b"side", b"next", b"main"]
    assert driver.edges == [(0, 1, False), (1, 2, True), (0, 3, True)]
    assert driver.urgent == [1, 2]


@unit
def test_branches_get_whatever_addresses_have_changed(driver: Driver) -> None:
    launches = [make_launch(slots, b"once") for slots in ((0, 1), (1, 2), (2, 0))]
    repeated = Repeated(launches[0], beside=launches[1:2], after=launches[2:])
    for turn in range(_FIRST_CALL - 1):
        repeated.queue([0, turn, turn], 5)
    assert len(repeated.once) == _FIRST_CALL - 1
    for one, two in ((7, 8), (6, 8), (6, 8), (6, 9), (7, 9)):
        repeated.queue([0, one, two], 5)
        nodes = [packed(*each, b"once") for each in ((0, one), (one, two), (two, 0))]
        assert driver.launched[-1] == (5, nodes)
    assert driver.changed == [0, 1, 2, 0, 1, 1, 2, 0, 1]
    assert len(repeated.once) == _FIRST_CALL - 1


@unit
def test_a_captured_stream_gets_the_launches(driver: Driver) -> None:
    repeated = Repeated(make_launch((1, 2), b"once"))
    repeated.until_graph([0, 7, 8])
    repeated.queue([0, 7, 8], 5)
    driver.how = ACTIVE
    repeated.queue([0, 7, 8], 5)
    assert repeated.once == [([0, 7, 8], 5)] and len(driver.launched) == 1
    driver.how = NONE
    repeated.queue([0, 7, 8], 5)
    assert driver.launched == [(5, [packed(7, 8, b"once")])] * 2


@unit
def test_the_legacy_default_stream_is_not_asked(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "cuStreamIsCapturing", None)
    repeated = Repeated(make_launch((1, 2), b"once"))
    repeated.until_graph([0, 7, 8], stream=1)
    repeated.queue([0, 7, 8], 1)
    assert driver.launched == [(1, [packed(7, 8, b"once")])]


@unit
def test_another_stream_begins_anew(driver: Driver) -> None:
    """Launches of one graph wait for each other, which calls on other streams must not."""
    repeated = Repeated(make_launch((1, 2), b"once"))
    repeated.until_graph([0, 7, 8])
    repeated.queue([0, 7, 8], 5)
    repeated.queue([0, 7, 8], 6)
    gc.collect()
    assert repeated.once == [([0, 7, 8], 6)] and driver.destroyed == ["executable", "graph"]
    repeated.queue([0, 7, 8], 5)
    assert repeated.once[1:] == [([0, 7, 8], 5)] and len(driver.launched) == 1


@unit
def test_another_thread_has_its_own_graph(driver: Driver) -> None:
    repeated = Repeated(make_launch((1, 2), b"once"))

    def run() -> None:
        repeated.until_graph([0, 7, 8])
        repeated.queue([0, 7, 8], 5)

    for count in (1, 2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(30)
        assert len(driver.nodes) == len(driver.launched) == count


@unit
@pytest.mark.parametrize("refused", ["cuGraphAddKernelNode", "cuGraphInstantiate"])
def test_without_a_graph_there_are_launches(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    asked = []

    def refuse(*arguments: Any) -> Any:
        asked.append(refused)
        return REFUSED, None

    monkeypatch.setattr(cuda, refused, refuse)
    repeated = Repeated(make_launch((1, 2), b"once"))
    for _ in range(3 * _FIRST_CALL):
        repeated.queue([0, 7, 8], 5)
    gc.collect()
    assert len(repeated.once) == 3 * _FIRST_CALL and len(asked) == 1
    assert driver.destroyed == ["graph"]


@unit
def test_the_environment_asks_for_launches(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUEVO_GRAPHS", "0")
    repeated = Repeated(make_launch((1, 2), b"once"))
    for _ in range(3 * _FIRST_CALL):
        repeated.queue([0, 7, 8], 5)
    assert len(repeated.once) == 3 * _FIRST_CALL and not driver.nodes


@unit
def test_a_refused_graph_names_its_kernels(driver: Driver) -> None:
    repeated = Repeated(make_launch((1, 2), b"once"), make_launch((2, 0), b"more"))
    repeated.until_graph([0, 7, 8])
    driver.answer = cuda.CUresult.CUDA_ERROR_LAUNCH_FAILED
    words = (
        r"launching a graph of kernel of once, kernel of more on stream 0x5: CUDA_ERROR_LAUNCH_FAI"
    )
    with pytest.raises(DriverError, match=words):
        repeated.queue([0, 7, 8], 5)


# -- On a device -----------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The streams that graphs of the driver are launched on."""
    launched: list[int] = []
    launch = cuda.cuGraphLaunch

    def seen(graph: Any, stream: int) -> Any:
        launched.append(stream)
        return launch(graph, stream)

    monkeypatch.setattr(cuda, "cuGraphLaunch", seen)
    yield launched


class Attention:
    """Calls of both passes with operands and results of their own, on one stream."""

    def __init__(self, executor: DriverExecutor, stream: Any, length: int, seed: int) -> None:
        n, heads, dim = 40, 4, 32
        random = np.random.default_rng(seed)
        shapes = [(1, n, length, heads, dim)] * 4
        shapes += [(1, n, 1, 1, length), (1, 1, heads, length, length)]
        arrays = [random.standard_normal(shape).astype(np.float16) for shape in shapes]
        self._arrays = [executor.copy_to_device(view(x), stream) for x in arrays]
        q, k, v, dout, mask, pair = self._arrays
        self._biases: dict[str, Any] = dict(mask_bias=mask, pair_bias=pair)
        out, lse = cuevo.attention(q, k, v, return_lse=True, stream=stream, **self._biases)
        gradients = cuevo.attention_backward(dout, q, k, v, out, lse, stream=stream, **self._biases)
        self.results = [out, lse, *gradients]
        self.executor, self.stream = executor, stream
        self.expected = self.fetch()

    def __call__(self) -> None:
        """Both passes, into the same results, which are cleared before."""
        for x in self.results:
            self.executor.fill(view(x, stream=int(self.stream.handle)), 7.0, self.stream)
        q, k, v, dout = self._arrays[:4]
        options: dict[str, Any] = dict(stream=self.stream, **self._biases)
        out, lse, *gradients = self.results
        cuevo.attention(q, k, v, out=out, lse=lse, return_lse=True, **options)
        cuevo.attention_backward(dout, q, k, v, out, lse, results=gradients, **options)

    def fetch(self) -> list[bytes]:
        handle = int(self.stream.handle)
        return [copy_to_host(view(x, stream=handle), handle).tobytes() for x in self.results]


LENGTHS = pytest.mark.parametrize("length", [64, 256, 330])
"""With the kernel for sm_80; the one for sm_90a behind another launch; a last tile beside others.
The sides of backward are beside each other.
"""


@gpu
@LENGTHS
def test_graphs_have_the_bits_of_launches(
    executor: DriverExecutor, graphs: list[int], length: int
) -> None:
    call = Attention(executor, executor.new_stream(), length, 1)
    for _ in range(2 * _FIRST_CALL):
        call()
        assert call.fetch() == call.expected
    assert len(graphs) > 1.5 * _FIRST_CALL and set(graphs) == {int(call.stream.handle)}


@gpu
@LENGTHS
def test_calls_in_flight_keep_their_addresses(
    executor: DriverExecutor, graphs: list[int], length: int
) -> None:
    """What is on its way has what its call had, whatever later calls have."""
    stream = executor.new_stream()
    calls = [Attention(executor, stream, length, seed) for seed in range(4)]
    for _ in range(2 * _FIRST_CALL):
        calls[0]()
    for pick in (range(4), (0, 0, 1, 1, 2, 2, 3, 3), (3, 2, 1, 0)):
        for number in pick:
            calls[number]()
        assert [call.fetch() for call in calls] == [call.expected for call in calls]
    assert graphs


@gpu
def test_a_graph_of_the_caller_has_the_launches(
    executor: DriverExecutor, graphs: list[int]
) -> None:
    call = Attention(executor, executor.new_stream(), 256, 1)
    for _ in range(2 * _FIRST_CALL):
        call()
    before = len(graphs)
    captured = executor.capture(lambda stream: call(), call.stream)
    assert before and len(graphs) == before
    for _ in range(2):
        captured.launch()
        call()
        assert call.fetch() == call.expected
    other = Attention(executor, call.stream, 256, 2)
    captured.launch()
    other()
    assert call.fetch() == call.expected and other.fetch() == other.expected


@gpu
def test_a_graph_that_ends_while_a_stream_is_captured(
    executor: DriverExecutor, graphs: list[int]
) -> None:
    """Its end is no part of the capture, and does not spoil it."""
    call = Attention(executor, executor.new_stream(), 256, 1)
    for _ in range(2 * _FIRST_CALL):
        call()
    executor.synchronize(call.stream)
    call.stream = executor.new_stream()

    def captured_call(stream: Any) -> None:
        call()
        gc.collect()

    captured = executor.capture(captured_call, call.stream)
    captured.launch()
    assert graphs and call.fetch() == call.expected


@gpu
def test_threads_repeat_calls_at_a_time(executor: DriverExecutor, graphs: list[int]) -> None:
    """On a stream for each, and all on one."""
    shared = executor.new_stream()
    for streams in ([executor.new_stream() for _ in range(3)], [shared] * 3):
        calls = [Attention(executor, stream, 256, seed) for seed, stream in enumerate(streams)]
        right: list[bool] = []

        def run(call: Attention, right: list[bool] = right) -> None:
            for _ in range(2 * _FIRST_CALL):
                call()
                right.append(call.fetch() == call.expected)

        threads = [threading.Thread(target=run, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert right == [True] * 6 * _FIRST_CALL
    gc.collect()
    assert len(set(graphs)) == 4
