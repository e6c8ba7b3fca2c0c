"""Every pinned instance: its code is the pinned one, and its head says what is so of shared memory,
registers and the picture of the tile.

    // Shared memory: NAME BYTES + NAME BYTES + ... = TOTAL bytes
    // Registers: BUDGET a thread, of which NAME COUNT + NAME COUNT + ...

A sum may go on in lines that begin with ``//   +``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from helpers import shipped_kernels as shipped

from cuevo.kernels import registry
from cuevo.kernels.choice import registers
from cuevo.toolchain import template
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import render

pytestmark = pytest.mark.unit

ARCHITECTURES = {
    "evoformer_backward_sm70": ("sm_75", "sm_90"),
    "evoformer_backward_sm75": ("sm_75", "sm_90"),
    "evoformer_backward_sm80": ("sm_80", "sm_90"),
    "evoformer_backward_sm90a": ("sm_90a",),
    "evoformer_forward_sm70": ("sm_75", "sm_90"),
    "evoformer_forward_sm75": ("sm_75", "sm_90"),
    "evoformer_forward_sm80": ("sm_80", "sm_90"),
    "evoformer_forward_sm90a": ("sm_90a",),
    "gemm_sm70": ("sm_75", "sm_90"),
    "gemm_sm75": ("sm_75", "sm_90"),
    "gemm_sm80": ("sm_80", "sm_90"),
    "gemm_sm90a": ("sm_90a",),
}
"""For which the sample is assembled: one instance a kernel and architecture."""


@dataclass(frozen=True)
class Head:
    """A pinned instance, and what of its text is looked at."""

    label: str
    values: Mapping[str, object]
    text: str
    """The comments before the first directive, each sum in one line."""
    threads: int
    min_blocks: int
    """0: no launch bound."""
    static_bytes: int
    """Bytes of shared memory that the text declares."""
    digest: str

    @classmethod
    def of(cls, label: str, kernel: str, values: dict[str, object]) -> "Head":
        rendered = render(kernel, values)
        text = rendered.text

        def number(pattern: str) -> int:
            # A line end is found faster than ^.
            return sum(map(int, re.findall(rf"\n\.{pattern}", text)))

        return cls(
            label,
            values,
            re.sub(r"\n//   \+", " +", text[: text.index(".version")]),
            number(r"maxntid (\d+), 1, 1\n"),
            number(r"minnctapersm (\d+)\n"),
            number(r"shared .*\[(\d+)\];"),
            rendered.code_digest[:32],
        )

    def find(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self.text, re.MULTILINE)


@cache
def instances() -> Mapping[str, list[tuple[str, dict[str, object]]]]:
    """Labels and values of the pinned instances, by kernel."""
    found: dict[str, list[tuple[str, dict[str, object]]]] = {name: [] for name in registry()}
    for label, kernel, values in chain(*(family() for family in shipped.FAMILIES.values())):
        found[kernel].append((label, values))
    return found


@cache
def heads(name: str) -> tuple[Head, ...]:
    """Heads of the pinned instances of a kernel. Few are rendered by another test: the cache, which
    takes a fifth of the time, is left alone.
    """
    with patch.object(template, "_written", return_value=None):
        return tuple(Head.of(label, name, values) for label, values in instances()[name])


def config_of(module: ModuleType, values: Mapping[str, object]) -> Any:
    """The Config that the values of an instance are those of."""
    if "config" in values:
        return values["config"]
    names = module.Config.__dataclass_fields__
    return module.Config(**{name: values[name] for name in names})


def terms(total: str) -> list[int]:
    """The numbers of a sum of names and numbers."""
    found = [re.fullmatch(r"\S.* (\d+)", term.strip()) for term in total.split(" + ") if term]
    assert all(found), total
    return [int(each[1]) for each in found if each]


SHARED = r"^// Shared memory: (.*) = (\d+) bytes$"
BUDGET = r"^// Registers: (\d+) a thread(?:, of which (.*)|\b.*)$"
NAMES = sorted(registry())


@pytest.mark.parametrize("name", NAMES)
def test_the_code_is_the_one_that_was_pinned(name: str) -> None:
    pinned = json.loads(shipped.PINS.read_text())
    found = heads(name)
    assert found
    changed = sorted(head.label for head in found if pinned.get(head.label) != head.digest)
    assert not changed, (
        f"{len(changed)} of {len(found)} instances have other code than was pinned; the first "
        f"is {changed[0]}; "
        "if that is meant, run `python tests/helpers/shipped_kernels.py`"
    )


@pytest.mark.parametrize("name", NAMES)
def test_shared_memory(name: str) -> None:
    """The terms give the total, and that is what a launch asks for, if its last tile is none of
    another tiling.
    """
    for head in heads(name):
        config = config_of(registry()[name], head.values)
        asked = getattr(config, "tile_bytes", getattr(config, "shared_bytes", 0))
        there = asked + head.static_bytes
        said = head.find(SHARED)
        assert (said is not None) == (there > 0), head.label
        if said:
            assert sum(terms(said[1])) == int(said[2]) == there, head.label


@pytest.mark.parametrize("name", NAMES)
def test_register_budgets(name: str) -> None:
    """The budget is what the launch bounds leave, and what is listed fits."""
    for head in heads(name):
        said = head.find(BUDGET)
        assert said or not head.min_blocks, head.label
        if said:
            bounds = replace(head, min_blocks=max(1, head.min_blocks))
            assert int(said[1]) == registers(bounds), head.label
            assert sum(terms(said[2] or "")) < int(said[1]), head.label


@pytest.mark.parametrize(
    ("name", "arch"), [(name, arch) for name, archs in ARCHITECTURES.items() for arch in archs]
)
def test_the_assembler_keeps_to_the_budget(name: str, arch: str) -> None:
    """One instance, another for each architecture; it uses more than half of what is listed."""
    listed = heads(name)
    head = listed[(len(listed) // 3 + 7 * (arch == "sm_90")) % len(listed)]
    said = head.find(BUDGET)
    assert said
    used = assemble(render(name, head.values), arch, cache=None).resources.registers
    assert sum(terms(said[2] or "")) / 2 < used <= int(said[1]), head.label


def test_every_kernel_with_a_budget_is_assembled() -> None:
    first = {name: listed[0] for name, listed in instances().items()}
    bounded = {
        name for name, (label, values) in first.items() if Head.of(label, name, values).min_blocks
    }
    assert bounded == set(ARCHITECTURES)


def test_the_picture_of_the_forward_kernel_has_its_rows() -> None:
    seen = set()
    for head in heads("evoformer_forward_sm80"):
        config: Any = head.values["config"]
        drawn = re.findall(r"^//   row (\d+) +\| (.*?) +\|$", head.text, re.MULTILINE)
        assert [int(row) for row, _ in drawn] == list(range(config.block_rows)), head.label
        warps = [int(warp) for _, row in drawn for warp in re.findall(r"\d+", row)]
        assert (warps[0], warps[-1]) == (0, config.threads // 32 - 1), head.label
        seen.add(config.block_rows)
    assert seen >= {1, 2}


@pytest.mark.parametrize("name", [name for name in NAMES if re.search(r"ward_sm7[05]$", name)])
def test_the_pictures_of_the_lower_variants_have_their_warps(name: str) -> None:
    for head in heads(name):
        drawn = re.findall(r"^// +\| warp (\d+) +\|", head.text, re.MULTILINE)
        assert [int(warp) for warp in drawn] == list(range(head.threads // 32)), head.label
