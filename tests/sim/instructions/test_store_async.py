"""st.async and red.async: what comes to a block of the cluster, and who may read it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim.conftest import Buffer

from cuevo.errors import SimulatorError
from cuevo.sim import Profile, SimExecutor

pytestmark = pytest.mark.unit

START = """
.extern .shared .align 1024 .b8 smem[];
.reg .b64 d, g, k, l; .reg .b32 t, r, s, x, y, z, w, m, base, own, there, away;
.reg .f32 f; .reg .pred done, first, lead;
mov.u32 t, %tid.x; mov.u32 base, smem; add.u32 m, base, 2048; mad.lo.u32 own, t, 16, base;
setp.eq.u32 first, t, 0; mov.u32 r, %cluster_ctarank; setp.eq.u32 lead, r, 0;
mov.u32 s, %cluster_nctarank; sub.u32 s, s, 1; xor.b32 s, r, s;
mapa.shared::cluster.u32 there, own, s; mapa.shared::cluster.u32 away, m, s;
ld.param.u64 d, [p0]; mad.lo.u32 x, r, 1000, t;
"""
SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
TELLS = "mbarrier::complete_tx::bytes"
STORE = f"st.async.shared::cluster.{TELLS}"
REDUCE = f"red.async.relaxed.cluster.shared::cluster.{TELLS}"
OUT = """
.reg .b32 n; mov.u32 n, %ctaid.x; mad.lo.u32 n, n, 64, t; mad.wide.u32 d, n, 4, d;
st.global.b32 [d], x;
"""


def begin(count: int) -> str:
    """An mbarrier in each block whose first phase has so many bytes."""
    return f"""
    @first mbarrier.init.shared.b64 [m], 1; fence.mbarrier_init.release.cluster; {SYNC}
    @first mbarrier.arrive.expect_tx.shared.b64 _, [m], {count};
    """


def wait(at: str = "m", parity: object = 0, name: str = "W") -> str:
    test = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"
    return f"{name}: {test} done, [{at}], {parity}; @!done bra {name};"


def text(body: str, cluster: int = 2) -> str:
    return f"""
    .version 8.1
    .target sm_90
    .address_size 64
    .visible .entry test(.param .u64 p0)
    .reqnctapercluster {cluster}, 1, 1
    {{
    {START} {body} ret;
    }}"""


def run(body: str, cluster: int = 2) -> Any:
    """Numbers that 64 threads of 4 blocks each leave."""
    out = np.zeros((4, 64), np.uint32)
    kernel = SimExecutor("sm_90").load_text("test", text(body, cluster))
    params = np.array([out.ctypes.data], np.uint64).tobytes()
    kernel.launch((4, 1, 1), (64, 1, 1), 4096, params, buffers=[Buffer(out)])
    return out


OTHERS = np.array([[1000 * (1 - block % 2) + t for t in range(64)] for block in range(4)])
"""x of the same thread in the other block."""


# -- st.async -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("b32", "x"),
        ("u32", "x"),
        ("weak.s32", "x"),
        ("v2.u32", "{x, y}"),
        ("v4.b32", "{x, y, 7, y}"),
        ("b64", "k"),
        ("v2.s64", "{k, l}"),
    ],
)
def test_integers_come_to_the_other_block(kind: str, values: str) -> None:
    weak, kind = kind.startswith("weak."), kind.removeprefix("weak.")
    vector, _, scalar = kind.rpartition(".")
    size = int(scalar[1:]) // 8 * int(vector[1:] or 1)
    store = STORE.replace("st.async", "st.async.weak") if weak else STORE
    out = run(f"""{begin(64 * size)} mov.u32 y, 9; mov.b64 k, {{x, y}}; mov.b64 l, {{y, x}};
    {store}.{kind} [there], {values}, [away]; {wait()} ld.shared.u32 x, [own]; {OUT}""")
    assert np.array_equal(out, OTHERS)


@pytest.mark.parametrize("kind", ["f32", "v4.f32", "f64", "v2.f64"])
def test_floats_come_too(kind: str) -> None:
    vector, _, scalar = kind.rpartition(".")
    count = int(vector[1:] or 1)
    values = "{" + ", ".join(["a"] * count) + "}" if vector else "a"
    out = run(f"""{begin(8 * int(scalar[1:]) * count)}
    .reg .{scalar} a; cvt.rn.{scalar}.u32 a, x; {STORE}.{kind} [there], {values}, [away]; {wait()}
    ld.shared.{scalar} a, [own]; cvt.rzi.u32.{scalar} x, a; {OUT}""")
    assert np.array_equal(out, OTHERS)


def test_all_of_a_vector() -> None:
    out = run(f"""{begin(1024)} mov.u32 y, 100; mov.u32 z, 10000;
    {STORE}.v4.b32 [there], {{x, y, z, 7}}, [away]; {wait()}
    ld.shared.v4.b32 {{x, y, z, w}}, [own];
    add.u32 x, x, y; add.u32 x, x, z; add.u32 x, x, w; {OUT}""")
    assert np.array_equal(out, OTHERS + 10107)


def test_generic_addresses() -> None:
    out = run(f"""{begin(256)}
    cvt.u64.u32 k, there; cvta.shared::cluster.u64 k, k;
    mov.u64 l, smem; cvta.shared.u64 l, l; mapa.u64 l, l, s;
    st.async.{TELLS}.b32 [k], x, [l+2048]; {wait()} ld.shared.b32 x, [own]; {OUT}""")
    assert np.array_equal(out, OTHERS)


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_own_block_is_one_of_the_cluster(cluster: int) -> None:
    body = f"""{begin(256)} {STORE}.b32 [own], t, [m]; {wait()}
    xor.b32 y, t, 32; mad.lo.u32 own, y, 16, base; ld.shared.b32 x, [own]; {OUT}"""
    assert np.array_equal(run(body, cluster), np.tile(np.arange(64) ^ 32, (4, 1)))


def test_some_lanes_to_both_blocks() -> None:
    """Even threads store here, odd ones there: 32 of each come."""
    out = run(f"""{begin(256)} .reg .pred odd; and.b32 y, t, 1; setp.eq.u32 odd, y, 1;
    selp.b32 there, there, own, odd; selp.b32 away, away, m, odd;
    {STORE}.b32 [there], x, [away]; {wait()} ld.shared.b32 x, [own]; {OUT}""")
    mine = OTHERS[[1, 0, 3, 2]]
    assert np.array_equal(out, np.where(np.arange(64) % 2 == 1, OTHERS, mine))


def test_one_phase_after_the_other() -> None:
    """A ring of one stage: who has read says so, and gets the next."""
    out = run(f"""
    @first mbarrier.init.shared.b64 [m], 1; @first mbarrier.init.shared.b64 [m+8], 64;
    fence.mbarrier_init.release.cluster; {SYNC} mov.u32 y, 0; mov.u32 z, 0;
    LAP: @first mbarrier.arrive.expect_tx.shared.b64 _, [m], 256;
    add.u32 w, x, z; {STORE}.b32 [there], w, [away]; and.b32 w, z, 1; {wait("m", "w")}
    ld.shared.b32 w, [own]; add.u32 y, y, w;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [away+8]; and.b32 w, z, 1;
    {wait("m+8", "w", "E")} add.u32 z, z, 1; setp.lt.u32 done, z, 5; @done bra LAP;
    mov.u32 x, y; {SYNC} {OUT}""")
    assert np.array_equal(out, 5 * OTHERS + 10)


def test_other_lanes_than_stored_have_read() -> None:
    """One block makes, the other takes: the maker hears of that in its own block only."""
    out = run(f"""
    @first mbarrier.init.shared.b64 [m], 1; @first mbarrier.init.shared.b64 [m+8], 64;
    fence.mbarrier_init.release.cluster; {SYNC} mov.u32 y, 0; mov.u32 z, 0; @lead bra MAKE;
    TAKE: @first mbarrier.arrive.expect_tx.shared.b64 _, [m], 256; and.b32 w, z, 1;
    {wait("m", "w")} xor.b32 w, t, 1; mad.lo.u32 own, w, 16, base; ld.shared.b32 w, [own];
    add.u32 y, y, w; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [away+8];
    add.u32 z, z, 1; setp.lt.u32 done, z, 5; @done bra TAKE; bra END;
    MAKE: add.u32 w, x, z; {STORE}.b32 [there], w, [away]; and.b32 w, z, 1; {wait("m+8", "w", "E")}
    add.u32 z, z, 1; setp.lt.u32 done, z, 5; @done bra MAKE;
    END: mov.u32 x, y; {SYNC} {OUT}""")
    assert np.array_equal(out[1::2], [5 * (np.arange(64) ^ 1) + 10] * 2)


def test_a_fence_is_for_other_proxies_only() -> None:
    """TMA reads what st.async has brought after a fence.proxy.async; st.async goes
    where threads have written without one.
    """
    body = f"""{begin(1024)} st.shared.b32 [own+4], t; {SYNC} mov.u32 y, 0;
    {STORE}.v4.b32 [there], {{x, y, y, y}}, [away]; {wait()} fence.proxy.async; bar.sync 0;
    mov.u32 y, %ctaid.x; mad.wide.u32 d, y, 256, d;
    @first cp.async.bulk.global.shared::cta.bulk_group [d], [base], 256;
    @first cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; """
    assert np.array_equal(run(body)[:, ::4], OTHERS[:, :16])
    with pytest.raises(SimulatorError, match=r"without a fence\.proxy\.async between"):
        run(body.replace("fence.proxy.async; bar", "bar"))


# -- red.async ------------------------------------------------------------------------------------

COUNTER = "@first st.shared.{kind} [base], {start};"


def reduced(op: str, kind: str, start: str, value: str) -> Any:
    """The low words of what all 128 threads of a cluster have made of a counter in each block."""
    size = int(kind[1:]) // 8
    register = "k" if size == 8 else "y"
    out = run(f"""{COUNTER.format(kind=kind, start=start)} {begin(128 * size)} {value}
    mapa.shared::cluster.u32 there, base, s;
    {REDUCE}.{op}.{kind} [base], {register}, [m];
    {REDUCE}.{op}.{kind} [there], {register}, [away];
    {wait()} ld.shared.{kind} {register}, [base];
    {"cvt.u32.u64 x, k;" if size == 8 else "mov.b32 x, y;"} {OUT}""")
    assert (out == out[0, 0]).all()
    return int(out[0, 0])


def test_reductions() -> None:
    mine, low = "mov.b32 y, x;", sum(range(64))
    assert reduced("add", "u32", "5", mine) == 5 + 2 * low + 64000
    assert reduced("add", "s32", "-5", mine) == 2 * low + 64000 - 5
    assert reduced("min", "u32", "77", "add.u32 y, x, 13;") == 13
    assert reduced("max", "u32", "7", mine) == 1063
    assert reduced("min", "s32", "7", "sub.s32 y, 0, x;") == 2**32 - 1063
    assert reduced("max", "s32", "-7", "sub.s32 y, 0, x;") == 0
    assert reduced("and", "b32", "-1", "or.b32 y, x, 0xf0000000;") == 0xF0000000
    assert reduced("or", "b32", "0", "mov.u32 y, 1; shl.b32 y, y, t;") == 2**32 - 1
    assert reduced("xor", "b32", "3", mine) == 3
    assert reduced("inc", "u32", "0", "mov.u32 y, 99;") == 28
    assert reduced("dec", "u32", "0", "mov.u32 y, 99;") == 72
    for kind in ("u64", "s64"):
        wide = "cvt.u64.u32 k, x; shl.b64 k, k, 4;"
        assert reduced("add", kind, "0", wide) == 16 * (2 * low + 64000)


def test_the_carry_of_a_long_sum() -> None:
    out = run(f"""@first st.shared.u64 [base], 0xffffffff; {begin(512)} mov.u64 k, 1;
    {REDUCE}.add.u64 [base], k, [m]; {wait()} ld.shared.v2.u32 {{y, x}}, [base];
    mad.lo.u32 x, x, 1000, y; {OUT}""")
    assert (out == 1063).all()


def test_generic_addresses_of_counters() -> None:
    out = run(f"""@first st.shared.u32 [base], 0; {begin(256)}
    mov.u64 l, smem; cvta.shared.u64 l, l; mapa.u64 l, l, s;
    red.async.relaxed.cluster.{TELLS}.add.u32 [l], 2, [l+2048]; {wait()}
    ld.shared.u32 x, [base]; {OUT}""")
    assert (out == 128).all()


def test_other_atomics_are_not_in_the_way() -> None:
    """Accesses before, while and after reductions are under way; two mbarriers count these."""
    out = run(f"""@first st.shared.u32 [base], 0; {begin(128)}
    @first mbarrier.init.shared.b64 [m+8], 1; bar.sync 0;
    @first mbarrier.arrive.expect_tx.shared.b64 _, [m+8], 128;
    atom.shared.add.u32 y, [base], 1; setp.lt.u32 done, t, 32; selp.b32 z, 0, 8, done;
    add.u32 z, m, z; {REDUCE}.add.u32 [base], 100, [z]; red.shared.add.u32 [base], 10000;
    ld.relaxed.cta.shared.u32 y, [base];
    {wait()} {wait("m+8", name="V")}
    red.shared.add.u32 [base], 0; bar.sync 0; ld.shared.u32 x, [base]; {OUT}""")
    assert (out == 64 * 10101).all()


def test_one_mbarrier_of_two() -> None:
    """A wait for one mbarrier does not acquire what the other has counted."""
    body = f"""@first st.shared.u32 [base], 0; {begin(128)}
    @first mbarrier.init.shared.b64 [m+8], 1; bar.sync 0;
    @first mbarrier.arrive.expect_tx.shared.b64 _, [m+8], 128;
    setp.lt.u32 done, t, 32; selp.b32 z, {{}}, done; add.u32 z, m, z;
    {REDUCE}.add.u32 [base], 100, [z]; {wait()} ld.shared.u32 x, [base]; {OUT}"""
    for order in ("0, 8", "8, 0"):
        with pytest.raises(SimulatorError, match="which an asynchronous reduction wrote without"):
            run(body.replace("{}", order))


def test_sums_read_by_an_asynchronous_unit() -> None:
    body = f"""st.shared.b32 [own], t; st.shared.b32 [own+4], t; st.shared.b64 [own+8], 0;
    {begin(256)} {REDUCE}.add.u32 [there], 1000, [away]; {wait()} fence.proxy.async; bar.sync 0;
    mov.u32 y, %ctaid.x; mad.wide.u32 d, y, 256, d;
    @first cp.async.bulk.global.shared::cta.bulk_group [d], [base], 256;
    @first cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; """
    assert np.array_equal(run(body)[:, ::4], np.tile(np.arange(1000, 1016), (4, 1)))
    with pytest.raises(SimulatorError, match=r"without a fence\.proxy\.async between"):
        run(body.replace("fence.proxy.async; bar", "bar"))


def test_more_bytes_than_an_mbarrier_counts() -> None:
    with pytest.raises(SimulatorError, match="an mbarrier counts at most 1048575 bytes"):
        run(f"""@first st.shared.u64 [base], 0; {begin(8)} mov.u32 z, 0; mov.u64 k, 1;
        LAP: {REDUCE}.add.u64 [base], k, [m]; add.u32 z, z, 1; setp.le.u32 done, z, 2048;
        @done bra LAP; {wait()}""")


# -- Refusals, and counts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"{STORE}.b16 [own], x, [m];", "does not support the instruction"),
        (f"{STORE}.v4.b64 [own], {{k, k, k, k}}, [m];", "does not support the instruction"),
        (f"{STORE}.b32 [own], x;", "takes 3 operands, not 2"),
        (f"{STORE}.v2.b32 [own], x, [m];", "needs 2 registers here, not 1"),
        (f"{STORE}.b32 [own], k, [m];", "k is declared .b64"),
        (f"{STORE}.f32 [own], 1, [m];", r"1 is an integer; f32 takes 0f"),
        (f"{STORE}.b32 [own], x, m;", "needs an address in brackets here"),
        (f"st.async.{TELLS}.b32 [own], x, [m];", "own is no 64-bit address"),
        (f"{REDUCE}.add.f32 [own], f, [m];", "does not support the instruction"),
        (f"{REDUCE}.min.u64 [own], k, [m];", "does not support the instruction"),
        (f"{REDUCE}.exch.b32 [own], x, [m];", "does not support the instruction"),
        (f"{REDUCE.replace('.cluster.sh', '.gpu.sh')}.add.u32 [own], x, [m];", "does not support"),
        (f"{REDUCE}.add.u32 [own], k, [m];", "k is declared .b64"),
    ],
)
def test_what_is_refused(statement: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        SimExecutor("sm_90").load_text("test", text(statement))


def test_a_generic_address_of_global_memory() -> None:
    with pytest.raises(SimulatorError, match=r"a generic address that is not in \.shared"):
        run(f"{begin(256)} st.async.{TELLS}.b32 [d], x, [d];")


def test_without_an_mbarrier() -> None:
    with pytest.raises(SimulatorError, match="there is no mbarrier at this address"):
        run(f"mov.u64 l, smem; cvta.shared.u64 l, l; st.async.{TELLS}.b32 [l], x, [l+2048];")


def test_they_are_no_accesses_of_lanes(profile_of: Callable[..., Profile]) -> None:
    body = f"""{START} {begin(256)} {STORE}.b32 [own], x, [m]; {wait()} {OUT} ret;"""
    profile = profile_of(body, np.zeros(64, np.uint32), block=64, shared=4096, arch="sm_90")
    assert not [use for use in profile.banks if use.opcode.startswith("st.async")]
    assert profile.by_opcode()[f"{STORE}.b32"] == 2
