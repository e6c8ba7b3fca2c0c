"""The planner in C of an exported folder, compiled and called, and Python's plans beside its."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import driver

from cuevo.arrays import ArrayView
from cuevo.cuda.tensor_map import TensorMap
from cuevo.kernels import gemm_mma
from cuevo.ops import backward_plan as backward
from cuevo.ops import dispatch, forward, gemm_problem, packing, product
from cuevo.ops.export.folder import planner
from cuevo.ops.export.instances import Instance, Instances
from cuevo.ops.export.selection import Narrowed, Selection, narrowed_product
from cuevo.ops.packing import row_alignment
from cuevo.ops.plan import Plan
from cuevo.sim import SimExecutor

TYPES = {"f16": 1, "bf16": 2, "f32": 3, "bool": 4, "i32": 5, "i64": 6}
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "bool": np.dtype(np.bool_),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
}
FLAGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror", "-pedantic")


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
        ("two_streams", ctypes.c_int),
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
    known = {
        promotions.CU_TENSOR_MAP_L2_PROMOTION_NONE: 0,
        promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_64B: 64,
        promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_128B: 128,
        promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_256B: 256,
    }
    if interleave or fill or promotion not in known:
        return 1
    half = types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    made = TensorMap(
        "f16" if dtype == half else "bf16",
        address,
        tuple(extents[:rank]),
        tuple(strides[: rank - 1]),
        tuple(box[:rank]),
        (0, 32, 64, 128)[swizzle],
        known[promotions(promotion)],
        tuple(steps[:rank]),
    )
    ctypes.memmove(at, made.encode_for_executor(), 128)
    return 0


ENCODER = ctypes.cast(_encode_for_executor, ctypes.c_void_p)
_refuse = _ENCODER(lambda *_: 1)
REFUSING = ctypes.cast(_refuse, ctypes.c_void_p)


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


class Gemm(ctypes.Structure):
    _fields_ = (
        *((name, Array) for name in ("a", "b", "c", "bias", "scatter", "out")),
        *((name, ctypes.c_float) for name in ("alpha", "beta")),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
    )


Call = Forward | Backward | Gemm


class CLaunch(ctypes.Structure):
    _fields_ = (
        ("parameters", ctypes.c_uint8 * 1024),
        ("parameter_bytes", ctypes.c_uint32),
        ("kernel", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("queue", ctypes.c_int),
    )


class CPlan(ctypes.Structure):
    _fields_ = (
        ("launches", CLaunch * 24),
        ("count", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("workspace_bytes", "cleared_at", "cleared_bytes")),
        ("wrong", ctypes.c_char_p),
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

    def plan(self, device: Device, call: Call) -> tuple[int, CPlan]:
        """The status, and the plan, of a call."""
        plan = CPlan()
        name = type(call).__name__.lower()
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
    kinds |= {"forward": Forward, "backward": Backward, "gemm": Gemm}
    sizes = (f"sizeof(cuevo_{kind}) == {ctypes.sizeof(ours)}" for kind, ours in kinds.items())
    alignments = (f"_Alignof(cuevo_{kind}) <= _Alignof(max_align_t)" for kind in kinds)
    asserted = "".join(
        f'_Static_assert({each}, "as the test has it, where malloc has put it");\n'
        for each in (*sizes, *alignments)
    )
    (folder / "src" / "sizes.c").write_text(f'#include "cuevo_launch.h"\n{asserted}')
    sources = [str(path) for path in sorted((folder / "src").glob("*.c"))]
    subprocess.run(
        [
            *(compiler("gcc"), "-std=c11", *FLAGS, "-fsanitize=undefined"),
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
    kind, five = kind_of(view), ctypes.c_int64 * 5
    return Array(view.pointer, TYPES[kind], five(*view.shape), five(*view.strides))


def forward_of(views: Mapping[str, ArrayView], scale: float, workspace: int) -> Forward:
    """The problem of C of a forward pass."""
    names = ("q", "k", "v", "out", "mask_bias", "pair_bias")
    return Forward(
        *(as_array(views.get(name)) for name in names),
        views["lse"].pointer if "lse" in views else None,
        scale,
        workspace,
        1 << 50,
    )


def as_matrix(x: ArrayView | None) -> Array:
    """An array of up to three axes, the batch first, as C has it: all zeros where there is none."""
    if x is None:
        return Array()
    alone = x.ndim == 2
    shape, strides = ((1, *x.shape), (0, *x.strides)) if alone else (x.shape, x.strides)
    made = Array(x.pointer, TYPES[kind_of(x)])
    made.shape[: len(shape)], made.strides[: len(shape)] = shape, strides
    return made


def gemm_of(
    views: Mapping[str, ArrayView], alpha: float, beta: float, workspace: int, size: int = 1 << 50
) -> Gemm:
    """The problem of C of a matrix product."""
    names = [name for name, kind in Gemm._fields_ if kind is Array]
    arrays = (as_matrix(views.get(name)) for name in names)
    return Gemm(*arrays, alpha, beta, workspace, size)


def kind_of(view: ArrayView) -> str:
    """The type of an array's elements, as host halves call it."""
    return next(name for name, dtype in DTYPES.items() if dtype == view.dtype)


