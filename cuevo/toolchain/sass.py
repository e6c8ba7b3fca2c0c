"""Machine code, read back: the instructions of a cubin, the line of the PTX text that each is from,
the registers that are live there, and the pipe that runs it.

The reader is nvdisasm, of the package nvidia-cuda-nvdisasm or of a CUDA toolkit.
"""

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from cuevo.architectures import architecture
from cuevo.errors import CuevoError
from cuevo.toolchain.assembler import Cubin
from cuevo.toolchain.image import Image

__all__ = [
    "PIPES",
    "Listing",
    "MachineInstruction",
    "by_pipe",
    "disassemble",
    "disassembler",
    "pipe",
]


@dataclass(frozen=True)
class MachineInstruction:
    """An instruction of the machine."""

    address: int
    """Bytes from the beginning of the kernel; the functions that it calls are behind it, one after
    the other.
    """
    guard: str
    """``@P0``, ``@!UP1``; "" for an instruction that always runs."""
    opcode: str
    """With its modifiers: ``HMMA.16816.F32.BF16``."""
    operands: str
    line: int | None
    """Line of the assembled text, which is `RenderedKernel.located`; None where none is told."""
    live: Mapping[str, int]
    """Registers that are live here, by kind: "GPR", "PRED", "UGPR", "UPRED"; those of one thread,
    and for the uniform ones of one warp.
    """
    pipe: str
    target: int | None = None
    """Address that a branch goes to, where the text has it."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.guard, self.opcode, self.operands)))


@dataclass(frozen=True)
class Listing:
    """The machine code of a kernel, and of the functions that it calls."""

    name: str
    arch: str
    instructions: tuple[MachineInstruction, ...]
    labels: Mapping[str, int]
    """Address of each label, and of each function that is called."""
    called: tuple[str, ...] = ()
    """The functions that the kernel calls, or may call."""

    def loops(self) -> list[Sequence[MachineInstruction]]:
        """The innermost loops, each from the target of a branch to that branch."""
        numbers = {each.address: index for index, each in enumerate(self.instructions)}
        loops = [
            range(numbers[each.target], index + 1)
            for index, each in enumerate(self.instructions)
            if each.target in numbers and numbers[each.target] < index
        ]
        return [
            self.instructions[loop.start : loop.stop]
            for loop in loops
            if not any(x != loop and loop.start <= x.start < x.stop <= loop.stop for x in loops)
        ]

    def main_loop(self) -> Sequence[MachineInstruction]:
        """The innermost loop with the most products of tensor cores, or else with the most
        instructions; nothing where there is no loop.
        """
        return max(
            self.loops(), key=lambda loop: (by_pipe(loop).get("tensor", 0), len(loop)), default=()
        )


def by_pipe(instructions: Sequence[MachineInstruction]) -> dict[str, int]:
    """How many instructions each pipe runs, the busiest first."""
    return dict(Counter(each.pipe for each in instructions).most_common())


# -- The pipes -------------------------------------------------------------------------------------

# Sources: the pipelines of NVIDIA's Nsight Compute, "Kernel Profiling Guide", for the kinds of
# instructions that a pipe takes; the instruction sets in "CUDA Binary Utilities" for what an opcode
# is; where the first leaves it open, the throughputs in the "CUDA C++ Programming Guide": what has
# the rate of transcendental functions, 16 a clock, is of their pipe.
_OPCODES = {
    "tensor": "BGMMA BMMA DMMA HGMMA HMMA IGMMA IMMA OMMA QGMMA QMMA UTCHMMA UTCIMMA UTCOMMA "
    "UTCQMMA",
    "fma": "FADD FADD2 FADD32I FFMA FFMA2 FFMA32I FMUL FMUL2 FMUL32I FSWZADD",
    "fma heavy": "IDP IMAD IMUL",
    "fp16": "HADD2 HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I HSET2 HSETP2",
    "fp64": "DADD DFMA DMUL DSETP",
    "alu": "BMSK CS2R F2FP F2IP FCHK FMNMX FMNMX3 FSEL FSET FSETP HMNMX2 I2FP I2IP IABS IADD IADD3 "
    "IADD32I IMNMX ISETP LEA LOP3 LOP32I MOV MOV32I P2R PLOP3 PRMT R2P SEL SGXT SHF SHL SHR "
    "VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3 VOTE",
    "xu": "BREV F2F F2I FLO FRND I2F MUFU POPC",
    "lsu": "ARRIVES ATOM ATOMG ATOMS CCTL CCTLL ERRBAR FENCE LD LDG LDGDEPBAR LDGSTS LDL LDS LDSM "
    "LDTM MATCH MEMBAR MOVM QSPC RED REDAS REDG REDUX S2R S2UR SHFL ST STAS STG STL STS STSM STTM "
    "SYNCS",
    "tma": "UBLKCP UBLKPF UBLKRED UTMACCTL UTMACMDFLUSH UTMALDG UTMAPF UTMAREDG UTMASTG",
    "tex": "SUATOM SULD SURED SUST TEX TLD TLD4 TMML TXD TXQ",
    "adu": "B2R BAR LDC R2B UCGABAR_ARV UCGABAR_WAIT",
    "cbu": "ACQBULK BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL CGAERRBAR DEPBAR ELECT "
    "ENDCOLLECTIVE EXIT JMP JMX JMXU KILL LEPC NANOSLEEP PREEXIT RET RPCMOV RTT UTCBAR WARPGROUP "
    "WARPGROUPSET WARPSYNC YIELD",
    "uniform": "LDCU R2UR VOTEU",
    "none": "NOP",
}
_PIPES = {opcode: name for name, opcodes in _OPCODES.items() for opcode in opcodes.split()}
PIPES = (*_OPCODES, "unknown")
"""Names of the pipes."""

_TO_FP16 = ("F2FP", "F2F.F16.F32")
_CONVERTING_ALU = 80
"""From here on the ALU makes fp16 of fp32; below, the pipe of fp16 does."""
_TWO_OF_FMA = 86
"""From here on there are two pipes for fp32, of which the heavy one takes integers, too, and which
take fp16 together; below there is one, and one of its own for fp16.
"""


def pipe(opcode: str, arch: str) -> str:
    """The pipe of `arch` that runs the instructions `opcode`, one of `PIPES`.

    What begins with a U is of the uniform datapath, if no other pipe has it.
    """
    base, number = opcode.partition(".")[0], architecture(arch).number
    name = _PIPES.get(base, "uniform" if base.startswith("U") else "unknown")
    if opcode.startswith(_TO_FP16) and number < _CONVERTING_ALU:
        return "fp16"
    if (name == "fp16" and number >= _TWO_OF_FMA) or (name == "fma heavy" and number < _TWO_OF_FMA):
        return "fma"
    return name


# -- The disassembler ------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def disassembler() -> str:
    """Path of nvdisasm: that of pip's package, or else the one on PATH.

    Raises CuevoError where there is none.
    """
    packages = Path(sysconfig.get_path("purelib")) / "nvidia"
    found = next(iter(sorted(packages.glob("**/bin/nvdisasm*"))), None)
    program = str(found) if found else shutil.which("nvdisasm")
    if program is None:
        raise CuevoError(
            "machine code cannot be read: looked for nvdisasm in pip's packages and on PATH; "
            "install the package nvidia-cuda-nvdisasm, as the extra `workbench` of cuevo does"
        )
    return program


def disassemble(cubin: Cubin) -> Listing:
    """The machine code of the kernel of a cubin, and of the functions that it calls.

    Raises CuevoError where there is no disassembler, or where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="cuevo-") as directory:
        image = Path(directory) / "kernel.cubin"
        image.write_bytes(cubin.code)
        command = [disassembler(), "-c", "-lrm", "count", str(image)]
        run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise CuevoError(f"nvdisasm cannot read {cubin.name}: {run.stderr.strip()}")
    return _read(cubin, run.stdout)


