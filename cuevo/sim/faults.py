"""Faults of instructions, and the errors they become: file, line, kernel, block and thread."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cuevo.errors import SimulatorError
from cuevo.sim.aliases import AnyArray, Mask


class Origin(Protocol):
    """Source line of a line of the rendered text."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


class KernelText(Protocol):
    """A rendered kernel as the executor needs it; `cuevo.toolchain.RenderedKernel` is one."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    def origin(self, line: int) -> Origin | None: ...
    def callers(self, line: int) -> Sequence[Origin]:
        """Where the macro, or the inlined function, that the line is of was called; the innermost
        call first.
        """
        ...

    def field(self, offset: int) -> str:
        """Name of what lies there in the parameter block, if the text itself does not say so; else
        "".
        """
        ...

    def describe(self) -> str: ...


class PtxError(Exception):
    """Something wrong at a line of the text, independent of any launch."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(frozen=True)
class Earlier:
    """What a fault is about, as far as is known who did it: an access to shared memory, or a wgmma
    that goes on using a register.
    """

    did: str
    """ "wrote", "read" or "uses"."""
    position: int
    """Where in the storage of all blocks; the slot of the register."""
    size: int = 0
    by: Mask = None
    """The lanes of which one made it, (32, warps)."""


class Fault(Exception):
    """Something went wrong while an instruction ran.

    `lanes` marks the offending lanes, shape (32, warps), None if no particular lane is to blame.
    """

    def __init__(self, message: str, lanes: Mask = None, earlier: Earlier | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.lanes = lanes
        self.earlier = earlier


def first_thread(lanes: AnyArray) -> tuple[int, int]:
    """Lane and warp of the first of the marked lanes, (32, warps): of the first warp that has
    one.
    """
    warp = int(lanes.any(axis=0).argmax())
    return int(lanes[:, warp].argmax()), warp


def place(kernel: KernelText, line: int) -> str:
    """``ptx/<file>:<line>``, or the rendered text's own line where no template line is known."""
    origin = kernel.origin(line)
    return (
        f"{kernel.name} (rendered text):{line}"
        if origin is None
        else f"{origin.file}:{origin.line}"
    )


def error_at(kernel: KernelText, line: int, message: str) -> SimulatorError:
    """The error for `message` at a line of the rendered text."""
    lines = kernel.text.splitlines()
    quoted = lines[line - 1].strip() if 1 <= line <= len(lines) else ""
    calls = "".join(f"\n  called at {each.file}:{each.line}" for each in kernel.callers(line))
    return SimulatorError(
        f"{place(kernel, line)}: {message}\n    {quoted}\n  in {kernel.describe()}{calls}"
    )
