"""Fixtures of all tests; gpu tests are skipped, with the reason, where there is no GPU.

Tests run in several processes: on the CPU each has a part of them in order, so that it parses what
its neighbours parsed; on a device all share its memory, tests that are marked `whole_device` run in
one process, one after the other, and while one that is marked `no_memory_left` runs, no other does.
"""

import fcntl
import gc
import os
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.cuda.context import check
from cuevo.cuda.device_info import devices, why_none
from cuevo.ops import backward, forward, product
from cuevo.toolchain.header import parse_header
from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.template import RenderedKernel

pytest.register_assert_rewrite("helpers")  # they hold tests, too
from helpers import sweep_kernels  # noqa: E402

PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
SHARE = 0.25 / PROCESSES
"""Part of a device's memory that torch may keep in a process, and JAX as much again; the rest is
for contexts, cuevo's own pools, and the one test that takes gigabytes.
"""
# JAX, which reads these when it is imported, would take three quarters of the device's memory when
# it starts, and as much again in the next process. On the CPU it is to have four devices, and no
# long compilations of programs that run once.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0",
)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{SHARE:.4f}")
# Choices are to be the same on every machine, whatever was tuned there, or ships for its device.
os.environ.setdefault("CUEVO_TUNED", "0")
# Each process that runs tests would have threads for all cores for NumPy's products.
os.environ.setdefault("OMP_NUM_THREADS", "1")

MISSING_KERNELS = pytest.StashKey[list[str]]()
OPERATIONS = (forward.OPERATION, backward.OPERATION, product.OPERATION)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Choose how tests are dealt to processes, unless --dist says."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        on_gpu = devices() and "not gpu" not in config.option.markexpr
        config.option.dist = "loadgroup" if on_gpu else "worksteal"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("whole_device"):
            item.add_marker(pytest.mark.xdist_group("whole_device"))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not devices():
        skip = pytest.mark.skip(reason=f"no GPU: {why_none().partition(': ')[0]}")
        for item in on_gpu:
            item.add_marker(skip)


def pytest_sessionstart() -> None:
    """Python's collector hardly ever looks at the many objects of the collection of tests and of
    the CPU executor, which go without it: it takes two seconds each time.
    """
    gc.set_threshold(20_000_000, 5, 10)


def pytest_collection_finish() -> None:
    """What the collection of tests has made stays."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Keep pytest's own collections, ten at the end, from looking at millions of objects."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Torch keeps what it has freed: each process has a part of the device's memory for it."""
    if PROCESSES > 1 and item.get_closest_marker("gpu"):
        _share_of_torch(1.0 if item.get_closest_marker("whole_device") else SHARE)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """A plan keeps its executor and kernels, which are megabytes each on the CPU executor."""
    for operation in OPERATIONS:
        if len(operation.plans) > 16:
            operation.plans.clear()
    marks = {mark.name for mark in item.iter_markers()}
    if marks & {"whole_device", "no_memory_left"} and devices():
        gc.collect()
        _give_memory_back()


def _give_memory_back() -> None:
    """What torch and cuevo keep for their next arrays, to the device."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available():
        torch.cuda.empty_cache()
    pool = check(cuda.cuDeviceGetMemPool(0), "asking for the pool of a device")
    check(cuda.cuMemPoolTrimTo(pool, 0), "giving memory back")


def _share_of_torch(share: float) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """The report of a sweep's case says which kernels it loaded on the CPU executor."""
    function = getattr(item, "originalname", item.name)
    if not (item.get_closest_marker("kernel") and sweep_kernels.SWEEPS.search(function)):
        return (yield)
    loaded: dict[str, list[str]] = {}
    with sweep_kernels.recorded(loaded):
        yield
    item.user_properties.append(("kernels", loaded))
    return None


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run of all tests fails where its sweeps had fewer kernels than they should have."""
    config = session.config
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    selected = config.option.keyword or config.option.markexpr not in ("", "kernel")
    if (
        hasattr(config, "workerinput")
        or not whole
        or selected
        or exitstatus
        or config.option.collectonly
    ):
        return
    if wrong := sweep_kernels.missing(_kernels_of_sweeps(config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        config.stash[MISSING_KERNELS] = wrong


def _kernels_of_sweeps(config: pytest.Config) -> dict[str, int]:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    passed = reporter.stats.get("passed", ())
    return sweep_kernels.counts(dict(x.user_properties).get("kernels", {}) for x in passed)


@pytest.fixture(autouse=True)
def memory_of_the_device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A test that asks for more memory than a device has leaves none to other processes."""
    if PROCESSES == 1 or not request.node.get_closest_marker("gpu"):
        yield
        return
    alone = request.node.get_closest_marker("no_memory_left") is not None
    with _held(tmp_path_factory.getbasetemp().parent, alone):
        yield


