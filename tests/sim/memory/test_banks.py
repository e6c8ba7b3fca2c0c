"""cuevo.sim.memory.banks: known degrees of conflict, as a formula and in kernels."""

from typing import Any

import numpy as np
import pytest

from cuevo.layouts import SharedTile
from cuevo.sim import BankUse
from cuevo.sim.memory.banks import wavefronts
from cuevo.sim.memory.shared_memory import WINDOW

pytestmark = pytest.mark.unit

LANES = np.arange(32)


def of(offsets: Any, size: int = 4, active: Any = None, **options: Any) -> tuple[int, int, int]:
    """`wavefronts` of one warp, by the offset of each lane."""
    mask = None if active is None else np.asarray(active)[:, None]
    addresses = (WINDOW + np.asarray(offsets)).astype(np.uint32)[:, None]
    return wavefronts(addresses, size, mask, **options)


@pytest.mark.parametrize(
    ("stride", "expected"), [(0, 1), (1, 1), (2, 2), (4, 4), (3, 1), (32, 32), (33, 1), (48, 16)]
)
def test_strides_of_words(stride: int, expected: int) -> None:
    assert of(4 * stride * LANES) == (1, expected, 1)


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        (1, 1, (1, 1, 1)),  # 32 bytes are 8 words, each for 4 lanes
        (1, 4, (1, 1, 1)),
        (2, 2, (1, 1, 1)),
        (2, 128, (1, 32, 1)),
        (8, 8, (1, 2, 2)),
        (8, 16, (1, 4, 2)),
        (8, 0, (1, 2, 2)),
        (8, 128, (1, 32, 2)),
        (16, 16, (1, 4, 4)),
        (16, 32, (1, 8, 4)),
        (16, 128, (1, 32, 4)),
        (16, 144, (1, 4, 4)),  # rows padded by 16 bytes
        (16, 0, (1, 4, 4)),
    ],
)
def test_other_sizes(size: int, stride: int, expected: tuple[int, int, int]) -> None:
    assert of(stride * LANES, size) == expected


def test_lanes_outside_of_the_mask() -> None:
    assert of(128 * LANES, active=LANES < 5) == (1, 5, 1)
    assert of(128 * LANES, active=LANES < 0) == (0, 0, 0)
    # Two phases of four have nobody.
    assert of(128 * LANES, 16, LANES < 16) == (1, 16, 2)
    assert of(16 * LANES, 16, LANES % 8 == 0) == (1, 4, 4)
    # Where nobody is, addresses mean nothing.
    assert of(np.where(LANES < 4, 4 * LANES, 128 * LANES), active=LANES < 4) == (1, 1, 1)


def test_atomics_do_not_share_words() -> None:
    assert of(4 * LANES, atomic=True) == (1, 1, 1)
    assert of(0 * LANES, atomic=True) == (1, 32, 1)
    assert of(0 * LANES, active=LANES == 3, atomic=True) == (1, 1, 1)
    assert of(8 * LANES, 8, atomic=True) == (1, 2, 2)


def test_warps_are_added_up() -> None:
    offsets = np.stack([4 * LANES, 128 * LANES, 8 * LANES], axis=1)
    mask = np.ones((32, 3), bool)
    mask[:, 1] = LANES < 7
    assert wavefronts((WINDOW + offsets).astype(np.uint64), 4, mask) == (3, 1 + 7 + 2, 3)
    assert wavefronts((WINDOW + offsets).astype(np.uint32), 4, None) == (3, 1 + 32 + 2, 3)


START = """
.reg .b64 p; .reg .b32 t, base, at, x, y, z, w, row; .reg .pred c;
.extern .shared .align 128 .b8 smem[];
mov.u32 t, %tid.x; mov.u32 base, smem; ld.param.u64 p, [p0];
"""
FILL = "mad.lo.u32 at, t, 16, base; st.shared.v4.b32 [at], {t, t, t, t};"


@pytest.fixture
def banks(profile_of: Any) -> Any:
    """Runs a body; its use of banks, and the opcode's first one."""

    def run(body: str, opcode: str, **options: Any) -> BankUse:
        profile = profile_of(START + body + " ret;", np.zeros(512), **options)
        found: list[BankUse] = [use for use in profile.banks if use.opcode.startswith(opcode)]
        assert len(found) == 1
        return found[0]

    return run


