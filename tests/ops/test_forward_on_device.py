"""cuevo.attention on a GPU: arrays of every library, streams, graphs, sizes for a GPU only."""

from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case, Strided
from helpers.attention_sweep import CASES, name
from helpers.device_calls import (
    STREAMS,
    host_time,
    measured,
    moved,
    overwrite,
    results_of_threads,
    tensors,
    to_numpy,
)

import cuevo
from cuevo import reference
from cuevo.arrays import DeviceArray
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import evoformer_forward_sm80 as forward
from workloads import FORWARD, Workload

pytestmark = pytest.mark.gpu

BOTH = Case("bf16", 32, 150, 133, rows=5, heads=3, mask="f32", pair="bf16", seed=11)
LARGE = Case("bf16", 32, 384, 384, rows=32, heads=4, mask="bool", pair="bf16", seed=12)


def make(case: Case) -> tuple[dict[str, Strided], dict[str, np.ndarray]]:
    """The inputs of a case, and the arrays to call `cuevo.attention` with."""
    inputs = cases.make(case)
    return inputs, {key: x.array for key, x in inputs.items()}


# -- NumPy and addresses ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES[::16], ids=name)
def test_numpy_arrays_of_any_strides(executor: DriverExecutor, case: Case) -> None:
    inputs, arrays = make(case)
    results = cases.make_results(case)
    out = results["out"].array
    given, lse = cuevo.attention(**arrays, scale=case.scale, out=out, return_lse=True)
    assert given is out
    cases.check(case, out, lse, inputs)
    cases.check_guards(case, {"out": results["out"]})
    again = cuevo.attention(**arrays, scale=case.scale, device="cuda:0")
    assert isinstance(again, np.ndarray)
    cases.assert_same_bytes(case, "out", again, out)


@pytest.mark.parametrize("empty", ["batch", "rows", "queries", "keys", "heads"])
def test_empty_problems(executor: DriverExecutor, empty: str) -> None:
    case = replace(BOTH, **{empty: 0}, values="normal")
    shape = (case.batch, case.rows, case.queries, case.heads, 32)
    q = np.ones(shape, ml_dtypes.bfloat16)
    k = np.ones((case.batch, case.rows, case.keys, case.heads, 32), ml_dtypes.bfloat16)
    out, lse = cuevo.attention(q, k, k, return_lse=True, device="cuda:0")
    assert (out.shape, lse.shape) == (shape, (case.batch, case.rows, case.heads, case.queries))
    assert (out == 0).all() and np.isneginf(lse).all()
    on_device, lse = cuevo.attention(**moved({"q": q, "k": k, "v": k}, executor), return_lse=True)
    assert on_device.shape == shape
    assert (on_device.to_numpy() == 0).all() and np.isneginf(lse.to_numpy()).all()
    padded = np.full((*shape[:-1], 40), 7, ml_dtypes.bfloat16)
    cuevo.attention(q, k, k, device="cuda:0", out=padded[..., :32])
    assert (padded[..., :32] == 0).all() and (padded[..., 32:] == 7).all()


def test_addresses_are_enough(executor: DriverExecutor) -> None:
    inputs, arrays = make(BOTH)
    copies = moved(arrays, executor)
    views = {
        key: cuevo.array_from_pointer(
            x.pointer, x.shape, x.dtype, strides=x.strides, device="cuda:0"
        )
        for key, x in copies.items()
    }
    out, lse = cuevo.attention(**views, return_lse=True)
    assert isinstance(out, DeviceArray) and isinstance(lse, DeviceArray)
    assert (out.device, out.dtype, lse.dtype) == ("cuda:0", ml_dtypes.bfloat16, np.float32)
    cases.check(BOTH, out.to_numpy(), lse.to_numpy(), inputs)


def test_a_result_is_an_input(executor: DriverExecutor) -> None:
    """On streams of their own: the second call waits for the first."""
    _, arrays = make(BOTH)
    copies = moved(arrays, executor)
    one, other = executor.new_stream(), executor.new_stream()
    first = cuevo.attention(**copies, stream=one)
    second = cuevo.attention(**copies | {"q": first}, stream=other)
    expected = cuevo.attention(**arrays | {"q": first.to_numpy()}, device="cuda:0")
    cases.assert_same_bytes(BOTH, "out", second.to_numpy(), expected)


