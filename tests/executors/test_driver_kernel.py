import ctypes
import gc
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.arrays import view
from cuevo.cuda.device_info import DeviceInfo
from cuevo.errors import DriverError
from cuevo.executors.driver_kernel import DriverKernel
from cuevo.executors.own.texts import read_kernel
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import RenderedKernel

unit = pytest.mark.unit
gpu = pytest.mark.gpu
SUCCESS = cuda.CUresult.CUDA_SUCCESS
FLOAT = np.dtype(np.float32)


def add_params(a: int, b: int, out: int, count: int, scale: float) -> bytes:
    return struct.pack("<QQQif", a, b, out, count, scale)


# -- Without a device ------------------------------------------------------------------------------


class Launches:
    """The driver's calls that load and launch a kernel; keeps what each launch was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.answers: list[Any] = []
        self.parameters = [(0, 32)]
        self.dynamic_shared = 0
        self.unloaded = 0
        self.before: Callable[[], None] = lambda: None

    def load(self, code: bytes) -> Any:
        return SUCCESS, "module"

    def function(self, loaded: str, name: bytes) -> Any:
        return SUCCESS, cuda.CUfunction(4096)

    def attribute(self, name: Any, function: Any) -> Any:
        attributes = cuda.CUfunction_attribute
        return SUCCESS, {
            attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: 512,
            attributes.CU_FUNC_ATTRIBUTE_NUM_REGS: 128,
            attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: 448,
        }[name]

    def set_attribute(self, function: Any, name: Any, value: int) -> Any:
        wanted = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        assert name == wanted
        self.dynamic_shared = value
        return (SUCCESS,)

    def parameter(self, function: Any, index: int) -> Any:
        if index < len(self.parameters):
            return SUCCESS, *self.parameters[index]
        return cuda.CUresult.CUDA_ERROR_INVALID_VALUE, 0, 0

    def launch(self, config: Any, function: Any, kernel_params: int, extra: int) -> Any:
        self.before()
        block = ctypes.cast(kernel_params, ctypes.POINTER(ctypes.c_void_p))[0]
        self.seen.append(
            (
                (config.gridDimX, config.gridDimY, config.gridDimZ),
                (config.blockDimX, config.blockDimY, config.blockDimZ),
                config.sharedMemBytes,
                int(config.hStream),
                ctypes.string_at(block, 32),
            )
        )
        assert (int(function), config.numAttrs, extra) == (4096, 0, 0)
        return (self.answers.pop(0) if self.answers else SUCCESS,)

    def unload(self, loaded: str) -> Any:
        self.unloaded += 1
        return (SUCCESS,)


class Context:
    """A primary context that is current, or not."""

    def __init__(self) -> None:
        self.is_current = True
        self.entered = 0

    def enter(self) -> bool:
        self.entered += not self.is_current
        return not self.is_current

    def leave(self) -> None:
        self.entered -= 1

    @contextmanager
    def current(self) -> Iterator[None]:
        yield


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Launches:
    launches = Launches()
    for name, call in {
        "cuModuleLoadData": launches.load,
        "cuModuleUnload": launches.unload,
        "cuModuleGetFunction": launches.function,
        "cuFuncGetAttribute": launches.attribute,
        "cuFuncSetAttribute": launches.set_attribute,
        "cuFuncGetParamInfo": launches.parameter,
        "cuLaunchKernelEx": launches.launch,
        "cuGetErrorName": lambda status: (SUCCESS, status.name.encode()),
        "cuGetErrorString": lambda status: (SUCCESS, b"the driver's text"),
    }.items():
        monkeypatch.setattr(cuda, name, call)
    return launches


@pytest.fixture
def loaded(fake: Launches, small: Any) -> DriverKernel:
    return load_fake(small.rendered("vector_add"))


def load_fake(kernel: RenderedKernel) -> DriverKernel:
    info = DeviceInfo(0, "NVIDIA H200", "sm_90", 132, 232448, 60 << 20, 140 << 30, "13.0")
    context: Any = Context()
    cubin: Any = SimpleNamespace(code=b"ELF")
    return DriverKernel(info, context, kernel, cubin)


PARAMS = add_params(1, 2, 3, 4, 5.0)


@unit
def test_a_launch_reaches_the_driver(loaded: DriverKernel, fake: Launches) -> None:
    other = add_params(6, 7, 8, 9, 10.0)
    loaded.launch((7, 65535, 3), (32, 4, 1), 1024, PARAMS, stream=0x77)
    loaded.launch((7, 65535, 3), (32, 4, 1), 1024, bytearray(other), stream=0x77)
    loaded.launch((1, 1, 1), (64, 1, 1), 0, PARAMS)
    loaded.launch((1, 1, 1), (64, 1, 1), 0, PARAMS, stream=0)
    loaded.launch((1, 1, 1), (64, 1, 1), 0, PARAMS, stream=SimpleNamespace(ptr=0x78))
    assert fake.seen == [
        ((7, 65535, 3), (32, 4, 1), 1024, 0x77, PARAMS),
        ((7, 65535, 3), (32, 4, 1), 1024, 0x77, other),
        ((1, 1, 1), (64, 1, 1), 0, 1, PARAMS),
        ((1, 1, 1), (64, 1, 1), 0, 1, PARAMS),
        ((1, 1, 1), (64, 1, 1), 0, 0x78, PARAMS),
    ]


@unit
def test_all_dynamic_shared_memory_is_asked_for(loaded: DriverKernel, fake: Launches) -> None:
    assert fake.dynamic_shared == loaded.max_dynamic_shared == 232448 - 448


ADDRESSES = struct.Struct("<3Q")


def make_launcher(loaded: DriverKernel, grid: int, block: int, constants: bytes) -> Any:
    """A launcher whose table begins with the null pointer."""
    shape = ((grid, 1, 1), (block, 1, 1), 16)
    return loaded.launcher(shape, itemgetter(1, 2, 0), ADDRESSES.pack, constants)


@unit
def test_a_launcher_puts_addresses_before_its_constants(
    loaded: DriverKernel, fake: Launches
) -> None:
    one = make_launcher(loaded, 7, 32, struct.pack("<if", 8, 9.0))
    other = make_launcher(loaded, 6, 64, struct.pack("<if", 5, 4.0))
    one([0, 1, 2], 0x77)
    other([0, 3, 4, 5], 0x77)
    one([0, 10, 11], 0x78)
    one([0, 12, 13], 0x77)
    assert fake.seen == [
        ((7, 1, 1), (32, 1, 1), 16, 0x77, add_params(1, 2, 0, 8, 9.0)),
        ((6, 1, 1), (64, 1, 1), 16, 0x77, add_params(3, 4, 0, 5, 4.0)),
        ((7, 1, 1), (32, 1, 1), 16, 0x78, add_params(10, 11, 0, 8, 9.0)),
        ((7, 1, 1), (32, 1, 1), 16, 0x77, add_params(12, 13, 0, 8, 9.0)),
    ]
    fake.answers = [cuda.CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(DriverError, match=r"with grid \(7, 1, 1\), block .* stream 0x77: CUDA_"):
        one([0, 1, 2], 0x77)
    one([0, 1, 2], 0x77)
    assert fake.seen[-1] == fake.seen[0]


@unit
@pytest.mark.parametrize("is_launcher", [False, True])
def test_threads_do_not_share_a_parameter_block(
    is_launcher: bool, loaded: DriverKernel, fake: Launches
) -> None:
    """Each thread stands in the driver while the other one launches."""
    inside = threading.Barrier(2, timeout=30)
    fake.before = inside.wait
    queues = [make_launcher(loaded, 3, n + 1, struct.pack("<if", 3, n)) for n in range(50)]

    def run(number: int) -> None:
        for turn in range(50):
            if is_launcher:
                queues[turn]([turn, number, number], number)
                continue
            params = add_params(number, number, turn, 3, float(turn))
            loaded.launch((3, 1, 1), (turn + 1, 1, 1), 0, params, stream=number)

    threads = [threading.Thread(target=run, args=(number,)) for number in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(fake.seen) == 100
    for grid, block, _, stream, params in fake.seen:
        number, again, turn, count, scale = struct.unpack("<QQQif", params)
        assert (grid[0], block[0] - 1, stream, again) == (3, turn, number, number)
        assert (count, scale) == (3, turn)


@unit
def test_a_launch_leaves_the_threads_context(loaded: DriverKernel, fake: Launches) -> None:
    context: Any = loaded._context
    context.is_current = False
    loaded.launch((1, 1, 1), (1, 1, 1), 0, PARAMS)
    assert context.entered == 0
    fake.answers = [cuda.CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(DriverError):
        loaded.launch((1, 1, 1), (1, 1, 1), 0, PARAMS)
    assert context.entered == 0


@unit
@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes", "words"),
    [
        (
            (1, 1, 1),
            (1024, 1, 1),
            0,
            r"A block of 1024 threads is more than the 512 .*128 registers",
        ),
        ((1, 1, 1), (32, 1, 1), 300000, r"300000 bytes of dynamic shared .* more than the 232000"),
        ((0, 1, 1), (32, 1, 1), 0, r"without elements cannot be launched"),
        ((1, 70000, 1), (32, 1, 1), 0, r"at most 2\*\*31 - 1, 65535 and 65535 blocks"),
    ],
)
def test_a_refused_launch_says_which_limit_it_breaks(
    loaded: DriverKernel,
    fake: Launches,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    words: str,
) -> None:
    fake.answers = [cuda.CUresult.CUDA_ERROR_INVALID_VALUE]
    with pytest.raises(DriverError, match=words) as caught:
        loaded.launch(grid, block, shared_bytes, PARAMS, stream=5)
    message = str(caught.value)
    assert message.startswith("launching vector_add() on cuda:0 (NVIDIA H200) with grid")
    assert f"grid {grid}, block {block}, {shared_bytes} bytes of dynamic shared memory" in message
    assert "stream 0x5: CUDA_ERROR_INVALID_VALUE (the driver's text)." in message
    loaded.launch((1, 1, 1), (32, 1, 1), 0, PARAMS)  # the next one is a launch like any other
    assert fake.seen[-1][0] == (1, 1, 1)


@unit
@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes"),
    [
        ((-1, 1, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1, 2**32, 1), 0),
        ((1, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1.5, 1, 1), 0),
        ((1, 1, 1), (1, 1, 1), -4),
    ],
    ids=repr,
)
def test_numbers_that_are_no_grid(
    loaded: DriverKernel, fake: Launches, grid: Any, block: Any, shared_bytes: int
) -> None:
    with pytest.raises(ValueError, match="three integers each, not negative and below 2"):
        loaded.launch(grid, block, shared_bytes, PARAMS)
    assert fake.seen == []
    loaded.launch((2, 1, 1), (3, 1, 1), 0, PARAMS)
    assert fake.seen[0][:2] == ((2, 1, 1), (3, 1, 1))


@unit
def test_a_parameter_block_of_the_wrong_length(loaded: DriverKernel, fake: Launches) -> None:
    with pytest.raises(
        ValueError, match=r"vector_add takes 32 bytes \(vector_add_params\); got 31"
    ):
        loaded.launch((1, 1, 1), (1, 1, 1), 0, PARAMS[:-1])
    assert fake.seen == []


@unit
@pytest.mark.parametrize("parameters", [[(0, 24)], [], [(0, 32), (32, 4)]])
def test_a_kernel_whose_parameters_are_not_the_headers(
    fake: Launches, small: Any, parameters: list[tuple[int, int]]
) -> None:
    fake.parameters = parameters
    with pytest.raises(
        DriverError, match=r"loading vector_add\(\) on cuda:0 .*vector_add_params .*has 32 bytes"
    ):
        load_fake(small.rendered("vector_add"))
    assert fake.unloaded == 1


@unit
def test_a_struct_that_the_driver_has_elsewhere_is_packed_from_its_begin(
    fake: Launches, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = small.rendered("vector_add")
    fake.parameters = [(48, kernel.params.size)]
    seen: list[bytes] = []

    def launch(config: Any, function: Any, kernel_params: int, extra: int) -> Any:
        pointers = ctypes.cast(kernel_params, ctypes.POINTER(ctypes.c_void_p))
        seen.append(ctypes.string_at(pointers[0], kernel.params.size))
        return (SUCCESS,)

    monkeypatch.setattr(cuda, "cuLaunchKernelEx", launch)
    load_fake(kernel).launch((1, 1, 1), (1, 1, 1), 0, bytes(range(kernel.params.size)))
    assert seen == [bytes(range(kernel.params.size))]


@unit
def test_every_parameter_of_a_text_has_its_place(
    fake: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = ".version 7.0\n.target sm_80\n.address_size 64\n"
    declared = ".param .u8 a, .param .u64 b, .param .align 16 .b8 c[4]"
    kernel = read_kernel(f"{head}.visible .entry k({declared})\n{{\n    ret;\n}}\n")
    fake.parameters = [(0, 1), (8, 8), (16, 4)]
    seen: list[list[bytes]] = []

    def launch(config: Any, function: Any, kernel_params: int, extra: int) -> Any:
        pointers = ctypes.cast(kernel_params, ctypes.POINTER(ctypes.c_void_p))
        sizes = enumerate(size for _, size in fake.parameters)
        seen.append([ctypes.string_at(pointers[i], size) for i, size in sizes])
        return (SUCCESS,)

    monkeypatch.setattr(cuda, "cuLaunchKernelEx", launch)
    load_fake(kernel).launch((1, 1, 1), (1, 1, 1), 0, bytes(range(20)))
    assert seen == [[b"\0", bytes(range(8, 16)), bytes(range(16, 20))]]
    fake.parameters = []
    nothing = read_kernel(f"{head}.visible .entry k()\n{{\n    ret;\n}}\n")
    load_fake(nothing).launch((1, 1, 1), (1, 1, 1), 0, b"")
    assert seen[1:] == [[]]


@unit
def test_a_cubin_that_the_driver_refuses(
    fake: Launches, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cuda,
        "cuModuleLoadData",
        lambda code: (cuda.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU, None),
    )
    with pytest.raises(
        DriverError,
        match=r"loading vector_add\(\) on cuda:0 \(NVIDIA H200, sm_90\): "
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
    ):
        load_fake(small.rendered("vector_add"))


# -- On a device -----------------------------------------------------------------------------------


def put(executor: Any, host: np.ndarray, stream: object) -> Any:
    return executor.copy_to_device(view(host), stream)


@pytest.fixture(params=["own", "new", "handle", "legacy", "zero", "per-thread", "torch", "cupy"])
def stream(request: pytest.FixtureRequest, executor: Any) -> Any:
    """Every way to name a stream."""
    kind = request.param
    if kind == "own":
        return executor.stream
    if kind == "new":
        return executor.new_stream()
    if kind == "handle":
        keep = executor.new_stream()
        request.addfinalizer(lambda: (executor.synchronize(keep), gc.collect()))
        return int(keep.handle)
    if kind == "torch":
        return pytest.importorskip("torch").cuda.Stream()
    if kind == "cupy":
        return pytest.importorskip("cupy").cuda.Stream(non_blocking=True)
    return {"legacy": 1, "zero": 0, "per-thread": 2}[kind]


@gpu
def test_a_kernel_runs_on_any_stream(executor: Any, small: Any, stream: object) -> None:
    host = np.arange(1000, dtype=np.float32)
    a = put(executor, host, stream)
    b = put(executor, np.ascontiguousarray(host[::-1]), stream)
    out = executor.empty((1000,), FLOAT, stream)
    small.add(executor, a, b, out, 2.0, stream)
    np.testing.assert_array_equal(out.to_numpy(), host + 2 * host[::-1])
    executor.synchronize(stream)


@gpu
def test_parameters_are_read_at_the_call(executor: Any, small: Any) -> None:
    """Launches queue up behind a slow kernel, from one buffer that is written anew each time."""
    add = executor.load(small.rendered("vector_add"))
    queue = executor.new_stream()
    x = put(executor, np.zeros(128, np.float32), queue)
    outs = [executor.empty((128,), FLOAT, queue) for _ in range(16)]
    small.fill(executor, x, 1.0, queue, milliseconds=20)
    params = bytearray(32)
    for number, out in enumerate(outs):
        params[:] = small.add_params(x.pointer, x.pointer, out.pointer, 128, float(number))
        add.launch((1, 1, 1), (128, 1, 1), 0, params, stream=queue)
    params[:] = bytes(32)
    for number, out in enumerate(outs):
        assert out.to_numpy().tolist() == [1.0 + number] * 128


@gpu
def test_two_threads_launch_one_kernel(executor: Any, small: Any) -> None:
    wrong: list[str] = []

    def run(number: int) -> None:
        try:
            queue = executor.new_stream()
            x = put(executor, np.full(64, number, np.float32), queue)
            outs = [executor.empty((64,), FLOAT, queue) for _ in range(200)]
            for turn, out in enumerate(outs):
                small.add(executor, x, x, out, float(turn), queue)
            for turn, out in enumerate(outs):
                got = set(out.to_numpy().tolist())
                if got != {number * (1.0 + turn)}:
                    wrong.append(f"thread {number}, launch {turn}: {got}")
        except Exception as error:
            wrong.append(f"thread {number}: {error!r}")

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 10, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []


@gpu
def test_a_kernel_is_loaded_once(executor: Any, small: Any) -> None:
    kernel = executor.load(small.rendered("vector_add"))
    assert executor.load(small.rendered("vector_add")) is kernel
    assert executor.load(small.rendered("delayed_fill")) is not kernel
    assert kernel.max_threads >= 128
    assert kernel.registers == kernel.cubin.resources.registers
    assert kernel.resident_blocks(128, 0) >= 1


@gpu
def test_dynamic_shared_memory_above_48_kib(executor: Any, small: Any) -> None:
    kernel = executor.load(small.rendered("reverse_shared"))
    threads = 256
    for nbytes in (1024, 48 << 10, (48 << 10) + 16, 100 << 10, kernel.max_dynamic_shared):
        if nbytes > kernel.max_dynamic_shared:
            continue
        out = executor.empty((threads,), np.dtype(np.uint32), executor.stream)
        params = struct.pack("<QII", out.pointer, nbytes, 0)
        kernel.launch((1, 1, 1), (threads, 1, 1), nbytes, params, stream=executor.stream)
        expected = [3 * (threads - 1 - thread) + 1 for thread in range(threads)]
        assert out.to_numpy().tolist() == expected, f"{nbytes} bytes"
    assert kernel.max_dynamic_shared > 48 << 10


@gpu
@pytest.mark.parametrize("name", sorted(load_header().kernels))
def test_the_driver_reads_the_headers_parameter_block(executor: Any, name: str) -> None:
    """An entry with the header's struct, loaded: its one parameter has the struct's size."""
    params = load_header().kernels[name]
    text = (
        ".version 7.0\n.target sm_80\n.address_size 64\n"
        f".visible .entry {name}(.param .align {params.alignment} .b8 params[{params.size}])\n"
        "{\n    ret;\n}\n"
    )
    kernel = RenderedKernel(name, text, (None,) * (text.count("\n") + 1), {}, params)
    ((_, size),) = executor.load(kernel).parameters
    assert size == params.size


@gpu
def test_a_parameter_block_of_another_size_is_refused(executor: Any, small: Any) -> None:
    text = ".visible .entry vector_add(.param .align 8 .b8 params[40])\n{\n    ret;\n}\n"
    with pytest.raises(DriverError, match=r"vector_add.*\[40\] bytes.*has 32"):
        executor.load(small.rendered("vector_add", text=text))


@gpu
@pytest.mark.parametrize(
    ("grid", "block", "shared_bytes", "words"),
    [
        ((1, 1, 1), (2048, 1, 1), 0, "A block of 2048 threads is more than"),
        ((1, 1, 1), (32, 1, 1), 1 << 20, "1048576 bytes of dynamic shared memory are more than"),
        ((0, 1, 1), (32, 1, 1), 0, "without elements"),
        ((1, 70000, 1), (32, 1, 1), 0, "65535 blocks"),
    ],
)
def test_a_launch_that_the_driver_refuses(
    executor: Any,
    small: Any,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    shared_bytes: int,
    words: str,
) -> None:
    kernel = executor.load(small.rendered("vector_add"))
    x = put(executor, np.ones(8, np.float32), executor.stream)
    out = executor.empty((8,), FLOAT, executor.stream)
    params = small.add_params(x.pointer, x.pointer, out.pointer, 8, 1.0)
    with pytest.raises(DriverError, match=words) as caught:
        kernel.launch(grid, block, shared_bytes, params, stream=executor.stream)
    assert "launching vector_add()" in str(caught.value)
    assert ": CUDA_ERROR_INVALID_VALUE (" in str(caught.value)
    small.add(executor, x, x, out, 1.0, executor.stream)  # the context is as good as before
    assert out.to_numpy().tolist() == [2.0] * 8


@gpu
def test_a_cubin_for_another_architecture_is_refused(executor: Any, small: Any) -> None:
    other = "sm_80" if executor.info.compute_capability[0] != 8 else "sm_90"
    kernel = small.rendered("vector_add")
    with pytest.raises(DriverError, match=r"loading vector_add\(\) on cuda:0 .*CUDA_ERROR_"):
        DriverKernel(executor.info, executor.context, kernel, assemble(kernel, other))


_FAULT = """
import struct
import sys
from cuevo.executors.driver import executor
from cuevo.errors import DriverError
from cuevo.toolchain.header import parse_header
from cuevo.toolchain.template import RenderedKernel

header = parse_header("typedef struct fault_params { float *out; } fault_params;"
                      "void fault(const fault_params params);")
text = '''.version 7.0
.target sm_80
.address_size 64
.visible .entry fault(.param .align 8 .b8 params[8])
{
    .reg .u64 out;
    .reg .f32 one;
    ld.param.u64 out, [params];
    mov.f32 one, 0f3F800000;
    st.global.f32 [out], one;
    ret;
}
'''
device = executor(0)
kernel = device.load(RenderedKernel("fault", text, (None,) * 20, {}, header.kernels["fault"]))
kernel.launch((1, 1, 1), (1, 1, 1), 0, struct.pack("<Q", 16), stream=device.stream)
for _ in range(2):
    try:
        device.synchronize(device.stream)
    except DriverError as error:
        print("CAUGHT", error)
"""


@gpu
def test_a_fault_in_a_kernel_is_told_at_the_next_call() -> None:
    """In a process of its own: the fault costs the context."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", _FAULT],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("CAUGHT")]
    assert len(lines) == 2, done.stdout + done.stderr
    for line in lines:
        assert "of cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS (" in line
        assert "context is lost; start a new process" in line
