"""cuevo.attention_backward on a GPU: the sweep, torch, streams, graphs, sizes for a GPU only."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import backward_cases as cases
from helpers.backward_calls import arguments, configurations, named, sides
from helpers.backward_cases import ARGUMENTS, TOLERANCE, BackwardCase
from helpers.backward_sweep import CASES, name
from helpers.device_calls import (
    STREAMS,
    host_time,
    measured,
    moved,
    overwrite,
    tensors,
    to_numpy,
)
from helpers.guarded import assert_same_bytes

import cuevo
from cuevo.arrays import DeviceArray, copy_to_host
from cuevo.cuda.stream import LEGACY_DEFAULT
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.ops.backward import attention_backward_workspace
from workloads import BACKWARD, FORWARD, Workload

pytestmark = pytest.mark.gpu

BOTH = BackwardCase("bf16", 32, 150, 133, rows=5, heads=3, mask="f32", pair="bf16", seed=11)
LARGE = BackwardCase("bf16", 32, 256, 256, rows=96, heads=4, mask="bf16", pair="bf16", seed=12)


def fetched(results: Any) -> dict[str, Any]:
    """The gradients by their names, in host memory."""
    return {
        key: x.to_numpy() if isinstance(x, DeviceArray) else x for key, x in named(results).items()
    }


def assert_same_gradients(case: object, found: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    for key, x in right.items():
        if x is None:
            assert found[key] is None, key
        else:
            assert_same_bytes(case, key, found[key], x)


# -- The sweep -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_sweep(executor: DriverExecutor, case: BackwardCase) -> None:
    inputs, call = arguments(case)
    call["config"] = configurations(case, inputs, architecture_of(executor))
    copies = moved(call, executor)
    found = fetched(cuevo.attention_backward(**copies))
    cases.check(case, found, inputs)
    again = fetched(cuevo.attention_backward(**copies))
    assert_same_gradients(case, again, found)
    for key, x in inputs.items():
        assert_same_bytes(case, key, copy_to_host(copies[key], LEGACY_DEFAULT), x.array)


@pytest.mark.parametrize("case", CASES[::16], ids=name)
def test_numpy_arrays_of_any_strides(executor: DriverExecutor, case: BackwardCase) -> None:
    inputs, call = arguments(case)
    found = named(cuevo.attention_backward(**call))
    assert all(x is None or isinstance(x, np.ndarray) for x in found.values())
    cases.check(case, found, inputs)
    once = {**call, "grads": iter(call["grads"]), "device": "cuda:0"}
    assert_same_gradients(case, named(cuevo.attention_backward(**once)), found)


@pytest.mark.parametrize("empty", ["batch", "rows", "queries", "keys", "heads"])
def test_empty_problems(executor: DriverExecutor, empty: str) -> None:
    case = replace(BOTH, **{empty: 0})
    q = np.ones((case.batch, case.rows, case.queries, case.heads, 32), ml_dtypes.bfloat16)
    k = np.ones((case.batch, case.rows, case.keys, case.heads, 32), ml_dtypes.bfloat16)
    call = {
        "dout": q,
        "q": q,
        "k": k,
        "v": k,
        "out": q,
        "lse": np.zeros((case.batch, case.rows, case.heads, case.queries), np.float32),
        "pair_bias": np.ones((case.batch, 1, case.heads, case.queries, case.keys), np.float32),
    }
    for found in (
        named(cuevo.attention_backward(**call, device="cuda:0")),
        fetched(cuevo.attention_backward(**moved(call, executor))),
    ):
        assert found["dmask_bias"] is None
        for key in ("q", "k", "v", "pair_bias"):
            x = found["d" + key]
            assert (x.shape, x.dtype) == (call[key].shape, call[key].dtype)
            assert (x == 0).all()


def test_addresses_are_enough(executor: DriverExecutor) -> None:
    inputs, call = arguments(BOTH)
    copies = moved({key: x.array for key, x in inputs.items()}, executor)
    views = {
        key: cuevo.array_from_pointer(
            x.pointer, x.shape, x.dtype, strides=x.strides, device="cuda:0"
        )
        for key, x in copies.items()
    }
    found = cuevo.attention_backward(**call | views)
    assert all(isinstance(x, DeviceArray) and x.device == "cuda:0" for x in found)
    cases.check(BOTH, fetched(found), inputs)


def test_arrays_on_the_device_and_on_the_host(executor: DriverExecutor) -> None:
    _, call = arguments(BOTH)
    copies = moved(call, executor)
    with pytest.raises(
        ValueError, match=r"lse: expected an array on cuda:0, where .* is; it is on c"
    ):
        cuevo.attention_backward(**copies | {"lse": call["lse"]})


def test_after_the_forward_pass_on_its_stream(executor: DriverExecutor) -> None:
    inputs, call = arguments(BOTH)
    copies = moved(call, executor)
    operands = {key: copies[key] for key in ARGUMENTS.values()}
    stream, other = executor.new_stream(), executor.new_stream()
    out, lse = cuevo.attention(**operands, return_lse=True, stream=stream)
    found = cuevo.attention_backward(**copies | {"out": out, "lse": lse}, stream=other)
    cases.check(BOTH, fetched(found), inputs)


def test_short_last_tiles(executor: DriverExecutor) -> None:
    case = replace(BOTH, queries=150, keys=65, rows=7)
    common = dict(block_stationary=64, chunk_streamed=16, stages=2, m_tiles=2, min_blocks=1)
    keys = common | dict(block_rows=1, block_streamed=64, short_rows=2, short_stationary=16)
    queries = common | dict(block_rows=4, warp_rows=2, short_rows=4, short_stationary=32)
    inputs, call = arguments(case)
    config = {"keys": keys, "queries": queries | dict(block_streamed=32)}
    found = fetched(cuevo.attention_backward(**moved(call, executor), config=config))
    cases.check(case, found, inputs)
    again = fetched(cuevo.attention_backward(**moved(call, executor), config=config))
    assert_same_gradients(case, again, found)


# -- The workspace ---------------------------------------------------------------------------------


def test_a_workspace(executor: DriverExecutor) -> None:
    """Exactly as large as it has to be; what lay in it does not matter."""
    _, call = arguments(BOTH)
    copies = moved(call, executor)
    expected = fetched(cuevo.attention_backward(**copies))
    nbytes = attention_backward_workspace(**copies)
    assert attention_backward_workspace(**call, device="cuda:0") == nbytes
    for byte in (0x00, 0xFF):
        workspace = np.full(nbytes + 512, byte, np.uint8)
        memory = moved({"workspace": workspace}, executor)["workspace"]
        start = -memory.pointer % 256
        part = cuevo.array_from_pointer(
            memory.pointer + start, (nbytes,), np.uint8, device="cuda:0", owner=memory
        )
        found = fetched(cuevo.attention_backward(**copies, workspace=part))
        assert_same_gradients(BOTH, found, expected)
        after = copy_to_host(memory, LEGACY_DEFAULT)
        assert (after[:start] == byte).all() and (after[start + nbytes :] == byte).all()
        on_host = named(cuevo.attention_backward(**call, workspace=part, device="cuda:0"))
        assert_same_gradients(BOTH, on_host, expected)


def test_a_workspace_that_cannot_be(executor: DriverExecutor) -> None:
    _, call = arguments(BOTH)
    copies = moved(call, executor)
    nbytes = attention_backward_workspace(**copies)
    memory = executor.empty((nbytes + 256,), np.dtype(np.uint8), executor.stream)
    refused = (
        (0, nbytes - 1, r"expected [0-9,]+ bytes; got "),
        (64, nbytes, "has to start at a multiple of 256 bytes"),
    )
    for start, size, words in refused:
        part = cuevo.array_from_pointer(memory.pointer + start, (size,), np.uint8, device="cuda:0")
        with pytest.raises(ValueError, match=f"^workspace: {words}"):
            cuevo.attention_backward(**copies, workspace=part)
    with pytest.raises(ValueError, match=r"^workspace: expected memory of cuda:0; this is on cpu"):
        cuevo.attention_backward(**copies, workspace=np.zeros(nbytes, np.uint8))


# -- torch -----------------------------------------------------------------------------------------


def torch_call(torch: Any, case: BackwardCase) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of a case, and a call with them as tensors; q, k and v lie heads first."""
    inputs, call = arguments(case)
    found = tensors(torch, call)
    for key in ("q", "k", "v"):
        found[key] = found[key].transpose(2, 3).contiguous().transpose(2, 3)
    torch.cuda.synchronize()
    return inputs, found


