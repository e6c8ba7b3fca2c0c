"""cuevo.gemm on a GPU: every bit, arrays of every library, streams, graphs, large sizes."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import gemm_cases as cases
from helpers.device_calls import (
    STREAMS,
    host_time,
    moved,
    overwrite,
    results_of_threads,
    tensors,
    to_numpy,
)
from helpers.gemm_cases import Arrays, GemmCase
from helpers.gemm_sweep import CASES, name
from helpers.guarded import DTYPES, OnDevice, assert_same_bytes, host_views

import cuevo
from cuevo import reference
from cuevo.arrays import DeviceArray
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.kernels.gemm_mma import Config

pytestmark = pytest.mark.gpu

PLAIN = GemmCase(150, 133, 170, c="f32", alpha=0.7, beta=-1.5, bias=True, out_layout="new", seed=11)
SPLIT = replace(PLAIN, m=70, n=90, k=700, settings=(("splits", 4), ("block_k", 32)), seed=12)
LARGE = GemmCase(2000, 1500, 4000, out_layout="new", settings=(("splits", 5),), seed=13)


def make(
    case: GemmCase, place: DriverExecutor, *, strict: bool = True
) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a case, and how `cuevo.gemm` is called with them: on the host.

    `strict`: the device must be able to run the settings of the case.
    """
    arrays, call = cases.arguments(case)
    views = host_views(arrays.call(case), readonly=False)
    config = cases.configuration(case, views, architecture_of(place))
    kept = all(getattr(config, key) == value for key, value in case.settings)
    assert kept or not strict, f"{case}: {config}"
    return arrays, call | {"config": config}


# -- Every bit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_sweep(executor: DriverExecutor, case: GemmCase) -> None:
    arrays, call = make(case, executor, strict=False)
    config = call["config"]
    was = cases.memory_of(arrays)
    on_device = OnDevice(arrays.call(case), executor)
    found = cuevo.gemm(**call | on_device.views)
    if arrays.out is not None:
        on_device.fetch({"out": arrays.out})
        result = arrays.out.array
    else:
        result = found.to_numpy()
    on_device.fetch({key: x for key, x in arrays.inputs.items() if case.c != "out" or key != "c"})
    cases.check_surroundings(case, arrays, was)
    cases.check(case, result, arrays, config, executor.arch)


@pytest.mark.parametrize("case", CASES[::16], ids=name)
def test_numpy_arrays_of_any_strides(executor: DriverExecutor, case: GemmCase) -> None:
    arrays, call = make(case, executor, strict=False)
    was = cases.memory_of(arrays)
    found = cuevo.gemm(**call, device="cuda:0")
    assert isinstance(found, np.ndarray)
    assert arrays.out is None or found is arrays.out.array
    cases.check_surroundings(case, arrays, was)
    cases.check(case, found, arrays, call["config"], executor.arch)


def test_numpy_arrays_with_large_gaps(executor: DriverExecutor) -> None:
    """They are packed before they are copied; what is contiguous stays so."""
    rng = np.random.default_rng(14)
    memory = rng.integers(-9, 10, (40, 400)).astype(np.float16)
    b = rng.integers(-9, 10, (40, 20)).astype(np.float16)
    out = np.full((30, 900), 7, np.float32)
    cuevo.gemm(memory[:, :30].T, b, out=out[:, :20], device="cuda:0")
    exact = reference.gemm(memory[:, :30].T, b)
    np.testing.assert_array_equal(out[:, :20], exact)
    assert (out[:, 20:] == 7).all()
    cuevo.gemm(memory[:30, :40], b, out=out[:, :20], device="cuda:0")
    np.testing.assert_array_equal(out[:, :20], reference.gemm(memory[:30, :40], b))


@pytest.mark.parametrize("empty", ["B", "M", "N", "K"])
def test_empty_problems(executor: DriverExecutor, empty: str) -> None:
    batch, m, n, k = (0 if axis == empty else 3 for axis in "BMNK")
    call = {"a": np.ones((batch, m, k), np.float16), "b": np.ones((batch, k, n), np.float16)}
    on_host = cuevo.gemm(**call, device="cuda:0")
    on_device = cuevo.gemm(**moved(call, executor))
    for found in (on_host, on_device.to_numpy()):
        assert (found.shape, found.dtype) == ((batch, m, n), np.float16)
        assert (found == 0).all()


