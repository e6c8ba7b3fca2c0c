"""Texts that nobody would write: damaged ones, and kernels of random instructions. The executor
comes to an end with all of them, and refuses them with its own error.

A launch with another geometry than the text allows is a ValueError, as for any text.
"""

import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim.broken.originals import Launch, original
from sim.instructions.statements import DECLARATIONS, statement
from sim.instructions.test_table_assembled import sample

from cuevo.arrays import view
from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor, executor, schedule
from cuevo.sim.instructions.table import forms

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not end is found at once."""
    monkeypatch.setattr(schedule, "MOST_RUNS", 500)


def of_launch(error: ValueError) -> bool:
    """Whether it is about the geometry of a launch."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == executor.__file__


# -- Damaged texts ---------------------------------------------------------------------------------

WORD = re.compile(r"[A-Za-z_%.$][\w.:]*|\d+|\S")
NUMBERS = ["0", "1", "-1", "3", "65536", "0x7fffffff", "4294967295", "9" * 20, "1e9", "0f7fc00000"]
CHARACTERS = [*map(chr, range(32, 127)), "\n", "\0", "é", "\u2028"]


def damaged(rng: random.Random, text: str) -> str:
    """`text` with one to four things changed: bytes, words, numbers, lines, its end."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        one, other = (rng.randrange(len(lines)) for _ in range(2))
        at = rng.randrange(len(text))
        match rng.randrange(8):
            case 0:
                text = text[:at] + rng.choice(CHARACTERS) + text[at + 1 :]
            case 1:
                text = text[:at] + text[at + rng.randrange(1, 30) :]
            case 2 | 3:
                words = list(WORD.finditer(text))
                word, by = rng.choice(words), rng.choice(words).group()
                text = text[: word.start()] + by + text[word.end() :]
            case 4:
                number = rng.choice(list(re.finditer(r"\d+", text)))
                text = text[: number.start()] + rng.choice(NUMBERS) + text[number.end() :]
            case 5:
                lines.insert(one, lines[other])
                text = "\n".join(lines)
            case 6:
                lines[one], lines[other] = lines[other], lines[one]
                text = "\n".join(lines)
            case _:
                del lines[one : one + rng.choice((1, 1, len(lines)))]
                text = "\n".join(lines) or "{"
    return text


SMALL = ("attention_delta_sm70", "key_bias_sm70", "partial_sums_sm70")


@pytest.mark.parametrize("seed", range(200))
def test_damaged_texts(seed: int) -> None:
    rng = random.Random(seed)
    backward = original("backward")
    launch: Launch = backward.launches[backward.find(rng.choice(SMALL))]
    kernel = replace(launch.kernel, text=damaged(rng, launch.kernel.text))
    try:
        launch.run(SimExecutor("sm_80").load(kernel))
    except SimulatorError:
        pass
    except ValueError as error:
        assert of_launch(error)


@pytest.mark.parametrize("seed", range(100))
def test_texts_of_random_words(seed: int) -> None:
    rng = random.Random(seed)
    words = WORD.findall(original("backward").launches[1].kernel.text)
    text = " ".join(rng.choice(words) for _ in range(rng.randrange(200)))
    head = rng.choice(["", ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() {"])
    with pytest.raises(SimulatorError):
        SimExecutor("sm_80").load_text("k", head + text)


# -- Random kernels --------------------------------------------------------------------------------

HEAD = """.version 9.0
.target sm_90
.address_size 64
.func subroutine() { ret; }
.visible .entry k(.param .u64 buffer)
{
.shared .align 16 .b8 own[512];
.reg .b32 lane;
"""
THREADS = 64
_NOT_ALONE = re.compile(r"brx|call|ret|exit|trap|wgmma|bra|param|barrier|nanosleep")
"""What needs more around it than a statement, or is drawn on its own."""


def opcodes(rng: random.Random, count: int) -> list[str]:
    """Statements of forms that are drawn evenly."""
    usable = [form for form in forms() if not _NOT_ALONE.search(form.row)]
    found = []
    for form in rng.choices(usable, k=count):
        found.append(statement(form, rng.choice(list(sample(form, 12)))))
    return found


def random_kernel(rng: random.Random) -> str:
    """Registers with something in them, then statements, branches both ways and barriers. Half of
    the addresses lie in the buffer, most others in shared memory.
    """
    lines = [HEAD + DECLARATIONS.replace(".param .align 16 .b8 given[64];", "")]
    lines.append("mov.u32 lane, %tid.x;")
    for i in range(20):
        lines += [
            f"mov.b16 h{i}, {rng.randrange(65536)};",
            f"mad.lo.u32 r{i}, lane, {rng.randrange(1 << 31)}, {rng.randrange(1 << 32)};",
            f"mov.b32 f{i}, r{i};",
            f"cvt.u64.u32 d{i}, r{i};",
            f"mov.b64 g{i}, d{i};",
        ]
        if i < 10:
            lines.append(f"setp.lt.u32 p{i}, lane, {rng.randrange(THREADS)};")
    shared = rng.random() < 0.5
    lines.append("mov.u64 d19, own;" if shared else "ld.param.u64 d19, [buffer];")
    lines += [f"cvt.u64.u32 d18, lane; mad.lo.u64 d19, d18, {rng.choice((0, 4, 8, 16))}, d19;"]
    body = opcodes(rng, rng.randrange(5, 40))
    for number, line in enumerate(body):
        guard = f"@{rng.choice(('', '!'))}p{rng.randrange(10)} " if rng.random() < 0.2 else ""
        lines.append(f"L{number}: {guard}{line}")
        if rng.random() < 0.1:
            lines.append(f"@p{rng.randrange(10)} bra L{rng.randrange(len(body))};")
        if rng.random() < 0.1:
            lines.append(rng.choice(("bar.sync 0;", "bar.warp.sync 0xffffffff;", "exit;", "ret;")))
    return "\n".join([*lines, "ret;", "}"])


@pytest.mark.parametrize("seed", range(400))
def test_kernels_of_random_instructions(seed: int) -> None:
    rng = random.Random(seed)
    memory = np.zeros(2048, np.uint8)
    params = np.array([memory.ctypes.data], np.uint64).tobytes()
    run_random(random_kernel(rng), params, [view(memory)])


def run_random(text: str, params: bytes, buffers: list[Any]) -> None:
    try:
        kernel = SimExecutor("sm_90").load_text("k", text)
        kernel.launch((2, 1, 1), (THREADS, 1, 1), 0, params, buffers=buffers)
    except SimulatorError:
        pass
