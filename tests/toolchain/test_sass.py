"""cuevo.toolchain.sass: machine code, the lines that it is from, live registers, pipes."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.small_instances import INSTANCES, configured

from cuevo.errors import CuevoError
from cuevo.toolchain import sass
from cuevo.toolchain.assembler import Cubin, assemble
from cuevo.toolchain.sass import Listing, disassemble, pipe
from cuevo.toolchain.template import RenderedKernel, render

pytestmark = pytest.mark.unit

FORWARD = "evoformer_forward_sm80"


@cache
def read(name: str, arch: str) -> tuple[RenderedKernel, Cubin, Listing]:
    """A small instance of a kernel that ships, and its machine code."""
    settings = dict(reversed(INSTANCES))[name]
    module, config, _ = configured(name, settings)
    kernel = render(name, module.values(config))
    cubin = assemble(kernel, arch)
    return kernel, cubin, disassemble(cubin)


READ = [("gemm_sm75", "sm_75"), (FORWARD, "sm_80"), (FORWARD, "sm_90"), (FORWARD, "sm_120")]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_an_instruction_is_of_the_line_that_asks_for_it(arch: str) -> None:
    kernel, _, listing = read(FORWARD, arch)
    text = kernel.located.text.splitlines()
    asked = {"MUFU.EX2": "ex2.", "HMMA.16816": "m16n8k16", "LDSM": "ldmatrix", "LDGSTS": "cp.async"}
    for opcode, word in asked.items():
        found = [each for each in listing.instructions if each.opcode.startswith(opcode)]
        assert found, opcode
        for each in found:
            assert each.line is not None and word in text[each.line - 1], each


@pytest.mark.parametrize(("name", "arch"), [READ[0], READ[2]])
def test_the_lines_are_those_that_the_disassembler_reads(
    name: str, arch: str, tmp_path: Path
) -> None:
    _, cubin, listing = read(name, arch)
    image = tmp_path / "k.cubin"
    image.write_bytes(cubin.code)
    command = [sass.disassembler(), "-c", "-gp", str(image)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, section = printed.split(f"\t.section\t.text.{cubin.name},")
    line, expected = 0, {}
    for told, address in re.findall(r'//## File ".*", line (\d+)|/\*([0-9a-f]{4,})\*/', section):
        line = int(told or line)
        expected |= {int(address, 16): line} if address else {}
    found = {each.address: each.line for each in listing.instructions}
    assert found == {address: expected[address] for address in found} != {}


@pytest.mark.parametrize(("name", "arch"), READ)
def test_every_instruction_has_a_pipe_and_the_registers_are_those_of_the_assembler(
    name: str, arch: str
) -> None:
    _, cubin, listing = read(name, arch)
    assert {each.opcode for each in listing.instructions if each.pipe == "unknown"} == set()
    live = max(each.live["GPR"] for each in listing.instructions)
    assert 0.6 * cubin.resources.registers < live <= cubin.resources.registers
    addresses = [each.address for each in listing.instructions]
    assert addresses == [*range(0, 16 * len(addresses), 16)]
    loop = listing.main_loop()
    assert loop[-1].target == loop[0].address
    assert sass.by_pipe(loop)["tensor"] > 0


@pytest.mark.parametrize(
    ("opcode", "arch", "expected"),
    [
        ("HFMA2.BF16_V2", "sm_80", "fp16"),
        ("HFMA2.BF16_V2", "sm_90", "fma"),
        ("IMAD.MOV.U32", "sm_80", "fma"),
        ("IMAD.MOV.U32", "sm_86", "fma heavy"),
        ("F2FP.BF16.F32.PACK_AB", "sm_90", "alu"),
        ("F2F.F16.F32", "sm_75", "fp16"),
        ("UIADD3.X", "sm_90", "uniform"),
        ("UTMALDG.4D", "sm_90", "tma"),
        ("WHATEVER.F32", "sm_90", "unknown"),
    ],
)
def test_a_pipe_is_that_of_the_architecture(opcode: str, arch: str, expected: str) -> None:
    assert pipe(opcode, arch) == expected


def test_no_opcode_has_two_pipes() -> None:
    listed = [opcode for opcodes in sass._OPCODES.values() for opcode in opcodes.split()]
    assert len(listed) == len(set(listed))


def test_without_a_disassembler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sass.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CuevoError, match="nvidia-cuda-nvdisasm"):
        sass.disassembler.__wrapped__()
    program = tmp_path / "nvidia/cu13/bin/nvdisasm"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    assert sass.disassembler.__wrapped__() == str(program)
