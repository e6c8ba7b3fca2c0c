"""Every shipped kernel renders, has the code that was pinned, and assembles without spills."""

import json
from dataclasses import fields
from itertools import product
from typing import Any

import pytest
from helpers import shipped_kernels as shipped

from cuevo.architectures import architecture
from cuevo.kernels import attention_delta_sm70 as delta
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.kernels import registry
from cuevo.toolchain.assembler import Cubin, assemble
from cuevo.toolchain.template import RenderedKernel, kernel_names, render

unit = pytest.mark.unit
REGISTERS = 65536
"""Of a multiprocessor."""


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
            for config in shipped.gradient_configurations(d, "bf16", biases, wanted)
        ]
        assert tilings([c for d, c in found if d in dims]) == tilings(offered)
    assert {c.head_dim for _, c in found} == set(shipped.HEAD_DIMS)
    wanted = {(c.side, c.first, c.second, c.sums, c.dtype) for _, c in found}
    assert len(wanted) == 2 * len(shipped.GRADIENTS)
    assert {c.mask for _, c in found} == {False, True}
    assert {(c.pair, c.pair_copy_bytes) for _, c in found} == {
        ("none", 16),
        *((pair, width) for pair in ("f16", "bf16") for width in (16, 8, 4, 2)),
        *(("f32", width) for width in (16, 8, 4)),
    }


@unit
@pytest.mark.parametrize("head_dim", shipped.HEAD_DIMS)
def test_the_code_of_gradients_is_the_one_that_was_pinned(head_dim: int) -> None:
    pinned = json.loads(shipped.PINS.read_text())
    found = shipped.gradient_digests(head_dim)
    changed = sorted(name for name, digest in found.items() if pinned.get(name) != digest)
    assert not changed, f"{len(changed)} of {len(found)}, the first is {changed[0]}"


@unit
@pytest.mark.parametrize("head_dim", shipped.HEAD_DIMS)
def test_the_code_is_the_one_that_was_pinned(head_dim: int) -> None:
    pinned = json.loads(shipped.PINS.read_text())
    found = shipped.digests(head_dim)
    changed = sorted(name for name, digest in found.items() if pinned.get(name) != digest)
    assert not changed, (
        f"{len(changed)} of {len(found)} kernels have another code than the pinned one, the first "
        f"is {changed[0]}; "
        "if that is meant, run `python tests/helpers/shipped_kernels.py`"
    )


@unit
def test_the_code_of_products_is_the_one_that_was_pinned() -> None:
    pinned = json.loads(shipped.PINS.read_text())
    found = shipped.product_digests()
    changed = sorted(name for name, digest in found.items() if pinned.get(name) != digest)
    assert not changed, f"{len(changed)} of {len(found)}, the first is {changed[0]}"


@unit
def test_the_code_of_products_by_wgmma_is_the_one_that_was_pinned() -> None:
    pinned = json.loads(shipped.PINS.read_text())
    found = shipped.wgmma_digests()
    changed = sorted(name for name, digest in found.items() if pinned.get(name) != digest)
    assert not changed, f"{len(changed)} of {len(found)}, the first is {changed[0]}"


@unit
def test_the_code_of_the_kernels_that_only_move_and_add_is_the_one_that_was_pinned() -> None:
    pinned = json.loads(shipped.PINS.read_text())
    found = shipped.memory_digests()
    changed = sorted(name for name, digest in found.items() if pinned.get(name) != digest)
    assert not changed, f"{len(changed)} of {len(found)}, the first is {changed[0]}"


@unit
def test_the_code_of_the_lower_variants_is_the_one_that_was_pinned() -> None:
    pinned = json.loads(shipped.PINS.read_text())
    found = shipped.variant_digests()
    changed = sorted(name for name, digest in found.items() if pinned.get(name) != digest)
    assert not changed, f"{len(changed)} of {len(found)}, the first is {changed[0]}"


@unit
def test_nothing_else_is_pinned() -> None:
    names = [name for d in shipped.HEAD_DIMS for name, _, _ in shipped.instances(d)]
    names += [name for name, _, _ in shipped.product_instances()]
    names += [name for name, _, _ in shipped.wgmma_instances()]
    names += [name for name, _, _ in shipped.variant_instances()]
    names += [name for name, _, _ in shipped.memory_instances()]
    names += [name for d in shipped.HEAD_DIMS for name, _, _ in shipped.gradient_instances(d)]
    assert len(names) == len(set(names))
    assert set(json.loads(shipped.PINS.read_text())) == set(names)


