"""Texts that nobody would write: damaged ones, and kernels of random instructions. The executor
comes to an end with all of them, and refuses them with its own error. With CUEVO_WHOLE_SWEEPS=1
there are twice as many.
"""

import random
import re
from typing import Any

import numpy as np
import pytest
from helpers.attention_sweep import WHOLE
from sim.broken.originals import original
from sim.damages import LITTLE, WORD, damaged
from sim.instructions.statements import DECLARATIONS, WIDE, statement
from sim.instructions.test_table_assembled import sample

from cuevo.arrays import view
from cuevo.cuda.tensor_map import TensorMap
from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor
from cuevo.sim.instructions.table import forms
from cuevo.sim.run import budget

pytestmark = pytest.mark.kernel


def seeds(count: int) -> range:
    return range(2 * count if WHOLE else count)


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that does not end is found at once."""
    monkeypatch.setattr(budget, "DEFAULT", LITTLE)


# -- Damaged texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(240))
def test_damaged_texts(seed: int) -> None:
    """More of them: python tools/damage_texts.py."""
    damaged(random.Random(seed)).run()


@pytest.mark.parametrize("seed", seeds(50))
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
"""Binders that need more around them than a statement, or are drawn on their own."""


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
    lines = [HEAD + WIDE + DECLARATIONS.replace(".param .align 16 .b8 given[64];", "")]
    lines.append("mov.u32 lane, %tid.x;")
    for i in range(20):
        lines += [
            f"mov.b16 h{i}, {rng.randrange(65536)};",
            f"mad.lo.u32 r{i}, lane, {rng.randrange(1 << 31)}, {rng.randrange(1 << 32)};",
            f"mov.b32 f{i}, r{i};",
            f"cvt.u64.u32 d{i}, r{i};",
            f"mov.b64 g{i}, d{i};",
            f"mov.b128 x{i}, {{d{i}, d{i}}};",
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


@pytest.mark.parametrize("seed", seeds(200))
def test_kernels_of_random_instructions(seed: int) -> None:
    rng = random.Random(seed)
    memory = np.zeros(2048, np.uint8)
    params = np.array([memory.ctypes.data], np.uint64).tobytes()
    run_random(random_kernel(rng), params, [view(memory)])


_SMALL = (0, 0, 0, 1, 1, 2, 16, 16, 32, 64, 128, 1024)
_FAMILIES = (
    *(r"^mbarrier", r"bulk(?!\.tensor)", "tensor", r"mapa|ctarank|\.cluster", "wgmma"),
    r"^(st|red)\.async",
)
_BARRIERS = (*("bars", "bars+8", "bars+16", "r78") * 4, "bars+24", "bars+4")
_TILES = (
    *("tile", "tile+1024", "tile+2048", "r79") * 4,
    "tile+128",
    "tile+16",
    "tile+4080",
    "tile+4",
)
_BUFFERS = (*("d17", "d17+16", "d17+2048") * 4, "d17+1024", "d17+4")


def addressed(rng: random.Random, text: str) -> str:
    """A statement with addresses in the memory that its opcode names, more often than not."""
    opcode = text.split()[0]
    spaces = re.findall("shared|global", opcode)

    def address(_: object) -> str:
        counted = re.search(r"bulk|^(st|red)\.async\S*shared", opcode)
        space = spaces.pop(0) if spaces else "bars" if counted else ""
        if "tensor" in opcode and space in ("", "global"):
            return f"[{rng.choice(('d16',) * 9 + ('d17',))}"
        if "mbarrier." in opcode and "bulk" not in opcode:
            return f"[{rng.choice(_BARRIERS)}" if space else f"[d{rng.choice((13, 14))}"
        kinds = {"shared": _TILES, "global": _BUFFERS, "bars": _BARRIERS}
        return f"[{rng.choice(kinds.get(space, ('d13', 'd14', 'd17')))}"

    return re.sub(r"\[d19", address, text)


def asynchronous_kernel(rng: random.Random) -> str:
    """mbarriers that are there, then statements around them in threads of all kinds."""
    families = [[form for form in forms() if re.search(each, form.row)] for each in _FAMILIES]
    lines = [HEAD.replace("sm_90", "sm_90a"), DECLARATIONS.replace(", .param", "; .param")]
    lines[1] = lines[1].replace(".param .align 16 .b8 given[64];", "")
    if rng.random() < 0.5:
        lines[0] = lines[0].replace("{\n.shared", ".reqnctapercluster 2, 1, 1\n{\n.shared")
    lines.append(".shared .align 1024 .b8 tile[4096]; .shared .b64 bars[4]; mov.u32 lane, %tid.x;")
    lines.append("ld.param.u64 d17, [buffer]; add.u64 d16, d17, 1024;")
    lines.append("mov.u64 d14, bars; cvta.shared.u64 d14, d14; mov.u64 d13, tile;")
    lines.append("cvta.shared.u64 d13, d13;")
    for i in range(20):
        same = f"mov.b32 r{i}, {rng.choice(_SMALL)};"
        lines += [f"mad.lo.u32 r{i}, lane, {rng.choice(_SMALL)}, 16;" if i % 5 == 4 else same]
        lines += [f"mov.b16 h{i}, {rng.choice((1, 2, 3, 3, 3, 7))};"]
        policy = f"createpolicy.fractional.L2::evict_last.b64 d{i}, 1.0;"
        lines += [policy if rng.random() < 0.6 else f"cvt.u64.u32 d{i}, r{i};"] * (i < 9)
        lines += [f"setp.{rng.choice(('lt', 'gt'))}.u32 p{i % 10}, lane, 128;"]
    lines += [f"mov.b32 f{i}, 0f3f800000;" for i in range(130)]
    # The same places of the last block of the cluster.
    lines.append("mov.u32 r77, %cluster_nctarank; sub.u32 r77, r77, 1; mov.u32 r78, bars;")
    lines.append("mapa.shared::cluster.u32 r78, r78, r77; mov.u32 r79, tile;")
    lines.append("mapa.shared::cluster.u32 r79, r79, r77;")
    lines.append("setp.eq.u32 p9, lane, 0; setp.lt.u32 p8, lane, 32;")
    for i in range(3):
        lines.append(f"@p9 mbarrier.init.shared.b64 [bars+{8 * i}], {rng.choice((1, 2, 32, 64))};")
    lines.append("fence.proxy.async; bar.sync 0;")
    if rng.random() < 0.7:
        lines.append("mad.lo.u32 r70, lane, 32, 0; mov.u32 r71, tile; add.u32 r70, r70, r71;")
        lines += [f"st.shared.b32 [r70+{4 * i}], lane;" for i in range(8)]
        lines.append("fence.proxy.async; bar.sync 0;")
    count = rng.randrange(3, 25)
    for number in range(count):
        form = rng.choice(rng.choice(families))
        found = list(sample(form, 12))
        # The map has two axes.
        found = [each for each in found if "tensor.2d" in each] or found
        text = addressed(rng, statement(form, rng.choice(found)))
        if "wgmma.mma" in text and rng.random() < 0.9:
            lines.append("wgmma.fence.sync.aligned;")
        guard = rng.choice(("", "@p9 ", "@p9 ", "@p9 ", "@p8 ", "@!p8 ", "@p3 "))
        guard = guard if ".aligned" not in text or rng.random() < 0.1 else ""
        lines.append(f"L{number}: {guard}{text}")
        if rng.random() < 0.1:
            lines.append(f"@p{rng.randrange(10)} bra L{rng.randrange(count)};")
        if rng.random() < 0.2:
            lines.append(rng.choice(("bar.sync 0;", "bar.warp.sync -1;", "exit;", "@p8 exit;")))
    return "\n".join([*lines, "ret;", "}"])


@pytest.mark.parametrize("seed", seeds(100))
def test_kernels_of_random_asynchronous_instructions(seed: int) -> None:
    rng = random.Random(seed)
    space = np.zeros(4096 + 64, np.uint8)
    start = -space.ctypes.data % 64
    memory = space[start : start + 4096]
    tiles = TensorMap("u32", memory.ctypes.data, (32, 32), (128,), (32, 8), swizzle=128)
    memory[1024:1152] = np.frombuffer(tiles.encode_for_executor(), np.uint8)
    params = np.array([memory.ctypes.data], np.uint64).tobytes()
    run_random(asynchronous_kernel(rng), params, [view(memory)], "sm_90a", 128)


def run_random(
    text: str, params: bytes, buffers: list[Any], arch: str = "sm_90", threads: int = THREADS
) -> None:
    try:
        kernel = SimExecutor(arch).load_text("k", text)
        kernel.launch((2, 1, 1), (threads, 1, 1), 0, params, buffers=buffers)
    except SimulatorError:
        pass
