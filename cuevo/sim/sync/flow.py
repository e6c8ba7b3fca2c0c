"""Control flow of the lanes of a chunk: program counters, exits, barriers, sleep.

A program counter is the index of an instruction. The scheduler runs the lowest counter at which a
runnable lane stands, for all lanes that stand there; so lanes that a branch has parted meet again
where their ways join. Where that would be for ever, others get a turn (`turns`). Lanes that have
looked at an mbarrier in vain sleep until it has something for them; else they would look again for
ever, their counter being the lowest. Lanes that an instruction names wait there (`meetings`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.sync.meetings import Apart, Exchange, Meetings
from cuevo.sim.sync.turns import Turns

BARRIERS = 16


@dataclass(frozen=True)
class Vote:
    """Values that threads bring to a barrier, and their combination when it is complete."""

    predicate: Callable[[], AnyArray]
    deliver: Callable[[AnyArray, AnyArray, AnyArray], None]
    """Gets for each warp how many threads said yes and how many came, and the lanes that want to
    know.
    """


class Flow:
    """`exists` marks the lanes that are threads, shape (32, warps).

    `on_barrier` is called when barriers are complete: with their blocks as a bool array, None for
    all, and with the warps that came there and those that waited, None if that is everybody.
    """

    def __init__(
        self,
        exists: AnyArray,
        block_of_warp: AnyArray,
        on_barrier: Callable[[AnyArray | None, AnyArray | None, AnyArray | None], None],
        start: int = 0,
    ) -> None:
        self._exists = exists
        self._start = start
        self._block = block_of_warp
        self._on_barrier = on_barrier
        self.on_exit: Callable[[Mask], None] | None = None
        """Called with the lanes that are about to exit."""
        self.after_exit: Callable[[], None] | None = None
        self._blocks = int(block_of_warp[-1]) + 1
        warps = exists.shape[1]
        self.alive: AnyArray = exists.copy()
        self.waiting = np.zeros(warps, np.bool_)
        self.asleep = np.zeros(exists.shape, np.bool_)
        self._some_asleep = False
        self.barrier_line = np.zeros(warps, np.int64)
        self._barrier = np.zeros(warps, np.int64)
        self._arrived = np.zeros((self._blocks, BARRIERS), np.int64)
        self._expected = np.zeros((self._blocks, BARRIERS), np.int64)
        self._came = np.zeros((BARRIERS, warps), np.bool_)
        self._true = np.zeros((self._blocks, BARRIERS), np.int64)
        self._total = np.zeros((self._blocks, BARRIERS), np.int64)
        self._votes: list[tuple[Vote, AnyArray]] = []
        self._parted: AnyArray = np.zeros(exists.shape, np.int64)
        self.turns = Turns((exists.shape[0], exists.shape[1]))
        self.meetings = Meetings((exists.shape[0], exists.shape[1]))
        self.reset()

    def reset(self) -> None:
        np.copyto(self.alive, self._exists)
        self.waiting.fill(False)
        self.asleep.fill(False)
        self._some_asleep = False
        self._arrived.fill(0)
        self._came.fill(False)
        # The common counter of all lanes, or None where each has its own.
        self._common: int | None = self._start
        self._all_alive = bool(self.alive.all())
        self._here: Mask = None
        self._next: int | None = 0
        self.turns.reset()
        self.meetings.reset()

    # -- For the scheduler ------------------------------------------------------------------------

    def pick(self) -> tuple[int, Mask] | None:
        """The next counter and the lanes that stand there (None: all of them); None if no lane can
        run.
        """
        if self._common is not None and not self._some_asleep and not self.waiting.any():
            if self._all_alive:
                return self._common, None
            return (self._common, self.alive) if self.alive.any() else None
        runnable = self._runnable()
        if not runnable.any():
            self.turns.rest()
            return None
        counter, mask = self.turns.choose(self._counters(), runnable)
        here = int(np.count_nonzero(mask))
        if here == np.count_nonzero(self.alive):
            self._common = counter
            self.turns.together()
            return counter, (None if here == mask.size else mask)
        return counter, mask

    def running(self) -> list[tuple[int, int]]:
        """The counters at which lanes stand that can run, each with the number of their warps."""
        runnable, counters = self._runnable(), self._counters()
        return [
            (int(counter), int(np.count_nonzero((runnable & (counters == counter)).any(axis=0))))
            for counter in np.unique(counters[runnable])
        ]

    def counter_of(self, lane: int, warp: int) -> int:
        return int(self._counters()[lane, warp])

    def arrive(self, counter: int, mask: Mask) -> None:
        """The lanes in `mask` are about to run the instruction before `counter`, and go on there
        by default.
        """
        self._here, self._next = mask, counter

    def leave(self) -> None:
        """The instruction has run."""
        if self._next is None:
            return
        if self._common is not None:
            self._common = self._next
        elif self._here is not None:
            np.copyto(self._parted, self._next, where=self._here)

    def stay(self, index: int, mask: Mask, apart: Apart) -> None:
        """The lanes in `mask` stand before the instruction `index`, where some wait for others."""
        self.arrive(index, mask)
        self.leave()
        self._counters()
        self.meetings.wait(index, apart)

    # -- For instructions -------------------------------------------------------------------------

    def here(self) -> AnyArray:
        """The lanes that run the present instruction, whatever its guard."""
        return self.alive if self._here is None else self._here

    @property
    def following(self) -> int:
        """The counter after the present instruction."""
        assert self._next is not None
        return self._next

    def jump(self, target: int, mask: Mask) -> None:
        if mask is None or self._is_here(mask):
            self._next = target
            return
        self._part()
        np.copyto(self._parted, target, where=mask)

    def meet(self, exchange: Exchange, lanes: AnyArray, elsewhere: AnyArray) -> None:
        """Run what lanes have waited for at other instructions; they go on after these."""
        self._counters()[elsewhere] += 1
        self.meetings.meet(exchange, lanes, elsewhere)

    def sleep(self, lanes: AnyArray) -> None:
        """The lanes are not to go on after this instruction before they are woken."""
        self.asleep |= lanes
        self._some_asleep = True

    def wake(self, lanes: AnyArray) -> bool:
        """Let those of the lanes go on that sleep. Whether there were any."""
        if not self._some_asleep:
            return False
        woken = self.asleep & lanes
        any_woken = bool(woken.any())
        self.asleep &= ~woken
        self._some_asleep = bool(self.asleep.any())
        return any_woken

    def wait_of(self, warp: int) -> tuple[int, int, int, int]:
        """The wait of a warp: line, barrier, how many threads are there, and how many
        must be.
        """
        number = int(self._barrier[warp])
        place = int(self._block[warp]), number
        return (
            int(self.barrier_line[warp]),
            number,
            int(self._arrived[place]),
            int(self._needed()[place]),
        )

    def exit(self, mask: Mask) -> None:
        if self.meetings.any:
            self.meetings.exit(self.alive if mask is None else mask)
        if self.on_exit is not None:
            self.on_exit(mask)
        if mask is None:
            self.alive.fill(False)
        else:
            self.alive &= ~mask
        self._all_alive = False
        self._release()
        if self.after_exit is not None:
            self.after_exit()

    def barrier(
        self,
        line: int,
        number: AnyArray,
        count: AnyArray | None,
        mask: Mask,
        wait: bool,
        vote: Vote | None = None,
    ) -> None:
        """Arrive at a barrier of the block, and wait there until enough have.

        `number` and `count` (threads) are per warp; without a count all threads of the block that
        have not exited must arrive.
        """
        alive = np.count_nonzero(self.alive, axis=0)
        if mask is None:
            warps = np.ones(alive.shape, np.bool_)
        else:
            present = np.count_nonzero(mask, axis=0)
            wrong = (present != 0) & (present != alive)
            if wrong.any():
                raise Fault(
                    f"only {int(present[wrong][0])} of the {int(alive[wrong][0])} running lanes of "
                    "a warp are at the barrier",
                    mask & wrong[None, :],
                )
            warps = present != 0
        wrong = warps & ((number < 0) | (number >= BARRIERS))
        if wrong.any():
            raise Fault(f"there are barriers 0 to {BARRIERS - 1} only", self.alive & wrong)
        if count is not None:
            wrong = warps & ((count % 32 != 0) | (count <= 0))
            if wrong.any():
                message = "the thread count of a barrier must be a multiple of 32"
                raise Fault(message, self.alive & wrong)
        everybody = mask is None or int(np.count_nonzero(mask)) == int(alive.sum())
        one_barrier = count is None and wait and vote is None and bool((number == number[0]).all())
        if everybody and one_barrier and not self._arrived.any():
            self._on_barrier(None, None, None)
            return
        self._part()
        blocks = self._block[warps]
        numbers = number[warps]
        threads = np.zeros(blocks.shape, np.int64) if count is None else count[warps]
        expected = self._expected[blocks, numbers]
        if ((self._arrived[blocks, numbers] > 0) & (expected != threads)).any():
            raise Fault("warps are at one barrier with different thread counts", mask)
        np.add.at(self._arrived, (blocks, numbers), 32)
        self._expected[blocks, numbers] = threads
        self._came[numbers, np.flatnonzero(warps)] = True
        if vote is not None:
            lanes = self.alive & warps[None, :] if mask is None else mask
            said = np.count_nonzero(vote.predicate() & lanes, axis=0)[warps]
            np.add.at(self._true, (blocks, numbers), said)
            np.add.at(self._total, (blocks, numbers), np.count_nonzero(lanes, axis=0)[warps])
            self._votes.append((vote, lanes.copy()))
        if wait:
            self.waiting |= warps
            self._barrier[warps] = numbers
            self.barrier_line[warps] = line
        self._release()

    # -- Inner ------------------------------------------------------------------------------------

    def _runnable(self) -> AnyArray:
        runnable: AnyArray = self.alive & ~self.waiting
        if self._some_asleep:
            runnable &= ~self.asleep
        if self.meetings.any:
            runnable &= ~self.meetings.lanes
        return runnable

    def _is_here(self, mask: AnyArray) -> bool:
        if self._here is None:
            return False
        return int(np.count_nonzero(mask)) == int(np.count_nonzero(self._here))

    def _counters(self) -> AnyArray:
        if self._common is not None:
            self._parted.fill(self._common)
            self._common = None
        return self._parted

    def _part(self) -> None:
        """Give each lane its own counter; those that are here go on after the instruction."""
        following = self._next
        counters = self._counters()
        if following is not None:
            np.copyto(counters, following, where=True if self._here is None else self._here)
        self._next = None

    def _needed(self) -> AnyArray:
        """Threads that must come to each barrier of each block; whole warps."""
        alive_warps = self.alive.any(axis=0)
        all_threads = 32 * np.bincount(self._block, alive_warps, self._blocks).astype(np.int64)
        needed: AnyArray = np.where(self._expected == 0, all_threads[:, None], self._expected)
        return needed

    def _release(self) -> None:
        """Let go the warps whose barrier is complete."""
        if not self.waiting.any() and not self._arrived.any():
            return
        complete = (self._arrived > 0) & (self._arrived >= self._needed())
        if complete.any():
            if self._votes:
                self._count(complete)
            done = complete[self._block, self._barrier] & self.waiting
            for number in np.flatnonzero(complete.any(axis=0)):
                blocks = complete[:, number]
                came = self._came[number] & blocks[self._block]
                self._came[number] &= ~came
                self._on_barrier(blocks, came, done & (self._barrier == number))
            self.waiting &= ~done
            self._arrived[complete] = 0

    def _count(self, complete: AnyArray) -> None:
        """Tell the results of complete barriers to those who voted there."""
        done = complete[self._block, self._barrier] & self.waiting
        true, total = (each[self._block, self._barrier] for each in (self._true, self._total))
        left = []
        for vote, lanes in self._votes:
            vote.deliver(true[None, :], total[None, :], lanes & done[None, :])
            lanes = lanes & ~done[None, :]
            if lanes.any():
                left.append((vote, lanes))
        self._votes = left
        self._true[complete] = 0
        self._total[complete] = 0
