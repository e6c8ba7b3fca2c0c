"""The kernels of a call in a compiled program, launched by XLA itself.

XLA takes handwritten PTX: its custom call of the name `TARGET` is a launch, whose entry gets the
addresses of the operands and then of the results. Shapes are known while a program is traced, so
that everything else is written into the text (`launches`): nothing comes back to Python, a
workspace is a result that nobody else looks at, and `jax.export` can store it. This custom call is
XLA's own affair, which no document promises: `are_launched` tries it on the device.
"""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import jax
import jax.export
import numpy as np

from cuevo.architectures import KNOWN, architecture, check_exists
from cuevo.arrays import packed
from cuevo.jax.launches import BoundLaunch, BoundPlan, plan_for
from cuevo.jax.primitives import KEPT
from cuevo.ops import backward, forward
from cuevo.ops.operation import Operation

__all__ = [
    "ARCH_ENVIRONMENT",
    "DISABLED_CHECKS",
    "TARGET",
    "Call",
    "are_launched",
    "backward_kernels",
    "describe",
    "forward_kernels",
    "run_launch",
]

_log = logging.getLogger(__name__)

TARGET = "__gpu$xla.gpu.ptx"

Call = Callable[..., Sequence[Any]]
"""``call(types of results, *arrays)``, traced."""
DISABLED_CHECKS = (jax.export.DisabledSafetyCheck.custom_call(TARGET),)
"""What `jax.export.export` takes as ``disabled_checks`` for programs with such calls."""
_API_VERSION = 2
"""Of custom calls whose configuration is a text."""
ARCH_ENVIRONMENT = "CUEVO_JAX_ARCH"
_LOWEST_ARCH = 80
_PORTABLE_ARCH = min(
    (f"sm_{number}" for number in KNOWN if number >= _LOWEST_ARCH),
    key=lambda name: architecture(name).shared_per_block,
)
"""What a program is planned for where there is no device to ask: what fits into the shared memory
of this one runs on every architecture from the lowest on.
"""


def forward_kernels(names: Sequence[str], scale: float, *, with_lse: bool) -> Call:
    """Computes out, and lse if it is wanted, from the operands `names`."""

    def call(types: Sequence[Any], *arrays: Any) -> Sequence[Any]:
        return _run(forward.OPERATION, names, (scale, with_lse, None), types, arrays)

    return call


def backward_kernels(names: Sequence[str], wanted: Sequence[str], scale: float) -> Call:
    """Computes the gradients `wanted` from the operands `names`, out, lse and dout. Gradients of
    biases may be float32 in the place of the biases' own type.
    """
    given = (*names, *KEPT, "dout")

    def call(types: Sequence[Any], *arrays: Any) -> Sequence[Any]:
        own = dict(zip(given, arrays, strict=True))
        widened = any(x.dtype != own[name].dtype for name, x in zip(wanted, types, strict=True))
        options = (scale, tuple(wanted), "float32" if widened else None, None)
        return _run(backward.OPERATION, given, options, types, arrays)

    return call


def _run(
    operation: Operation,
    names: Sequence[str],
    options: tuple[object, ...],
    types: Sequence[Any],
    arrays: Sequence[Any],
) -> Sequence[Any]:
    """The results of an operation, of these types, in a traced program."""
    given = dict(zip(names, arrays, strict=True))
    kinds = tuple(
        (x.shape, np.dtype(x.dtype)) if (x := given.get(name)) is not None else None
        for name in operation.names
    )
    plan, configs = _plan(operation, kinds, options, *_device())
    asked = dict(zip(plan.results, types, strict=True))
    if not plan.launches:
        values: dict[int, Any] = {slot: x.empty_value for slot, x in plan.results.items()}
        return [jax.numpy.full(x.shape, values[slot], x.dtype) for slot, x in asked.items()]
    made = {slot: jax.ShapeDtypeStruct(x.shape, x.dtype) for slot, x in plan.workspace.items()}
    made |= asked
    table = dict(enumerate((given[name] for name in operation.names if name in given), start=1))
    for launch, config in zip(plan.launches, configs, strict=True):
        results = [made[slot] for slot in launch.writes]
        found = run_launch(launch, config, results, [table[slot] for slot in launch.reads])
        table.update(zip(launch.writes, found, strict=True))
    return [table[slot] for slot in asked]