def test_a_sum_of_nothing(executor: DriverExecutor) -> None:
    call = {"a": np.ones((3, 0), np.float16), "b": np.ones((0, 5), np.float16)}
    memory = executor.empty((3, 8), DTYPES["f32"])
    executor.fill(memory.view(), 7.0)
    out = replace(memory.view(), shape=(3, 5))
    cuevo.gemm(**moved(call, executor), out=out)
    assert memory.to_numpy().tolist() == [[0.0] * 5 + [7.0] * 3] * 3
    added = moved(call | {"c": np.ones((3, 5), np.float16)}, executor)
    cuevo.gemm(**added, beta=2.5, out=out)
    assert memory.to_numpy().tolist() == [[2.5] * 5 + [7.0] * 3] * 3


def test_a_result_is_an_input(executor: DriverExecutor) -> None:
    """On streams of their own: the second call waits for the first."""
    _, call = make(replace(PLAIN, n=170, k=170), executor)
    copies = moved(call, executor)
    one, other = executor.new_stream(), executor.new_stream()
    first = cuevo.gemm(**copies, stream=one)
    second = cuevo.gemm(**copies | {"a": first, "stream": other})
    expected = cuevo.gemm(**call | {"a": first.to_numpy()}, device="cuda:0")
    assert_same_bytes(PLAIN, "out", second.to_numpy(), expected)


def test_an_index_vector_on_the_host(executor: DriverExecutor) -> None:
    call = {"a": np.ones((3, 8), np.float16), "b": np.ones((8, 5), np.float16)}
    copies = moved(call | {"out": np.zeros((3, 5), np.float16)}, executor)
    with pytest.raises(ValueError, match="scatter: expected an array on cuda:0, where a is; it is"):
        cuevo.gemm(**copies, scatter=np.arange(3))


# -- Other libraries -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [PLAIN, SPLIT, replace(PLAIN, dtype="f16", out_dtype="f32", batch=3, b_layout="shared")],
    ids=name,
)
def test_torch(executor: DriverExecutor, case: GemmCase) -> None:
    torch = pytest.importorskip("torch")
    arrays, call = make(case, executor)
    config = Config(
        64, 64, 3, block_k=32, warp_m=32, warp_n=32, splits=dict(case.settings).get("splits", 1)
    )
    kinds = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
    call = tensors(torch, call) | {"config": config, "out_dtype": kinds[case.out_dtype]}
    out = cuevo.gemm(**call)
    found = torch.from_dlpack(out)
    assert found.data_ptr() == out.pointer
    assert found.dtype == call["out_dtype"]
    cases.check_near(case, to_numpy(torch, found), arrays)
    by_view = cuevo.gemm(**call | {"a": call["a"].mT.contiguous().mT})
    assert_same_bytes(case, "out", by_view.to_numpy(), out.to_numpy())
    given = torch.empty_like(found)
    assert cuevo.gemm(**call, out=given) is given
    assert_same_bytes(case, "out", to_numpy(torch, given), out.to_numpy())


def test_torch_scatters_rows(executor: DriverExecutor) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator(device="cuda").manual_seed(3)
    a, b = (torch.randn(n, 64, device="cuda", generator=generator).half() for n in (100, 40))
    rows = torch.randperm(300, device="cuda", generator=generator)[:100]
    out = torch.zeros(300, 40, device="cuda")
    cuevo.gemm(a, b, trans_b=True, scatter=rows, out=out)
    expected = torch.zeros(300, 40, device="cuda")
    expected[rows] = a.float() @ b.float().T
    assert torch.allclose(out, expected, rtol=1e-3, atol=1e-3)
    assert (out.abs().sum(1) > 0).sum() == 100


@pytest.mark.parametrize("how", [*STREAMS, "current"])
def test_torch_streams(executor: DriverExecutor, how: str) -> None:
    """The inputs are written, late, on the stream that the call runs on."""
    torch = pytest.importorskip("torch")
    arrays, call = make(SPLIT, executor)
    ready = tensors(torch, call)
    cuevo.gemm(**ready)  # loads the kernel, which takes longer than the delay
    late = {key: torch.zeros_like(x) for key, x in ready.items() if isinstance(x, torch.Tensor)}
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for key, x in late.items():
            x.copy_(ready[key])
        said = {} if how == "current" else {"stream": STREAMS[how](stream)}
        out = cuevo.gemm(**ready | late | said)
        assert out.stream == stream.cuda_stream
        copy = torch.from_dlpack(out).clone()
    stream.synchronize()
    cases.check(SPLIT, to_numpy(torch, copy), arrays, call["config"], executor.arch)


