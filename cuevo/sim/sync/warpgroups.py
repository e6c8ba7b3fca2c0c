"""State of wgmma until it is waited for: accumulators, registers in use, shared memory that
is read, and whether the warps of a warpgroup do the same.

Each warp computes its 16 rows when it issues a wgmma, but its registers get the results only when
it waits for the group, so that until then no instruction sees them; another wgmma of the same shape
on the same accumulators goes on from the results that are pending. Warps count their groups, and
their executions of wgmma.fence: a register is fenced if it was touched before the last one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cuevo.layouts import Fragment
from cuevo.sim.aliases import AnyArray, AnyDType, Mask, Step
from cuevo.sim.faults import Earlier, Fault
from cuevo.sim.memory.fragments import matrix_of, registers_of
from cuevo.sim.memory.shared_memory import SharedMemory
from cuevo.sim.sync.flow import Flow

WARPS = 4
"""Warps of a warpgroup."""
_NO_ROLE, _OPERAND_A = 0, 1


class Accumulators:
    """The registers that wgmma of one shape accumulates in, and results on their way to them."""

    def __init__(
        self, role: int, registers: list[AnyArray], fragment: Fragment, dtype: AnyDType
    ) -> None:
        self.role = role
        self._registers = registers
        """uint32, (32, warps)."""
        self._fragment = fragment
        self._dtype = dtype
        warps = registers[0].shape[1]
        self._pending = np.zeros((*fragment.shape, warps), dtype)
        self.until = np.zeros(warps, np.int64)
        """Groups of each warp to be retired for its results to be there; 0: there are none."""

    def values(self, warps: AnyArray, wanted: AnyArray) -> AnyArray:
        """Values that the accumulators (rows, columns, warps) of `warps` will hold; 0 where not
        `wanted`, a flag for each of the warps.
        """
        everybody = warps.size == self.until.size
        pending = self.until[warps] > 0
        if not wanted.any():
            return np.zeros((*self._fragment.shape, warps.size), self._dtype)
        if pending.all():
            values = self._pending if everybody else self._pending[..., warps]
        else:
            registers = [each if everybody else each[:, warps] for each in self._registers]
            values = matrix_of(registers, self._fragment, self._dtype)
            if pending.any():
                values[..., pending] = self._pending[..., warps[pending]]
        return values if wanted.all() else np.where(wanted, values, self._dtype.type(0))

    def put(self, warps: AnyArray, values: AnyArray, until: AnyArray) -> None:
        """Results, there when `until` groups are retired."""
        if warps.size == self.until.size:
            self._pending = values
        else:
            self._pending[..., warps] = values
        self.until[warps] = until

    def deliver(self, retired: AnyArray) -> None:
        """Write the results of groups that are retired."""
        done = np.flatnonzero((self.until > 0) & (self.until <= retired))
        if not done.size:
            return
        everybody = done.size == self.until.size
        values = self._pending if everybody else self._pending[..., done]
        for register, bits in zip(
            self._registers, registers_of(values, self._fragment), strict=True
        ):
            if everybody:
                np.copyto(register, bits)
            else:
                register[:, done] = bits
        self.until[done] = 0


@dataclass
class _Read:
    """Shared memory that an execution of wgmma reads."""

    indices: AnyArray
    """Units of 16 bytes, (32, warps)."""
    warps: AnyArray
    """Flags of those that have not waited for it."""
    until: AnyArray
    """Groups of each warp that must be retired."""


class _Agreement:
    """The wgmma that the warps of each warpgroup have run, in order, as rows of numbers."""

    _FIRST_ROOM = 64

    def __init__(self, warpgroup: AnyArray, numbers: int) -> None:
        self._warpgroup = warpgroup
        self._shape = int(warpgroup[-1]) + 1, numbers
        self.reset()

    def reset(self) -> None:
        self._runs = np.zeros((self._FIRST_ROOM, *self._shape), np.uint64)
        self._length = np.zeros(self._shape[0], np.int64)
        self.position = np.zeros(self._warpgroup.size, np.int64)
        """Number that each warp has run."""

    def length(self) -> AnyArray:
        """Number that the furthest warp of each warp's warpgroup has run."""
        furthest: AnyArray = self._length[self._warpgroup]
        return furthest

    def differences(self, warps: AnyArray, rows: AnyArray) -> AnyArray:
        """Note the next run of `warps`, one of `rows` each; flags (warps, numbers) of what is not
        as in a warp that was there before.
        """
        at, group = self.position[warps], self._warpgroup[warps]
        if int(at.max()) >= len(self._runs):
            self._runs = np.concatenate([self._runs, np.zeros_like(self._runs)])
        first = at == self._length[group]
        self._runs[at[first], group[first]] = rows[first]
        self._length[group[first]] = at[first] + 1
        self.position[warps] += 1
        differ: AnyArray = self._runs[at, group] != rows
        return differ


