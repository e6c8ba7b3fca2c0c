import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cuda.bindings import driver as cuda

from cuevo.cuda import device_info as module
from cuevo.cuda.device_info import DeviceInfo, devices, require_device, why_none
from cuevo.errors import CuevoError, DeviceUnavailable

unit = pytest.mark.unit
gpu = pytest.mark.gpu


def device(ordinal: int, name: str = "NVIDIA H200", arch: str = "sm_90") -> DeviceInfo:
    return DeviceInfo(ordinal, name, arch, 132, 232448, 60 << 20, 140 << 30, "13.0")


@pytest.fixture
def driver_says(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let a call of the driver answer something else, and forget what was asked before."""

    def say(**answers: Any) -> None:
        for name, answer in answers.items():
            monkeypatch.setattr(module.cuda, name, answer)
        module._probe.cache_clear()

    module._probe.cache_clear()
    yield say
    monkeypatch.undo()
    module._probe.cache_clear()


def missing(*_: object) -> Any:
    raise RuntimeError('"cuda" can only be found via system search.\nSecond line.')


def status(name: str) -> Callable[..., Any]:
    return lambda *_: (getattr(cuda.CUresult, name),)


def success(value: Any) -> Callable[..., Any]:
    return lambda *_: (cuda.CUresult.CUDA_SUCCESS, value)


@unit
def test_no_driver(driver_says: Callable[..., None]) -> None:
    driver_says(cuInit=missing)
    assert devices() == ()
    with pytest.raises(DeviceUnavailable) as caught:
        require_device(0)
    message = str(caught.value)
    assert "there is no device cuda:0" in message
    assert "looked for NVIDIA's driver library (libcuda), found none" in message
    assert "Install NVIDIA's driver" in message
    assert "device='sim'" in message
    assert "Second line" not in message
    assert isinstance(caught.value, CuevoError)
    assert why_none() in message


@unit
@pytest.mark.parametrize("how", ["status", "count"])
def test_no_gpu(
    driver_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    if how == "status":
        driver_says(cuInit=status("CUDA_ERROR_NO_DEVICE"))
    else:
        driver_says(cuInit=status("CUDA_SUCCESS"), cuDeviceGetCount=success(0))
    assert devices() == ()
    with pytest.raises(
        DeviceUnavailable,
        match=r"found NVIDIA's driver but no device \(CUDA_VISIBLE_DEVICES is '7'\)"
        r".*nvidia-smi.*'sim'",
    ):
        require_device(0)


@unit
def test_no_gpu_without_the_variable(
    driver_says: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver_says(cuInit=status("CUDA_ERROR_NO_DEVICE"))
    assert "no device. See whether nvidia-smi" in why_none()


@unit
def test_driver_that_does_not_start(driver_says: Callable[..., None]) -> None:
    driver_says(
        cuInit=status("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        cuGetErrorName=success(b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        cuGetErrorString=success(b"the words of the driver"),
    )
    assert devices() == ()
    with pytest.raises(
        DeviceUnavailable,
        match=r"does not start: cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH "
        r"\(the words of the driver\).*of one version",
    ):
        require_device(0)


@unit
def test_forked_process(driver_says: Callable[..., None]) -> None:
    driver_says(cuInit=status("CUDA_ERROR_NOT_INITIALIZED"))
    assert devices() == ()
    assert "forked" in why_none()
    assert "spawn" in why_none()


@unit
def test_driver_that_fails_while_it_lists(driver_says: Callable[..., None]) -> None:
    driver_says(
        cuInit=status("CUDA_SUCCESS"),
        cuDeviceGetCount=success(1),
        cuDeviceGet=status("CUDA_ERROR_ECC_UNCORRECTABLE"),
        cuGetErrorName=success(b"CUDA_ERROR_ECC_UNCORRECTABLE"),
        cuGetErrorString=success(None),
    )
    assert devices() == ()
    assert "describing cuda:0: CUDA_ERROR_ECC_UNCORRECTABLE" in why_none()


@unit
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_probe", lambda: (device(0), device(1, "NVIDIA L4", "sm_89")))
    assert require_device(1).name == "NVIDIA L4"
    assert why_none() == ""
    for ordinal in (2, -1):
        with pytest.raises(
            DeviceUnavailable,
            match=rf"no device cuda:{ordinal}: .*cuda:0 \(NVIDIA H200\), "
            r"cuda:1 \(NVIDIA L4\).*'sim'",
        ):
            require_device(ordinal)


@unit
def test_an_architecture_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    old = device(0, "Tesla P100", "sm_60")
    monkeypatch.setattr(module, "_probe", lambda: (old, device(1, "Tesla V100", "sm_70")))
    with pytest.raises(
        DeviceUnavailable,
        match=r"cuda:0 is too old.*looked for sm_70.*found Tesla P100 with sm_60.*'sim'",
    ):
        require_device(0)
    assert require_device(1).arch == "sm_70"


@unit
@pytest.mark.parametrize(
    ("arch", "pair"), [("sm_70", (7, 0)), ("sm_90", (9, 0)), ("sm_120", (12, 0))]
)
def test_compute_capability(arch: str, pair: tuple[int, int]) -> None:
    assert device(0, arch=arch).compute_capability == pair


@unit
def test_importing_the_package_needs_no_driver() -> None:
    """Everything but an executor's making works where libcuda is missing."""
    code = (
        "import sys\n"
        "import cuevo.executors.driver, cuevo.arrays, cuevo.cuda\n"
        "assert isinstance(cuevo.cuda.devices(), tuple)\n"
        "assert 'torch' not in sys.modules and 'cupy' not in sys.modules\n"
    )
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@gpu
def test_the_devices_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    found = devices()
    with capsys.disabled():
        print("\n", *found, sep="\n ")
    assert [info.ordinal for info in found] == list(range(len(found)))
    for info in found:
        assert info.name
        assert info.compute_capability >= (7, 0)
        assert 1 <= info.sm_count <= 1000
        assert 48 << 10 <= info.shared_per_block_optin <= 1 << 20
        assert 1 << 20 <= info.l2_bytes <= 1 << 30
        assert 1 << 30 <= info.memory_bytes <= 1 << 40
        assert float(info.driver_version) >= 12
    assert require_device(0) == found[0]


@gpu
def test_the_devices_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    assert len(devices()) == torch.cuda.device_count()
    for info in devices():
        properties = torch.cuda.get_device_properties(info.ordinal)
        assert info.name == properties.name
        assert info.sm_count == properties.multi_processor_count
        assert info.compute_capability == (properties.major, properties.minor)
        assert info.l2_bytes == properties.L2_cache_size
        assert info.shared_per_block_optin == properties.shared_memory_per_block_optin
