"""Kernels in CUDA C++, compiled by nvcc, run as they are and are right."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sim.compiled import running
from sim.compiled.kernels import KERNELS, Kernel
from sim.compiled.texts import HERE, MODES, compiled, stored

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.kernel

LONG = ("cooperation", "clusters")
"""Sources whose texts for debuggers have a megabyte, most of it of headers."""


def mode_of(index: int, kernel: Kernel) -> str:
    """One mode for each, in turn: python tests/sim/compiled/running.py runs all in all modes."""
    is_long = kernel.source in LONG and kernel.name != "neighbours"
    modes = [each for each in MODES if each != "debug" or not is_long]
    return modes[index % len(modes)]


CASES = [
    pytest.param(kernel, mode, id=f"{kernel.name}-{mode}")
    for index, kernel in enumerate(KERNELS.values())
    for mode in [mode_of(index, kernel)]
]


@pytest.mark.parametrize(("kernel", "mode"), CASES)
def test_results(kernel: Kernel, mode: str) -> None:
    assert not running.complaint(kernel, running.result(kernel, mode))


def test_every_kernel_of_the_sources_is_run() -> None:
    texts = [each.read_text("utf-8") for each in (HERE / "sources").glob("*.cu")]
    named = re.findall(r"__global__ void(?: __cluster_dims__\([\d, ]+\))? (\w+)\(", "".join(texts))
    assert sorted(named) == sorted(KERNELS) and len(named) >= 60


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_what_is_stored_is_what_the_compiler_writes() -> None:
    """Of one source; the others take seconds."""
    text = compiled(Path(HERE / "sources" / "reductions.cu"), "O3").decode()
    assert text.splitlines()[9:] == stored()["reductions.O3"].splitlines()[9:]


def test_an_assertion_and_a_printf(capsys: pytest.CaptureFixture[str]) -> None:
    running.result(KERNELS["printing"], "O3")
    assert capsys.readouterr().out == "thread 3 has 7 and 1.75\n"
    negative = KERNELS["assertions"]
    negative = Kernel(**{**vars(negative), "given": np.arange(-5, 27, dtype="i4")})
    with pytest.raises(SimulatorError, match=r"control\.cu:\d+: assertion 'in\[threadIdx\.x\]"):
        running.result(negative, "lineinfo")


def test_faults_name_the_line_of_the_source() -> None:
    """A barrier less in the text of a sum is a race in the line that needs it."""
    text = stored()["reductions.lineinfo"]
    begin = text.index(".entry block_sum")
    first = text.index("bar.sync", begin)
    broken = text[:first] + text[text.index(";", first) + 1 :]
    with pytest.raises(SimulatorError, match=r"reductions\.cu:\d+: data race") as caught:
        running.result(KERNELS["block_sum"], "lineinfo", broken)
    assert "block_sum" in str(caught.value)
