"""The state of a chunk of threadblocks: registers, special registers, memories.

All arrays have the shape (32, warps): lanes first, so that the 32 values of a warp that tensor-core
and shuffle instructions rearrange are whole rows, and NumPy's inner loops run over the warps of the
chunk.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cuevo.sim.aliases import AnyArray, AnyDType, Mask
from cuevo.sim.faults import Fault, first_thread
from cuevo.sim.memory import spaces
from cuevo.sim.memory.global_memory import GlobalMemory
from cuevo.sim.memory.happens_before import HappensBefore
from cuevo.sim.memory.races import Races, Unwatched
from cuevo.sim.memory.shared_memory import WINDOW, SharedMemory
from cuevo.sim.memory.thread_memory import ConstantMemory, LocalMemory
from cuevo.sim.sync.async_copies import AsyncCopies
from cuevo.sim.sync.calls import Calls
from cuevo.sim.sync.cluster_barrier import ClusterBarrier
from cuevo.sim.sync.copy_groups import Copies
from cuevo.sim.sync.flow import Flow
from cuevo.sim.sync.mbarriers import Mbarriers
from cuevo.sim.sync.warpgroups import WARPS, Warpgroups
from cuevo.sim.text.syntax import ZERO_REGISTERS, Address, Function, Register, Variable
from cuevo.sim.text.types import TYPES

LANES = 32
MULTIPROCESSORS = 132
"""SMs that the blocks of a grid are spread over, one after the other."""
_RAW = {1: np.dtype(np.bool_), **{bits: TYPES[f"b{bits}"].dtype for bits in (8, 16, 32, 64, 128)}}


@dataclass(frozen=True)
class Geometry:
    """A launch, as far as it shapes a machine."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory of a block."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster along each axis."""

    @property
    def threads(self) -> int:
        x, y, z = self.block
        return x * y * z

    @property
    def warps(self) -> int:
        return -(-self.threads // LANES)

    @property
    def blocks(self) -> int:
        x, y, z = self.grid
        return x * y * z

    @property
    def cluster_blocks(self) -> int:
        x, y, z = self.cluster
        return x * y * z

    def block_of(self, number: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray]:
        """x, y and z of blocks that are numbered cluster by cluster."""
        cluster, rank = np.divmod(number, self.cluster_blocks)
        found, wide = [], [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        for clusters, blocks in zip(wide, self.cluster, strict=True):
            found.append(cluster % clusters * blocks + rank % blocks)
            cluster, rank = cluster // clusters, rank // blocks
        x, y, z = found
        return x, y, z


class Machine:
    """Holds `blocks` threadblocks of one function at a time."""

    def __init__(
        self, function: Function, geometry: Geometry, blocks: int, *, checks: bool = True
    ) -> None:
        self.function = function
        self.geometry = geometry
        self.blocks = blocks
        self.warps = blocks * geometry.warps
        self.shape = (LANES, self.warps)
        self.block_of_warp = np.arange(self.warps) // geometry.warps
        self.warp_in_block = np.arange(self.warps) % geometry.warps
        self._registers: dict[int, AnyArray] = {}
        self._scratch: dict[tuple[str, AnyDType], AnyArray] = {}
        self.written: dict[int, AnyArray] = {}
        self.shared_address, size = shared_layout(function.shared, geometry.shared_bytes)
        ordinary = Races if checks else Unwatched
        order = HappensBefore if _is_asynchronous(function) else ordinary
        cluster = geometry.cluster_blocks
        self.shared = SharedMemory(
            blocks, size, self.block_of_warp, self.warp_in_block, order, cluster
        )
        frames = {each.name: each.local for each in function.subroutines.values() if each.recursive}
        framed = {id(variable) for own in frames.values() for variable in own}
        ordinary_local = [each for each in function.local if id(each) not in framed]
        self.local = LocalMemory(ordinary_local, self.shape, frames)
        self.constant = ConstantMemory(function.constant)
        self.quiet = False
        """Whether nothing is to be printed."""
        self.module_memory: dict[int, int] = {}
        """Host addresses of the module's ``.global`` variables, by identity."""
        # In a circle its arrays, megabytes, would wait for Python's collector.
        machine: Machine = weakref.proxy(self)
        self.calls = Calls(
            function,
            self.shape,
            lambda slot: machine.register(machine.function.registers[slot]),
            self.written,
            self.local,
        )
        self.copies = Copies(self.shape)
        self.global_memory = GlobalMemory(())
        self.params: AnyArray = np.zeros(0, np.uint8)
        self.flow = Flow(
            self._thread_numbers() < geometry.threads,
            self.block_of_warp,
            self.shared.races.barrier,
            function.start,
        )
        if isinstance(self.shared.races, HappensBefore):
            self.happens_before = self.shared.races
            clocks = self.happens_before.clocks
            self.mbarriers = Mbarriers(self.shared, clocks, self.flow)
            self.async_copies = AsyncCopies(
                self.shape, self.shared, clocks, self.mbarriers, self.copies
            )
            clusters = self.block_of_warp // cluster
            self.cluster_barrier = ClusterBarrier(clusters, self.flow, clocks)
            self.flow.after_exit = lambda: machine._after_exit()
        self.special = self._special_registers()
        self._clock = 0
        self._looked = -1
        self._present = self._running()

    def begin(self, first_block: int, params: AnyArray, buffers: GlobalMemory) -> None:
        """Make ready to run the blocks from `first_block` on."""
        self.first_block = first_block
        self._looked = -1
        self.params = params
        self.global_memory = buffers
        self.flow.reset()
        self._present = self._running()
        self.shared.reset()
        self.local.reset()
        self.calls.reset()
        self.copies.reset()
        if self.asynchronous:
            self.mbarriers.reset()
            self.async_copies.reset()
            self.cluster_barrier.reset()
        if "warpgroups" in vars(self):
            self.warpgroups.reset()
        for flags in self.written.values():
            flags.fill(False)
        number = first_block + self.block_of_warp
        for axis, value, blocks in zip(
            "xyz", self.geometry.block_of(number), self.geometry.cluster, strict=True
        ):
            self.special.set(f"%ctaid.{axis}", value)
            self.special.set(f"%clusterid.{axis}", value // blocks)
            self.special.set(f"%cluster_ctaid.{axis}", value % blocks)
        self.special.set("%cluster_ctarank", number % self.geometry.cluster_blocks)
        self.special.set("%smid", number % MULTIPROCESSORS)

    @property
    def asynchronous(self) -> bool:
        """Whether the kernel has mbarriers or works with asynchronous units: only then there are
        `happens_before`, `mbarriers` and `async_copies`.
        """
        return isinstance(self.shared.races, HappensBefore)

    def go_on(self) -> bool:
        """Let time pass when no lane can run: asynchronous units finish what is in flight, or
        lanes that wait look again. Returns whether that may help.
        """
        if not self.asynchronous:
            return False
        before = self.mbarriers.progress
        if self.async_copies.deliver():
            return True
        # Lanes that no phase has woken may have other work than waiting.
        looked, self._looked = self._looked, before
        return looked != before and self.flow.wake(~self.cluster_barrier.waits)

    def reach(
        self, indices: AnyArray, size: int, mask: Mask, *, by_async_unit: bool = False
    ) -> None:
        """The lanes in `mask` reach into the shared memory of any block of their cluster; it must
        not have exited, nor do so before it knows of this. Copies are counted by themselves.
        """
        if self.shared.cluster == 1:
            return
        blocks = indices * size // self.shared.stride
        lanes = np.ones(self.shape, np.bool_) if mask is None else mask
        self.require_running(blocks, lanes)
        if self.asynchronous and not by_async_unit:
            self.happens_before.visit(blocks[lanes], np.nonzero(lanes)[1])

    def require_running(self, blocks: AnyArray, lanes: AnyArray) -> None:
        """The block of each of the lanes must not have exited."""
        if (wrong := lanes & ~self._running()[blocks]).any():
            raise Fault("shared memory of a block of the cluster that has exited", wrong)

    def _running(self) -> AnyArray:
        """The blocks of which there are lanes that have not exited."""
        count: AnyArray = np.bincount(self.block_of_warp, self.alive.any(axis=0), self.blocks)
        return count > 0

    def _after_exit(self) -> None:
        self.cluster_barrier.complete()
        running = self._running()
        gone, self._present = self._present & ~running, running
        if gone.any():
            self.async_copies.check_exit(gone)
            self.happens_before.check_exit(gone)

    def finish(self) -> None:
        """All lanes have exited."""
        if self.asynchronous:
            self.async_copies.finish()

    @cached_property
    def warpgroups(self) -> Warpgroups:
        """Made for kernels that have wgmma; the others pay nothing for it."""
        in_block = -(-self.geometry.warps // WARPS)
        warpgroups = self.block_of_warp * in_block + self.warp_in_block // WARPS
        names = [register.name for register in self.function.registers]
        return Warpgroups(self.flow, self.shared, warpgroups, names)

    def tick(self) -> None:
        """Time goes on: each look at a clock finds it further."""
        self._clock += 1
        for name in ("%clock64", "%globaltimer"):
            self.special.set(name, self._clock)
        for name in ("%clock", "%globaltimer_lo"):
            self.special.set(name, self._clock & 0xFFFFFFFF)

    def address_of(self, variable: Variable) -> int:
        """Address of a variable in its state space."""
        match variable.space:
            case ".param":
                return self.parameter_offset(variable.name)
            case ".shared":
                return self.shared_address[variable.name]
            case ".local":
                return self.local.addresses[id(variable)]
            case ".const":
                return self.constant.addresses[id(variable)]
            case ".func":
                return self.code_address(variable.name)
        # Bound for the first time, at load, it has no memory yet.
        return self.module_memory.get(id(variable), 0)

    def code_address(self, name: str) -> int:
        """That of a function; those that cannot be called have all the same one."""
        found = self.function.subroutines.get(name)
        return spaces.CODE + (16 * (found.begin + 1) if found else 0)

    def initial_address(self, address: Address) -> int:
        """An address in the initial content of a variable."""
        found = self.address_of(address.variable) + address.offset
        window = spaces.WINDOWS.get(address.variable.space[1:], 0)
        return found + (window if address.generic else 0)

    @property
    def alive(self) -> AnyArray:
        """Lanes that have not exited."""
        return self.flow.alive

    def parameter_offset(self, name: str) -> int:
        """Offset of a parameter in the parameter block."""
        position = 0
        for variable in self.function.parameters.values():
            assert variable.size is not None
            position = -(-position // variable.alignment) * variable.alignment
            if variable.name == name:
                return position
            position += variable.size
        raise KeyError(name)

    def register(self, register: Register) -> AnyArray:
        """The raw bits of a register, bool for a predicate."""
        array = self._registers.get(register.slot)
        if array is None:
            array = np.zeros(self.shape, _RAW[register.type.bits])
            self._registers[register.slot] = array
        return array

    def track(self, slot: int) -> AnyArray:
        """Flags that say which lanes have written the register."""
        return self.written.setdefault(slot, np.zeros(self.shape, np.bool_))

    def scratch(self, name: str, dtype: AnyDType) -> AnyArray:
        """An array for results within one instruction; another use of `name` gets the same one."""
        key = (name, np.dtype(dtype))
        if key not in self._scratch:
            self._scratch[key] = np.empty(self.shape, dtype)
        return self._scratch[key]

    def thread_name(self, lanes: AnyArray) -> str:
        """Block and thread of the first of the marked lanes."""
        lane, warp = first_thread(lanes)
        number = np.asarray(self.first_block + int(self.block_of_warp[warp]))
        where = ", ".join(str(int(each)) for each in self.geometry.block_of(number))
        thread = int(self.warp_in_block[warp]) * LANES + lane
        i, j, _ = self.geometry.block
        return (
            f"block ({where}), "
            f"thread ({thread % i}, {thread // i % j}, {thread // (i * j)}) "
            f"[warp {thread // LANES}, lane {lane}]"
        )

    def _thread_numbers(self) -> AnyArray:
        lane = np.arange(LANES)[:, None]
        return self.warp_in_block[None, :] * LANES + lane

    def _special_registers(self) -> "_Special":
        thread = self._thread_numbers()
        i, j, _ = self.geometry.block
        lane = np.arange(LANES)[:, None]
        below = (1 << lane) - 1
        values: dict[str, AnyArray | int] = {
            **dict.fromkeys(_BITS_OF_SPECIAL, 0),
            "%tid.x": thread % i,
            "%tid.y": thread // i % j,
            "%tid.z": thread // (i * j),
            "%laneid": lane,
            "%warpid": self.warp_in_block[None, :],
            "%nwarpid": self.geometry.warps,
            "%smid": 0,
            "%nsmid": MULTIPROCESSORS,
            "%clock": 0,
            "%clock_hi": 0,
            "%globaltimer_lo": 0,
            "%globaltimer_hi": 0,
            "%dynamic_smem_size": self.geometry.shared_bytes,
            "%total_smem_size": self.shared.size,
            "%aggr_smem_size": self.shared.size + WINDOW,
            "%reserved_smem_offset_begin": 0,
            "%reserved_smem_offset_end": WINDOW,
            "%reserved_smem_offset_cap": WINDOW,
            "%reserved_smem_offset_0": 0,
            "%reserved_smem_offset_1": 0,
            "%lanemask_eq": 1 << lane,
            "%lanemask_lt": below,
            "%lanemask_le": below | (1 << lane),
            "%lanemask_gt": 0xFFFFFFFF & ~(below | (1 << lane)),
            "%lanemask_ge": 0xFFFFFFFF & ~below,
        }
        for axis, threads, blocks, cluster in zip(
            "xyz", self.geometry.block, self.geometry.grid, self.geometry.cluster, strict=True
        ):
            values[f"%ntid.{axis}"] = threads
            values[f"%nctaid.{axis}"] = blocks
            values[f"%cluster_nctaid.{axis}"] = cluster
            values[f"%nclusterid.{axis}"] = blocks // cluster
            for name in ("ctaid", "clusterid", "cluster_ctaid"):
                values[f"%{name}.{axis}"] = 0
        values["%cluster_ctarank"] = 0
        values["%cluster_nctarank"] = self.geometry.cluster_blocks
        values["%is_explicit_cluster"] = self.geometry.cluster_blocks > 1
        return _Special(self.shape, values)


class _Special(dict[str, AnyArray]):
    """The special registers, each an array once it is asked for: kernels look at few."""

    def __init__(self, shape: tuple[int, int], values: dict[str, AnyArray | int]) -> None:
        super().__init__()
        self._shape = shape
        self._values = values

    def __missing__(self, name: str) -> AnyArray:
        self[name] = found = np.empty(self._shape, _RAW[_BITS_OF_SPECIAL.get(name, 32)])
        found[...] = self._values[name]
        return found

    def set(self, name: str, value: AnyArray | int) -> None:
        """Change the register, whoever has its array."""
        self._values[name] = value
        if name in self:
            self[name][...] = value


_BITS_OF_SPECIAL = {
    **ZERO_REGISTERS,
    **dict.fromkeys(("%clock64", "%globaltimer", "%gridid"), 64),
    "%is_explicit_cluster": 1,
}
"""Bits of those that are zero, and of others that have not 32."""


_ASYNCHRONOUS = (
    "mbarrier", "cp.async.mbarrier", "cp.async.bulk", "cp.reduce.async.bulk", "wgmma",
    "fence.proxy.async", "mapa", "barrier.cluster", "st.async", "red.async",
)  # fmt: skip


def _is_asynchronous(function: Function) -> bool:
    opcodes = {each.opcode for each in function.instructions}
    return any(each.startswith(_ASYNCHRONOUS) or "::cluster" in each for each in opcodes)


def shared_layout(variables: Sequence[Variable], dynamic: int) -> tuple[dict[str, int], int]:
    """Shared address of each variable, and the bytes of a block; `dynamic` of them come last."""
    addresses: dict[int, int] = {}
    position = WINDOW
    for variable in variables:
        if variable.size is not None:
            position = -(-position // variable.alignment) * variable.alignment
            addresses[id(variable)] = position
            position += variable.size
    external = [variable for variable in variables if variable.size is None]
    if external:
        alignment = max(variable.alignment for variable in external)
        position = -(-position // alignment) * alignment
        addresses.update((id(variable), position) for variable in external)
    names = {variable.name: addresses[id(variable)] for variable in variables}
    return names, position + dynamic - WINDOW
