"""The planner in C of an exported folder, compiled and called, and Python's plans beside its."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver

from cuevo.arrays import ArrayView
from cuevo.cuda.tensor_map import TensorMap
from cuevo.ops import backward_plan as backward
from cuevo.ops import forward
from cuevo.ops.export.folder import planner
from cuevo.ops.export.instances import Instance, Instances
from cuevo.ops.export.selection import Narrowed, Selection
from cuevo.ops.packing import row_alignment
from cuevo.ops.plan import Plan
from cuevo.sim import SimExecutor
from cuevo.toolchain.template import RenderedKernel

TYPES = {"f16": 1, "bf16": 2, "f32": 3, "bool": 4}
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "bool": np.dtype(np.bool_),
}
FLAGS = ("-Wall", "-Wextra", "-Werror", "-pedantic")


class Array(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("shape", ctypes.c_int64 * 5),
        ("strides", ctypes.c_int64 * 5),
    )


class Device(ctypes.Structure):
    _fields_ = (
        ("architecture", ctypes.c_int),
        ("multiprocessors", ctypes.c_int),
        ("encoder", ctypes.c_void_p),
    )


_ENCODER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p),
    *(ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)),
    *(ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32)),
    *(ctypes.c_int,) * 4,
)


@_ENCODER
def _encode_for_executor(
    at: int,
    dtype: int,
    rank: int,
    address: int,
    extents: Any,
    strides: Any,
    box: Any,
    steps: Any,
    interleave: int,
    swizzle: int,
    promotion: int,
    fill: int,
) -> int:
    """What cuTensorMapEncodeTiled of the driver does, in the format of the CPU executor."""
    types, promotions = driver.CUtensorMapDataType, driver.CUtensorMapL2promotion
    if interleave or fill or promotion != promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_128B:
        return 1
    half = types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    made = TensorMap(
        "f16" if dtype == half else "bf16",
        address,
        tuple(extents[:rank]),
        tuple(strides[: rank - 1]),
        tuple(box[:rank]),
        (0, 32, 64, 128)[swizzle],
        128,
        tuple(steps[:rank]),
    )
    ctypes.memmove(at, made.encode_for_executor(), 128)
    return 0


ENCODER = ctypes.cast(_encode_for_executor, ctypes.c_void_p)


class Forward(ctypes.Structure):
    _fields_ = (
        *((name, Array) for name in ("q", "k", "v", "out", "mask_bias", "pair_bias")),
        ("lse", ctypes.c_void_p),
        ("scale", ctypes.c_double),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
    )


class Backward(ctypes.Structure):
    _fields_ = (
        *((name, Array) for name in ("dout", "q", "k", "v", "out", "mask_bias", "pair_bias")),
        *((name, Array) for name in ("dq", "dk", "dv", "dmask_bias", "dpair_bias")),
        ("lse", ctypes.c_void_p),
        ("scale", ctypes.c_double),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
    )


class CLaunch(ctypes.Structure):
    _fields_ = (
        ("parameters", ctypes.c_uint8 * 640),
        ("parameter_bytes", ctypes.c_uint32),
        ("kernel", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("queue", ctypes.c_int),
        ("_", ctypes.c_uint8 * 24),
    )


class CPlan(ctypes.Structure):
    _fields_ = (
        ("launches", CLaunch * 24),
        ("count", ctypes.c_uint32),
        ("workspace_bytes", ctypes.c_uint64),
        ("wrong", ctypes.c_char_p),
        ("_", ctypes.c_uint8 * 40),
    )


@dataclass(frozen=True)
class Launched:
    """A launch, from either side."""

    kernel: str
    config: Any
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    parameters: bytes
    queue: int


@dataclass(frozen=True)
class Planner:
    """A compiled planner."""

    library: ctypes.CDLL
    kernels: tuple[Instance, ...]

    def plan(self, device: Device, call: Forward | Backward) -> tuple[int, CPlan]:
        """The status, and the plan, of a call."""
        plan = aligned(CPlan)
        name = "forward" if isinstance(call, Forward) else "backward"
        status = self.library[f"cuevo_plan_{name}"](
            ctypes.byref(device), ctypes.byref(call), ctypes.byref(plan)
        )
        return status, plan

    def launches(self, plan: CPlan) -> list[Launched]:
        return [
            Launched(
                self.kernels[x.kernel].name,
                self.kernels[x.kernel].config,
                tuple(x.grid),
                tuple(x.block),
                x.shared_bytes,
                bytes(x.parameters[: x.parameter_bytes]),
                x.queue,
            )
            for x in plan.launches[: plan.count]
        ]


def aligned(kind: type[ctypes.Structure]) -> Any:
    """A struct of zeros where C may have it."""
    memory = (ctypes.c_uint8 * (ctypes.sizeof(kind) + 64))()
    return kind.from_buffer(memory, -ctypes.addressof(memory) % 64)


def write_planner(selection: Selection, folder: Path) -> Instances:
    """Write the planner's files, without kernels."""
    instances = Instances()
    for name, text in planner(selection, instances).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return instances