@pytest.mark.parametrize("case", [PLAIN, SPLIT], ids=name)
def test_torch_captures_a_call(executor: DriverExecutor, case: GemmCase) -> None:
    """With splits: their memory is the graph's own."""
    torch = pytest.importorskip("torch")
    _, call = make(case, executor)
    call = tensors(torch, call)
    expected = cuevo.gemm(**call).to_numpy()
    out = torch.zeros(case.m, case.n, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuevo.gemm(**call, out=out)
    assert (out == 0).all()
    for _ in range(3):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bytes(case, "out", to_numpy(torch, out), expected)


def test_cupy(executor: DriverExecutor) -> None:
    cupy = pytest.importorskip("cupy")
    case = replace(PLAIN, dtype="f16", out_dtype="f16")
    arrays, call = make(case, executor)
    on_device = {
        key: cupy.asarray(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x
        for key, x in call.items()
    }
    on_device.pop("config")
    on_device["b"] = cupy.ascontiguousarray(on_device["b"].T).T
    out = cuevo.gemm(**on_device)
    cases.check_near(case, cupy.asnumpy(cupy.from_dlpack(out)), arrays)
    given = cupy.zeros((case.m, case.n), np.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    assert cuevo.gemm(**on_device, out=given, stream=stream) is given
    stream.synchronize()
    assert_same_bytes(case, "out", cupy.asnumpy(given), out.to_numpy())


# -- The same bits ---------------------------------------------------------------------------------


def test_the_same_bits_from_run_to_run(executor: DriverExecutor) -> None:
    """Whichever threadblock of a split comes last."""
    arrays, call = make(LARGE, executor)
    assert call["config"].splits == 5
    copies = moved(call, executor)
    expected = cuevo.gemm(**copies).to_numpy()
    cases.check_near(LARGE, expected, arrays)
    for _ in range(20):
        assert_same_bytes(LARGE, "out", cuevo.gemm(**copies).to_numpy(), expected)


@pytest.mark.parametrize("case", [PLAIN, SPLIT], ids=name)
def test_a_captured_graph_replays_to_the_same_bits(
    executor: DriverExecutor, case: GemmCase
) -> None:
    _, call = make(case, executor)
    copies = moved(call, executor)
    expected = cuevo.gemm(**copies).to_numpy()
    graph = executor.capture(lambda stream: cuevo.gemm(**copies, stream=stream))
    out: Any = graph.result
    for _ in range(3):
        graph.launch()
        # Work beside the graph takes and gives back memory of its own.
        assert_same_bytes(case, "out", cuevo.gemm(**copies).to_numpy(), expected)
        assert_same_bytes(case, "out", out.to_numpy(), expected)
    # On new inputs at the same addresses.
    _, others = make(replace(case, seed=99), executor)
    for key in ("a", "b", "c", "bias"):
        overwrite(copies[key], others[key], executor)
    graph.launch()
    again = cuevo.gemm(**others, device="cuda:0")
    assert_same_bytes(case, "out", out.to_numpy(), again)
    assert (again != expected).any()


def test_threads_call_at_the_same_time(executor: DriverExecutor) -> None:
    problems = [replace(SPLIT, seed=seed, m=60 + seed) for seed in range(4)]
    calls = [make(case, executor)[1] for case in problems]
    expected = [cuevo.gemm(**call, device="cuda:0") for call in calls]
    copies = [moved(call, executor) for call in calls]
    found = results_of_threads(cuevo.gemm, copies, executor)
    for case, results, right in zip(problems, found, expected, strict=True):
        for out in results:
            assert_same_bytes(case, "out", out, right)


# -- Sizes -----------------------------------------------------------------------------------------


def test_more_tiles_than_a_grid_axis_has(executor: DriverExecutor) -> None:
    rng = np.random.default_rng(15)
    a = rng.integers(-9, 10, (70_001, 3, 8)).astype(np.float16)
    b = rng.integers(-9, 10, (8, 5)).astype(np.float16)
    found = cuevo.gemm(**moved({"a": a, "b": b}, executor)).to_numpy()
    np.testing.assert_array_equal(found.astype(np.float64), reference.gemm(a, b))
    tall = rng.integers(-9, 10, (1_100_000, 8)).astype(np.float16)
    config = {"block_m": 16, "block_n": 128, "block_k": 32, "warp_m": 16, "warp_n": 32}
    found = cuevo.gemm(**moved({"a": tall, "b": b}, executor), config=config).to_numpy()
    np.testing.assert_array_equal(found.astype(np.float64), reference.gemm(tall, b))


@pytest.mark.whole_device
def test_offsets_beyond_32_bits(executor: DriverExecutor) -> None:
    """Rows 4.4 GB apart, in operands and result."""
    torch = pytest.importorskip("torch")
    gap = 2_200_000_000
    if torch.cuda.mem_get_info()[0] < 3 * 2 * gap:
        pytest.skip("needs 14 GB of device memory")
    base = torch.zeros(gap + 4096, device="cuda", dtype=torch.float16)
    generator = torch.Generator(device="cuda").manual_seed(5)

    def far(place: int) -> Any:
        found = base.as_strided((2, 40), (gap, 1), 1000 * place)
        found.copy_(torch.randn(2, 40, device="cuda", generator=generator))
        return found

    def close(found: Any, exact: np.ndarray) -> bool:
        error = np.linalg.norm(to_numpy(torch, found).astype(np.float64) - exact)
        return bool(error < cases.TOLERANCE["f16"] * np.linalg.norm(exact))

    a, b, c = (far(place) for place in range(3))
    given = [to_numpy(torch, x) for x in (a, b, c[:, :2])]
    out = base.as_strided((2, 2), (gap, 1), 3000)
    cuevo.gemm(a, b, c[:, :2], beta=1.0, trans_b=True, out=out)
    assert close(out, reference.gemm(*given, beta=1.0, trans_b=True))
    product = torch.from_dlpack(cuevo.gemm(a.T, b))
    assert close(product, reference.gemm(given[0], given[1], trans_a=True))
    assert torch.count_nonzero(base[3002:gap]) == 0
    assert torch.count_nonzero(base[gap + 3002 :]) == 0


@pytest.mark.no_memory_left
def test_a_workspace_that_does_not_fit_into_memory(executor: DriverExecutor) -> None:
    """The context is as good as before."""
    _, call = make(PLAIN, executor)
    copies = moved({key: call[key] for key in ("a", "b")}, executor)
    n = 2**26
    rows = 1 + executor.info.memory_bytes // (4 * 128 * n) * 128
    row = executor.empty((n,), DTYPES["bf16"])
    huge = {
        "a": replace(copies["a"], shape=(rows, 64), strides=(0, 2)),
        "b": replace(row.view(), shape=(64, n), strides=(0, 2)),
        "out": replace(row.view(), shape=(rows, n), strides=(2 * n, 2)),
    }
    with pytest.raises(cuevo.errors.DriverError, match=r"allocating [0-9,]+ bytes .*MEMORY"):
        cuevo.gemm(**huge, config={"splits": 2, "block_k": 32})
    expected = cuevo.gemm(call["a"], call["b"], device="cuda:0")
    assert_same_bytes(PLAIN, "out", cuevo.gemm(**copies).to_numpy(), expected)


# -- Time ------------------------------------------------------------------------------------------


@pytest.mark.whole_device
def test_host_time_of_a_repeated_call(
    executor: DriverExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, not judged."""
    case = GemmCase(64, 64, 64, out_layout="new", seed=16)
    arrays, call = make(case, executor)
    call = {key: call[key] for key in ("a", "b")}
    calls: dict[str, dict[str, Any]] = {"addresses": moved(call, executor)}
    try:
        import torch
    except ImportError:
        pass
    else:
        calls["torch"] = tensors(torch, call)
    found = {}
    for library, given in calls.items():
        out = cuevo.gemm(**given)
        assert isinstance(out, DeviceArray)
        for variant, extra in (
            ("new out", {}),
            ("out given", {"out": out}),
            ("two splits", {"config": {"splits": 2, "block_k": 32}}),
        ):
            again = partial(cuevo.gemm, **given, **extra)
            found[f"{library}, {variant}"] = host_time(again, executor)
        cases.check_near(case, out.to_numpy(), arrays)
    with capsys.disabled():
        print("\nhost time of gemm():", found)
