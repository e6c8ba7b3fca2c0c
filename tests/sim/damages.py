"""Texts with something broken in them: bytes, words, numbers, lines, nesting."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from sim.broken.originals import Launch, original
from sim.conftest import Buffer
from sim.text.test_compiled import TEXT as COMPILED
from sim.text.test_compiled_calls import CALL, ENTRY
from sim.text.test_compiled_calls import TEXT as CALLING

from cuevo.errors import SimulatorError
from cuevo.sim import Budget, SimExecutor
from cuevo.sim.run import executor

LITTLE = Budget(instructions=8000, seconds=30)
"""A kernel that does not end is found at once."""
WORD = re.compile(r"[A-Za-z_%.$][\w.:]*|\d+|\S")
_NUMBERS = [
    *["0", "1", "-1", "3", "08", "65536", "0x7fffffff", "4294967295", "9" * 20, "7" * 5000, "1e9"],
    *["1e999", "0f7fc00000", "0xffffffffffffffffff", "1/0", "1%0", "1<<-1", "1<<999999999999"],
    *["(" * 300 + "1" + ")" * 300, "-" * 3000 + "1", "1 ? 2", "!", "_", "%tid", "{1, 2}", "[]"],
]
_CHARACTERS = [*map(chr, range(32, 127)), "\n", "\0", "\u00e9", "\u2028", "\ud800"]
_INSERTED = [
    *["{" * 400, "}" * 3, "(", "[", '"', "/*", "*/", "//", "\\", "@p1 ", "@!", ";", ":", ","],
    *[".param .b32 p[];", ".shared .b32 s[];", ".local .b8 l[];", ".local .b8 l[500000];"],
    *[".reg .b32 many<1000000>;", ".reg .v4 .f32 v;", ".reg .pred;", ".align 3 ", ".extern "],
    *[".global .b8 g[999999999999];", ".global .b64 a = a;", ".const .b8 c[2] = {{{{1}}}};"],
    *[".global .b8 x[4] = {1, 2, 3, 4, 5};", ".global .f32 y = 1e300;", ".loc 1 2"],
    *[".const .b16 z = 0f7f800000;", ".maxntid 1, 2, 3, 4", ".reqnctapercluster 999"],
    *[".reqntid 0", ".reqntid 1, 1, 1024", "=", "|"],
    *[".func f() { call f; }", "call f;", "call.uni (", "L: L:", "bra L;", "brx.idx %r1, L;"],
    *[".branchtargets L;", ".callprototype _;", ".section .x {", '.file 1 "', ".version 99"],
]  # fmt: skip


def damage(rng: random.Random, text: str) -> str:
    """`text` with one to four things changed."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        lines = text.split("\n")
        one, other = (rng.randrange(len(lines)) for _ in range(2))
        at = rng.randrange(len(text))
        match rng.randrange(10):
            case 0:
                text = text[:at] + rng.choice(_CHARACTERS) + text[at + 1 :]
            case 1:
                text = text[:at] + text[at + rng.randrange(1, 30) :] or "{"
            case 2 | 3:
                words = list(WORD.finditer(text))
                word, by = rng.choice(words), rng.choice(words).group()
                text = text[: word.start()] + by + text[word.end() :]
            case 4 | 5:
                number = rng.choice(list(re.finditer(r"\d+", text)) or [re.match("", text)])
                assert number is not None
                text = text[: number.start()] + rng.choice(_NUMBERS) + text[number.end() :]
            case 6:
                lines.insert(one, lines[other])
                text = "\n".join(lines)
            case 7:
                lines[one], lines[other] = lines[other], lines[one]
                text = "\n".join(lines)
            case 8:
                lines.insert(one, rng.choice(_INSERTED))
                text = "\n".join(lines)
            case _:
                del lines[one : one + rng.choice((1, 1, len(lines)))]
                text = "\n".join(lines) or "{"
    return text


@dataclass(frozen=True)
class Damaged:
    """A text, and how it is launched."""

    text: str
    launch: Callable[[str], None]

    def run(self) -> None:
        """Nothing but the executor's own error may come of it. A launch with another geometry than
        the text allows is a ValueError, as for any text.
        """
        try:
            self.launch(self.text)
        except SimulatorError:
            pass
        except ValueError as error:
            if not _of_launch(error):
                raise


def damaged(rng: random.Random) -> Damaged:
    """A damaged text of a kernel of the package, or as compilers write them."""
    match rng.randrange(4):
        case 0:
            small = ("attention_delta_sm70", "key_bias_sm70", "partial_sums_sm70")
            backward = original("backward")
            launch = backward.launches[backward.find(rng.choice(small))]
            return Damaged(damage(rng, launch.kernel.text), partial(_again, launch, "sm_80"))
        case 1:
            launch = original(rng.choice(("gemm_sm90a", "gemm_sm90a, columns"))).launches[0]
            return Damaged(damage(rng, launch.kernel.text), partial(_again, launch, "sm_90a"))
        case 2:
            return Damaged(damage(rng, COMPILED), partial(_compiled, "scale"))
    body = f"mov.u64 %rd2, functions; ld.global.u64 %rd4, [%rd2]; {CALL.format()}"
    text = CALLING.replace('"FORM"', "{1}") + ENTRY.format(body=body)
    return Damaged(damage(rng, text), partial(_compiled, "test"))


def _again(launch: Launch, arch: str, text: str) -> None:
    kernel = replace(launch.kernel, text=text)
    launch.run(SimExecutor(arch, budget=LITTLE).load(kernel))


def _compiled(entry: str, text: str) -> None:
    source, target = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    pointers = source.ctypes.data, 0, target.ctypes.data
    kernel = SimExecutor("sm_80", budget=LITTLE).load_text(entry, text)
    packed = np.array(pointers, np.uint64).tobytes()
    buffers = [Buffer(source), Buffer(target)]
    kernel.launch((1, 1, 1), (32, 1, 1), 0, packed[: 8 if entry == "test" else 24], buffers=buffers)


def _of_launch(error: ValueError) -> bool:
    """Whether it is about the geometry of a launch."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename == executor.__file__