def test_arrays_on_the_device_and_on_the_host(executor: DriverExecutor) -> None:
    _, arrays = make(BOTH)
    copies = moved(arrays, executor)
    with pytest.raises(
        ValueError, match="k: expected an array on cuda:0, where q is; it is on cpu"
    ):
        cuevo.attention(**copies | {"k": arrays["k"]})
    with pytest.raises(ValueError, match="device: the arrays are on cuda:0, and sim:sm_80 cannot"):
        cuevo.attention(**copies, device="sim")


# -- Other libraries -------------------------------------------------------------------------------


def torch_tensors(torch: Any, case: Case) -> dict[str, Any]:
    """The inputs of a case as tensors; q, k and v lie heads first in memory."""
    found = tensors(torch, make(case)[1])
    for key in ("q", "k", "v"):
        found[key] = found[key].transpose(2, 3).contiguous().transpose(2, 3)
    torch.cuda.synchronize()
    return found


@pytest.mark.parametrize(
    "case",
    [
        BOTH,
        replace(BOTH, dtype="f16", mask="bool", pair="f32"),
        replace(BOTH, mask="none", pair="bf16"),
        replace(BOTH, mask="bf16", pair="none"),
        replace(BOTH, mask="none", pair="none", head_dim=64),
    ],
    ids=name,
)
def test_torch(executor: DriverExecutor, case: Case) -> None:
    torch = pytest.importorskip("torch")
    inputs, _ = make(case)
    tensors = torch_tensors(torch, case)
    assert not tensors["q"].is_contiguous()
    out, lse = cuevo.attention(**tensors, return_lse=True)
    tensor, tensor_lse = torch.from_dlpack(out), torch.from_dlpack(lse)
    assert tensor.data_ptr() == out.pointer
    assert tensor.dtype == tensors["q"].dtype and tensor.is_contiguous()
    cases.check(case, to_numpy(torch, tensor), to_numpy(torch, tensor_lse), inputs)
    given = torch.empty_like(tensors["q"])
    assert given.stride() == tensors["q"].stride()
    assert cuevo.attention(**tensors, out=given) is given
    cases.assert_same_bytes(case, "out", to_numpy(torch, given), to_numpy(torch, tensor))


def test_torch_expanded_tensors(executor: DriverExecutor) -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator(device="cuda").manual_seed(3)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=generator).half()

    call = {
        "q": normal(1, 6, 40, 2, 16),
        "k": normal(1, 1, 50, 2, 16).expand(1, 6, 50, 2, 16),
        "v": normal(1, 6, 50, 1, 16).expand(1, 6, 50, 2, 16),
        "mask_bias": normal(1, 1, 1, 1, 50).expand(1, 6, 1, 1, 50),
        "pair_bias": normal(1, 1, 1, 40, 50).expand(1, 1, 2, 40, 50),
    }
    expanded = cuevo.attention(**call)
    packed = cuevo.attention(**{key: x.contiguous() for key, x in call.items()})
    cases.assert_same_bytes("expanded", "out", expanded.to_numpy(), packed.to_numpy())
    exact, _ = reference.attention(**{key: to_numpy(torch, x) for key, x in call.items()})
    found = expanded.to_numpy().astype(np.float64)
    assert np.linalg.norm(found - exact) < cases.TOLERANCE["f16"] * np.linalg.norm(exact)


@pytest.mark.parametrize("how", [*STREAMS, "current"])
def test_torch_streams(executor: DriverExecutor, how: str) -> None:
    """The inputs are written, late, on the stream that the call runs on."""
    torch = pytest.importorskip("torch")
    inputs, _ = make(BOTH)
    tensors = torch_tensors(torch, BOTH)
    cuevo.attention(**tensors)  # loads the kernel, which takes longer than the delay
    late = {key: torch.zeros_like(x) for key, x in tensors.items()}
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for key, x in tensors.items():
            late[key].copy_(x)
        if how == "current":
            out, lse = cuevo.attention(**late, return_lse=True)
        else:
            out, lse = cuevo.attention(**late, return_lse=True, stream=STREAMS[how](stream))
        assert out.stream == stream.cuda_stream
        copy = torch.from_dlpack(out).clone()
    stream.synchronize()
    cases.check(BOTH, to_numpy(torch, copy), lse.to_numpy(), inputs)


