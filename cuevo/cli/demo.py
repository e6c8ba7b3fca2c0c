"""`cuevo demo`: MSA-row attention with both biases, compared with float64."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.usage import (
    EXIT_FAILED,
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    console,
    natural,
    print_json,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

ERROR_LIMIT = 1e-2
"""Largest relative error (norm of the difference over norm of the reference) that the demo accepts.
bfloat16 carries 8 bits: rounding the output alone costs about 2e-3."""

DEFAULT_ARCH = "sm_80"
"""Whose arithmetic the CPU executor computes with, unless it is told."""

MASKED = 0.1
"""Share of the keys that the mask takes out."""

_DETAILS = f"""\
examples:
  cuevo demo
  cuevo demo --device sim:sm_90 --length 48
  cuevo demo --device cuda:0 --rows 256 --length 768 --heads 4
  cuevo demo --json | jq .relative_error

The exit code is 1 when the relative error is {ERROR_LIMIT:g} or more.
"""


@dataclass(frozen=True)
class Sizes:
    """One MSA: rows (sequences), residues, heads, head dim; one batch."""

    rows: int
    length: int
    heads: int
    head_dim: int


ON_GPU = Sizes(rows=128, length=256, heads=8, head_dim=32)
"""MSA and crop of a usual training step; float64 on the host takes longer than the GPU."""

ON_CPU = Sizes(rows=16, length=256, heads=8, head_dim=32)
"""An eighth of that: seconds on the CPU executor."""


@dataclass(frozen=True)
class Inputs:
    """NumPy arrays in the layout of `cuevo.attention`."""

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]
    mask_bias: NDArray[Any]
    pair_bias: NDArray[Any]


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "demo",
        "Compute MSA-row attention with both biases and compare it with float64.",
        _DETAILS,
        run,
    )
    add = parser.add_argument
    add("--device", metavar="NAME", help="cuda:0, sim, sim:sm_90 (default: a GPU if there is one)")
    for name, metavar, what in (
        ("rows", "N", "sequences of the MSA"),
        ("length", "L", "residues"),
        ("heads", "H", "heads"),
        ("head-dim", "D", "head dim, a multiple of 8 up to 128"),
    ):
        field = name.replace("-", "_")
        default = f"{getattr(ON_GPU, field)} on a GPU, {getattr(ON_CPU, field)} on the CPU executor"
        add(f"--{name}", type=int, metavar=metavar, help=f"{what} (default: {default})")
    add("--seed", type=natural, default=0, metavar="S", help="of the random inputs (default: 0)")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    device = arguments.device or default_device()
    sizes = choose_sizes(arguments, ON_CPU if is_cpu_executor(device) else ON_GPU)
    inputs = make_inputs(sizes, arguments.seed)
    if not arguments.json:
        print(
            f"MSA-row attention, bf16, mask bias and pair bias: {sizes.rows} rows, "
            f"{sizes.length} residues, {sizes.heads} heads, head dim {sizes.head_dim}",
            flush=True,
        )
    started = time.perf_counter()
    output = compute(inputs, device, show_progress=not arguments.json)
    seconds = time.perf_counter() - started
    error = compare(output, inputs)
    report: dict[str, Any] = {
        "device": device,
        **asdict(sizes),
        "seconds": seconds,
        "relative_error": error,
        "limit": ERROR_LIMIT,
        "agrees": error < ERROR_LIMIT,
    }
    if not is_cpu_executor(device):
        report |= time_on_device(inputs, sizes, device)
    if arguments.json:
        print_json(report)
    else:
        show(report)
    return EXIT_OK if report["agrees"] else EXIT_FAILED


def is_cpu_executor(device: str) -> bool:
    return device.partition(":")[0] == "sim"


def default_device() -> str:
    """The first GPU, or the CPU executor."""
    from cuevo.cuda import devices

    return "cuda:0" if devices() else f"sim:{DEFAULT_ARCH}"


def choose_sizes(arguments: argparse.Namespace, default: Sizes) -> Sizes:
    """The sizes on the command line, the others from `default`."""
    chosen = {}
    for name, value in asdict(default).items():
        given = getattr(arguments, name)
        if given is not None and given < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 1 or more, not {given}.")
        chosen[name] = value if given is None else given
    return Sizes(**chosen)


def make_inputs(sizes: Sizes, seed: int) -> Inputs:
    """Normally distributed values, and a mask bias of -inf for some of the keys."""
    import ml_dtypes
    import numpy as np

    generator = np.random.default_rng(seed)
    rows, length, heads = sizes.rows, sizes.length, sizes.heads

    def normal(*shape: int) -> NDArray[Any]:
        values = generator.standard_normal(shape, dtype=np.float32)
        return values.astype(ml_dtypes.bfloat16)

    shape = (1, rows, length, heads, sizes.head_dim)
    masked = generator.random((1, rows, 1, 1, length)) < MASKED
    return Inputs(
        q=normal(*shape),
        k=normal(*shape),
        v=normal(*shape),
        mask_bias=np.where(masked, -np.inf, 0.0).astype(ml_dtypes.bfloat16),
        pair_bias=normal(1, 1, heads, length, length),
    )


def compute(inputs: Inputs, device: str, *, show_progress: bool) -> NDArray[Any]:
    """`cuevo.attention` on the device; on the CPU executor with a bar of threadblocks done."""
    import cuevo
    from cuevo.sim import SimExecutor

    where: object = device
    with progress_bar("threadblocks", shown=show_progress) as advance:
        if is_cpu_executor(device):
            where = SimExecutor(device.partition(":")[2] or DEFAULT_ARCH, progress=advance)
        output: NDArray[Any] = cuevo.attention(**by_name(inputs), device=where)
    return output


def by_name(inputs: Inputs) -> dict[str, Any]:
    """The arrays by name, not copied."""
    return {field.name: getattr(inputs, field.name) for field in fields(inputs)}


@contextmanager
def progress_bar(unit: str, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """Yields `advance(done, total)`; the bar is on standard error, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not (shown and screen.is_terminal),
    ) as progress:
        task = progress.add_task(unit, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def compare(output: NDArray[Any], inputs: Inputs) -> float:
    """Norm of the difference to float64 over the norm of float64, row by row to spare memory."""
    import numpy as np

    from cuevo import reference

    difference = norm = 0.0
    for row in range(output.shape[1]):
        one = slice(row, row + 1)
        expected, _ = reference.attention(
            inputs.q[:, one],
            inputs.k[:, one],
            inputs.v[:, one],
            inputs.mask_bias[:, one],
            inputs.pair_bias,
        )
        difference += float(np.sum((output[:, one].astype(np.float64) - expected) ** 2))
        norm += float(np.sum(expected**2))
    return float(np.sqrt(difference / norm))


def time_on_device(inputs: Inputs, sizes: Sizes, device: str, repeats: int = 100) -> dict[str, Any]:
    """Median time of a call on arrays that lie on the device, by events, and its rate."""
    import cuevo
    from cuevo.arrays import view
    from cuevo.executors import executor

    gpu = executor(int(device.partition(":")[2] or 0))
    arrays: dict[str, Any] = {
        name: gpu.copy_to_device(view(x)) for name, x in by_name(inputs).items()
    }
    for _ in range(10):
        cuevo.attention(**arrays)
    events = [gpu.record_event()]
    for _ in range(repeats):
        cuevo.attention(**arrays)
        events.append(gpu.record_event())
    gpu.synchronize()
    milliseconds = statistics.median(end - start for start, end in itertools.pairwise(events))
    scores = sizes.rows * sizes.heads * sizes.length**2
    return {
        "device_name": gpu.info.name,
        "milliseconds": milliseconds,
        "teraflops": 4 * scores * sizes.head_dim / milliseconds / 1e9,
    }


def show(report: dict[str, Any]) -> None:
    if "milliseconds" in report:
        print(f"on {report['device_name']} ({report['device']})")
        print(f"{report['milliseconds']:.4f} ms a call, {report['teraflops']:.1f} TF/s", end=" ")
        print("(median of device events, inputs on the device)")
    else:
        print(f"on the CPU executor ({report['device']}) in {report['seconds']:.1f} s")
    verdict = "agrees with float64" if report["agrees"] else "DOES NOT AGREE with float64"
    print(f"relative error {report['relative_error']:.2e}, limit {report['limit']:g}: {verdict}")
