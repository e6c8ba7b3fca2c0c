"""cuevo.executors.placement: from `device` and the arrays to an executor."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuevo.architectures import architecture
from cuevo.arrays import view
from cuevo.arrays.array_view import ArrayView
from cuevo.cuda.device_info import DeviceInfo, devices
from cuevo.errors import DeviceUnavailable
from cuevo.executors import placement
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of, executor_for
from cuevo.sim import SimExecutor

unit = pytest.mark.unit
gpu = pytest.mark.gpu

HOST = view(np.zeros(4, np.float16))


def on(device: str) -> ArrayView:
    return replace(HOST, device=device)


class FakeDriverExecutor(DriverExecutor):
    """An executor of a device that is not there."""

    def __init__(self, ordinal: int, arch: str = "sm_86", multiprocessors: int = 46) -> None:
        self.name = f"cuda:{ordinal}"
        self.arch = arch
        self.info = DeviceInfo(
            ordinal=ordinal,
            name="Fake",
            arch=arch,
            sm_count=multiprocessors,
            shared_per_block_optin=98 * 1024,
            l2_bytes=0,
            memory_bytes=0,
            driver_version="13.0",
        )


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[FakeDriverExecutor]:
    found = [FakeDriverExecutor(0), FakeDriverExecutor(1)]
    monkeypatch.setattr(placement, "devices", lambda: tuple(x.info for x in found))
    monkeypatch.setattr(placement, "executor", lambda ordinal: found[ordinal])
    return found


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(ordinal: int) -> Any:
        raise DeviceUnavailable(f"there is no device cuda:{ordinal}")

    monkeypatch.setattr(placement, "devices", lambda: ())
    monkeypatch.setattr(placement, "executor", unavailable)


@unit
@pytest.mark.parametrize(
    ("device", "arch"), [("sim", "sm_80"), ("sim:sm_90", "sm_90"), ("sim:sm_86", "sm_86")]
)
def test_the_cpu_executor_by_name(device: str, arch: str) -> None:
    found = executor_for(device, {"q": HOST, "k": HOST})
    assert isinstance(found, SimExecutor)
    assert (found.arch, found.name) == (arch, f"sim:{arch}")
    assert executor_for(device, {"q": HOST}) is found


@unit
def test_an_executor_is_taken_as_it_is(two_gpus: list[FakeDriverExecutor]) -> None:
    for executor in (SimExecutor("sm_90"), two_gpus[1]):
        assert executor_for(executor, {"q": HOST}) is executor


@unit
def test_arrays_run_where_they_live(two_gpus: list[FakeDriverExecutor]) -> None:
    assert executor_for(None, {"q": on("cuda:1"), "k": on("cuda:1")}) is two_gpus[1]
    assert executor_for("cuda:1", {"q": on("cuda:1")}) is two_gpus[1]
    assert executor_for(two_gpus[0], {"q": on("cuda:0")}) is two_gpus[0]


@unit
def test_host_arrays_go_to_the_first_gpu(two_gpus: list[FakeDriverExecutor]) -> None:
    assert executor_for(None, {"q": HOST}) is two_gpus[0]
    assert executor_for("cuda", {"q": HOST}) is two_gpus[0]
    assert executor_for("cuda:1", {"q": HOST}) is two_gpus[1]


@unit
def test_without_a_gpu_host_arrays_go_to_the_cpu_executor(no_gpu: None) -> None:
    found = executor_for(None, {"q": HOST})
    assert isinstance(found, SimExecutor)
    assert found.arch == "sm_80"


@unit
@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:3"])
def test_a_gpu_that_is_not_there(no_gpu: None, device: str) -> None:
    with pytest.raises(DeviceUnavailable, match="there is no device cuda:"):
        executor_for(device, {"q": HOST})


@unit
def test_arrays_on_several_devices(two_gpus: list[FakeDriverExecutor]) -> None:
    with pytest.raises(
        ValueError, match="v: expected an array on cuda:1, where q is; it is on cpu"
    ):
        executor_for(None, {"q": on("cuda:1"), "k": on("cuda:1"), "v": HOST})


@unit
@pytest.mark.parametrize("device", ["sim", "cuda:0"])
def test_arrays_on_another_device_than_the_one_asked_for(
    two_gpus: list[FakeDriverExecutor], device: str
) -> None:
    with pytest.raises(
        ValueError, match=r"device: the arrays are on cuda:1, and .* cannot read them"
    ):
        executor_for(device, {"q": on("cuda:1")})


@unit
@pytest.mark.parametrize("device", ["gpu", "cpu", "", "cuda:x", "cuda:-1", "sm_80"])
def test_names_of_no_device(two_gpus: list[FakeDriverExecutor], device: str) -> None:
    with pytest.raises(ValueError, match=f"device: expected 'sim', .*; got {device!r}"):
        executor_for(device, {"q": HOST})


@unit
def test_an_architecture_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"there is no architecture sm_85\. Did you mean sm_8"):
        executor_for("sim:sm_85", {"q": HOST})


@unit
@pytest.mark.parametrize("arch", ["sm_60", "ampere", "90"])
def test_architectures_that_the_cpu_executor_has_not(arch: str) -> None:
    words = f"architecture must be sm_70 or later, such as 'sm_80' or 'sm_90a'; got '{arch}'"
    with pytest.raises(ValueError, match=words):
        executor_for(f"sim:{arch}", {"q": HOST})


@unit
@pytest.mark.parametrize("device", [0, object, b"sim"])
def test_what_names_no_device(device: Any) -> None:
    with pytest.raises(
        TypeError, match="device: expected None, a name such as 'sim' or 'cuda:0', or"
    ):
        executor_for(device, {"q": HOST})


@unit
def test_limits_of_the_cpu_executor_are_those_of_its_architecture() -> None:
    assert architecture_of(SimExecutor("sm_86")) == architecture("sm_86")


@unit
def test_limits_of_a_device_are_its_own() -> None:
    found = architecture_of(FakeDriverExecutor(0, "sm_86", 46))
    expected = replace(architecture("sm_86"), shared_per_block=98 * 1024, multiprocessors=46)
    assert found == expected != architecture("sm_86")


@gpu
def test_the_first_gpu(executor: DriverExecutor) -> None:
    assert executor_for(None, {"q": HOST}) is executor
    assert executor_for("cuda", {"q": on("cuda:0")}) is executor
    limits = architecture_of(executor)
    # With what only it has: "sm_90a" on a device of sm_90.
    assert limits.name == architecture(executor.arch).specific_name
    assert limits.multiprocessors == devices()[0].sm_count
    assert limits.shared_per_block == architecture(executor.arch).shared_per_block