@pytest.mark.parametrize(
    "case",
    [
        BOTH,
        replace(BOTH, dtype="f16", mask="bool", pair="f32"),
        replace(BOTH, mask="none", pair="bf16", grads=("q", "pair_bias")),
        replace(BOTH, mask="bf16", pair="none", bias_grad_dtype="float32"),
        replace(BOTH, mask="none", pair="none", head_dim=64),
    ],
    ids=name,
)
def test_torch(executor: DriverExecutor, case: BackwardCase) -> None:
    torch = pytest.importorskip("torch")
    inputs, call = torch_call(torch, case)
    assert not call["q"].is_contiguous()
    results = named(cuevo.attention_backward(**call))
    found = {
        key: None if x is None else to_numpy(torch, torch.from_dlpack(x))
        for key, x in results.items()
    }
    cases.check(case, found, inputs)
    for key, x in results.items():
        if x is not None:
            assert torch.from_dlpack(x).data_ptr() == x.pointer, key


def test_torch_expanded_dout(executor: DriverExecutor) -> None:
    """As the gradient of a sum has it: one element, of every stride 0 but the last."""
    torch = pytest.importorskip("torch")
    _, call = torch_call(torch, BOTH)
    row = call["dout"][:1, :1, :1, :1]
    expanded = row.expand(call["dout"].shape)
    assert expanded.stride()[1:4] == (0, 0, 0)
    found = fetched(cuevo.attention_backward(**call | {"dout": expanded}))
    packed = fetched(cuevo.attention_backward(**call | {"dout": expanded.contiguous()}))
    assert_same_gradients("expanded", found, packed)