def test_torch_captures_a_call(executor: DriverExecutor) -> None:
    torch = pytest.importorskip("torch")
    tensors = torch_tensors(torch, BOTH)
    expected = cuevo.attention(**tensors).to_numpy()
    out = torch.zeros_like(tensors["q"])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuevo.attention(**tensors, out=out)
    assert (out == 0).all()
    for _ in range(2):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        cases.assert_same_bytes(BOTH, "out", to_numpy(torch, out), expected)


def test_cupy(executor: DriverExecutor) -> None:
    cupy = pytest.importorskip("cupy")
    case = replace(BOTH, dtype="f16", mask="bool", pair="f32")
    inputs, arrays = make(case)
    call = {key: cupy.asarray(np.ascontiguousarray(x)) for key, x in arrays.items()}
    for key in ("q", "k", "v"):
        call[key] = cupy.ascontiguousarray(call[key].swapaxes(2, 3)).swapaxes(2, 3)
    out, lse = cuevo.attention(**call, return_lse=True)
    by_dlpack, by_interface = cupy.from_dlpack(out), cupy.asarray(out)
    assert by_dlpack.data.ptr == by_interface.data.ptr == out.pointer
    cases.check(case, cupy.asnumpy(by_dlpack), cupy.asnumpy(cupy.asarray(lse)), inputs)
    given = cupy.zeros_like(call["q"])
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    assert cuevo.attention(**call, out=given, stream=stream) is given
    stream.synchronize()
    cases.assert_same_bytes(case, "out", cupy.asnumpy(given), out.to_numpy())


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_jax(executor: DriverExecutor, dtype: str) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip(f"this JAX runs on {jax.default_backend()}")
    case = replace(BOTH, dtype=dtype, pair=dtype)
    inputs, arrays = make(case)
    call = {key: jax.device_put(np.ascontiguousarray(x)) for key, x in arrays.items()}
    out, lse = cuevo.attention(**call, return_lse=True)
    found = jax.dlpack.from_dlpack(out)
    assert found.dtype == cases.DTYPES[dtype]
    cases.check(case, np.asarray(found), np.asarray(jax.dlpack.from_dlpack(lse)), inputs)


# -- The same bits ---------------------------------------------------------------------------------


def test_the_same_bits_from_run_to_run(executor: DriverExecutor) -> None:
    inputs, arrays = make(LARGE)
    copies = moved(arrays, executor)
    first, lse = cuevo.attention(**copies, return_lse=True)
    expected, expected_lse = first.to_numpy(), lse.to_numpy()
    few = np.s_[:, ::11]
    part = {key: x if key == "pair_bias" else x.narrowed(few) for key, x in inputs.items()}
    cases.check(LARGE, expected[few], expected_lse[few], part)
    for _ in range(20):
        again, lse = cuevo.attention(**copies, return_lse=True)
        cases.assert_same_bytes(LARGE, "out", again.to_numpy(), expected)
        cases.assert_same_bytes(LARGE, "lse", lse.to_numpy(), expected_lse)


@pytest.mark.parametrize(
    ("queries", "config"),
    [(BOTH.queries, None), (100, {"blocks": 132}), (150, {"blocks": 132})],
    ids=["mma.sync", "wgmma", "wgmma, two launches"],
)
def test_a_captured_graph_replays_to_the_same_bits(
    executor: DriverExecutor, queries: int, config: dict[str, int] | None
) -> None:
    if config and executor.info.arch != "sm_90":
        pytest.skip("wgmma needs sm_90")
    case = replace(BOTH, queries=queries)
    options = dict(return_lse=True, config=config)
    _, arrays = make(case)
    copies = moved(arrays, executor)
    expected, expected_lse = (x.to_numpy() for x in cuevo.attention(**copies, **options))
    graph = executor.capture(lambda stream: cuevo.attention(**copies, **options, stream=stream))
    out, lse = graph.result
    for _ in range(3):
        graph.launch()
        cases.assert_same_bytes(case, "out", out.to_numpy(), expected)
        cases.assert_same_bytes(case, "lse", lse.to_numpy(), expected_lse)
    # On new inputs at the same addresses.
    _, others = make(replace(case, seed=99))
    for key, x in others.items():
        overwrite(copies[key], x, executor)
    graph.launch()
    again, _ = cuevo.attention(**others, **options, device="cuda:0")
    cases.assert_same_bytes(case, "out", out.to_numpy(), again)
    assert (again != expected).any()


