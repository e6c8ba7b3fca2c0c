"""The CPU executor: runs rendered PTX with NumPy, and checks it harder than a GPU would.

The threadblocks of a launch run in chunks of some hundred warps, all in step: an instruction is a
few NumPy calls on arrays of shape (32, warps). Where lanes part, the lowest instruction goes first;
lanes that go round in circles let others go on. A launch ends, or goes beyond its `Budget`.

What is checked, each fault with file, line, block and thread: instructions and types when a kernel
is loaded, and that its ``.version`` and ``.target`` have them; global accesses against the buffers
of the launch; shared accesses against what was written, what asynchronous copies still own, and
what other warps, and other lanes of the warp, do between the same two barriers, or where there are
mbarriers and asynchronous units, without one happening before the other
(`cuevo.sim.memory.happens_before`);
alignment; local memory and registers that were never written; ``.aligned`` instructions and member
masks under divergence; barriers and mbarriers that are never complete; fences of the asynchronous
proxy; registers that a wgmma in flight uses, its fences, groups and descriptors, and that all warps
of a warpgroup run it. Not checked: the order of accesses to global memory.

Where the PTX ISA leaves a choice: wgmma reads shared memory when it is issued, a warp its 16 rows
of A and all of B, and writes its accumulators when it is waited for, no sooner; asynchronous copies
read global memory when they are issued, and bring it as late as they may; so do st.async and
red.async, in the order of their issue; barriers without a count wait for the warps that have not
exited; atomics take their turns in the order of blocks, warps and lanes; NaNs, ex2 and rcp are
those of an H200, the other approximate functions are correctly rounded; integers divided by zero
give all ones; the lowest lane is elected; a clock advances with each look at it; the registers
of the environment and of performance counters are 0.

With ``SimExecutor(arch, profile=True)`` a kernel's `profile` has the executions of each instruction
in its last launch, for each access of shared memory the wavefronts that its banks needed, and for
each of global memory the sectors. With ``trace=Trace(...)`` it tells what threads do.
"""

from cuevo.sim.memory.banks import BankUse
from cuevo.sim.memory.sectors import SectorUse
from cuevo.sim.run.budget import Budget
from cuevo.sim.run.executor import LoadedKernel, SimExecutor
from cuevo.sim.run.profile import InstructionUse, Loop, Profile
from cuevo.sim.run.trace import Trace

__all__ = [
    "BankUse",
    "Budget",
    "InstructionUse",
    "LoadedKernel",
    "Loop",
    "Profile",
    "SectorUse",
    "SimExecutor",
    "Trace",
]