def run_launch(
    launch: BoundLaunch, config: str, types: Sequence[Any], arrays: Sequence[Any]
) -> Sequence[Any]:
    """What a launch, that XLA is told of by `config`, writes, of these types, in a traced program;
    `arrays` are those that it reads.
    """
    updated = {launch.reads.index(slot): launch.writes.index(slot) for slot in launch.updates}
    found: Sequence[Any] = jax.ffi.ffi_call(
        TARGET,
        types,
        input_output_aliases=updated,
        custom_call_api_version=_API_VERSION,
        legacy_backend_config=config,
    )(*arrays)
    return found


@lru_cache(maxsize=256)
def _plan(
    operation: Operation,
    kinds: tuple[tuple[tuple[int, ...], Any] | None, ...],
    options: tuple[object, ...],
    arch: str,
    device: str,
) -> tuple[BoundPlan, list[str]]:
    """The launches of a call, and what XLA is told of each."""
    # XLA's buffers begin at multiples of 16 bytes, or more.
    views = tuple(kind and packed(*kind, device="cpu") for kind in kinds)
    plan = plan_for(operation, views, options, arch, device)
    return plan, [describe(launch) for launch in plan.launches]


def describe(launch: BoundLaunch) -> str:
    """A launch as XLA reads it: the text of a dictionary of MLIR."""
    count = len(launch.reads)
    numbers = dict(zip(("grid_x", "grid_y", "grid_z"), launch.grid, strict=True))
    numbers |= dict(zip(("block_x", "block_y", "block_z"), launch.block, strict=True))
    numbers["shared_mem_bytes"] = launch.shared_bytes
    outputs = ", ".join(f"{count + i} : i32" for i in range(len(launch.writes)))
    entries = [
        f"name = {_quoted(launch.kernel.name)}",
        'kernel_type = "ptx"',
        f"kernel_data = {_quoted(launch.kernel.code)}",
        *(f"{name} = {number} : i32" for name, number in numbers.items()),
        f"output_indices = [{outputs}]",
    ]
    return f"{{{', '.join(entries)}}}"


def _quoted(text: str) -> str:
    """A string of MLIR."""
    escaped = text.replace("\\", r"\5C").replace('"', r"\22").replace("\n", r"\0A")
    return f'"{escaped}"'


# -- The device ------------------------------------------------------------------------------------


def _device() -> tuple[str, str]:
    """Architecture and name of the devices that a program for CUDA will run on: of those that are
    here, unless the environment says another architecture.
    """
    if asked := os.environ.get(ARCH_ENVIRONMENT):
        check_exists(asked)
        return asked, ""
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return _PORTABLE_ARCH, ""
    return f"sm_{device.compute_capability.replace('.', '')}", device.device_kind


@cache
def are_launched() -> bool:
    """Whether XLA launches kernels on the CUDA devices of this process; True where there are none,
    as the program is for others then.
    """
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return True
    # A thread of its own has nothing of the mesh or the trace that a caller may be in.
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(_try, device).result()
        except Exception as error:
            _log.warning(
                "XLA does not launch the kernels of cuevo.jax, whose calls come back to Python: %s",
                error,
            )
            return False


def _try(device: Any) -> bool:
    """Whether attention that XLA launches is right, all of its operands being one array."""
    call = forward_kernels(("q", "k", "v"), 1.0, with_lse=True)
    x = jax.device_put(np.full((1, 1, 1, 1, 8), 2, np.float16), device)
    types = [jax.typeof(x), jax.ShapeDtypeStruct((1, 1, 1, 1), np.float32)]
    # One key: out is its v, and the logarithm of the sum its score.
    out, lse = jax.jit(lambda x: call(types, x, x, x))(x)
    return bool((out == x).all() and lse == 32)
