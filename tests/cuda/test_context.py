from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cuda.bindings import driver as cuda

from cuevo.cuda import context as module
from cuevo.cuda.context import PrimaryContext, check, driver_error, primary_context
from cuevo.errors import DriverError

unit = pytest.mark.unit
gpu = pytest.mark.gpu
SUCCESS = cuda.CUresult.CUDA_SUCCESS


class FakeDriver:
    """The driver's calls on contexts: handles are integers, each thread has a stack of them."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        self.calls: list[str] = []
        self.fails: dict[str, Any] = {}

    def _answer(self, name: str, *values: Any) -> tuple[Any, ...]:
        self.calls.append(name)
        return (self.fails[name],) if name in self.fails else (SUCCESS, *values)

    def cuInit(self, flags: int) -> Any:  # noqa: N802
        return self._answer("cuInit")

    def cuDeviceGet(self, ordinal: int) -> Any:  # noqa: N802
        return self._answer("cuDeviceGet", ordinal)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:  # noqa: N802
        return self._answer("cuDevicePrimaryCtxRetain", 100 + device)

    def cuCtxGetCurrent(self) -> Any:  # noqa: N802
        return self._answer("cuCtxGetCurrent", self.stack[-1] if self.stack else 0)

    def cuCtxPushCurrent(self, handle: int) -> Any:  # noqa: N802
        self.stack.append(handle)
        return self._answer("cuCtxPushCurrent")

    def cuCtxPopCurrent(self) -> Any:  # noqa: N802
        return self._answer("cuCtxPopCurrent", self.stack.pop())


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    driver = FakeDriver()
    for name in dir(driver):
        if name.startswith("cu"):
            monkeypatch.setattr(module.cuda, name, getattr(driver, name))
    monkeypatch.setattr(module, "_contexts", {})
    monkeypatch.setattr(module, "describe_status", lambda status: status.name)
    yield driver


@unit
@pytest.mark.parametrize("before", [[], [77], [5, 77], [101]])
def test_the_thread_gets_its_context_back(fake: FakeDriver, before: list[int]) -> None:
    context = PrimaryContext(1)
    assert context.handle == 101
    fake.stack[:] = before
    with context.current():
        assert fake.stack[-1] == 101
        with context.current():
            assert fake.stack.count(101) == 1
    assert fake.stack == before


@unit
def test_the_thread_gets_its_context_back_after_an_error(fake: FakeDriver) -> None:
    context = PrimaryContext(0)
    fake.stack[:] = [77]
    with pytest.raises(KeyError), context.current():
        raise KeyError
    assert fake.stack == [77]


@unit
def test_nothing_is_pushed_where_the_context_is_current(fake: FakeDriver) -> None:
    context = PrimaryContext(0)
    fake.stack[:] = [100]
    with context.current():
        pass
    assert "cuCtxPushCurrent" not in fake.calls
    assert "cuCtxPopCurrent" not in fake.calls


@unit
def test_a_primary_context_is_made_once(fake: FakeDriver) -> None:
    assert primary_context(1) is primary_context(1)
    assert primary_context(0) is not primary_context(1)
    assert fake.calls.count("cuDevicePrimaryCtxRetain") == 2


@unit
def test_a_context_that_fails_leaves_nothing_and_can_be_tried_again(fake: FakeDriver) -> None:
    fake.fails["cuDevicePrimaryCtxRetain"] = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(
        DriverError, match="making the primary context of cuda:0: CUDA_ERROR_OUT_OF_MEMORY"
    ):
        primary_context(0)
    assert fake.stack == []
    assert module._contexts == {}
    del fake.fails["cuDevicePrimaryCtxRetain"]
    assert primary_context(0).handle == 100


@unit
def test_check_gives_what_the_call_returned() -> None:
    assert check((SUCCESS,), "x") is None
    assert check((SUCCESS, 5), "x") == 5
    assert check((SUCCESS, 5, 6), "x") == (5, 6)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | None, bytes | None], None]:
    def say(name: bytes | None, text: bytes | None) -> None:
        monkeypatch.setattr(module.cuda, "cuGetErrorName", lambda status: (SUCCESS, name))
        monkeypatch.setattr(module.cuda, "cuGetErrorString", lambda status: (SUCCESS, text))

    return say


@unit
def test_an_error_has_the_drivers_name_and_text(words: Callable[..., None]) -> None:
    words(b"CUDA_ERROR_INVALID_VALUE", b"invalid argument")
    with pytest.raises(
        DriverError, match=r"^loading x: CUDA_ERROR_INVALID_VALUE \(invalid argument\)\.$"
    ):
        check((cuda.CUresult.CUDA_ERROR_INVALID_VALUE,), "loading x")
    words(None, None)
    error = driver_error(cuda.CUresult.CUDA_ERROR_INVALID_VALUE, "loading x", "One", "Two")
    assert str(error) == "loading x: CUDA error 1. One. Two."


@unit
@pytest.mark.parametrize(
    "name",
    ["CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_MISALIGNED_ADDRESS"],
)
def test_an_error_that_costs_the_context_says_so(words: Callable[..., None], name: str) -> None:
    words(name.encode(), b"the text")
    message = str(driver_error(getattr(cuda.CUresult, name), "waiting"))
    assert message.startswith(f"waiting: {name} (the text). ")
    assert "context is lost; start a new process" in message
    assert "compute-sanitizer" in message


@gpu
def test_the_drivers_words_are_used() -> None:
    with pytest.raises(DriverError, match=r"asking: CUDA_ERROR_INVALID_DEVICE \(.+\)"):
        check(cuda.cuDeviceGet(4711), "asking")


@gpu
def test_the_primary_context_is_that_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    torch.zeros(1, device="cuda")  # makes it current in this thread
    _, current = cuda.cuCtxGetCurrent()
    assert int(current) == primary_context(torch.cuda.current_device()).handle