@unit
def test_the_digest_is_that_of_the_instructions() -> None:
    """A pin would be of no use if it missed a changed instruction, or moved with a comment."""
    _, kernel = next(shipped.rendered(8))
    changed = kernel.text.replace("setp.lt.u32", "setp.le.u32", 1)
    commented = kernel.text.replace("setp.lt.u32", "/* why */ setp.lt.u32", 1)
    assert changed != kernel.text != commented

    def digest(text: str) -> str:
        return RenderedKernel(kernel.name, text, (), kernel.values, kernel.params).code_digest

    assert digest(commented) == kernel.code_digest != digest(changed)


# -- Resources -------------------------------------------------------------------------------------

# Sets of biases, as indices of BIASES: each for one architecture or another, the last for all.
ASSEMBLED = (8, 16, 24, 32, 48, 64, 128)
KINDS = {
    "sm_80": (0, 2, 6, 9, 14),
    "sm_86": (14,),
    "sm_90": (1, 3, 5, 12, 13, 14),
    "sm_100": (13,),
}


def objections(cubin: Cubin, kernel: RenderedKernel) -> list[str]:
    """What is wrong with the resources of an instance."""
    found = cubin.resources
    if (found.spill_stores, found.spill_loads, found.stack, found.static_shared) == (0, 0, 0, 0):
        return []
    return [f"{kernel.describe()} on {cubin.arch}: {found}"]


@unit
@pytest.mark.parametrize("head_dim", ASSEMBLED)
@pytest.mark.parametrize("arch", KINDS)
def test_no_shipped_kernel_spills(arch: str, head_dim: int) -> None:
    """Every other tiling of a set of biases, the others with the next set or head dim."""
    assembled = 0
    wrong: list[str] = []
    for biases in KINDS[arch]:
        dtype = ("bf16", "f16")[(biases + head_dim // 8) % 2]
        offered = shipped.configurations(head_dim, dtype, biases)
        legal = [c for c in offered if not forward.violations(c, architecture(arch))]
        for config in legal[(biases + head_dim // 8) % 2 :: 2] or legal:
            kernel = render(forward.NAME, forward.values(config))
            cubin = assemble(kernel, arch, cache=None)
            wrong += objections(cubin, kernel)
            assert cubin.resources.registers * config.threads * config.min_blocks <= REGISTERS
            assert cubin.resources.barriers == 1
            assembled += 1
    assert assembled >= len(KINDS[arch])
    assert not wrong, "\n".join(wrong)


@unit
@pytest.mark.parametrize("order", range(len(shipped.ORDERS)))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_product_spills(arch: str, order: int) -> None:
    """Half of them; of a kind that both architectures meet, each the other half."""
    kind = (order + ("sm_80", "sm_90").index(arch)) % len(shipped.PRODUCTS)
    count, _, spilt = shipped.spilling_products((arch, order, kind, "bf16"), step=2)
    assert count > 8
    assert not spilt, "\n".join(spilt)


@unit
@pytest.mark.parametrize("head_dim", ASSEMBLED)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_backward_kernel_spills(arch: str, head_dim: int) -> None:
    """Some with more registers for a thread than its candidate has."""
    biases = (head_dim // 8 + 5 * (arch == "sm_90")) % len(shipped.GRADIENT_BIASES)
    count, _, spilt = shipped.spilling_gradients((arch, head_dim, "bf16", biases))
    assert count > 0
    assert not spilt, "\n".join(spilt)


@unit
@pytest.mark.parametrize("head_dim", [8, 40, 128])
@pytest.mark.parametrize("arch", ["sm_75", *KINDS])
def test_deltas_do_not_spill(arch: str, head_dim: int) -> None:
    for dtype in ("f16", "bf16"):
        config = delta.choose(head_dim, dtype, heads=8)
        kernel = render(delta.NAME, delta.values(config))
        cubin = assemble(kernel, arch, cache=None)
        assert not objections(cubin, kernel)
        # A row's loads are all in flight, and there are warps enough to wait for them.
        assert cubin.resources.registers <= 96


@unit
@pytest.mark.parametrize("arch", ["sm_75", *KINDS])
def test_kernels_that_only_move_and_add_do_not_spill(arch: str) -> None:
    assembled = 0
    for _, name, values in shipped.memory_instances():
        if values.get("out_dtype") == "bf16" and architecture(arch).number < 80:
            continue
        kernel = render(name, values)
        cubin = assemble(kernel, arch, cache=None)
        assert not objections(cubin, kernel)
        assert cubin.resources.registers <= 64
        assembled += 1
    assert assembled >= 17