def test_threads_call_at_the_same_time(executor: DriverExecutor) -> None:
    problems = [replace(BOTH, seed=seed, rows=2 + seed) for seed in range(4)]
    arrays = [make(case)[1] for case in problems]
    expected = [cuevo.attention(**call, device="cuda:0") for call in arrays]
    copies = [moved(call, executor) for call in arrays]
    found = results_of_threads(cuevo.attention, copies, executor)
    for case, results, right in zip(problems, found, expected, strict=True):
        for out in results:
            cases.assert_same_bytes(case, "out", out, right)


# -- Sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "rows", "heads"), [(1, 70000, 1), (70000, 1, 1), (300, 250, 2)], ids=str
)
def test_more_rows_than_a_grid_axis_has(
    executor: DriverExecutor, batch: int, rows: int, heads: int
) -> None:
    case = Case("f16", 8, 8, 8, batch, rows, heads, mask="f32", pair="f16", seed=batch)
    inputs, arrays = make(case)
    out, lse = cuevo.attention(**moved(arrays, executor), return_lse=True)
    cases.check(case, out.to_numpy(), lse.to_numpy(), inputs)


def test_every_block_row_is_reached(executor: DriverExecutor) -> None:
    """A tiling of several rows a threadblock, and a number of rows that it does not divide."""
    case = Case("bf16", 8, 8, 8, 1, 70001, 1, pair="bf16", seed=7)
    inputs, arrays = make(case)
    wanted = {"block_rows": 3, "block_queries": 32, "block_keys": 32, "m_tiles": 2, "min_blocks": 1}
    out = cuevo.attention(**moved(arrays, executor), config=wanted)
    cases.check(case, out.to_numpy(), None, inputs)


@pytest.mark.whole_device
def test_offsets_beyond_32_bits(executor: DriverExecutor) -> None:
    """Two rows of a problem 4.4 GB apart, in inputs and result."""
    torch = pytest.importorskip("torch")
    gap = 2_200_000_000
    length, heads, head_dim = 40, 2, 16
    size = length * heads * head_dim
    if torch.cuda.mem_get_info()[0] < 3 * 2 * gap:
        pytest.skip("needs 14 GB of device memory")
    base = torch.zeros(gap + 8 * size, device="cuda", dtype=torch.float16)
    shape, strides = (1, 2, length, heads, head_dim), (0, gap, heads * head_dim, head_dim, 1)
    generator = torch.Generator(device="cuda").manual_seed(5)
    call = {}
    for place, key in enumerate(("q", "k", "v", "out")):
        call[key] = base.as_strided(shape, strides, place * size)
        call[key].copy_(torch.randn(shape, device="cuda", generator=generator))
    cuevo.attention(**call)
    exact, _ = reference.attention(*(to_numpy(torch, call[key]) for key in ("q", "k", "v")))
    found = to_numpy(torch, call["out"]).astype(np.float64)
    assert np.linalg.norm(found - exact) < cases.TOLERANCE["f16"] * np.linalg.norm(exact)
    assert torch.count_nonzero(base[4 * size : gap]) == 0
    assert torch.count_nonzero(base[gap + 4 * size :]) == 0