# -- Its listing -----------------------------------------------------------------------------------

_INSTRUCTION = re.compile(
    r"\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<guard>@!?U?P\w+)?\s*"
    r"(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>.*?)\s*;"
)
_INSTRUCTION_BYTES = 16
_LABEL = re.compile(r"(\.L\w+):")
_REGISTERS = "// |"
"""What the columns of live registers begin with."""


def _read(cubin: Cubin, listing: str) -> Listing:
    # The columns have their names once, above the first section.
    kinds = _cells(next((x for x in listing.splitlines() if f"{_REGISTERS} GPR" in x), ""))
    image = Image(cubin.code)
    found: list[MachineInstruction] = []
    labels: dict[str, int] = {}
    own, *called = image.functions(cubin.name)
    for name in (own, *called):
        begin = found[-1].address + _INSTRUCTION_BYTES if found else 0
        lines, line = image.lines(name), None
        waiting = [] if name == own else [name]
        for row in _section(name, listing):
            if match := _LABEL.match(row):
                waiting.append(match[1])
            elif match := _INSTRUCTION.match(row):
                address, opcode = int(match["address"], 16), match["opcode"]
                labels |= dict.fromkeys(waiting, begin + address)
                waiting.clear()
                line = lines.get(address, line)
                counts = (int(cell or 0) for cell in _cells(row))
                found.append(
                    MachineInstruction(
                        begin + address,
                        match["guard"] or "",
                        opcode,
                        match["operands"],
                        line,
                        dict(zip(kinds, counts, strict=True)),
                        pipe(opcode, cubin.arch),
                    )
                )
    aimed = (
        replace(each, target=labels[target]) if (target := _target(each)) in labels else each
        for each in found
    )
    return Listing(cubin.name, cubin.arch, tuple(aimed), labels, tuple(called))


def _section(name: str, listing: str) -> Iterator[str]:
    """The rows of a function's code."""
    inside = False
    for row in listing.splitlines():
        if row.lstrip().startswith(".section\t"):
            inside = f".text.{name}," in row
        elif inside:
            yield row


def _cells(row: str) -> list[str]:
    """The columns of live registers."""
    columns = row.partition(_REGISTERS)[2].rstrip().removesuffix("|")
    return [cell.strip() for cell in columns.split("|")]


def _target(instruction: MachineInstruction) -> str:
    """The label that a branch goes to; "" for anything else."""
    if instruction.opcode.partition(".")[0] not in ("BRA", "JMP"):
        return ""
    match = re.search(r"`\((\.L\w+)\)", instruction.operands)
    return match[1] if match else ""
