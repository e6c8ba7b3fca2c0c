"""Runs pieces of PTX on the CPU executor, one thread an element."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from cuevo.sim import LoadedKernel, Profile, SimExecutor
from cuevo.sim.arithmetic import compiled, exponential, float32, halves, tensor_core
from cuevo.sim.memory import happens_before, races

Array = NDArray[Any]

DTYPES: dict[str, Any] = {
    **{f"{kind}{bits}": np.dtype(f"{kind}{bits // 8}") for kind in "u" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"b{bits}": np.dtype(f"u{bits // 8}") for bits in (16, 32, 64)},
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "pred": np.dtype(np.uint32),
}


@dataclass(frozen=True)
class Buffer:
    """The memory of a NumPy array, as a launch wants it."""

    array: Array
    readonly: bool = False

    @property
    def pointer(self) -> int:
        return self.array.ctypes.data

    @property
    def extent(self) -> tuple[int, int]:
        return self.pointer, self.pointer + self.array.nbytes


@pytest.fixture(autouse=True)
def compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops are compiled from the first one on."""
    monkeypatch.setattr(compiled, "USES_BEFORE", 0)


@pytest.fixture(params=["compiled", "NumPy"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with compiled loops, and without."""
    if request.param == "compiled":
        pytest.importorskip("numba")
        return
    for module, name in (
        (tensor_core, "compiled"),
        (races, "compiled"),
        (happens_before, "compiled"),
        (float32, "compiled_elementwise"),
        (exponential, "compiled_elementwise"),
        (halves, "compiled_elementwise"),
    ):
        monkeypatch.setattr(module, name, lambda *arguments: None)


class Kernel(Protocol):
    def __call__(
        self,
        body: str,
        *arrays: Array,
        grid: int = 1,
        block: int | tuple[int, int, int] = 32,
        shared: int = 0,
        arch: str = "sm_80",
        readonly: tuple[int, ...] = (),
    ) -> None:
        """Run an entry whose parameters p0, p1, ... are the addresses of `arrays`."""


class Elementwise(Protocol):
    def __call__(self, body: str, arch: str = "sm_80", **operands: tuple[str, Array] | str) -> Any:
        """Run `body` for each element.

        An operand is a register: a type and an array to load it from, or for a result the type
        alone; its array comes back, in the order of the operands if there are several.
        """


def kernel_text(body: str, parameters: int, target: str = "sm_80") -> str:
    listed = ", ".join(f".param .u64 p{i}" for i in range(parameters))
    return f"""
.version 8.8
.target {target}
.address_size 64
.visible .entry test({listed})
{{
{body}
}}
"""


def launch(
    executor: SimExecutor,
    body: str,
    arrays: tuple[Array, ...],
    grid: int,
    block: int | tuple[int, int, int],
    shared: int,
    readonly: tuple[int, ...] = (),
) -> LoadedKernel:
    kernel = executor.load_text("test", kernel_text(body, len(arrays), executor.arch))
    kernel.launch(
        (grid, 1, 1),
        (block, 1, 1) if isinstance(block, int) else block,
        shared,
        struct.pack(f"<{len(arrays)}Q", *(array.ctypes.data for array in arrays)),
        buffers=[Buffer(array, i in readonly) for i, array in enumerate(arrays)],
    )
    return kernel


@pytest.fixture
def run_kernel() -> Kernel:
    def run(
        body: str,
        *arrays: Array,
        grid: int = 1,
        block: int | tuple[int, int, int] = 32,
        shared: int = 0,
        arch: str = "sm_80",
        readonly: tuple[int, ...] = (),
    ) -> None:
        launch(SimExecutor(arch), body, arrays, grid, block, shared, readonly)

    return run


@pytest.fixture
def profile_of() -> Callable[..., Profile]:
    """Runs an entry as `run_kernel` does; its profile."""

    def run(
        body: str,
        *arrays: Array,
        grid: int = 1,
        block: int = 32,
        shared: int = 0,
        arch: str = "sm_80",
    ) -> Profile:
        executor = SimExecutor(arch, profile=True)
        profile = launch(executor, body, arrays, grid, block, shared).profile
        assert profile is not None
        return profile

    return run


@pytest.fixture
def run_elementwise(run_kernel: Kernel) -> Elementwise:
    def run(body: str, arch: str = "sm_80", **operands: tuple[str, Array] | str) -> Any:
        inputs = {name: given for name, given in operands.items() if not isinstance(given, str)}
        outputs = {name: given for name, given in operands.items() if isinstance(given, str)}
        size = next(iter(inputs.values()))[1].size
        padded = -(-size // 32) * 32
        arrays: dict[str, Array] = {}
        lines = [".reg .b64 t_place, t_wide; .reg .b32 t_number, t_thread, t_group;"]
        lines += ["mov.u32 t_thread, %tid.x; mov.u32 t_group, %ctaid.x;"]
        lines += ["mad.lo.u32 t_number, t_group, 32, t_thread; cvt.u64.u32 t_wide, t_number;"]
        stores = []
        for name, given in operands.items():
            scalar = given if isinstance(given, str) else given[0]
            dtype, index = DTYPES[scalar], len(arrays)
            bits = 8 * dtype.itemsize
            register = "pred" if scalar == "pred" else f"b{max(bits, 16)}"
            lines.append(f".reg .{register} {name};")
            if isinstance(given, str):
                arrays[name] = np.zeros(padded, dtype)
            else:
                arrays[name] = np.zeros(padded, dtype)
                arrays[name][:size] = np.asarray(given[1]).astype(dtype, copy=False)
                arrays[name][size:] = arrays[name][0]
            at = f"ld.param.u64 t_place, [p{index}];"
            at += f"mad.lo.u64 t_place, t_wide, {dtype.itemsize}, t_place;"
            if name in inputs:
                lines.append(f"{at} ld.global.b{bits} {name}, [t_place];")
            elif scalar == "pred":
                stores.append(
                    f"{at} selp.b32 t_number, 1, 0, {name}; st.global.b32 [t_place], t_number;"
                )
            else:
                stores.append(f"{at} st.global.b{bits} [t_place], {name};")
        text = "\n".join([*lines, "{", body, "}", *stores, "ret;"])
        run_kernel(text, *arrays.values(), grid=padded // 32, arch=arch)
        results = [
            arrays[name][:size].astype(bool) if scalar == "pred" else arrays[name][:size]
            for name, scalar in outputs.items()
        ]
        return results[0] if len(results) == 1 else tuple(results)

    return run


class Numbers:
    """Random operands with the extreme ones among them."""

    SPECIAL_F32 = np.array(
        [
            *[0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0**-126, 2.0**-149, -(2.0**-130)],
            *[3.4028235e38, 1 + 2.0**-23, 0.5, 65504.0, 2.0**-14, 2.0**-24, 1e-40, -1e30],
        ],
        np.float32,
    )

    def __init__(self) -> None:
        self.rng = np.random.default_rng(20240607)

    def integers(self, scalar: str, size: int) -> Array:
        """Integers of a PTX type, small ones and both ends of the range among them."""
        info = np.iinfo(DTYPES[scalar])
        values = self.rng.integers(info.min, info.max, size, dtype=info.dtype, endpoint=True)
        small = self.rng.random(size) < 0.3
        values[small] //= info.dtype.type(info.max // 100 + 1)
        ends = [info.min, info.max, 0, 1, 2, info.max - 1, info.min + 1]
        values[: len(ends)] = ends
        return self.rng.permutation(values)

    def floats(self, size: int, *, finite: bool = False) -> Array:
        """float32 of all magnitudes, also subnormals, zeros and, unless `finite`, inf and NaN."""
        patterns = self.rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
        ordinary = self.rng.standard_normal(size).astype(np.float32)
        values = np.where(self.rng.random(size) < 0.4, patterns, ordinary)
        chosen = self.rng.random(size) < 0.3
        values[chosen] = self.rng.choice(self.SPECIAL_F32, int(chosen.sum()))
        if finite:
            values[~np.isfinite(values)] = 1
        return values

    @staticmethod
    def rounded(value: Fraction, scalar: str, mode: str = "rn") -> float:
        """`value` rounded once to "f16", "bf16" or "f32", by integer arithmetic."""
        precision, lowest, highest = {"f16": (11, -14, 15), "bf16": (8, -126, 127)}.get(
            scalar, (24, -126, 127)
        )
        if value == 0:
            return 0.0
        size = abs(value)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= Fraction(2) ** exponent > size
        quantum = Fraction(2) ** (max(exponent, lowest) - precision + 1)
        count = size / quantum
        whole = count.numerator // count.denominator
        rest = count - whole
        away = {
            "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
            "rz": False,
            "rm": value < 0 and rest > 0,
            "rp": value > 0 and rest > 0,
        }[mode]
        result = (whole + away) * quantum
        if result >= Fraction(2) ** (highest + 1):
            # Toward zero the largest number stays; only rounding away reaches infinity.
            largest = (Fraction(2) ** precision - 1) * Fraction(2) ** (highest - precision + 1)
            to_infinity = (
                mode == "rn" or (mode == "rp" and value > 0) or (mode == "rm" and value < 0)
            )
            return math.copysign(math.inf if to_infinity else float(largest), value)
        return math.copysign(float(result), value)


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


def _same_floats(actual: Array, expected: Array) -> None:
    """Assert equality bit for bit, but any NaN of `expected` asks for the canonical one."""
    integer = np.dtype(f"u{actual.dtype.itemsize}")
    canonical = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FF8 << 48}[actual.dtype.itemsize]
    with np.errstate(invalid="ignore"):
        nan = np.isnan(expected.astype(np.float64))
    wanted = np.where(nan, integer.type(canonical), expected.view(integer))
    wrong = np.flatnonzero(actual.view(integer) != wanted)
    if wrong.size:
        i = int(wrong[0])
        raise AssertionError(
            f"{wrong.size} of {actual.size} differ, first {i}: {actual[i]!r}, not {expected[i]!r}"
        )


@pytest.fixture
def same_floats() -> Callable[[Array, Array], None]:
    return _same_floats
