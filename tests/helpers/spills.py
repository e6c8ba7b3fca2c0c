"""Assembling what ships: nothing of it spills, and the threadblocks that it counts on fit.

A run of the tests assembles `HEAVIEST`, one instance of a kernel for each of its architectures.
Every configuration that a call can get is assembled for a release by

    python tests/helpers/shipped_kernels.py spills [ARCH ...]
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from types import ModuleType
from typing import Any

from helpers import shipped_kernels as shipped

from cuevo.architectures import architecture
from cuevo.kernels import attention_delta_sm70 as delta
from cuevo.kernels import (
    attention_maps_sm90a,
    bias_tiles_sm90,
    evoformer_backward_sm70,
    evoformer_backward_sm75,
    evoformer_backward_sm90a,
    evoformer_forward_sm70,
    evoformer_forward_sm75,
    evoformer_forward_sm90a,
    gemm_sm70,
    gemm_sm75,
    gemm_sm80,
    gemm_sm90a,
    key_bias_sm70,
    pack_sm70,
    pair_tiles_sm90,
    partial_sums_sm70,
)
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.kernels.gemm_mma import Problem as GemmProblem
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import render

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
REGISTERS = 65536
"""Registers of a multiprocessor."""
MOST_REGISTERS = {
    # All loads of a row are in flight, and there are warps enough to wait for them.
    delta.NAME: 96,
    key_bias_sm70.NAME: 64,
    partial_sums_sm70.NAME: 64,
    pack_sm70.NAME: 128,
    pair_tiles_sm90.NAME: 64,
    bias_tiles_sm90.NAME: 64,
    attention_maps_sm90a.NAME: 64,
    # What setmaxnreg leaves the threads when they are launched.
    gemm_sm90a.NAME: 168,
}
"""Limits for a thread."""
ONE_BARRIER = (
    *(forward.NAME, evoformer_forward_sm75.NAME, evoformer_forward_sm70.NAME),
    *(evoformer_backward_sm75.NAME, evoformer_backward_sm70.NAME),
    *(gemm_sm75.NAME, gemm_sm70.NAME),
)


def objections(kernel: ModuleType, config: Any, arch: str) -> tuple[list[str], bool]:
    """Complaints about the kernel that a call gets, and whether it gets more registers for a thread
    than `config` says.
    """
    offered = kernel.spill_fallbacks(config) if hasattr(kernel, "spill_fallbacks") else [config]
    for used in offered:
        rendered = render(kernel.NAME, kernel.values(used))
        cubin = assemble(rendered, arch, cache=None)
        found = cubin.resources
        if (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0):
            break
    declared = sum(map(int, re.findall(r"^ *\.shared .*\[(\d+)\];", rendered.text, re.MULTILINE)))
    wrong = []
    if (found.spill_stores, found.spill_loads, found.stack) != (0, 0, 0):
        wrong.append("it spills")
    if found.static_shared != declared:
        wrong.append(f"its text declares {declared} bytes of shared memory")
    if found.registers * used.threads * getattr(used, "min_blocks", 1) > REGISTERS:
        wrong.append(f"too many registers for its threadblocks of {used.threads} threads")
    if found.registers > MOST_REGISTERS.get(kernel.NAME, 255):
        wrong.append("too many registers a thread")
    if found.barriers != 1 and kernel.NAME in ONE_BARRIER:
        wrong.append("it has other barriers than one")
    if "serializ" in cubin.log or "Potential Performance Loss" in cubin.log:
        wrong.append(cubin.log)
    told = [f"{kernel.NAME}: {used} on {arch}: {what}: {found}" for what in wrong]
    return told, used != config


# -- One instance of a kernel ----------------------------------------------------------------------

WGMMA_PRODUCTS = (
    GemmProblem(1, 500, 500, 500, "bf16", "bf16"),
    GemmProblem(1, 512, 512, 512, "bf16", "f32"),
    GemmProblem(1, 500, 500, 500, "f16", "f32", True, True, "f32", scatter=True),
    GemmProblem(1, 500, 501, 500, "f16", "f16", True, False, "f16", True, False, 16, 16, 4, 2),
    GemmProblem(1, 512, 512, 512, "bf16", "bf16", False, True, "bf16", True, False),
    GemmProblem(1, 500, 501, 500, "bf16", "bf16", False, True, "none", True, True, 16, 16, 16, 2),
    GemmProblem(1, 500, 501, 500, "bf16", "f32", False, True, "none", False, True, 16, 16, 16, 4),
)


def _lower_forward(kernel: ModuleType, head_dim: int, mask: str, pair: str) -> Iterator[Any]:
    problem = forward.Problem(1, 1, 1, 100, 100, head_dim, "f16", mask, pair)
    return (config for config, _ in kernel.candidates(problem))


def _lower_backward(kernel: ModuleType, head_dim: int, wanted: int, biases: int = 2) -> Any:
    """Configuration chosen for `GRADIENTS[wanted]`, with the types `LOWER_BIASES[biases]`."""
    mask, pair = LOWER_BIASES[biases]
    asked = shipped.GRADIENTS[wanted]
    if asked["sums"]:
        mask, pair = ("f32" if mask == "none" else mask), ("f16" if pair == "none" else pair)
    sizes = ((1, 128, 8, 256, 256), (2, 5, 3, 77, 131))[head_dim // 8 % 2]
    problem = backward.Problem(*sizes, head_dim, "f16", mask, pair, 2, **asked)
    return kernel.choose(problem, architecture("sm_75"))


LOWER_BIASES = (("none", "f16"), ("bool", "f32"), ("f16", "none"), ("f32", "f16"))
"""Types of mask and pair bias."""

HEAVIEST: Mapping[str, Callable[[], Iterable[Any]]] = {
    forward.NAME: lambda: shipped.configurations(64, "bf16", 10, 257)[1:],
    backward.NAME: lambda: shipped.gradient_configurations(64, "bf16", 4, 4, 257),
    evoformer_forward_sm75.NAME: lambda: _lower_forward(evoformer_forward_sm75, 64, "bool", "f16"),
    evoformer_forward_sm70.NAME: lambda: reversed(
        list(_lower_forward(evoformer_forward_sm70, 112, "bool", "f16"))
    ),
    evoformer_forward_sm90a.NAME: lambda: shipped.mapped_configurations(32, "bf16", 7),
    evoformer_backward_sm90a.NAME: lambda: shipped.mapped_gradients(64, "bf16", 6),
    evoformer_backward_sm75.NAME: lambda: [_lower_backward(evoformer_backward_sm75, 120, 4, 3)],
    evoformer_backward_sm70.NAME: lambda: [_lower_backward(evoformer_backward_sm70, 96, 3, 3)],
    gemm_sm80.NAME: lambda: (
        x for x in shipped.product_configurations(3, 4, "bf16")[2:] if x.clear == "none"
    ),
    gemm_sm90a.NAME: lambda: shipped.wgmma_configurations(2, 4, "bf16"),
    gemm_sm75.NAME: lambda: lower_products(gemm_sm75, shipped.LOWER_PRODUCTS[3], "sm_75"),
    gemm_sm70.NAME: lambda: lower_products(gemm_sm70, shipped.LOWER_PRODUCTS[3], "sm_75"),
    delta.NAME: lambda: [delta.choose(128, "bf16", heads=8)],
    attention_maps_sm90a.NAME: lambda: [attention_maps_sm90a.Config(64, pair="f16")],
    key_bias_sm70.NAME: lambda: [key_bias_sm70.Config("f32")],
    pack_sm70.NAME: lambda: [pack_sm70.Config(1, 4, "tile", 1, 4, 32)],
    pair_tiles_sm90.NAME: lambda: [pair_tiles_sm90.Config("f16")],
    bias_tiles_sm90.NAME: lambda: [bias_tiles_sm90.Config("f32", pair="f32")],
    partial_sums_sm70.NAME: lambda: [partial_sums_sm70.choose("f32", 8, 254)],
}
"""Configurations of each kernel with as many registers a thread as any, or nearly; the first that
an architecture can run is assembled for it.
"""
SAMPLED_ARCHS: Mapping[str, tuple[str, ...]] = {
    forward.NAME: ("sm_80", "sm_86", "sm_90", "sm_100"),
    backward.NAME: ("sm_80", "sm_90"),
    gemm_sm80.NAME: ("sm_80", "sm_90"),
    **dict.fromkeys(
        (
            *(evoformer_forward_sm90a.NAME, evoformer_backward_sm90a.NAME),
            *(gemm_sm90a.NAME, attention_maps_sm90a.NAME),
        ),
        (gemm_sm90a.ARCH,),
    ),
    pair_tiles_sm90.NAME: ("sm_90",),
    bias_tiles_sm90.NAME: ("sm_90",),
    **dict.fromkeys(
        (delta.NAME, key_bias_sm70.NAME, pack_sm70.NAME, partial_sums_sm70.NAME),
        ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100"),
    ),
    **dict.fromkeys((evoformer_forward_sm75.NAME, evoformer_forward_sm70.NAME), ("sm_75", "sm_90")),
    **dict.fromkeys(
        (evoformer_backward_sm75.NAME, evoformer_backward_sm70.NAME), ("sm_75", "sm_90")
    ),
    **dict.fromkeys((gemm_sm75.NAME, gemm_sm70.NAME), ("sm_75", "sm_80", "sm_90")),
}


def heaviest(kernel: ModuleType, arch: str) -> Any:
    """The configuration of the kernel that a run of the tests assembles for `arch`."""
    return next(config for config in HEAVIEST[kernel.NAME]() if runs_on(kernel, config, arch))


# -- Everything ------------------------------------------------------------------------------------


def lower_products(kernel: ModuleType, problem: GemmProblem, arch: str) -> Iterator[Any]:
    """Candidates for a product below sm_80 on `arch`: whole sums."""
    limits = architecture(arch)
    whole = [config for config, _ in kernel.candidates(problem) if not config.split]
    return (config for config in whole if not kernel.violations(config, limits, problem))


Case = tuple[Any, ...]
Found = Iterator[tuple[ModuleType, Any]]
"""Kernels and their configurations."""


def _of_forward(arch: str, head_dim: int, dtype: str, biases: int) -> Found:
    for length in shipped.LENGTHS:
        for config in shipped.configurations(head_dim, dtype, biases, length):
            yield forward, config


def _of_mapped_forward(arch: str, head_dim: int, dtype: str, biases: int) -> Found:
    for config in shipped.mapped_configurations(head_dim, dtype, biases):
        yield evoformer_forward_sm90a, config


def _of_mapped_backward(arch: str, head_dim: int, dtype: str, biases: int) -> Found:
    for config in shipped.mapped_gradients(head_dim, dtype, biases):
        yield evoformer_backward_sm90a, config


def _of_backward(arch: str, head_dim: int, dtype: str, biases: int) -> Found:
    """Every other set of gradients, the others with the other dtype."""
    first = (head_dim // 8 + biases + (dtype == "f16")) % 2
    for wanted, length in product(range(first, len(shipped.GRADIENTS), 2), shipped.LENGTHS):
        for config in shipped.gradient_configurations(head_dim, dtype, biases, wanted, length):
            yield backward, config


def _of_products(arch: str, order: int, kind: int) -> Found:
    return ((gemm_sm80, config) for config in shipped.product_configurations(order, kind, "bf16"))


def _of_wgmma(arch: str, order: int, kind: int) -> Found:
    return ((gemm_sm90a, config) for config in shipped.wgmma_configurations(order, kind, "bf16"))


def _of_wgmma_problems(arch: str, number: int) -> Found:
    for config, _ in gemm_sm90a.candidates(WGMMA_PRODUCTS[number]):
        if not gemm_sm90a.violations(config, architecture(arch), WGMMA_PRODUCTS[number]):
            yield gemm_sm90a, config


def _of_lower_forward(arch: str, head_dim: int, biases: int) -> Found:
    for kernel in (evoformer_forward_sm75, evoformer_forward_sm70):
        for config in _lower_forward(kernel, head_dim, *LOWER_BIASES[biases]):
            yield kernel, config


def _of_lower_backward(arch: str, head_dim: int, biases: int) -> Found:
    for kernel, wanted in product(
        (evoformer_backward_sm75, evoformer_backward_sm70), range(len(shipped.GRADIENTS))
    ):
        yield kernel, _lower_backward(kernel, head_dim, wanted, biases)


def _of_lower_products(arch: str, kind: int) -> Found:
    for kernel in (gemm_sm75, gemm_sm70):
        for config in lower_products(kernel, shipped.LOWER_PRODUCTS[kind], arch):
            yield kernel, config
            yield kernel, replace(config, splits=2)


def _of_small(arch: str, head_dim: int, dtype: str) -> Found:
    yield delta, delta.choose(head_dim, dtype, heads=8)
    if head_dim == 8:
        for mask in ("bounds", "bool", dtype, "f32"):
            yield key_bias_sm70, key_bias_sm70.Config(mask)
        for out_dtype, count, columns in product(("f32", dtype), (1, 8), (256, 254, 33)):
            yield partial_sums_sm70, partial_sums_sm70.choose(out_dtype, count, columns)
        for copy in shipped.pack_configurations():
            yield pack_sm70, copy
        yield pair_tiles_sm90, pair_tiles_sm90.Config(dtype)
        added = dict(added=True, counted_tiles=4) if dtype == "bf16" else dict(added=False)
        yield bias_tiles_sm90, bias_tiles_sm90.Config(dtype, pair=dtype, **added)
        yield attention_maps_sm90a, attention_maps_sm90a.Config(head_dim, dtype, pair=dtype)


_DIMS, _DTYPES, _LOWER = shipped.HEAD_DIMS, ("bf16", "f16"), range(len(LOWER_BIASES))
_MAPPED_DIMS = shipped.MAPPED_DIMS
_ORDERS, _KINDS = range(len(shipped.ORDERS)), range(len(shipped.PRODUCTS))
EVERYTHING: tuple[tuple[Callable[..., Found], list[Case]], ...] = (
    (_of_products, list(product(_ORDERS, _KINDS))),
    (_of_wgmma, list(product(_ORDERS, _KINDS))),
    (_of_wgmma_problems, list(product(range(len(WGMMA_PRODUCTS))))),
    (_of_forward, list(product(_DIMS, _DTYPES, range(len(shipped.BIASES))))),
    (_of_mapped_forward, list(product(_MAPPED_DIMS, _DTYPES, range(len(shipped.BIASES))))),
    (
        _of_mapped_backward,
        list(product(_MAPPED_DIMS, _DTYPES, range(len(shipped.GRADIENT_BIASES)))),
    ),
    (_of_backward, list(product(_DIMS, _DTYPES, range(len(shipped.GRADIENT_BIASES))))),
    (_of_lower_products, list(product(range(len(shipped.LOWER_PRODUCTS))))),
    (_of_lower_forward, list(product(_DIMS, _LOWER))),
    (_of_lower_backward, list(product(_DIMS, _LOWER))),
    (_of_small, list(product(_DIMS, _DTYPES))),
)
"""Functions that give kernels and configurations for an architecture, and their arguments."""


def runs_on(kernel: ModuleType, config: Any, arch: str) -> bool:
    """Whether the kernel is assembled for this architecture: sm_90a has kernels of its own."""
    if getattr(kernel, "ARCH", None) != (arch if arch.endswith("a") else None):
        return False
    return not kernel.violations(config, architecture(arch))


def spilling(case: tuple[int, str, Case]) -> tuple[int, int, list[str]]:
    """For a position in `EVERYTHING`, an architecture and arguments: how many configurations there
    are, how many need what the kernel's `spill_fallbacks` offers, and what is wrong even so.
    """
    position, arch, arguments = case
    count, helped, wrong = 0, 0, []
    for kernel, config in EVERYTHING[position][0](arch, *arguments):
        if runs_on(kernel, config, arch):
            found, changed = objections(kernel, config, arch)
            count, helped = count + 1, helped + changed
            wrong += found
    return count, helped, wrong


def report(archs: list[str]) -> int:
    """1 where something is wrong with a configuration."""
    failed = 0
    for arch in archs or ARCHS:
        cases = [
            (position, arch, arguments)
            for position, (_, listed) in enumerate(EVERYTHING)
            for arguments in listed
        ]
        runs = helped = 0
        with Pool() as pool:
            for count, more, wrong in pool.imap_unordered(spilling, cases):
                runs, helped, failed = runs + count, helped + more, failed + len(wrong)
                print(*wrong, sep="\n", end="\n" if wrong else "", flush=True)
        print(
            f"{arch}: {runs} configurations, {helped} with more registers for a thread", flush=True
        )
    print(f"{failed} objections")
    return int(failed > 0)
