"""The launches of a call that is repeated on a CUDA device: from some call on, a CUDA graph.

One call of the driver launches a graph, in less than half of the host's time that the launch of one
kernel takes. On the device a graph begins sooner than its launches where nothing in it has changed,
half a microsecond, and a microsecond later where a node gets new addresses. So launches one behind
the other are a graph for the same arrays alone; those with others beside them for any arrays, as
events between two streams take longer. The environment variable ``CUEVO_GRAPHS=0`` leaves launches
as they are, which some profilers ask for.
"""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Protocol

from cuda.bindings import driver as cuda

from cuevo.cuda import check, driver_error, may_be_captured, relaxed_capture
from cuevo.errors import DriverError
from cuevo.executors.driver_kernel import DriverKernel, Shape

__all__ = ["Addresses", "Order", "PreparedLaunch", "replayed"]

ENVIRONMENT = "CUEVO_GRAPHS"
"""Read when a call is made for the first time."""
_FIRST_CALL = 16
"""That makes a graph, of those in a row: it takes the host some 60 us, what as many calls save, and
100 KB of the device's memory.
"""


class Addresses(Protocol):
    """Packer of a parameter block's address fields, one address each, such as a Struct."""

    @property
    def size(self) -> int: ...

    def pack(self, *addresses: Any) -> bytes: ...


class PreparedLaunch(Protocol):
    """A launch, but for addresses, which it picks from a table; see `cuevo.ops.plan.Launch`."""

    @property
    def kernel(self) -> DriverKernel: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def pick(self) -> "itemgetter[Any]": ...
    @property
    def addresses(self) -> Addresses: ...
    @property
    def constants(self) -> bytes: ...


class Order(Protocol):
    """Launches, and what follows what; see `cuevo.ops.plan.Plan`."""

    @property
    def launches(self) -> Sequence[PreparedLaunch]: ...
    @property
    def beside(self) -> Sequence[PreparedLaunch]: ...
    @property
    def after(self) -> Sequence[PreparedLaunch]: ...


class _Node:
    """A launch as a node of a graph, with the addresses that it has there, None at first."""

    __slots__ = ("_block", "_pack", "handle", "parameters", "pick", "picked")

    def __init__(self, launch: PreparedLaunch) -> None:
        grid, block, shared_bytes = launch.shape
        self._block = launch.kernel.parameter_block(launch.constants)
        self._pack = launch.addresses.pack
        self.pick = launch.pick
        self.picked: Sequence[int] | None = None
        self.parameters = parameters = cuda.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = launch.kernel.function
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = block
        parameters.sharedMemBytes = shared_bytes
        parameters.kernelParams = self._block.address
        self.handle: Any = None

    def write(self, picked: Sequence[int]) -> None:
        """Write addresses to the parameter block, which the graph does not read by itself."""
        self._block.front[:] = self._pack(*picked)


class _Graph:
    """Launches as a graph. It belongs to one thread, and to one stream, since it waits for its last
    launch on whichever.
    """

    def __init__(self, order: Order) -> None:
        launches = (*order.launches, *order.beside, *order.after)
        kernels = ", ".join(launch.kernel.kernel.describe() for launch in launches)
        self._doing = f"launching a graph of {kernels}"
        self._nodes: list[_Node] = []
        with relaxed_capture(self._doing):
            graph = self._check(cuda.cuGraphCreate(0))
            # The nodes of an executable graph are known by those of this one.
            weakref.finalize(self, cuda.cuGraphDestroy, graph).atexit = False
            _, urgent = self._check(cuda.cuCtxGetStreamPriorityRange())
            fork = self._add(graph, order.launches, None)
            self._add(graph, order.beside, fork, urgent)
            self._add(graph, order.after, fork)
            self._graph = self._check(cuda.cuGraphInstantiate(graph, 0))
            weakref.finalize(self, cuda.cuGraphExecDestroy, self._graph).atexit = False

    def _check(self, result: tuple[Any, ...]) -> Any:
        return check(result, self._doing)

    def _add(
        self,
        graph: Any,
        launches: Sequence[PreparedLaunch],
        before: Any,
        priority: int | None = None,
    ) -> Any:
        """Add launches, each behind the one before it, and the first behind node `before`. The last
        node, or `before` where there is none.

        priority : of launches beside others, the first of which begins once `before` has ended.
        """
        for launch in launches:
            node = _Node(launch)
            handle = node.handle = self._check(
                cuda.cuGraphAddKernelNode(graph, [], 0, node.parameters)
            )
            if priority is not None:
                value = cuda.CUkernelNodeAttrValue()
                value.priority = priority
                name = cuda.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_PRIORITY
                self._check(cuda.cuGraphKernelNodeSetAttribute(handle, name, value))
            if before is not None:
                is_fork = priority is not None and launch is launches[0]
                edge = _edge(early=launch.kernel.waits_itself and not is_fork)
                self._check(cuda.cuGraphAddDependencies(graph, [before], [handle], [edge], 1))
            self._nodes.append(node)
            before = handle
        return before

    def launch(self, table: Sequence[int], stream: int) -> None:
        """Queue the launches on the graph's stream."""
        for node in self._nodes:
            picked = node.pick(table)
            if picked != node.picked:
                node.write(picked)
                self._check(
                    cuda.cuGraphExecKernelNodeSetParams(self._graph, node.handle, node.parameters)
                )
                node.picked = picked
        (status,) = cuda.cuGraphLaunch(self._graph, stream)
        if status:
            raise driver_error(status, f"{self._doing} on stream {stream:#x}")


def _edge(*, early: bool) -> cuda.CUgraphEdgeData:
    """From a kernel to one that begins as the first lets it, where it is `early`, or once that has
    ended.
    """
    edge = cuda.CUgraphEdgeData()
    if early:
        edge.type = cuda.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
        edge.from_port = cuda.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
    return edge


class _Calls:
    """One thread's calls in a row that may be a graph: on one stream, and for one table where that
    counts.
    """

    __slots__ = ("count", "graph", "stream", "table")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.table: list[int] | None = None
        self.count = 0
        self.graph: _Graph | None = None


class _Own(threading.local):
    """What belongs to one thread."""

    def __init__(self) -> None:
        self.calls = _Calls(-1)


def replayed(once: Callable[[list[int], int], None], order: Order) -> Callable[..., None]:
    """A function ``queue(table, stream)`` that queues launches in the current context, on the
    stream of that handle, for the arrays at the addresses of `table`. A third argument has no
    meaning, so that a plan without a workspace is queued by it.

    once : queues the launches themselves, as such a function. A stream under graph capture gets
        these, as a graph cannot be captured.
    """
    own, any_table = _Own(), bool(order.beside)
    first_call = 0 if os.environ.get(ENVIRONMENT) == "0" else _FIRST_CALL

    def queue(table: list[int], stream: int, workspace: object = None) -> None:
        calls = own.calls
        if calls.stream != stream:
            calls = own.calls = _Calls(stream)
        if not any_table and table != calls.table:
            calls.table, calls.count = [*table], 0
            once(table, stream)
            return
        calls.count += 1
        graph = calls.graph
        if graph is None and calls.count == first_call:
            # Where the driver makes none, there are launches: they need no memory for that.
            with suppress(DriverError):
                graph = calls.graph = _Graph(order)
        if graph is None or may_be_captured(stream):
            once(table, stream)
        else:
            graph.launch(table, stream)

    return queue