def test_torch_workspace(executor: DriverExecutor) -> None:
    torch = pytest.importorskip("torch")
    _, call = torch_call(torch, BOTH)
    expected = fetched(cuevo.attention_backward(**call))
    nbytes = attention_backward_workspace(**call)
    workspace = torch.full((nbytes,), 255, device="cuda", dtype=torch.uint8)
    assert workspace.data_ptr() % 256 == 0
    torch.cuda.synchronize()
    found = fetched(cuevo.attention_backward(**call, workspace=workspace))
    assert_same_gradients(BOTH, found, expected)


@pytest.mark.parametrize("how", [*STREAMS, "current"])
def test_torch_streams(executor: DriverExecutor, how: str) -> None:
    """The inputs are written, late, on the stream that the call runs on; nobody waits for it."""
    torch = pytest.importorskip("torch")
    inputs, call = torch_call(torch, BOTH)
    cuevo.attention_backward(**call)  # loads the kernels, which takes longer than the delay
    late = {
        key: torch.zeros_like(x) if isinstance(x, torch.Tensor) else x for key, x in call.items()
    }
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for key, x in call.items():
            if isinstance(x, torch.Tensor):
                late[key].copy_(x)
        queue = {} if how == "current" else {"stream": STREAMS[how](stream)}
        results = cuevo.attention_backward(**late, **queue)
        finished = stream.query()
        assert {x.stream for x in results} == {stream.cuda_stream}
        copies = [torch.from_dlpack(x).clone() for x in results]
    assert not finished, "the call has waited for its stream"
    stream.synchronize()
    cases.check(BOTH, named([to_numpy(torch, x) for x in copies]), inputs)


def test_torch_captures_a_call(executor: DriverExecutor) -> None:
    torch = pytest.importorskip("torch")
    _, call = torch_call(torch, BOTH)
    expected = fetched(cuevo.attention_backward(**call))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [torch.from_dlpack(x) for x in cuevo.attention_backward(**call)]
        copies = [x.clone() for x in results]
    for _ in range(2):
        for x in copies:
            x.zero_()
        graph.replay()
        torch.cuda.synchronize()
        found = named([to_numpy(torch, x) for x in copies])
        assert_same_gradients(BOTH, found, expected)


# -- The same bits ---------------------------------------------------------------------------------


def test_the_same_bits_from_run_to_run(executor: DriverExecutor) -> None:
    _, call = arguments(LARGE)
    copies = moved(call, executor)
    expected = fetched(cuevo.attention_backward(**copies))
    for _ in range(20):
        assert_same_gradients(LARGE, fetched(cuevo.attention_backward(**copies)), expected)


def test_a_captured_graph_replays_to_the_same_bits(executor: DriverExecutor) -> None:
    _, call = arguments(BOTH)
    copies = moved(call, executor)
    expected = fetched(cuevo.attention_backward(**copies))
    graph = executor.capture(lambda stream: cuevo.attention_backward(**copies, stream=stream))
    for _ in range(3):
        graph.launch()
        assert_same_gradients(BOTH, fetched(graph.result), expected)
    # On new inputs at the same addresses.
    others, again = arguments(replace(BOTH, seed=99))
    for key, x in others.items():
        overwrite(copies[key], x.array, executor)
    graph.launch()
    right = named(cuevo.attention_backward(**again, device="cuda:0"))
    assert_same_gradients(BOTH, fetched(graph.result), right)
    assert (right["dq"] != expected["dq"]).any()


