"""Bad input, from the call of a user: what is refused, by what words, and that nothing was run.

Where each kind is tested in detail:

- wrong shape, dtype, stride, alignment, head dim, scale: tests/ops/test_attention_problem.py
- what is no array, no stream, no device: tests/arrays/test_readers.py, tests/cuda/test_stream.py,
  tests/executors/test_placement.py
- a configuration: tests/ops/test_forward.py
- gradients: tests/ops/test_backward_refusals.py, their workspace: tests/ops/test_backward.py
- an empty problem: tests/ops/test_forward.py
- a kernel file that does not render or assemble: tests/toolchain/test_template.py,
tests/toolchain/test_assembler.py
- an instruction or an access that the CPU executor refuses: tests/sim
- out of memory, a launch that fails, a lost device, a context that cannot be made:
  tests/executors/test_driver.py, tests/executors/test_driver_kernel.py, tests/cuda/test_context.py
- no driver, no GPU, an architecture that is too old: tests/cuda/test_device_info.py
- a large problem that falls to the CPU executor: tests/ops/test_cpu_time.py
- a damaged or foreign cache entry: tests/toolchain/test_cache.py, tests/toolchain/test_assembler.py
"""

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.executors import Idle
from helpers.fake_tensor import FakeTensor, Name

import cuevo
from cuevo.arrays import BFLOAT16
from cuevo.cuda import device_info
from cuevo.errors import (
    AssemblerError,
    DeviceUnavailable,
    DriverError,
    SimulatorError,
    TemplateError,
)
from cuevo.executors import placement
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.cache import Cache
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.template import RenderedKernel, render

unit = pytest.mark.unit
gpu = pytest.mark.gpu


def call(**changes: Any) -> dict[str, Any]:
    """Arguments that are right, but for the changes."""
    arguments = {
        "q": np.zeros((1, 2, 8, 2, 16), np.float16),
        "k": np.zeros((1, 2, 12, 2, 16), np.float16),
        "v": np.zeros((1, 2, 12, 2, 16), np.float16),
        "mask_bias": np.zeros((1, 2, 1, 1, 12), np.bool_),
        "pair_bias": np.zeros((1, 1, 2, 8, 12), np.float32),
        "device": Idle(),
    }
    return arguments | changes


OFF_BY_TWO = np.zeros(2 * 8 * 2 * 16 + 1, np.float16)[1:].reshape(1, 2, 8, 2, 16)
REFUSED = {
    "shape": (
        dict(k=np.zeros((1, 2, 12, 3, 16), np.float16)),
        ValueError,
        r"^k: expected an array .* got 5 axes, shape",
    ),
    "axes": (
        dict(pair_bias=np.zeros((2, 8, 12), np.float32)),
        ValueError,
        r"^pair_bias: expected an array .* got 3 axes",
    ),
    "dtype": (
        dict(v=np.zeros((1, 2, 12, 2, 16), np.float32)),
        TypeError,
        "^v: expected float16, the type of q; got float32",
    ),
    "dtype of the mask": (
        dict(mask_bias=np.zeros((1, 2, 1, 1, 12), np.int64)),
        TypeError,
        "^mask_bias: expected .* got int64",
    ),
    "no array": (dict(q=[[1.0, 2.0]]), TypeError, "^q: expected a NumPy, torch, CuPy or JAX array"),
    "complex": (dict(q=np.zeros((1, 2, 8, 2, 16), np.complex64)), TypeError, "^q: expected bool"),
    "stride": (
        dict(q=np.zeros((1, 2, 8, 2, 32), np.float16)[..., ::2]),
        ValueError,
        "^q: its last axis, D, must be contiguous, .* stride is 4",
    ),
    "alignment": (
        dict(q=OFF_BY_TWO),
        ValueError,
        "^q: its rows must start at multiples of 16 bytes; its address is 0x",
    ),
    "head dim": (
        {name: np.zeros((1, 2, 8, 2, 12), np.float16) for name in "qkv"}
        | dict(mask_bias=None, pair_bias=None),
        ValueError,
        "^q: the head dim D must be a multiple of 8 from 8 to 128; got 12",
    ),
    "scale": (dict(scale=math.nan), ValueError, "^scale: expected a finite number .* got nan"),
    "scale, infinite": (
        dict(scale=-math.inf),
        ValueError,
        "^scale: expected a finite number .* got -inf",
    ),
    "scale, an array": (
        dict(scale=np.full(1, 0.5)),
        TypeError,
        "^scale: expected a real number; got ndarray",
    ),
    "scale, text": (dict(scale="1"), TypeError, "^scale: expected a real number; got str"),
    "out, read-only": (
        dict(out=np.broadcast_to(np.zeros((1, 2, 8, 2, 16), np.float16), (1, 2, 8, 2, 16))),
        ValueError,
        "^out: has to be writable",
    ),
    "stream": (dict(stream="fast"), TypeError, "^stream: expected None, an integer handle"),
    "config": (dict(config={"stages": 1}), ValueError, "^config: .* stages must be 2 to 6, not 1"),
    "config, a list": (dict(config={"stages": [3]}), TypeError, "^config: "),
    "config, a field": (dict(config={"tile": 3}), ValueError, "^config: .*tile"),
    "config, of the problem": (
        dict(config={"head_dim": 64}),
        ValueError,
        "^config: head_dim is the problem's, 16; got 64",
    ),
}


