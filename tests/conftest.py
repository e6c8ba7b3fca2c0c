"""Markers and fixtures of all tests: gpu tests are skipped, with the reason, where there is no GPU."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from cuevo.devices import devices, why_none
from cuevo.header import parse_header
from cuevo.lineinfo import SourceLine
from cuevo.template import RenderedKernel

# JAX would take three quarters of the device's memory when it starts.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not devices():
        skip = pytest.mark.skip(reason=f"no GPU: {why_none().partition(': ')[0]}")
        for item in on_gpu:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def executor() -> Any:
    """The executor of the first GPU; for gpu tests."""
    from cuevo.driver import executor as shared

    return shared(0)


_HEADER = """
typedef struct vector_add_params {
    const float *a; const float *b; float *out; int32_t count; float scale;
} vector_add_params;
void vector_add(const vector_add_params params);

typedef struct delayed_fill_params {
    float *out; uint64_t nanoseconds; float value; uint32_t count;
} delayed_fill_params;
void delayed_fill(const delayed_fill_params params);

typedef struct reverse_shared_params { uint32_t *out; uint32_t shared_bytes; } reverse_shared_params;
void reverse_shared(const reverse_shared_params params);
"""

# out[i] = a[i] + scale * b[i]
_VECTOR_ADD = """
.visible .entry vector_add(.param .align 8 .b8 params[32])
{
    .reg .u64 a, b, out, offset;
    .reg .u32 index, thread, block, threads;
    .reg .s32 count;
    .reg .f32 x, y, scale;
    .reg .pred beyond;

    ld.param.u64 a, [params+0];
    ld.param.u64 b, [params+8];
    ld.param.u64 out, [params+16];
    ld.param.s32 count, [params+24];
    ld.param.f32 scale, [params+28];
    mov.u32 thread, %tid.x;
    mov.u32 block, %ctaid.x;
    mov.u32 threads, %ntid.x;
    mad.lo.u32 index, block, threads, thread;
    setp.ge.s32 beyond, index, count;
    @beyond bra done;
    mul.wide.u32 offset, index, 4;
    add.u64 a, a, offset;
    add.u64 b, b, offset;
    add.u64 out, out, offset;
    ld.global.f32 x, [a];
    ld.global.f32 y, [b];
    fma.rn.f32 x, y, scale, x;
    st.global.f32 [out], x;
done:
    ret;
}
"""

# Waits, then out[i] = value: whoever does not wait for it sees what was there before.
_DELAYED_FILL = """
.visible .entry delayed_fill(.param .align 8 .b8 params[24])
{
    .reg .u64 out, offset, start, now, nanoseconds;
    .reg .u32 index, thread, block, threads, count;
    .reg .f32 value;
    .reg .pred early, beyond;

    ld.param.u64 out, [params+0];
    ld.param.u64 nanoseconds, [params+8];
    ld.param.f32 value, [params+16];
    ld.param.u32 count, [params+20];
    mov.u64 start, %globaltimer;
again:
    mov.u64 now, %globaltimer;
    sub.u64 now, now, start;
    setp.lt.u64 early, now, nanoseconds;
    @early bra again;
    mov.u32 thread, %tid.x;
    mov.u32 block, %ctaid.x;
    mov.u32 threads, %ntid.x;
    mad.lo.u32 index, block, threads, thread;
    setp.ge.u32 beyond, index, count;
    @beyond bra done;
    mul.wide.u32 offset, index, 4;
    add.u64 out, out, offset;
    st.global.f32 [out], value;
done:
    ret;
}
"""

# Thread t writes 3 t + 1 at the end of the dynamic shared memory; out[t] is what thread (threads - 1 - t) wrote.
_REVERSE_SHARED = """
.extern .shared .align 16 .b8 scratch[];
.visible .entry reverse_shared(.param .align 8 .b8 params[16])
{
    .reg .u64 out, offset;
    .reg .u32 thread, threads, other, bytes, base, address, value;

    ld.param.u64 out, [params+0];
    ld.param.u32 bytes, [params+8];
    mov.u32 thread, %tid.x;
    mov.u32 threads, %ntid.x;
    mov.u32 base, scratch;
    add.u32 base, base, bytes;
    mad.lo.u32 value, thread, 3, 1;
    mad.lo.u32 address, thread, -4, base;
    st.shared.u32 [address-4], value;
    bar.sync 0;
    sub.u32 other, threads, thread;
    mad.lo.u32 address, other, -4, base;
    ld.shared.u32 value, [address];
    mul.wide.u32 offset, thread, 4;
    add.u64 out, out, offset;
    st.global.u32 [out], value;
    ret;
}
"""

_TEXTS = {
    "vector_add": _VECTOR_ADD,
    "delayed_fill": _DELAYED_FILL,
    "reverse_shared": _REVERSE_SHARED,
}


@pytest.fixture(scope="session")
def small_kernel() -> Callable[..., RenderedKernel]:
    """``small_kernel("vector_add")``: a kernel of a few lines, written out, for tests of executors."""
    header = parse_header(_HEADER, "tests/conftest.h")

    def make(name: str, *, text: str = "") -> RenderedKernel:
        whole = ".version 7.0\n.target sm_80\n.address_size 64\n" + (text or _TEXTS[name])
        lines = tuple(SourceLine(f"tests/{name}.ptx", n + 1) for n in range(whole.count("\n") + 1))
        return RenderedKernel(name, whole, lines, {}, header.kernels[name])

    return make
