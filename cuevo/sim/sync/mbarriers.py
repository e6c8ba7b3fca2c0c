"""The mbarriers of a chunk of blocks.

An mbarrier has a count of arrivals that its present phase still waits for, and one of bytes that
were announced and not yet delivered by asynchronous copies; when both are zero the phase is
complete and the next one begins. What the arriving warps knew is released with the phase
(`Clocks`).

They are numbered as they are made; `slots` finds the numbers of those at given addresses.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.memory.clocks import Clocks, join
from cuevo.sim.memory.shared_memory import SharedMemory
from cuevo.sim.sync.flow import Flow

MOST_ARRIVALS = 2**20 - 1
"""The largest count of an mbarrier, in arrivals and in bytes."""
BYTES = 8


@dataclass(frozen=True)
class Wait:
    """Phases that some lanes sleep for."""

    slots: AnyArray
    """(32, warps); -1 for lanes that do not."""
    phases: AnyArray
    lines: AnyArray


class Mbarriers:
    """The mbarriers of a chunk; none exist at first."""

    def __init__(self, shared: SharedMemory, clocks: Clocks, flow: Flow) -> None:
        self._shared, self._clocks, self._flow = shared, clocks, flow
        self._shape = flow.alive.shape
        self._warps = clocks.warp_of_lane
        self.progress = 0
        """Number of completed phases: it tells a waiting scheduler whether anything goes on."""
        self.keeps_past = False
        """Set where arrivals give states: a wait may name phases before the last."""
        self.reset()

    def reset(self) -> None:
        self._slot_of = np.full(self._shared.units(BYTES), -1, np.int32)
        self._indices = np.zeros(0, np.int64)
        self._count = np.zeros(0, np.int64)
        self._pending = np.zeros(0, np.int64)
        self._bytes = np.zeros(0, np.int64)
        self._phase = np.zeros(0, np.int64)
        self._place = np.zeros(0, np.int64)
        self._made: dict[int, int] = {}
        self._known = np.zeros((0, 0), np.int32)
        """Clocks released to the present phase, and to those before."""
        self._released = np.zeros((0, 0), np.int32)
        """Clocks acquired by those who have waited for the phase before."""
        self._past: dict[tuple[int, int], AnyArray] = {}
        """The same by number and phase."""
        self._wait = Wait(*(np.full(self._shape, -1, np.int64) for _ in range(3)))

    # -- Making and finding -----------------------------------------------------------------------

    def make(self, indices: AnyArray, counts: AnyArray, mask: Mask) -> None:
        """mbarriers at `indices` (units of 8 bytes), for `counts` arrivals a phase."""
        lanes = np.ones(self._shape, np.bool_) if mask is None else mask
        counts = np.broadcast_to(counts, self._shape).astype(np.int64)
        wrong = lanes & ((counts < 1) | (counts > MOST_ARRIVALS))
        if wrong.any():
            raise Fault(f"an mbarrier counts 1 to {MOST_ARRIVALS} arrivals", wrong)
        if (there := lanes & (self._slot_of[indices] >= 0)).any():
            raise Fault("there is an mbarrier already, and it was not invalidated", there)
        self._shared.make_mbarrier(indices, mask)
        units, first = np.unique(indices[lanes], return_index=True)
        if units.size < np.count_nonzero(lanes):
            raise Fault("several lanes make the same mbarrier", lanes)
        number = self._indices.size
        self._slot_of[units] = np.arange(number, number + units.size)
        self._indices = np.concatenate([self._indices, units])
        self._count = np.concatenate([self._count, counts[lanes][first]])
        self._pending = np.concatenate([self._pending, counts[lanes][first]])
        zeros = np.zeros(units.size, np.int64)
        self._bytes = np.concatenate([self._bytes, zeros])
        self._phase = np.concatenate([self._phase, zeros])
        self._place = np.concatenate([self._place, [self._new_place(int(u)) for u in units]])
        self._known = _grown(self._known, self._indices.size, self._clocks.places)
        self._released = _grown(self._released, self._indices.size, self._clocks.places)
        self._known[np.arange(number, self._indices.size), self._place[number:]] = 1

    def _new_place(self, unit: int) -> int:
        """A place in the clocks: the first mbarriers of all clusters share one, and so on."""
        cluster = self._shared.block_of(unit, BYTES) // self._shared.cluster
        self._made[cluster] = made = self._made.get(cluster, 0) + 1
        places = self._clocks.lanes_in_cluster + made
        return places - 1 if places <= self._clocks.places else self._clocks.new_place()

    def free(self, indices: AnyArray, mask: Mask) -> None:
        """The mbarriers at `indices` are no more."""
        slots = self.slots(indices, mask)
        lanes = np.ones(self._shape, np.bool_) if mask is None else mask
        if (awaited := lanes & np.isin(slots, self._wait.slots[self._flow.asleep])).any():
            raise Fault("an mbarrier that is waited for is invalidated", awaited)
        self._shared.free_mbarrier(indices, mask)
        self._slot_of[indices[lanes]] = -1

    def slots(self, indices: AnyArray, mask: Mask) -> AnyArray:
        """The numbers of the mbarriers at `indices`; raises Fault where a lane finds none."""
        found = self._slot_of.take(indices)
        missing = found < 0 if mask is None else (found < 0) & mask
        if missing.any():
            raise Fault("there is no mbarrier at this address", missing)
        self._shared.races.ordered(indices, BYTES, mask, writes=False)
        return found

    def words(self) -> AnyArray:
        """Flat indices of the words of 4 bytes that all mbarriers are."""
        return np.concatenate([2 * self._indices, 2 * self._indices + 1])

    def slot_of_unit(self, index: int, lanes: AnyArray) -> int:
        """The number of the mbarrier at a unit of 8 bytes, for an asynchronous unit."""
        slot = int(self._slot_of[index])
        if slot < 0:
            raise Fault("there is no mbarrier at this address in another block", lanes)
        return slot

    def unit_of(self, slot: int) -> int:
        """Index of the mbarrier, in units of 8 bytes."""
        return int(self._indices[slot])

    # -- Arriving ---------------------------------------------------------------------------------

    def expect(self, slots: AnyArray, count: AnyArray, mask: Mask) -> None:
        """So many bytes more are to come in the present phase."""
        lanes = np.ones(self._shape, np.bool_) if mask is None else mask
        count = np.broadcast_to(count, self._shape)[lanes].astype(np.int64)
        self._add_bytes(slots[lanes], count, lanes)

    def deliver(self, slots: AnyArray, count: AnyArray, lanes: AnyArray | None = None) -> None:
        """So many bytes have come; flat."""
        self._add_bytes(slots, -count, lanes)
        self._complete()

    def arrive(
        self, slots: AnyArray, count: AnyArray | int, mask: Mask, *, drops: bool = False
    ) -> AnyArray:
        """The lanes arrive, `count` times each; `drops`: the later phases expect so many less.

        The phases that they arrived in, (32, warps).
        """
        lanes = np.ones(self._shape, np.bool_) if mask is None else mask
        each = np.broadcast_to(count, self._shape).astype(np.int64)
        wrong = lanes & ((each < 1) | (each > MOST_ARRIVALS))
        if wrong.any():
            raise Fault("arrivals are counted from 1 on", wrong)
        phases = np.zeros(self._shape, np.int64)
        known = np.zeros((self._shape[1], self._clocks.places), np.int32)
        warps = np.flatnonzero(lanes.any(axis=0))
        known[warps] = self._clocks.release(warps, lanes)
        left = lanes
        while left.any():
            now = self._fitting(slots, each, left)
            if not now.any():
                raise Fault("more arrivals at an mbarrier than its phase expects", left)
            phases[now] = self._phase[slots[now]]
            told = np.unique(np.stack([self._warps[now], slots[now]]), axis=1)
            self._learn(told[1], known[told[0]])
            np.subtract.at(self._pending, slots[now], each[now])
            if drops:
                np.subtract.at(self._count, slots[now], each[now])
            left = left & ~now
            self._complete()
        return phases

    def arrive_later(self, slots: AnyArray, known: AnyArray, lanes: AnyArray) -> None:
        """Flat arrivals of an asynchronous unit for warps that knew `known` when they told it."""
        self._learn(slots, known)
        np.subtract.at(self._pending, slots, 1)
        if (self._pending[slots] < 0).any():
            raise Fault("more arrivals at an mbarrier than its phase expects", lanes)
        self._complete()

    def add_pending(self, slots: AnyArray) -> None:
        """One arrival more is expected in the present phase of flat `slots`."""
        np.add.at(self._pending, slots, 1)

    def knowledge(self, slots: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Place and time in which data for flat `slots` is written now."""
        places = self._place[slots]
        return places, self._known[slots, places]

    # -- Waiting ----------------------------------------------------------------------------------

    def test(self, slots: AnyArray, phases: AnyArray, mask: Mask, line: int) -> AnyArray:
        """Whether `phases` (counted from 0) are complete. Lanes of which they are not sleep until
        they are, or until no other lane can go on.
        """
        lanes = np.ones(self._shape, np.bool_) if mask is None else mask
        done = lanes & (self._phase[slots] > phases)
        seen = np.unique(np.stack([self._warps[done], slots[done], phases[done]]), axis=1)
        self._clocks.acquire(seen[0], self._released_by(seen[1], seen[2]), done)
        self._wait.slots[done] = -1
        if (vain := lanes & ~done).any():
            self._wait.slots[vain] = slots[vain]
            self._wait.phases[vain] = phases[vain]
            self._wait.lines[vain] = line
            self._flow.sleep(vain)
        return done

    def phase_of_parity(self, slots: AnyArray, parity: AnyArray) -> AnyArray:
        """The last phase of that parity which is not later than the present one."""
        present = self._phase[slots]
        phases: AnyArray = present - ((present ^ parity.astype(np.int64)) & 1)
        return phases

    def waits(self) -> Iterator[tuple[int, str]]:
        """Lines at which lanes sleep, and what they wait for."""
        asleep = self._flow.asleep & self._flow.alive & (self._wait.slots >= 0)
        rows = zip(
            self._wait.lines[asleep], self._wait.slots[asleep], self._wait.phases[asleep],
            strict=True,
        )  # fmt: skip
        for line, slot, phase in sorted({(int(a), int(b), int(c)) for a, b, c in rows}):
            offset = self._shared.offset_of(int(self._indices[slot]), BYTES)
            what = f"phase {phase} of the mbarrier at shared offset {offset} lacks "
            what += f"{max(self._pending[slot], 0)} of {self._count[slot]} arrivals and "
            count = self._bytes[slot]
            more = f"{count} bytes" if count >= 0 else f"has {-count} bytes that nobody expects"
            yield line, what + more

    # -- Inner ------------------------------------------------------------------------------------

    def _fitting(self, slots: AnyArray, each: AnyArray, lanes: AnyArray) -> AnyArray:
        """The ones of `lanes` whose arrivals the present phases have room for, in their order."""
        total = np.bincount(slots[lanes], each[lanes], self._pending.size)
        if (total <= self._pending).all():
            return lanes
        chosen = np.zeros(lanes.shape, np.bool_)
        left = self._pending.copy()
        for warp, lane in zip(*np.nonzero(lanes.T), strict=True):
            slot = slots[lane, warp]
            if each[lane, warp] <= left[slot]:
                left[slot] -= each[lane, warp]
                chosen[lane, warp] = True
        return chosen

    def _released_by(self, slots: AnyArray, phases: AnyArray) -> AnyArray:
        """Clocks that flat `phases`, which are complete, have released: not those after them."""
        known: AnyArray = self._released[slots]
        for row in np.flatnonzero(phases < self._phase[slots] - 1):
            past = self._past.get((int(slots[row]), int(phases[row])))
            if past is not None:
                known[row] = 0
                known[row, : past.size] = past
        return known

    def _learn(self, slots: AnyArray, known: AnyArray) -> None:
        join(self._known, slots, known)

    def _add_bytes(self, slots: AnyArray, count: AnyArray, lanes: AnyArray | None) -> None:
        np.add.at(self._bytes, slots, count)
        if (np.abs(self._bytes) > MOST_ARRIVALS).any():
            raise Fault(f"an mbarrier counts at most {MOST_ARRIVALS} bytes", lanes)

    def _complete(self) -> None:
        """Phases that lack nothing end, and the next ones begin."""
        done = (self._pending == 0) & (self._bytes == 0)
        if not done.any():
            return
        self._released[done] = self._known[done]
        finished = np.flatnonzero(done)
        if self.keeps_past:
            for slot in finished:
                self._past[int(slot), int(self._phase[slot])] = self._known[slot].copy()
        self._known[finished, self._place[finished]] += 1
        self._phase[done] += 1
        # Of one that everybody has dropped, no further phase ends.
        self._pending[done] = np.where(self._count[done] > 0, self._count[done], -1)
        self.progress += 1
        wait = self._wait
        slots = np.maximum(wait.slots, 0)
        self._flow.wake((wait.slots >= 0) & (self._phase[slots] > wait.phases))


def _grown(table: AnyArray, rows: int, columns: int) -> AnyArray:
    return np.pad(table, ((0, rows - table.shape[0]), (0, columns - table.shape[1])))
