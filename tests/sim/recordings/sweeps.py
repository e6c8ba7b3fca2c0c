"""Kernels that run a few instructions each on the same inputs, one thread a set of operands.

A kernel's text and its inputs are the same on a GPU and on the CPU executor. Inputs depend on the
types of the operands alone, and results are known by their instruction: a row that the table gains
changes nothing of what was there before.
"""

import itertools
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
from sim.recordings import approximations, products
from sim.recordings.fills import Array, inputs, width
from sim.recordings.passages import IN_MEMORY, ROOM, passages
from sim.recordings.probes import Probe, Source, probes

from cuevo.arrays import view
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import Struct, parse_header
from cuevo.toolchain.template import RenderedKernel

THREADS = 128
VERSION = "9.0"
AT_ONCE = 16
"""Instructions of a kernel."""


@dataclass(frozen=True)
class Sweep:
    """Some instructions with operands of the same types, on the same inputs."""

    probes: tuple[Probe, ...]
    arch: str
    lanes: int
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.probes[0].name} and {len(self.probes) - 1} more"

    @property
    def signature(self) -> str:
        return self.probes[0].signature

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(probe.name for probe in self.probes)

    @property
    def grid(self) -> int:
        return self.lanes // THREADS

    @property
    def outputs(self) -> list[int]:
        """Bits of each array of results, `lanes` long."""
        return [bits for probe in self.probes for bits in results(probe)]

    def inputs(self) -> list[Array]:
        """Unsigned integers, (registers, lanes) for each operand."""
        return operands(self.probes[0])

    @property
    def kernel(self) -> RenderedKernel:
        params = _params(len(self.probes[0].sources) + len(self.outputs))
        return RenderedKernel("probe", self.text, (None,) * self.text.count("\n"), {}, params)

    def split(self, arrays: list[Array]) -> Mapping[str, Array]:
        """Results by instruction, (lanes, results of a lane) as uint64, out of the outputs."""
        left = iter(arrays)
        return {
            probe.name: np.stack(
                [array.astype(np.uint64) for array in itertools.islice(left, len(results(probe)))],
                axis=1,
            )
            for probe in self.probes
        }

    def on_sim(self, executor: SimExecutor) -> Mapping[str, Array]:
        """Results of the CPU executor."""
        given = self.inputs()
        found = [np.zeros(self.lanes, f"u{bits // 8}") for bits in self.outputs]
        views = [view(x) for x in (*given, *found)]
        packed = struct.pack(f"<{len(views)}Q", *(x.pointer for x in views))
        kernel = executor.load(self.kernel)
        kernel.launch((self.grid, 1, 1), (THREADS, 1, 1), 0, packed, buffers=views)
        return self.split(found)


def results(probe: Probe) -> list[int]:
    """Bits of each register that a probe writes, its carry at last."""
    found = [width(each.scalar) for each in probe.results for _ in range(each.registers)]
    return [*found, 32] if probe.carries[1] else found


def operands(probe: Probe) -> list[Array]:
    if probe.binder == "wgmma":
        return products.warpgroup_inputs(*_warpgroup(probe)[1:])
    if probe.binder.startswith("matrix.multiply"):
        return products.operands(probe.sources)
    return inputs(probe.sources, few=_few(probe))


def _few(probe: Probe) -> bool:
    return probe.binder.startswith("compare.")


def _warpgroup(probe: Probe) -> tuple[str, str, str, int]:
    return next(form for form in products.WARPGROUP_FORMS if form[0] in probe.opcode)


@cache
def sweeps(number: int = 90) -> tuple[Sweep, ...]:
    """All of them, for architecture `number`."""
    groups: dict[tuple[str, bool, str], list[Probe]] = {}
    for probe in (*probes(number), *passages(number)):
        special = f"sm_{number}a" if probe.target[1] else f"sm_{number}"
        groups.setdefault((probe.signature, _few(probe), special), []).append(probe)
    found = []
    for (_, _, arch), members in groups.items():
        lanes = operands(members[0])[0].shape[1]
        for start in range(0, len(members), AT_ONCE):
            part = tuple(members[start : start + AT_ONCE])
            found.append(Sweep(part, arch, lanes, _text(part, arch, lanes)))
    return (*found, *(_warpgroups() if number == 90 else ()))


@cache
def octaves(number: int = 90) -> tuple[Sweep, ...]:
    """Approximate functions of all numbers of an octave."""
    found = []
    for probe in approximations.dense(probes(number)):
        arch, lanes = f"sm_{number}", approximations.OCTAVE
        found.append(Sweep((probe,), arch, lanes, _text((probe,), arch, lanes)))
    return tuple(found)


def alone(sweep: Sweep) -> Iterator[Sweep]:
    """Each of its instructions in a kernel of its own."""
    for probe in sweep.probes:
        part = (probe,)
        yield Sweep(part, sweep.arch, sweep.lanes, _text(part, sweep.arch, sweep.lanes))


# -- Texts -----------------------------------------------------------------------------------------