def compiler(name: str) -> str:
    """A C or C++ compiler; skips where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the PATH to compile the planner with")
    return found


def compile_planner(selection: Selection, folder: Path) -> Planner:
    """The planner of a folder for these problems."""
    instances = write_planner(selection, folder)
    library = folder / "planner.so"
    kinds = {"launch": CLaunch, "plan": CPlan, "device": Device}
    kinds |= {"forward": Forward, "backward": Backward}
    sizes = (f"sizeof(cuevo_{kind}) == {ctypes.sizeof(ours)}" for kind, ours in kinds.items())
    asserted = "".join(f'_Static_assert({size}, "as the test has it");\n' for size in sizes)
    (folder / "src" / "sizes.c").write_text(f'#include "cuevo_launch.h"\n{asserted}')
    sources = [str(path) for path in sorted((folder / "src").glob("*.c"))]
    subprocess.run(
        [
            *(compiler("gcc"), "-std=c11", *FLAGS, "-O1", "-fsanitize=undefined"),
            *("-fno-sanitize-recover=all", "-static-libubsan", "-fPIC", "-shared"),
            *(f"-I{folder / 'include'}", *sources, "-o", str(library), "-lm"),
        ],
        check=True,
    )
    return Planner(ctypes.CDLL(str(library)), tuple(instances))


def as_array(view: ArrayView | None) -> Array:
    """An array as C has it: all zeros where there is none."""
    if view is None:
        return Array()
    kind = next(name for name, dtype in DTYPES.items() if dtype == view.dtype)
    five = ctypes.c_int64 * 5
    return Array(view.pointer, TYPES[kind], five(*view.shape), five(*view.strides))


def run(planner: Planner, plan: CPlan, arrays: Sequence[ArrayView], architecture: str) -> None:
    """Run a plan of C on the CPU executor; `arrays` are all that its kernels may touch."""
    executor = SimExecutor(architecture)
    for launch in plan.launches[: plan.count]:
        executor.load(planner.kernels[launch.kernel].render()).launch(
            tuple(launch.grid),
            tuple(launch.block),
            launch.shared_bytes,
            bytes(launch.parameters[: launch.parameter_bytes]),
            buffers=arrays,
        )


# -- The plans of Python ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unloaded:
    kernel: RenderedKernel
    spills: bool = False


class _Planning(SimExecutor):
    """A place where nothing is launched."""

    def load(self, kernel: Any) -> Any:
        return _Unloaded(kernel)


def forward_plan(views: Mapping[str, ArrayView], scale: float, architecture: str) -> Plan:
    """Python's plan of a forward pass, with the kernels of exported folders."""
    with mock.patch.object(forward, "VARIANTS", _narrowed(forward.VARIANTS)):
        return forward._make_plan(
            views, scale, False, _pack(views), device=_Planning(architecture), config=None
        )


def backward_plan(views: Mapping[str, ArrayView], scale: float, architecture: str) -> Plan:
    """The same of a backward pass, whose results are all given."""
    grads = tuple(name for name in backward.GRADS if f"d{name}" in views)
    single = np.dtype(np.float32)
    biases = [views[name].dtype for name in ("dmask_bias", "dpair_bias") if name in views]
    wanted = single if biases and all(dtype == single for dtype in biases) else None
    with mock.patch.object(backward, "VARIANTS", _narrowed(backward.VARIANTS)):
        return backward.make_plan(
            views,
            *(scale, grads, wanted, _pack(views)),
            device=_Planning(architecture),
            config=None,
        )


def _narrowed(variants: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(Narrowed(x) if x.NAME.endswith("sm80") else x for x in variants)


def _pack(views: Mapping[str, ArrayView]) -> bool | None:
    """What the planner in C does of a pair bias: pack it unless its rows are well aligned."""
    pair = views.get("pair_bias")
    return True if pair is not None and row_alignment(pair) < 16 else None


def launched(plan: Plan, given: Mapping[str, ArrayView], workspace: int) -> list[Launched]:
    """What a plan launches for arrays, in the order of the operation, with that workspace."""
    table = [0, *(view.pointer for view in given.values())]
    table += [workspace + part.offset for part in plan.parts]
    return [
        Launched(
            launch.kernel.kernel.name,
            launch.config,
            *launch.shape,
            _block(launch, table),
            number,
        )
        for number, queue in enumerate((plan.launches, plan.beside, plan.after))
        for launch in queue
    ]


def _block(launch: Any, table: list[int]) -> bytes:
    return bytes(launch._pack(*launch._pick(table)) + launch.constants)


def differences(ours: Launched, theirs: Launched) -> Iterator[str]:
    """What two launches differ in."""
    for name in ("kernel", "config", "grid", "block", "shared_bytes", "queue", "parameters"):
        if getattr(ours, name) != getattr(theirs, name):
            yield f"{name}: C {getattr(ours, name)!r}, Python {getattr(theirs, name)!r}"