@pytest.mark.parametrize("workload", measured(FORWARD))
def test_workloads(executor: DriverExecutor, workload: Workload) -> None:
    """Every measured problem, with both biases: some rows against float64, twice the same bits."""
    torch = pytest.importorskip("torch")
    rows, heads, length, head_dim = (
        workload.rows,
        workload.heads,
        workload.length,
        workload.head_dim,
    )
    generator = torch.Generator(device="cuda").manual_seed(1)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=generator, dtype=torch.bfloat16)

    q, k, v = (normal(1, rows, length, heads, head_dim) for _ in range(3))
    mask, pair = normal(1, rows, 1, 1, length), normal(1, 1, heads, length, length)
    mask[:, ::3, ..., length // 2 :] = -torch.inf
    call = {"q": q, "k": k, "v": v, "mask_bias": mask, "pair_bias": pair}
    out, lse = (torch.from_dlpack(x) for x in cuevo.attention(**call, return_lse=True))
    again, _ = (torch.from_dlpack(x) for x in cuevo.attention(**call, return_lse=True))
    assert torch.equal(again.view(torch.int16), out.view(torch.int16))
    # Rows may be summed otherwise where nobody asks for the sums.
    alone, again = (torch.from_dlpack(cuevo.attention(**call)) for _ in range(2))
    assert torch.equal(again.view(torch.int16), alone.view(torch.int16))
    for n in sorted({0, 1, rows // 2, rows - 1}):
        scores = torch.einsum("qhd,khd->hqk", q[0, n].double(), k[0, n].double()) * head_dim**-0.5
        scores += mask[0, n, 0].double() + pair[0, 0].double()
        exact = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v[0, n].double())
        for found in (out, alone):
            error = (found[0, n].double() - exact).norm() / exact.norm()
            assert error < cases.TOLERANCE["bf16"], f"row {n}: relative error {float(error):.3g}"
        exact_lse = scores.logsumexp(-1)
        allowed = cases.LSE_TOLERANCE * exact_lse.abs().clamp(min=1)
        assert ((lse[0, n] - exact_lse).abs() <= allowed).all(), f"row {n}: lse"


# -- Configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [32, 128])
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_every_tiling_and_number_of_stages(
    executor: DriverExecutor, head_dim: int, stages: int
) -> None:
    """A missing wait shows on a GPU only: many threadblocks, more tiles of keys than stages."""
    fields = (
        "block_rows",
        "block_queries",
        "block_keys",
        "chunk_keys",
        "m_tiles",
        "q_in_registers",
    )
    case = replace(BOTH, head_dim=head_dim, queries=300, keys=517, rows=7)
    inputs, arrays = make(case)
    copies = moved(arrays, executor)
    ran = 0
    for shape in forward.shapes(head_dim):
        settings = {field: getattr(shape, field) for field in fields}
        wanted = settings | {"stages": stages, "min_blocks": 1}
        try:
            out, lse = cuevo.attention(**copies, return_lse=True, config=wanted)
        except ValueError as error:
            assert "shared memory" in str(error) or "threads copy fewer" in str(error)
            continue
        cases.check(replace(case, shape=ran), out.to_numpy(), lse.to_numpy(), inputs)
        ran += 1
    assert ran == len(forward.shapes(head_dim)) if stages == 2 else ran > 0


# -- Time ------------------------------------------------------------------------------------------


@pytest.mark.whole_device
def test_host_time_of_a_repeated_call(
    executor: DriverExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, not judged."""
    case = replace(BOTH, rows=1, heads=1, queries=64, keys=64)
    inputs, arrays = make(case)
    calls: dict[str, dict[str, Any]] = {"addresses": dict(moved(arrays, executor))}
    try:
        import torch
    except ImportError:
        pass
    else:
        calls["torch"] = torch_tensors(torch, case)
    try:
        import cupy
    except ImportError:
        pass
    else:
        half = {"q", "k", "v"}
        calls["cupy"] = {
            key: cupy.asarray(
                np.ascontiguousarray(x).astype(np.float16 if key in half else np.float32)
            )
            for key, x in arrays.items()
        }
    found = {}
    for library, call in calls.items():
        out = cuevo.attention(**call)
        for variant, extra in (("new out", {}), ("out given", {"out": out})):
            again = partial(cuevo.attention, **call, **extra)
            found[f"{library}, {variant}"] = host_time(again, executor)
        if library != "cupy":
            cases.check(case, out.to_numpy(), None, inputs)
    with capsys.disabled():
        print("\nhost time of attention():", found)