@contextmanager
def _held(folder: Path, alone: bool) -> Iterator[None]:
    """A lock that one process has alone, or any number together; who waits for it alone is next."""
    with (folder / "next").open("w") as next_one, (folder / "holders").open("w") as holders:
        fcntl.flock(next_one, fcntl.LOCK_EX)
        fcntl.flock(holders, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(next_one, fcntl.LOCK_UN)
        yield


@pytest.fixture(scope="module")
def nothing_old_to_collect() -> None:
    """Keep collections from looking at what earlier tests have left: that takes seconds each."""
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Iterator[None]:
    """Report how much of the hardware's recorded results was compared, and how many kernels the
    sweeps had; also where workers did it. At the very end, below the skipped tests: too few
    kernels.
    """
    if kernels := _kernels_of_sweeps(config):
        listed = ", ".join(f"{count} {name}" for name, count in kernels.items())
        terminalreporter.write_line(f"distinct kernels in the sweeps: {listed}")
    total: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", ()):
        total.update(dict(report.user_properties).get("replayed", {}))
    if total:
        terminalreporter.write_line(
            f"recorded on hardware: {total['exact']:,} results of {total['forms']:,} instructions "
            f"replayed exactly, {total['within']:,} within bounds; {total['excused']:,} known to "
            f"deviate; unknown here {total['unknown']}, not recorded {total['missing']}"
        )
    yield
    if wrong := config.stash.get(MISSING_KERNELS, None):
        terminalreporter.section("too few kernels in the sweeps", red=True)
        for line in wrong:
            terminalreporter.write_line(line)


_HEADER = """
typedef struct vector_add_params {
    const float *a; const float *b; float *out; int32_t count; float scale;
} vector_add_params;
void vector_add(const vector_add_params params);

typedef struct delayed_fill_params {
    float *out; uint64_t nanoseconds; float value; uint32_t count;
} delayed_fill_params;
void delayed_fill(const delayed_fill_params params);

typedef struct reverse_shared_params {
    uint32_t *out; uint32_t shared_bytes;
} reverse_shared_params;
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

# Thread t writes 3 t + 1 at the end of the dynamic shared memory; out[t] is what thread
# (threads - 1 - t) wrote.
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
    shl.b32 address, thread, 2;
    sub.u32 address, base, address;
    st.shared.u32 [address+-4], value;
    bar.sync 0;
    sub.u32 other, threads, thread;
    shl.b32 address, other, 2;
    sub.u32 address, base, address;
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


class SmallKernels:
    """Kernels of a few lines, written out, for tests of executors."""

    def __init__(self) -> None:
        self._params = parse_header(_HEADER, "tests/conftest.h").kernels

    def rendered(self, name: str, *, text: str = "") -> RenderedKernel:
        """The kernel `name`, or one of that name and another text."""
        whole = ".version 7.0\n.target sm_80\n.address_size 64\n" + (text or _TEXTS[name])
        lines = tuple(SourceLine(f"tests/{name}.ptx", n + 1) for n in range(whole.count("\n") + 1))
        return RenderedKernel(name, whole, lines, {}, self._params[name])

    @staticmethod
    def add_params(a: int, b: int, out: int, count: int, scale: float) -> bytes:
        return struct.pack("<QQQif", a, b, out, count, scale)

    def add(self, executor: Any, a: Any, b: Any, out: Any, scale: float, stream: object) -> None:
        """Queue ``out = a + scale * b``."""
        params = self.add_params(a.pointer, b.pointer, out.pointer, a.size, scale)
        kernel = executor.load(self.rendered("vector_add"))
        kernel.launch((-(-a.size // 128), 1, 1), (128, 1, 1), 0, params, stream=stream)

    def fill(
        self, executor: Any, out: Any, value: float, stream: object, milliseconds: float = 0
    ) -> None:
        """Queue ``out[:] = value``, done no earlier than `milliseconds` after its start."""
        params = struct.pack("<QQfI", out.pointer, int(milliseconds * 1e6), value, out.size)
        kernel = executor.load(self.rendered("delayed_fill"))
        kernel.launch((-(-out.size // 128), 1, 1), (128, 1, 1), 0, params, stream=stream)


@pytest.fixture(scope="session")
def small() -> SmallKernels:
    return SmallKernels()


@pytest.fixture(scope="session")
def executor() -> Any:
    """The executor of the first GPU; for gpu tests."""
    from cuevo.executors.driver import executor as shared

    return shared(0)


@pytest.fixture
def late(executor: Any, small: SmallKernels) -> Callable[[], Any]:
    """Makes an array of 256 ones that become sevens after 30 ms, on a stream of its own."""
    queue = executor.new_stream()

    def make() -> Any:
        x = executor.empty((256,), np.dtype(np.float32), queue)
        small.fill(executor, x, 1.0, queue)
        executor.synchronize(queue)
        small.fill(executor, x, 7.0, queue, milliseconds=30)
        return x

    # A kernel's first launch may wait for the device, which would hide a missing wait.
    x = make()
    small.add(executor, x, x, x, 0.0, queue)
    executor.synchronize(queue)
    return make


@pytest.fixture
def read_on(executor: Any, small: SmallKernels) -> Callable[[Any, object], set[float]]:
    """``read_on(x, stream)``: the values of `x`, doubled, as a kernel on `stream` finds them."""

    def read(x: Any, stream: object) -> set[float]:
        out = executor.empty((256,), np.dtype(np.float32), stream)
        small.add(executor, x, x, out, 1.0, stream)
        return set(out.to_numpy().tolist())

    return read


@pytest.fixture(scope="session")
def same_bits() -> Callable[[np.ndarray, np.ndarray], None]:
    """Compares two NumPy arrays of equal shape bit by bit, whatever their dtypes are called."""

    def compare(got: np.ndarray, expected: np.ndarray) -> None:
        assert got.shape == expected.shape
        assert got.itemsize == expected.itemsize
        bits = np.dtype(f"u{got.itemsize}")
        np.testing.assert_array_equal(got.view(bits), expected.view(bits))

    return compare
