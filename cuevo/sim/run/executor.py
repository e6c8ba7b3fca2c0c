"""The CPU executor: rendered PTX, run by NumPy and checked on the way."""

import gc
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import index
from time import monotonic
from typing import Generic, TypeVar

import numpy as np

from cuevo.architectures import Architecture, architecture, check_block, check_exists
from cuevo.errors import SimulatorError
from cuevo.sim.aliases import AnyArray
from cuevo.sim.faults import KernelText, Origin, PtxError, error_at, place
from cuevo.sim.instructions.levels import Level, declared, loadable
from cuevo.sim.machine.state import Geometry, Machine, shared_layout
from cuevo.sim.memory.global_memory import Buffer, GlobalMemory, ModuleMemory
from cuevo.sim.run import budget as budgets
from cuevo.sim.run.budget import Budget
from cuevo.sim.run.profile import Counters, Profile
from cuevo.sim.run.program import Program
from cuevo.sim.run.schedule import Schedule
from cuevo.sim.run.second_look import SecondLook
from cuevo.sim.run.trace import Trace, Tracer
from cuevo.sim.text.contraction import Contraction
from cuevo.sim.text.locations import Locations
from cuevo.sim.text.parse import parse
from cuevo.sim.text.syntax import Module

_T = TypeVar("_T")
Progress = Callable[[int, int], None]
"""Called with the blocks done and their total."""

# Enough warps to make NumPy's overhead small, few enough for the registers to stay in the caches.
_WARPS_AT_ONCE = 256
_MOST_IN_CLUSTER = 8
# Machines of so many warps have tens of megabytes of registers; parsed kernels are a few.
_WARPS_KEPT = 1024
_KERNELS_KEPT = 32
_LEAST_WARPS = 64
"""What a machine counts for at least: its bound instructions are megabytes, too."""
_SECOND_LOOK = Budget(instructions=1_000_000, seconds=30)


class SimExecutor:
    """Runs kernels on the CPU as a device of architecture `arch` would.

    Pointers in the parameter block are host addresses of the memory behind the `buffers` of a
    launch; every access outside of them is an error. `progress`, if given, is called after each
    chunk of threadblocks with the number of blocks done and their total. With `profile`, kernels
    count what their instructions do (`LoadedKernel.profile`), with `keep_counts` in all of their
    launches together; without `profile` that costs nothing.
    Without `checks`, kernels that have no mbarriers and no bulk copies are not checked for races,
    for reads of registers and shared memory that were never written, and for copies in flight: that
    is for results of kernels which are known to be right. Addresses are always checked. A launch
    that takes more than its `budget` ends in an error. What a `trace` asks for is told on the way.

    Raises ValueError for an `arch` that does not exist.
    """

    knows_addresses = True

    def __init__(
        self,
        arch: str = "sm_80",
        progress: Progress | None = None,
        *,
        profile: bool = False,
        keep_counts: bool = False,
        checks: bool = True,
        budget: Budget | None = None,
        trace: Trace | None = None,
    ) -> None:
        check_exists(arch)
        self.limits = architecture(arch)
        self.arch = arch
        self.name = f"sim:{arch}"
        self._profiles = profile
        self._checks = checks
        self._trace = trace
        self._kernels: _Kept[LoadedKernel] = _Kept(_KERNELS_KEPT)
        self._launches = _Launches(self.limits, progress, budget or budgets.DEFAULT, keep_counts)

    def expect(self, kernel: KernelText) -> None:
        """`kernel` will be loaded, which nothing is done for before."""

    def load(self, kernel: KernelText) -> "LoadedKernel":
        """Parse a kernel and check each of its instructions; the same text gives the same kernel
        again.

        Raises SimulatorError, with file and line, for whatever the CPU executor does not support or
        `arch` does not have.
        """
        key = (kernel.describe(), kernel.origin(1), kernel.text)
        with _uncollected():
            return self._kernels.get(key, lambda: self._prepare(kernel))

    def _prepare(self, kernel: KernelText) -> "LoadedKernel":
        try:
            module = parse(kernel.text, kernel.name)
            function = module.functions.get(kernel.name)
            if function is None:
                names = ", ".join(module.entries) or "none"
                raise PtxError(
                    1, f"there is no entry {kernel.name!r} in the text; there are: {names}"
                )
            level = self._level(module)
            program = Program(function, self.limits.number, level, checks=self._checks)
        except PtxError as error:
            raise error_at(kernel, error.line, error.message) from None
        counters = Counters(function) if self._profiles else None
        tracer = None
        if self._trace is not None and self._trace.kernel in ("", kernel.name):
            tracer = Tracer(self._trace, program, kernel)
        return LoadedKernel(kernel, program, self._launches, counters, tracer)

    def _level(self, module: Module) -> Level:
        try:
            level = declared(module.version, module.target)
        except ValueError as error:
            raise PtxError(1, str(error)) from None
        if not loadable(level, self.arch):
            raise PtxError(1, f"the text is for {module.target}; this is {self.arch}")
        return level

    def load_text(
        self, name: str, text: str, origin: Callable[[int], Origin | None] | None = None
    ) -> "LoadedKernel":
        """Load PTX text with the entry `name`; `origin` maps its lines to files, as else the
        text's own ``.loc`` do.
        """
        return self.load(_PlainText(name, text, origin or Locations(text)))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection: a kernel is some ten thousand objects, all of which stay, and the
    collector would go through all of the process several times to find that out.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Kept(Generic[_T]):
    """The things that were asked for last, as many as weigh no more than `limit` together."""

    def __init__(self, limit: int, weigh: Callable[[_T], int] = lambda thing: 1) -> None:
        self._left = limit
        self._weigh = weigh
        self._things: dict[Hashable, _T] = {}

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        thing = self._things.pop(key, None)
        if thing is None:
            thing = make()
            self._left -= self._weigh(thing)
        self._things[key] = thing
        while self._left < 0 and len(self._things) > 1:
            self._left += self._weigh(self._things.pop(next(iter(self._things))))
        return thing