class Warpgroups:
    """The wgmma of a chunk's warps. `warpgroup_of_warp` numbers the warpgroups, in ascending order;
    `register_names` are those of the function's registers, by slot.
    """

    NUMBERS = ("instruction", "descriptor of A", "descriptor of B", "scale-d")
    """Of each run of an instruction, what all warps of a warpgroup have the same."""

    def __init__(
        self,
        flow: Flow,
        shared: SharedMemory,
        warpgroup_of_warp: AnyArray,
        register_names: Sequence[str],
    ) -> None:
        self._flow, self._shared = flow, shared
        self._warpgroup = warpgroup_of_warp
        self._names = register_names
        warps = warpgroup_of_warp.size
        shape = len(self._names), warps
        self._group = np.zeros(warps, np.int64)
        """Groups that each warp has committed."""
        self._retired = np.zeros(warps, np.int64)
        self._last = np.zeros(warps, np.int64)
        """Groups to be retired for all wgmma of each warp to be done."""
        self._fences = np.zeros(warps, np.int64)
        # Of registers and warps: the number of the wgmma.fence that makes the last touch of others
        # harmless, and of the last wgmma; the groups to be retired until it is free; its last role.
        self._touched = np.zeros(shape, np.int32)
        self._used = np.zeros(shape, np.int32)
        self._busy = np.zeros(shape, np.int32)
        self._role = np.zeros(shape, np.int32)
        self._agreement = _Agreement(self._warpgroup, len(self.NUMBERS))
        self._accumulators: dict[tuple[object, ...], Accumulators] = {}
        self._reads: list[_Read] = []
        flow.on_exit = self._check_exit

    def reset(self) -> None:
        for state in (self._group, self._retired, self._last, self._fences):
            state.fill(0)
        for table in (self._touched, self._used, self._busy, self._role):
            table.fill(0)
        for each in self._accumulators.values():
            each.until.fill(0)
        self._agreement.reset()
        self._reads.clear()

    def accumulators(
        self, shape: str, slots: Sequence[int], registers: list[AnyArray], fragment: Fragment,
        dtype: AnyDType,
    ) -> Accumulators:  # fmt: skip
        """Accumulators of all wgmma of `shape` in the registers `slots`."""
        key = shape, dtype, *slots
        if key not in self._accumulators:
            role = _OPERAND_A + 1 + len(self._accumulators)
            self._accumulators[key] = Accumulators(role, registers, fragment, dtype)
        return self._accumulators[key]

    # -- Instructions -----------------------------------------------------------------------------

    def fence(self, mask: Mask) -> None:
        self._fences += 1 if mask is None else mask.any(axis=0)

    def commit(self, mask: Mask) -> None:
        self._group += 1 if mask is None else mask.any(axis=0)

    def wait(self, pending: int, mask: Mask) -> None:
        """Retire all but the last `pending` groups."""
        limit = np.maximum(self._retired, self._group - pending)
        here = True if mask is None else mask.any(axis=0)
        np.copyto(self._retired, limit, where=here)
        for each in self._accumulators.values():
            each.deliver(self._retired)
        left = []
        for read in self._reads:
            done = read.warps & (read.until <= self._retired)
            if done.any():
                own = np.repeat(np.flatnonzero(done), len(read.indices))
                self._shared.end_async_read(read.indices[:, done].T.ravel(), own)
                read.warps &= ~done
            if read.warps.any():
                left.append(read)
        self._reads = left

    def agree(self, warps: AnyArray, rows: AnyArray) -> None:
        """All warps of a warpgroup run the same instructions of wgmma, those that fence, commit and
        wait among them; `rows` has `NUMBERS` for each of `warps`.

        A warp may be ahead of the others: those that come later are compared with it.
        """
        newly = self._agreement.position[warps] == self._agreement.length()[warps]
        whole = self._flow.alive.all(axis=0)
        present = np.bincount(self._warpgroup, whole)[self._warpgroup[warps]]
        if (newly & (present != WARPS)).any():
            alone = newly & (present != WARPS)
            count = int(present[alone][0])
            raise Fault(
                f"wgmma needs the {WARPS} warps of a warpgroup, all of their threads; here run "
                f"{count}",
                self._lanes_of(warps[alone]),
            )
        differ = self._agreement.differences(warps, rows)
        if differ.any():
            wrong = differ.any(axis=1)
            what = self.NUMBERS[int(differ[wrong][0].argmax())]
            raise Fault(
                f"the warps of a warpgroup do not run the same wgmma: the {what} is another",
                self._lanes_of(warps[wrong]),
            )

    def use(
        self, accumulators: Accumulators, slots: Sequence[int], of_a: Sequence[int], warps: AnyArray
    ) -> AnyArray:
        """A wgmma of `warps` is issued: it uses the registers `slots` as accumulators, and `of_a`.

        Returns of each warp how many groups must be retired for it.
        """
        fences, since = self._fences[warps], self._fences[warps] + 1
        if not fences.all():
            raise Fault("a wgmma without a wgmma.fence before", self._lanes_of(warps[fences == 0]))
        every = np.array([*slots, *of_a])
        # Rows of all warps are found faster than some of each.
        place = every if warps.size == self._group.size else np.ix_(every, warps)
        roles = np.array([accumulators.role] * len(slots) + [_OPERAND_A] * len(of_a))[:, None]
        before = self._role[place]
        other = (before != roles) & (before != _NO_ROLE)
        in_flight = other & (self._busy[place] > self._retired[warps])
        if in_flight.any():
            slot, lanes = (
                self._first(every, in_flight),
                self._lanes_of(warps[in_flight.any(axis=0)]),
            )
            raise Fault(
                f"uses the register {self._names[slot]}, which a wgmma in flight uses in another "
                "shape or as another operand",
                lanes,
                Earlier("uses", slot, by=lanes),
            )
        for stale, who in (
            (self._touched[place] == since, "another instruction"),
            (other & (self._used[place] == since), "a wgmma of another shape"),
        ):
            if stale.any():
                raise Fault(
                    f"uses the register {self._names[self._first(every, stale)]}, which {who} has "
                    "used without a wgmma.fence between",
                    self._lanes_of(warps[stale.any(axis=0)]),
                )
        until: AnyArray = self._group[warps] + 1
        self._role[place], self._used[place], self._busy[place] = roles, since, until
        self._last[warps] = until
        return until

    def reads(self, indices: AnyArray, warps: AnyArray, until: AnyArray) -> None:
        """Note the units of 16 bytes of shared memory that a wgmma of `warps` reads, begun as
        `SharedMemory.begin_async_read` has it, (32, all warps).
        """
        here, groups = np.zeros((2, self._group.size), np.int64)
        here[warps], groups[warps] = 1, until
        self._reads.append(_Read(indices, here.astype(np.bool_), groups))

    def guarding(self, step: Step, slots: Sequence[int]) -> Step:
        """`step` of an instruction that touches the registers `slots` and is no wgmma, checked."""
        rows = np.array(slots)

        def guarded(mask: Mask) -> None:
            busy = self._busy[rows] > self._retired
            if np.count_nonzero(busy):
                busy &= True if mask is None else mask.any(axis=0)
                if busy.any():
                    lanes = np.repeat(busy.any(axis=0)[None, :], 32, axis=0)
                    slot = self._first(rows, busy)
                    raise Fault(
                        f"touches the register {self._names[slot]}, which a wgmma in flight "
                        "uses: no wgmma.wait_group has waited for it",
                        lanes if mask is None else lanes & mask,
                        Earlier("uses", slot, by=lanes),
                    )
            if mask is None:
                self._touched[rows] = self._fences + 1
            else:
                here = np.flatnonzero(mask.any(axis=0))
                self._touched[np.ix_(rows, here)] = self._fences[here] + 1
            step(mask)

        return guarded

    # -- Inner ------------------------------------------------------------------------------------

    def _check_exit(self, mask: Mask) -> None:
        leaving = self._flow.alive if mask is None else mask
        warps = leaving.any(axis=0)
        open_ones = warps & (self._last > self._retired)
        if open_ones.any():
            committed = (self._last <= self._group)[open_ones][0]
            missing = "waits for" if committed else "commits"
            raise Fault(
                f"exits with a wgmma in flight: no wgmma.{'wait' if committed else 'commit'}_group "
                f"{missing} it",
                leaving & open_ones,
            )
        behind = warps & (self._agreement.position < self._agreement.length())
        if behind.any():
            run = int(self._agreement.position[behind][0])
            most = int(self._agreement.length()[behind][0])
            raise Fault(
                f"exits after {run} of the {most} instructions of wgmma that another warp of the "
                "warpgroup has run",
                leaving & behind,
            )

    def _first(self, slots: AnyArray, marks: AnyArray) -> int:
        """The slot of the first register marked in (registers, warps)."""
        return int(slots[marks.any(axis=1).argmax()])

    def _lanes_of(self, warps: AnyArray) -> AnyArray:
        """The lanes of the warps of these numbers."""
        lanes = np.zeros((32, self._group.size), np.bool_)
        lanes[:, warps] = True
        return lanes