def _text(part: tuple[Probe, ...], arch: str, lanes: int) -> str:
    if part[0].binder == "wgmma":
        return _warpgroup_text(part[0], lanes)
    sources = part[0].sources
    names = [[f"i{k}_{r}" for r in range(each.registers)] for k, each in enumerate(sources)]
    lines = [_START, ROOM] if part[0].binder == IN_MEMORY else [_START]
    for k, source in enumerate(sources):
        lines += _loads(source, names[k], k, lanes)
    parameter = len(sources)
    for k, probe in enumerate(part):
        lines += _run(probe, f"o{k}_", names, parameter)
        parameter += len(results(probe))
    return _module(lines, arch, parameter)


_START = f"""
.reg .b64 p, w; .reg .b32 n, t, x;
mov.u32 n, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 n, n, {THREADS}, t;"""


def _module(lines: list[str], arch: str, parameters: int) -> str:
    head = f".version {VERSION}\n.target {arch}\n.address_size 64\n"
    head += f".visible .entry probe(.param .align 8 .b8 params[{8 * parameters}])\n{{"
    return "\n".join([head, *lines, "ret;", "}", ""])


def _loads(source: Source, names: list[str], parameter: int, lanes: int) -> Iterator[str]:
    bits = width(source.scalar)
    yield f"ld.param.u64 p, [params+{8 * parameter}]; mul.wide.u32 w, n, {bits // 8};"
    yield "add.u64 p, p, w;"
    for r, name in enumerate(names):
        place = f"[p+{r * lanes * bits // 8}]"
        if source.scalar == "pred":
            yield f".reg .pred {name}; ld.global.b32 x, {place}; setp.ne.u32 {name}, x, 0;"
        else:
            yield f".reg .b{bits} {name}; ld.global.b{bits} {name}, {place};"


def _run(probe: Probe, prefix: str, sources: list[list[str]], parameter: int) -> Iterator[str]:
    """The instruction between the carries that it reads and writes, and the stores of its results
    to the arrays from `parameter` on.
    """
    scalars = [each.scalar for each in probe.results for _ in range(each.registers)]
    names = [f"{prefix}{i}" for i in range(len(scalars))]
    for name, scalar in zip(names, scalars, strict=True):
        yield f".reg .{'pred' if scalar == 'pred' else f'b{width(scalar)}'} {name};"
    reads, writes = probe.carries
    borrows = probe.opcode.startswith("sub")
    if reads:
        # Of every other lane.
        yield "and.b32 x, n, 1;"
        yield "sub.cc.u32 x, 0, x;" if borrows else "add.cc.u32 x, x, 0xffffffff;"
    yield probe.text(names, sources)
    if writes:
        names.append(f"{prefix}carry")
        scalars.append("u32")
        yield f".reg .b32 {names[-1]}; {'subc' if borrows else 'addc'}.u32 {names[-1]}, 0, 0;"
    yield from _stores(names, scalars, parameter)


def _stores(names: list[str], scalars: list[str], parameter: int) -> Iterator[str]:
    for i, (name, scalar) in enumerate(zip(names, scalars, strict=True)):
        bits = width(scalar)
        yield f"ld.param.u64 p, [params+{8 * (parameter + i)}]; mul.wide.u32 w, n, {bits // 8};"
        stored = name
        if scalar == "pred":
            yield f"selp.b32 x, 1, 0, {name};"
            stored = "x"
        yield f"add.u64 p, p, w; st.global.b{bits} [p], {stored};"


@lru_cache
def _params(count: int) -> Struct:
    """A block of `count` addresses."""
    fields = " ".join(f"void *p{i};" for i in range(count))
    text = f"struct probe_params {{ {fields} }}; void probe(const struct probe_params params);"
    return parse_header(text, "probe.h").kernels["probe"]


def _warpgroups() -> Iterator[Sweep]:
    for form, element, accumulator, registers in products.WARPGROUP_FORMS:
        probe = Probe(
            f"wgmma.mma_async.sync.aligned.{form}",
            None,
            (Source("b32", registers, vector=True),),
            (Source("b32", 1, element), Source("b32", 1, element), Source("b32", registers)),
            "wgmma",
            (90, "a"),
        )
        lanes = products.warpgroup_inputs(element, accumulator, registers)[2].shape[1]
        yield Sweep((probe,), "sm_90a", lanes, _text((probe,), "sm_90a", lanes))


def _warpgroup_text(probe: Probe, lanes: int) -> str:
    form, _, _, registers = _warpgroup(probe)
    c, d = ([f"{x}{i}" for i in range(registers)] for x in "cd")
    lines = [
        _START,
        ".reg .b64 left, right; .reg .b32 group; mov.u32 group, %ctaid.x;",
        "ld.param.u64 left, [params]; ld.param.u64 right, [params+8];",
        f".reg .b32 {', '.join(d)};",
        *_loads(probe.sources[2], c, 2, lanes),
        products.warpgroup_body(form, registers),
        *_stores(d, ["b32"] * registers, 3),
    ]
    return _module(lines, "sm_90a", 3 + registers)