# -- The plans of Python ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Named:
    name: str
    values: object


@dataclass(frozen=True)
class _Unloaded:
    kernel: _Named
    spills: bool = False


class _Planning(SimExecutor):
    """A place where nothing is launched."""

    def load(self, kernel: Any) -> Any:
        return _Unloaded(kernel)


@contextmanager
def _planning(operation: ModuleType) -> Iterator[None]:
    """Plans of the operation of that module have the kernels of exported folders, but no texts."""
    served = [x for x in operation.VARIANTS if x.NAME != "evoformer_backward_sm90a"]
    variants = [Narrowed(x) if x.NAME.endswith("sm80") else x for x in served]
    with ExitStack() as patched:
        patched.enter_context(mock.patch.object(operation, "VARIANTS", tuple(variants)))
        for module in (dispatch, packing, backward):
            patched.enter_context(mock.patch.object(module, "render", _Named))
        yield


def forward_plan(views: Mapping[str, ArrayView], scale: float, architecture: str) -> Plan:
    """Python's plan of a forward pass, with the kernels of exported folders."""
    with _planning(forward):
        return forward._make_plan(
            views, scale, False, _pack(views), device=_Planning(architecture), config=None
        )


def backward_plan(views: Mapping[str, ArrayView], scale: float, architecture: str) -> Plan:
    """The same of a backward pass, whose results are all given."""
    grads = tuple(name for name in backward.GRADS if f"d{name}" in views)
    single = np.dtype(np.float32)
    biases = [views[name].dtype for name in ("dmask_bias", "dpair_bias") if name in views]
    wanted = single if biases and all(dtype == single for dtype in biases) else None
    with _planning(backward):
        return backward.make_plan(
            views,
            *(scale, grads, wanted, _pack(views)),
            device=_Planning(architecture),
            config=None,
        )


def gemm_plan(
    views: Mapping[str, ArrayView],
    alpha: float,
    beta: float,
    architecture: str,
    alignments: Sequence[int],
) -> Plan:
    """The same of a matrix product, whose result is given."""

    def stated(operands: Any) -> Any:
        return narrowed_product(gemm_problem.state_problem(operands), alignments)

    with _planning(product), mock.patch.object(product, "state_problem", stated):
        return product._make_plan(
            views, alpha, beta, False, False, None, device=_Planning(architecture), config=None
        )


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
            _instance(launch.config),
            *launch.shape,
            _block(launch, table),
            number,
        )
        for number, queue in enumerate((plan.launches, plan.beside, plan.after))
        for launch in queue
    ]


def _instance(config: Any) -> Any:
    """What a folder has in the place of a configuration: one instance for all splits of k."""
    if isinstance(config, gemm_mma.Config):
        return replace(config, splits=min(config.splits, 2))
    return config


def _block(launch: Any, table: list[int]) -> bytes:
    return bytes(launch.addresses.pack(*launch.pick(table)) + launch.constants)


def differences(ours: Launched, theirs: Launched) -> Iterator[str]:
    """What two launches differ in."""
    for name in ("kernel", "config", "grid", "block", "shared_bytes", "queue", "parameters"):
        if getattr(ours, name) != getattr(theirs, name):
            yield f"{name}: C {getattr(ours, name)!r}, Python {getattr(theirs, name)!r}"