class _Launches:
    """What the kernels of an executor share. They do not have the executor, which has them: without
    a circle both go with their last user, and need not wait for Python's collector.
    """

    def __init__(
        self, limits: Architecture, progress: Progress | None, budget: Budget, keep_counts: bool
    ) -> None:
        self.limits = limits
        self.progress = progress
        self.budget = budget
        self.keep_counts = keep_counts
        self.running = threading.Lock()
        """Held by a launch: machines are shared."""
        self.machines: _Kept[Schedule] = _Kept(_WARPS_KEPT, _weight)
        """Machines of the last launches."""


def _weight(schedule: Schedule) -> int:
    return max(schedule.machine.warps, _LEAST_WARPS)


@dataclass(frozen=True)
class _PlainText:
    name: str
    text: str
    find: Callable[[int], Origin | None]

    def origin(self, line: int) -> Origin | None:
        return self.find(line)

    def callers(self, line: int) -> Sequence[Origin]:
        return self.find.calls(line)[1:] if isinstance(self.find, Locations) else ()

    def field(self, offset: int) -> str:
        return ""

    def describe(self) -> str:
        return self.name


class LoadedKernel:
    """A kernel of a `SimExecutor`."""

    def __init__(
        self,
        kernel: KernelText,
        program: Program,
        launches: _Launches,
        counters: Counters | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.kernel = kernel
        self._tracer = tracer
        self._program = program
        self._launches = launches
        self._counters = counters
        self._module_memory = {
            id(variable): ModuleMemory(variable) for variable in program.function.module_memory
        }
        machine = program.probe
        machine.module_memory = self._module_pointers()
        for variable in program.function.module_memory:
            content = variable.content_with(machine.initial_address)
            self._module_memory[id(variable)].fill(content)

    @property
    def spills(self) -> bool:
        """Never: there are registers enough."""
        return False

    @property
    def profile(self) -> Profile | None:
        """Counts of the last launch, or with ``keep_counts=True`` of all of them; None unless the
        executor was made with ``profile=True``.
        """
        return None if self._counters is None else self._counters.profile(self.kernel)

    @property
    def contractions(self) -> tuple[Contraction, ...]:
        """Products that an assembler may fuse with sums, so that a GPU's bits may differ."""

        def stated(index: int) -> tuple[str, str]:
            instruction = self._program.operations[index].instruction
            return place(self.kernel, instruction.line), instruction.opcode

        pairs = ((*stated(x), *stated(y)) for x, y in self._program.contractions())
        return tuple(Contraction(*pair) for pair in pairs)

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        params: bytes | bytearray,
        *,
        buffers: Sequence[Buffer] = (),
        stream: object = None,
    ) -> None:
        """Run the kernel to its end.

        `shared_bytes` is the dynamic shared memory of a block, `params` the parameter block,
        `buffers` what the kernel may read and, where it is not read-only, write. `stream` has no
        meaning here. Raises ValueError for a launch that no device would take, SimulatorError for a
        fault of the kernel.
        """
        cluster = self._program.function.cluster
        try:
            geometry = Geometry(_triple(grid), _triple(block), index(shared_bytes), cluster)
        except TypeError:
            raise ValueError(
                f"{self.kernel.describe()}: a launch is in integers; got grid {grid}, block "
                f"{block}, {shared_bytes} bytes of shared memory"
            ) from None
        self._check(geometry, params)
        packed = np.frombuffer(bytes(params) + bytes(-len(params) % 16), np.uint8)
        named = partial(_name_of_memory, self.kernel, self._program, packed)
        memory = GlobalMemory([*buffers, *self._module_memory.values()], named)
        total = geometry.blocks
        chunks = max(1, -(-total * geometry.warps // _WARPS_AT_ONCE))
        each = -(-total // chunks)
        # Clusters stay together.
        each = -(-each // geometry.cluster_blocks) * geometry.cluster_blocks
        with self._launches.running, np.errstate(all="ignore"):
            if self._counters is not None and not self._launches.keep_counts:
                self._counters.reset()
            if self._tracer is not None:
                self._tracer.begin(memory)
            begun = monotonic()
            for first in range(0, total, each):
                schedule = self._schedule(geometry, min(each, total - first))
                schedule.machine.begin(first, packed, memory)
                try:
                    schedule.run(self._launches.budget, begun)
                except SimulatorError as error:
                    again = partial(schedule.machine.begin, first, packed, memory)
                    raise SimulatorError(f"{error}{self._earlier(schedule, again)}") from None
                if self._launches.progress is not None:
                    self._launches.progress(min(first + each, total), total)

    def _earlier(self, schedule: Schedule, begin: Callable[[], None]) -> str:
        """Who made the access that the fault of a run is about; "" if none is, or it is not found
        again.
        """
        fault = schedule.fault
        if fault is None or fault.earlier is None:
            return ""
        look = SecondLook(fault.earlier, self._program)
        machine = schedule.machine
        again = Schedule(self._program, machine, self.kernel, None, look)
        machine.quiet = True
        begin()
        try:
            again.run(_SECOND_LOOK, monotonic())
        except SimulatorError:
            pass
        finally:
            machine.quiet, machine.shared.observe = False, None
        same = again.fault is not None and again.fault.message == fault.message
        found = look.found() if same and again.at == schedule.at else None
        return "" if found is None else f"\n{schedule.earlier(found)}"

    def _schedule(self, geometry: Geometry, blocks: int) -> Schedule:
        def make() -> Schedule:
            machine = Machine(self._program.function, geometry, blocks, checks=self._program.checks)
            machine.module_memory = self._module_pointers()
            for variable in self._program.function.constant:
                machine.constant.fill(variable, variable.content_with(machine.initial_address))
            return Schedule(self._program, machine, self.kernel, self._counters, self._tracer)

        return self._launches.machines.get((self._program, geometry, blocks), make)

    def _module_pointers(self) -> dict[int, int]:
        return {key: memory.pointer for key, memory in self._module_memory.items()}

    def _check(self, geometry: Geometry, params: bytes | bytearray) -> None:
        function, name = self._program.function, self.kernel.describe()
        if min(geometry.grid) < 1:
            raise ValueError(f"{name}: grid {geometry.grid} must be positive")
        check_block(name, geometry.block, function.required_threads, function.maximum_threads)
        if geometry.shared_bytes < 0:
            raise ValueError(
                f"{name}: dynamic shared memory must not be negative; got {geometry.shared_bytes}"
            )
        _, shared = shared_layout(function.shared, geometry.shared_bytes)
        limits = self._launches.limits
        if shared > limits.shared_per_block:
            raise ValueError(
                f"{name}: {shared} bytes of shared memory; a block of {limits.name} has "
                f"{limits.shared_per_block}"
            )
        if geometry.grid[0] >= 2**31 or max(geometry.grid[1:]) > 65535:
            raise ValueError(
                f"{name}: the grid {geometry.grid} is larger than (2^31 - 1, 65535, 65535)"
            )
        if any(g % c for g, c in zip(geometry.grid, geometry.cluster, strict=True)):
            raise ValueError(
                f"{name}: the grid {geometry.grid} is not made of clusters of {geometry.cluster}"
            )
        if geometry.cluster_blocks > _MOST_IN_CLUSTER:
            raise ValueError(
                f"{name}: {geometry.cluster_blocks} blocks in a cluster; {_MOST_IN_CLUSTER} are "
                "the most"
            )
        expected = 0
        for variable in function.parameters.values():
            assert variable.size is not None
            expected = -(-expected // variable.alignment) * variable.alignment + variable.size
        if len(params) != expected:
            raise ValueError(f"{name}: a parameter block of {len(params)} bytes, not {expected}")


def _name_of_memory(
    kernel: KernelText, program: Program, params: AnyArray, begin: int, end: int
) -> str:
    """The name of the parameter that points there, or of the module's variable."""
    machine = program.probe
    for variable in program.function.module_memory:
        if begin <= machine.module_memory[id(variable)] < end:
            return variable.name
    names = {machine.parameter_offset(each): each for each in program.function.parameters}
    for i, pointer in enumerate(params[: params.size // 8 * 8].view(np.uint64)):
        if begin <= int(pointer) < end:
            return kernel.field(8 * i) or names.get(8 * i, "")
    return ""


def _triple(sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, z = map(index, sizes)
    return x, y, z