@pytest.mark.parametrize(("stride", "conflicts"), [(4, 0), (8, 1), (128, 31), (0, 0)])
@pytest.mark.parametrize("opcode", ["st.shared.b32", "ld.shared.b32", "atom.shared.add.u32"])
def test_instructions_of_words(banks: Any, opcode: str, stride: int, conflicts: int) -> None:
    where = f"mad.lo.u32 at, t, {stride}, base;"
    wrote = f"{where} st.shared.b32 [at], t; bar.sync 0;"
    body = {
        "st.shared.b32": f"{where} st.shared.b32 [at], t;",
        "ld.shared.b32": f"{where} st.volatile.shared.b32 [at], t; ld.shared.b32 x, [at];",
        "atom.shared.add.u32": f"{wrote} atom.shared.add.u32 x, [at], 1;",
    }[opcode]
    use = banks(body, opcode, shared=4096)
    if opcode.startswith("atom") and stride == 0:
        conflicts = 31
    assert (use.executions, use.wavefronts, use.ideal) == (1, 1 + conflicts, 1)
    assert use.conflicts == conflicts and use.origin.endswith(f":{use.line}")


def test_vectors_and_copies(banks: Any) -> None:
    assert banks(FILL, "st.shared.v4", shared=512).conflicts == 0
    far = FILL.replace("16, base", "128, base")
    assert banks(far, "st.shared.v4", shared=4096).conflicts == 32 - 4
    assert banks(FILL + "ld.shared.v2.b32 {x, y}, [at];", "ld", shared=512).wavefronts == 4
    copy = "mad.lo.u32 at, t, 16, base; cp.async.ca.shared.global [at], [p], {}; cp.async.wait_all;"
    for size, expected in ((4, 4), (8, 4), (16, 4)):
        use = banks(copy.replace("{}", str(size)), "cp.async.ca", shared=512)
        assert use.wavefronts == expected and use.ideal == max(1, size // 4)


@pytest.mark.parametrize("matrices", [1, 2, 4])
@pytest.mark.parametrize("opcode", ["ldmatrix", "stmatrix"])
@pytest.mark.parametrize(
    ("tile", "degree"),
    [
        (SharedTile(8), 1),
        (SharedTile(4), 1),
        (SharedTile(8, "padded"), 1),
        (None, 8),
    ],
)
def test_matrices(
    profile_of: Any, tile: SharedTile | None, degree: int, opcode: str, matrices: int
) -> None:
    row, chunk = LANES % 8, LANES // 8
    place = row * 8 + chunk if tile is None else tile.place(row, chunk)
    table = np.zeros(32, np.uint32)
    table[:] = 16 * np.asarray(place)
    listed = "{" + ", ".join("xyzw"[:matrices]) + "}"
    operands = {"ldmatrix": f"{listed}, [at]", "stmatrix": f"[at], {listed}"}[opcode]
    # The whole tile is written first; lanes without a matrix of their own have a bad address.
    body = f"""
    {START} mad.lo.u32 at, t, 128, base; mov.b32 x, t; mov.b32 y, t; mov.b32 z, t; mov.b32 w, t;
    {"".join(f"st.shared.v4.b32 [at+{16 * i}], {{t, t, t, t}};" for i in range(8))}
    mad.wide.u32 p, t, 4, p; ld.global.b32 at, [p]; add.u32 at, at, base;
    setp.ge.u32 c, t, {8 * matrices}; @c mov.b32 at, 0; bar.warp.sync -1;
    {opcode}.sync.aligned.m8n8.x{matrices}.shared.b16 {operands}; ret;
    """
    profile = profile_of(body, table, shared=4096, arch="sm_90")
    (use,) = (use for use in profile.banks if use.opcode.startswith(opcode))
    assert (use.executions, use.wavefronts, use.ideal) == (1, degree * matrices, matrices)


def test_guards_and_several_blocks(banks: Any) -> None:
    body = "mad.lo.u32 at, t, 128, base; setp.lt.u32 c, t, 40; @c st.shared.b32 [at], t;"
    # Of each block, a warp with 32 lanes and one with 8; the third one has none.
    use = banks(body, "st.shared", block=96, grid=5, shared=8192)
    assert (use.executions, use.wavefronts, use.ideal) == (10, 5 * 40, 10)