# -- Sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "rows", "heads"), [(1, 70000, 1), (70000, 1, 1), (300, 250, 2)], ids=str
)
def test_more_rows_than_a_grid_axis_has(
    executor: DriverExecutor, batch: int, rows: int, heads: int
) -> None:
    case = BackwardCase("f16", 8, 8, 8, batch, rows, heads, mask="f32", pair="f32", seed=batch)
    inputs, call = arguments(case)
    cases.check(case, fetched(cuevo.attention_backward(**moved(call, executor))), inputs)


class Reference:
    """A workload with both biases as tensors of torch, and its gradients by rows N."""

    def __init__(self, torch: Any, workload: Workload) -> None:
        rows, heads = workload.rows, workload.heads
        length, dim = workload.length, workload.head_dim
        generator = torch.Generator(device="cuda").manual_seed(1)

        def normal(*shape: int) -> Any:
            return torch.randn(shape, device="cuda", generator=generator, dtype=torch.bfloat16)

        self.torch, self.workload = torch, workload
        self.call = {key: normal(1, rows, length, heads, dim) for key in ("q", "k", "v", "dout")}
        self.call["mask_bias"] = normal(1, rows, 1, 1, length)
        self.call["mask_bias"][:, ::3, ..., length // 2 :] = -torch.inf
        self.call["pair_bias"] = normal(1, 1, heads, length, length)
        operands = {key: self.call[key] for key in ARGUMENTS.values()}
        out, lse = cuevo.attention(**operands, return_lse=True)
        self.call |= {"out": torch.from_dlpack(out), "lse": torch.from_dlpack(lse)}

    def of_row(self, n: int, dtype: Any) -> dict[str, Any]:
        """What row n gives: its own gradients, and its part of that of the pair bias."""
        torch, scale = self.torch, self.workload.head_dim**-0.5
        q, k, v, dout = (self.call[key][0, n].to(dtype) for key in ("q", "k", "v", "dout"))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        scores += self.call["mask_bias"][0, n, 0].to(dtype) + self.call["pair_bias"][0, 0].to(dtype)
        p = scores.softmax(-1)
        dp = torch.einsum("qhd,khd->hqk", dout, v)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        return {
            "dq": scale * torch.einsum("hqk,khd->qhd", ds, k),
            "dk": scale * torch.einsum("hqk,qhd->khd", ds, q),
            "dv": torch.einsum("hqk,qhd->khd", p, dout),
            "dmask_bias": ds.sum((0, 1)),
            "dpair_bias": ds,
        }


def relative_error(found: Any, exact: Any) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def check_workload(torch: Any, workload: Workload) -> None:
    """Some rows against float64, the gradient of the pair bias in whole; twice the same bits."""
    reference = Reference(torch, workload)

    def run() -> dict[str, Any]:
        return named([torch.from_dlpack(x) for x in cuevo.attention_backward(**reference.call)])

    found, again = run(), run()
    for key, x in found.items():
        assert torch.equal(again[key].view(torch.int16), x.view(torch.int16)), key
    rows = workload.rows
    for n in sorted({0, rows // 3, rows // 2, rows - 1}):
        for key, exact in reference.of_row(n, torch.float64).items():
            if key != "dpair_bias":
                x = found[key][0, n].reshape(exact.shape)
                error = relative_error(x, exact)
                assert error < TOLERANCE["bf16"], f"row {n}, {key}: relative error {error:.3g}"
    total = torch.zeros_like(reference.call["pair_bias"][0, 0], dtype=torch.float64)
    for n in range(rows):
        total += reference.of_row(n, torch.float32)["dpair_bias"]
    error = relative_error(found["dpair_bias"][0, 0], total)
    assert error < TOLERANCE["bf16"], f"dpair_bias: relative error {error:.3g}"


@pytest.mark.parametrize("workload", measured(dict.fromkeys((*BACKWARD, *FORWARD))))
def test_workloads(executor: DriverExecutor, workload: Workload) -> None:
    """Every measured problem, with both biases."""
    check_workload(pytest.importorskip("torch"), workload)


SUMMED = (Workload(2, 2, 384, 32), Workload(37, 3, 200, 16), Workload(301, 2, 129, 64))


@pytest.mark.parametrize("workload", SUMMED, ids=str)
def test_rows_that_no_number_of_groups_divides(
    executor: DriverExecutor, workload: Workload
) -> None:
    check_workload(pytest.importorskip("torch"), workload)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_autograd_of_torch(executor: DriverExecutor, dtype: str) -> None:
    """Plain attention in fp32, and its gradients as torch derives them."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator(device="cuda").manual_seed(2)

    def normal(*shape: int) -> Any:
        x = torch.randn(shape, device="cuda", generator=generator)
        return x.to(getattr(torch, dtype))

    call = {key: normal(1, 64, 192, 4, 32) for key in ("q", "k", "v")}
    call |= {"mask_bias": normal(1, 64, 1, 1, 192), "pair_bias": normal(1, 1, 4, 192, 192)}
    dout = normal(1, 64, 192, 4, 32)
    leaves = {key: x.float().requires_grad_() for key, x in call.items()}
    scores = torch.einsum("bnqhd,bnkhd->bnhqk", leaves["q"], leaves["k"]) * 32**-0.5
    p = (scores + leaves["mask_bias"] + leaves["pair_bias"]).softmax(-1)
    torch.einsum("bnhqk,bnkhd->bnqhd", p, leaves["v"]).backward(dout.float())
    out, lse = cuevo.attention(**call, return_lse=True)
    found = named(cuevo.attention_backward(dout=dout, **call, out=out, lse=lse))
    for key, argument in ARGUMENTS.items():
        x = torch.from_dlpack(found[key])
        assert x.dtype == call[argument].dtype
        error = relative_error(x, leaves[argument].grad)
        tolerance = TOLERANCE["f16" if dtype == "float16" else "bf16"]
        assert error < tolerance, f"{key}: relative error {error:.3g}"


@pytest.mark.whole_device
def test_offsets_beyond_32_bits(executor: DriverExecutor) -> None:
    """Two rows of a problem 4.4 GB apart, in every input of the type of q."""
    torch = pytest.importorskip("torch")
    gap = 2_200_000_000
    case = BackwardCase("f16", 16, 40, 40, rows=2, heads=2, mask="f32", pair="f32", seed=8)
    inputs, call = arguments(case)
    size = call["q"][0, 0].size
    if torch.cuda.mem_get_info()[0] < 2 * 2 * gap:
        pytest.skip("needs 9 GB of device memory")
    base = torch.zeros(gap + 8 * size, device="cuda", dtype=torch.float16)
    far = tensors(torch, call)
    for place, key in enumerate(("q", "k", "v", "dout", "out")):
        strides = (0, gap, 2 * 16, 16, 1)
        spread = base.as_strided(call[key].shape, strides, place * size)
        spread.copy_(far[key])
        far[key] = spread
    torch.cuda.synchronize()
    cases.check(case, fetched(cuevo.attention_backward(**far)), inputs)


# -- Configurations --------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [16, 32, 64, 128])
@pytest.mark.parametrize("stages", [2, 3, 4, 6])
def test_every_tiling_and_number_of_stages(
    executor: DriverExecutor, head_dim: int, stages: int
) -> None:
    """A missing wait shows on a GPU only: many threadblocks, more tiles than stages."""
    case = replace(BOTH, head_dim=head_dim, queries=300, keys=517, rows=7, pair_layout="aligned 16")
    inputs, call = arguments(case)
    copies = moved(call, executor)
    arch = architecture_of(executor)
    tiling = {field.name for field in fields(backward.Shape)} & {
        field.name for field in fields(backward.Config)
    } - {"sums"}
    ran = 0
    for side, problem in sides(case, inputs).items():
        for index, (candidate, _) in enumerate(backward.candidates(problem)):
            config = backward.adapt(replace(candidate, stages=stages, min_blocks=1), problem)
            if backward.violations(config, arch, problem):
                continue
            settings = {field: getattr(config, field) for field in tiling}
            found = fetched(cuevo.attention_backward(**copies, config={side: settings}))
            cases.check(replace(case, shape=index), found, inputs)
            ran += 1
    assert ran > 0


# -- Time ------------------------------------------------------------------------------------------


@pytest.mark.whole_device
def test_host_time_of_a_repeated_call(
    executor: DriverExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, not judged."""
    case = replace(BOTH, rows=1, heads=1, queries=64, keys=64)
    _, call = arguments(case)
    calls: dict[str, dict[str, Any]] = {"addresses": moved(call, executor)}
    try:
        import torch
    except ImportError:
        pass
    else:
        calls["torch"] = torch_call(torch, case)[1]
    found = {
        library: host_time(partial(cuevo.attention_backward, **each), executor, 100)
        for library, each in calls.items()
    }
    with capsys.disabled():
        print("\nhost time of attention_backward():", found)
