"""The list of pinned instances is complete, and what ships assembles without spills."""

import json
from dataclasses import fields
from itertools import product
from typing import Any

import pytest
from helpers import shipped_kernels as shipped
from helpers.spills import ARCHS, EVERYTHING, HEAVIEST, SAMPLED_ARCHS, heaviest, objections, runs_on

from cuevo.architectures import architecture
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.kernels import registry
from cuevo.toolchain.template import RenderedKernel, kernel_names, render

unit = pytest.mark.unit


@unit
def test_every_kernel_file_has_its_host_half() -> None:
    assert tuple(sorted(registry())) == kernel_names()
    for name, module in registry().items():
        assert module.NAME == name == module.__name__.rpartition(".")[2]
        assert module.SUMMARY


@unit
def test_the_list_has_every_tiling_and_every_bias() -> None:
    found: list[Any] = [
        values["config"]
        for d in shipped.HEAD_DIMS
        for _, kernel, values in shipped.instances(d)
        if kernel == forward.NAME
    ]

    def seen(*fields: str) -> set[Any]:
        return {tuple(getattr(config, field) for field in fields) for config in found}

    tiling = [field.name for field in fields(forward.Shape) if hasattr(found[0], field.name)]
    assert len(tiling) == 8
    for d in shipped.HEAD_DIMS:
        shapes = {(d, *(getattr(s, field) for field in tiling)) for s in forward.shapes(d)}
        assert {key for key in seen("head_dim", *tiling) if key[0] == d} == shapes
    assert {(d,) for d in shipped.HEAD_DIMS} == seen("head_dim")
    masks = ("none", "bounds", "bool", "f16", "bf16", "f32")
    assert seen("mask", "dtype") >= {(x, d) for x in masks[:3] for d in ("f16", "bf16")}
    assert seen("mask") == {(x,) for x in masks}
    assert seen("pair", "pair_copy_bytes") == {
        ("none", 16),
        *((pair, width) for pair in ("f16", "bf16") for width in (16, 8, 4, 2)),
        *(("f32", width) for width in (16, 8, 4)),
    }


@unit
def test_the_list_has_every_backward_tiling_and_every_set_of_gradients() -> None:
    found = [
        (d, values["config"])
        for d in shipped.HEAD_DIMS
        for _, _, values in shipped.gradient_instances(d)
    ]
    tiling = {field.name for field in fields(backward.Shape)} & {
        field.name for field in fields(backward.Config) if field.name != "sums"
    }

    def tilings(configs: list[backward.Config]) -> set[tuple[object, ...]]:
        return {(c.side, *(getattr(c, name) for name in sorted(tiling))) for c in configs}

    choices = range(len(shipped.GRADIENT_BIASES)), range(len(shipped.GRADIENTS))
    for dims in (range(8, 33, 8), range(40, 65, 8), range(72, 129, 8)):
        offered = [
            config
            for d, biases, wanted in product(dims, *choices)
            for config in shipped.gradient_configurations(d, "bf16", biases, wanted, 256)
        ]
        assert tilings([c for d, c in found if d in dims]) == tilings(offered)
    assert {c.head_dim for _, c in found} == set(shipped.HEAD_DIMS)
    wanted = {(c.side, c.first, c.second, c.sums, c.dtype) for _, c in found}
    assert len(wanted) == 2 * len(shipped.GRADIENTS)
    assert {c.mask for _, c in found} == {c.full_tiles for _, c in found} == {False, True}
    assert {(c.pair, c.pair_copy_bytes) for _, c in found} == {
        ("none", 16),
        *((pair, width) for pair in ("f16", "bf16") for width in (16, 8, 4, 2)),
        *(("f32", width) for width in (16, 8, 4)),
    }


@unit
def test_nothing_else_is_pinned() -> None:
    names = [name for family in shipped.FAMILIES.values() for name, _, _ in family()]
    assert len(names) == len(set(names))
    assert set(json.loads(shipped.PINS.read_text())) == set(names)


@unit
def test_the_digest_is_that_of_the_instructions() -> None:
    """A pin would be of no use if it missed a changed instruction, or moved with a comment."""
    _, name, values = next(shipped.instances(8))
    kernel = render(name, values)
    changed = kernel.text.replace("setp.lt.u32", "setp.le.u32", 1)
    commented = kernel.text.replace("setp.lt.u32", "/* why */ setp.lt.u32", 1)
    assert changed != kernel.text != commented

    def digest(text: str) -> str:
        return RenderedKernel(kernel.name, text, (), kernel.values, kernel.params).code_digest

    assert digest(commented) == kernel.code_digest != digest(changed)


# -- Resources -------------------------------------------------------------------------------------


@unit
@pytest.mark.parametrize(
    ("name", "arch"), [(name, arch) for name, archs in SAMPLED_ARCHS.items() for arch in archs]
)
def test_the_heaviest_instance_of_a_kernel_does_not_spill(name: str, arch: str) -> None:
    """All others: `python tests/helpers/shipped_kernels.py spills`, for releases."""
    kernel = registry()[name]
    wrong, _ = objections(kernel, heaviest(kernel, arch), arch)
    assert not wrong, "\n".join(wrong)


@unit
def test_an_instance_of_every_kernel_is_assembled() -> None:
    assert set(SAMPLED_ARCHS) == set(HEAVIEST) == set(registry())
    assert sum(map(len, SAMPLED_ARCHS.values())) >= 38
    assert {arch for archs in SAMPLED_ARCHS.values() for arch in archs} <= set(ARCHS)


@unit
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_90a"])
def test_the_release_assembles_every_kernel(arch: str) -> None:
    """The list that `spills` works through has each kernel that the architecture runs."""
    found = set()
    for configurations, cases in EVERYTHING:
        for case in cases[:: max(1, len(cases) // 7)]:
            offered = configurations(arch, *case)
            found |= {kernel.NAME for kernel, config in offered if runs_on(kernel, config, arch)}
    limits = architecture(arch)
    served = {
        name
        for name, kernel in registry().items()
        if (getattr(kernel, "ARCH", None) or "") == (arch if arch.endswith("a") else "")
        and limits.number >= kernel.MINIMUM_ARCH
    }
    assert found == served