@unit
@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_anything_runs(what: str) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        cuevo.attention(**call(**changes))


@unit
@pytest.mark.parametrize(
    ("device", "error", "words"),
    [
        ("gpu", ValueError, "^device: expected 'sim', 'sim:sm_90', 'cuda' or 'cuda:0'; got 'gpu'"),
        (["sim"], TypeError, "^device: expected None, a name .* got list"),
        (3, TypeError, "^device: expected None, a name .* got int"),
    ],
)
def test_devices_that_cannot_be(device: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cuevo.attention(**call(device=device))


def test_bfloat16_where_no_variant_has_it() -> None:
    given = call(device="sim:sm_75")
    for name in ("q", "k", "v"):
        given[name] = given[name].astype(BFLOAT16)
    with pytest.raises(ValueError, match=r"no kernel serves .* on sm_75:\n(.*\n)*.*f16"):
        cuevo.attention(**given)


@unit
def test_arrays_on_two_devices() -> None:
    elsewhere = cuevo.array_from_pointer(2**30, (1, 2, 12, 2, 16), np.float16, device="cuda:0")
    with pytest.raises(
        ValueError, match="k: expected an array on cpu, where q is; it is on cuda:0"
    ):
        cuevo.attention(**call(k=elsewhere))


# -- A kernel file with a mistake ------------------------------------------------------------------

VALUES = forward.values(forward.Config(head_dim=32, stages=2))
LIBRARY = "lib/softmax.ptx"
BEFORE = "    ex2.approx.ftz.f32 e"


@pytest.fixture
def broken(tmp_path: Path) -> Callable[[str], tuple[RenderedKernel, str]]:
    """``broken(line)``: the attention kernel with that line in a macro, and where it stands."""

    def make(line: str) -> tuple[RenderedKernel, str]:
        directory = tmp_path / "ptx"
        shutil.copytree(ptx_directory(), directory)
        lines = (directory / LIBRARY).read_text().split("\n")
        index = next(i for i, text in enumerate(lines) if text.startswith(BEFORE))
        lines.insert(index, line)
        (directory / LIBRARY).write_text("\n".join(lines))
        return render(forward.NAME, VALUES, directory=directory), f"ptx/{LIBRARY}:{index + 1}: "

    return make


@unit
def test_a_macro_that_uses_a_register_of_nobody(broken: Any) -> None:
    with pytest.raises(TemplateError) as caught:
        broken("    add.f32 e0, e0, nobody;")
    assert re.match(
        r"ptx/lib/softmax\.ptx:\d+: the macro exponentials uses nobody", str(caught.value)
    )


@unit
def test_a_kernel_that_does_not_assemble(broken: Any) -> None:
    kernel, place = broken("    add.f32 e0, e0, e2;")
    with pytest.raises(AssemblerError) as caught:
        assemble(kernel, "sm_80", cache=None)
    *complaints, last = str(caught.value).split("\n")
    assert f"{place}Unknown symbol 'e2'" in complaints
    assert "evoformer_forward_sm80(config=Config(head_dim=32, " in last
    assert "stages=2" in last


@unit
def test_an_instruction_that_the_cpu_executor_does_not_know(broken: Any) -> None:
    kernel, place = broken("    vadd4.u32.u32.u32 e0, e0, e0, e0;")
    with pytest.raises(SimulatorError) as caught:
        SimExecutor("sm_80").load(kernel)
    message = str(caught.value)
    assert message.startswith(place)
    assert "vadd4.u32.u32.u32" in message
    assert "evoformer_forward_sm80(config=Config(head_dim=32, " in message


# -- The driver ------------------------------------------------------------------------------------


@unit
def test_without_a_gpu_only_the_cpu_executor_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_info, "_probe", lambda: "looked for a GPU, found none. Install one")
    monkeypatch.setattr(placement, "executor", DriverExecutor)
    monkeypatch.setattr(placement, "devices", device_info.devices)
    with pytest.raises(DeviceUnavailable) as caught:
        cuevo.attention(**call(device="cuda:0"))
    message = str(caught.value)
    assert "no device cuda:0: looked for a GPU, found none. Install one" in message
    assert "device='sim'" in message
    assert cuevo.attention(**call(device=None)).shape == (1, 2, 8, 2, 16)


class OfProtocol:
    """An array in device memory that says so by one of the protocols."""

    shape = (1, 2, 8, 2, 16)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("nobody can read it")


class OfInterface:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        memory = {"data": (2**30, False), "strides": None, "stream": 7}
        return {"version": 3, "shape": OfProtocol.shape, "typestr": "<f2"} | memory


@unit
@pytest.mark.parametrize("stream", [None, 7])
@pytest.mark.parametrize(
    "x",
    [
        OfProtocol(),
        OfInterface(),
        FakeTensor(OfProtocol.shape, (512, 256, 32, 16, 1), Name("torch.float16"), Name("cuda:0")),
        cuevo.array_from_pointer(2**30, OfProtocol.shape, np.float16),
    ],
    ids=lambda x: type(x).__name__,
)
def test_arrays_on_a_device_where_there_is_no_driver(
    monkeypatch: pytest.MonkeyPatch, x: object, stream: int | None
) -> None:
    words = "looked for NVIDIA's driver library, found none. Install it"
    monkeypatch.setattr(device_info, "_probe", lambda: words)
    monkeypatch.setattr(placement, "executor", DriverExecutor)
    for device in (None, "cuda:0"):
        with pytest.raises(DeviceUnavailable, match=words) as caught:
            cuevo.attention(x, x, x, stream=stream, device=device)
        assert "the CPU executor: device='sim'" in str(caught.value)


@gpu
@pytest.mark.no_memory_left
def test_a_result_that_does_not_fit_into_memory(executor: DriverExecutor) -> None:
    """The context is as good as before."""
    arrays = {
        name: x for name, x in call().items() if name not in ("device", "mask_bias", "pair_bias")
    }
    on_device = {name: executor.copy_to_device(cuevo.arrays.view(x)) for name, x in arrays.items()}
    rows = 1 + executor.info.memory_bytes // (2 * 8 * 2 * 16)
    huge = {
        name: replace(x, shape=(1, rows, *x.shape[2:]), strides=(0, 0, *x.strides[2:]))
        for name, x in on_device.items()
    }
    with pytest.raises(DriverError, match=r"allocating [0-9,]+ bytes on cuda:0: .*MEMORY"):
        cuevo.attention(**huge)
    assert (cuevo.attention(**on_device).to_numpy() == 0).all()


@gpu
def test_a_launch_that_the_device_cannot_make(executor: DriverExecutor) -> None:
    config = forward.Config(head_dim=32, stages=2)
    kernel = executor.load(render(forward.NAME, forward.values(config)))
    too_much = executor.info.shared_per_block_optin + 16
    with pytest.raises(DriverError) as caught:
        kernel.launch((1, 1, 1), (config.threads, 1, 1), too_much, bytes(kernel.kernel.params.size))
    message = str(caught.value)
    assert "evoformer_forward_sm80(config=Config(head_dim=32, " in message
    assert "CUDA_ERROR_INVALID_VALUE (invalid argument)" in message
    assert f"{too_much} bytes of dynamic shared memory" in message


# -- The cache -------------------------------------------------------------------------------------


@unit
def test_an_entry_of_another_architecture_is_not_used(tmp_path: Path) -> None:
    """Each entry is put under the other one's name."""
    values = forward.values(forward.Config(head_dim=8, block_queries=64, pair="none", mask="none"))
    kernel = render(forward.NAME, values)
    cache = Cache(tmp_path)
    good = {arch: assemble(kernel, arch, cache=cache) for arch in ("sm_80", "sm_90")}
    assert good["sm_80"].code != good["sm_90"].code
    one, other = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    cache.forget()
    for arch, expected in good.items():
        found = assemble(kernel, arch, cache=cache)
        assert (found.arch, found.code) == (arch, expected.code)
