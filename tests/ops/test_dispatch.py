"""cuevo.ops.dispatch: which kernel a call of cuevo.attention runs."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case
from helpers.executors import Recorder

import cuevo
from cuevo.architectures import architecture
from cuevo.arrays import view
from cuevo.kernels import bias_tiles_sm90
from cuevo.kernels import evoformer_forward_sm70 as sm70
from cuevo.kernels import evoformer_forward_sm75 as sm75
from cuevo.kernels import evoformer_forward_sm80 as sm80
from cuevo.kernels import evoformer_forward_sm90a as sm90a
from cuevo.kernels.forward import Problem
from cuevo.ops import backward, forward
from cuevo.ops.dispatch import ENVIRONMENT, dispatch
from cuevo.ops.forward import VARIANTS

unit = pytest.mark.unit
kernel = pytest.mark.kernel

HALF = Problem(1, 2, 1, 20, 33, 16, "f16", "f32", "f16")
SMALL = Case("f16", 16, 20, 33, rows=2, mask="bool", pair="f16", seed=3)


@pytest.fixture(autouse=True)
def nothing_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)


def call(place: Any, **options: Any) -> None:
    """Attention on `place`, compared with float64."""
    inputs = cases.make(SMALL)
    arrays = {key: x.array for key, x in inputs.items()}
    out, lse = cuevo.attention(**arrays, return_lse=True, device=place, **options)
    cases.check(SMALL, out, lse, inputs)


# -- The choice ------------------------------------------------------------------------------------


@unit
@pytest.mark.parametrize(
    ("arch", "expected"),
    [("sm_70", sm70), ("sm_72", sm70), ("sm_75", sm75), ("sm_80", sm80), ("sm_90", sm80)],
)
def test_the_highest_variant_that_the_device_has_wins(arch: str, expected: object) -> None:
    assert dispatch(VARIANTS, HALF, architecture(arch)) is expected


@unit
@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
@pytest.mark.parametrize("changes", [dict(dtype="bf16", pair="bf16"), dict(mask="bf16")], ids=str)
def test_bf16_needs_sm_80(arch: str, changes: dict[str, str]) -> None:
    problem = replace(HALF, **changes)
    assert dispatch(VARIANTS, problem, architecture("sm_80")) is sm80
    with pytest.raises(ValueError, match=rf"no kernel serves Problem\(.* on {arch}:\n") as caught:
        dispatch(VARIANTS, problem, architecture(arch))
    lines = str(caught.value).split("\n")[1:]
    assert [line.split(":")[0].strip() for line in lines] == [each.NAME for each in VARIANTS]
    assert f"wgmma needs sm_90a; this is {arch}" in lines[0]
    assert f"need sm_80; this is {arch}" in lines[1]
    for line in lines[2:]:
        assert "bf16 needs the tensor cores of sm_80 or later" in line
        assert "takes q, k, v and 16-bit biases in float16" in line


@unit
@pytest.mark.parametrize("expected", VARIANTS, ids=lambda each: each.NAME[-4:])
def test_the_environment_forces_a_variant(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    monkeypatch.setenv(ENVIRONMENT, f"sm_{expected.MINIMUM_ARCH}")
    assert dispatch(VARIANTS, HALF, architecture("sm_90a")) is expected
    assert dispatch(VARIANTS, HALF, architecture("sm_90a"), {"min_blocks": 1}) is expected
    # Where none may be taken, what objects is the variant itself.
    assert dispatch(VARIANTS, replace(HALF, dtype="bf16"), architecture("sm_70")) is expected


@unit
@pytest.mark.parametrize(
    ("name", "problem", "expected"),
    [
        ("sm_86", HALF, sm80),
        ("sm_100", HALF, sm90a),
        ("sm_90", replace(HALF, mapped=False), sm80),
        ("sm_90", replace(HALF, head_dim=72), sm80),
    ],
    ids=["between", "above", "of zero strides", "of a head dim it has not"],
)
def test_the_highest_variant_that_the_environment_allows_and_that_serves(
    monkeypatch: pytest.MonkeyPatch, name: str, problem: Any, expected: Any
) -> None:
    monkeypatch.setenv(ENVIRONMENT, name)
    assert dispatch(VARIANTS, problem, architecture("sm_90a")) is expected


@unit
def test_the_environment_is_for_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "sm_90")
    arrays = {key: x.array for key, x in cases.make(SMALL).items()}
    place = Recorder("sm_90a")
    out, lse = cuevo.attention(**arrays, return_lse=True, device=place)
    q, k, v = (arrays.pop(name) for name in ("q", "k", "v"))
    cuevo.attention_backward(out, q, k, v, out, lse, **arrays, device=place)
    assert [name for name in place.names if name.startswith("evoformer")] == [
        "evoformer_forward_sm90a",
        *["evoformer_backward_sm90a"] * 2,
    ]


@unit
@pytest.mark.parametrize("name", ["sm_60", "75", "fast"])
def test_an_environment_that_names_no_variant(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(ENVIRONMENT, name)
    words = (
        "CUEVO_VARIANT: expected one of sm_90, sm_80, sm_75, sm_70, the variants of "
        "evoformer_forward, or an architecture above; got"
    )
    with pytest.raises(ValueError, match=f"{words} '{name}'"):
        dispatch(VARIANTS, HALF, architecture("sm_90"))


@unit
def test_a_configuration_counts_for_more_than_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "sm_70")
    for each in VARIANTS:
        assert dispatch(VARIANTS, HALF, architecture("sm_90"), each.Config(head_dim=16)) is each


@unit
def test_variants_that_share_a_config_are_told_apart_by_what_it_says() -> None:
    class Lower:
        """The variant for sm_70 as one that takes the Config of the highest."""

        Config = sm80.Config
        adapt = staticmethod(sm80.adapt)

        @staticmethod
        def violations(config: Any, arch: Any, problem: Any = None) -> tuple[str, ...]:
            return () if config.stages == 2 else ("two stages only",)

    class Higher(Lower):
        @staticmethod
        def violations(config: Any, arch: Any, problem: Any = None) -> tuple[str, ...]:
            return () if config.stages > 2 else ("more stages only",)

    variants: Any = (Higher, Lower)
    for stages, expected in ((2, Lower), (4, Higher)):
        config = sm80.Config(head_dim=16, dtype="f16", stages=stages)
        assert dispatch(variants, HALF, architecture("sm_90"), config) is expected


class Variant:
    """A variant of one candidate that remembers what it was asked."""

    Config = sm80.Config

    def __init__(self, number: int, *, serves: bool = True, prefers_lower: bool | None = None):
        self.NAME, self.MINIMUM_ARCH = f"kernel_sm{number}", number
        self.serves = serves
        self.asked: list[str] = []
        if prefers_lower is not None:
            self.prefers_lower_variant = lambda problem, arch: prefers_lower

    def candidates(self, problem: Any) -> Any:
        self.asked.append("candidates")
        yield "it", 1.0

    def violations(self, config: Any, arch: Any, problem: Any = None) -> tuple[str, ...]:
        return () if self.serves else (f"not on {self.NAME}", "not at all")


def names_of_asked(variants: Any) -> list[str]:
    return [each.NAME[-4:] for each in variants if each.asked]


@unit
def test_lower_variants_are_not_asked_where_a_higher_one_serves() -> None:
    variants: Any = [Variant(80), Variant(75), Variant(70)]
    assert dispatch(variants, HALF, architecture("sm_90")) is variants[0]
    assert names_of_asked(variants) == ["sm80"]
    # One for a later architecture is not asked either.
    variants = [Variant(80), Variant(75, serves=False), Variant(70), Variant(70)]
    assert dispatch(variants, HALF, architecture("sm_75")) is variants[2]
    assert names_of_asked(variants) == ["sm75", "sm70"]
    assert not variants[3].asked


@unit
@pytest.mark.parametrize(("lower_serves", "expected"), [(True, 2), (False, 0)])
def test_a_variant_that_prefers_a_lower_one(lower_serves: bool, expected: int) -> None:
    variants: Any = [
        Variant(80, prefers_lower=True),
        Variant(75, serves=False),
        Variant(70, serves=lower_serves, prefers_lower=False),
    ]
    assert dispatch(variants, HALF, architecture("sm_90")) is variants[expected]


@unit
def test_violations_of_all_variants_where_none_serves() -> None:
    variants: Any = [Variant(90), Variant(80, serves=False)]
    variants[0].serves = False
    with pytest.raises(ValueError, match="no kernel serves") as caught:
        dispatch(variants, HALF, architecture("sm_80"))
    assert str(caught.value).split("\n")[1:] == [
        "  kernel_sm90: not on kernel_sm90; not at all",
        "  kernel_sm80: not on kernel_sm80; not at all",
    ]


# -- Calls -----------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("each", VARIANTS[1:], ids=lambda each: each.NAME[-4:])
def test_a_call_on_every_architecture(each: Any) -> None:
    place = Recorder(f"sm_{each.MINIMUM_ARCH}")
    call(place)
    assert place.names == [each.NAME]
    call(place)
    call(f"sim:sm_{each.MINIMUM_ARCH}")
    assert len(place.loaded) == 1


@kernel
@pytest.mark.parametrize("each", VARIANTS[1:], ids=lambda each: each.NAME[-4:])
def test_a_call_with_a_configuration_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, each: Any
) -> None:
    place = Recorder("sm_90")
    call(place, config=each.Config(head_dim=16, block_queries=64))
    monkeypatch.setenv(ENVIRONMENT, f"sm_{each.MINIMUM_ARCH}")
    call(place, config={"block_queries": 64})
    assert place.names == [each.NAME] * 2


@kernel
def test_dispatch_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Recorder("sm_75")
    call(place)
    monkeypatch.setattr(forward, "choose", None)
    monkeypatch.setenv(ENVIRONMENT, "sm_70")
    call(place)
    assert place.names == [sm75.NAME]


@unit
def test_what_cannot_run_is_said_by_the_variant() -> None:
    arrays = {key: x.array for key, x in cases.make(SMALL).items()}
    with pytest.raises(ValueError, match=r"config: Config\(.* mma.m16n8k8 needs sm_75"):
        cuevo.attention(**arrays, device="sim:sm_70", config=sm75.Config(head_dim=16))
    with pytest.raises(TypeError, match=r"expected evoformer_forward_sm75.Config or a mapping"):
        cuevo.attention(**arrays, device="sim:sm_75", config=3)
    q = np.zeros((1, 1, 4, 1, 8), cases.DTYPES["bf16"])
    with pytest.raises(ValueError, match="evoformer_forward_sm75: bf16 needs the tensor cores"):
        cuevo.attention(q, q, q, device="sim:sm_75")


# -- Kernels that are known to be needed -----------------------------------------------------------


@kernel
@pytest.mark.parametrize("knows_addresses", [True, False])
def test_a_plan_with_tensor_maps_expects_all_its_kernels(knows_addresses: bool) -> None:
    """Those of whole tiles, of the last one, of the biases: all are assembled at a time."""
    place = Recorder("sm_90a")
    place.knows_addresses = knows_addresses
    x = np.zeros((1, 64, 513, 4, 32), ml_dtypes.bfloat16)
    mask, pair = np.zeros((1, 64, 1, 1, 513), x.dtype), np.zeros((1, 1, 4, 513, 513), x.dtype)
    arrays = tuple(map(view, (x, x, x, mask, pair)))
    forward.OPERATION.plan_on_device((*arrays, None, None), (None, False, None), place, None)
    names = [sm90a.NAME, sm90a.NAME, bias_tiles_sm90.NAME]
    assert [each.name for each in place.expected] == names
    others = {each.digest for each in place.loaded} - {each.digest for each in place.expected}
    assert len(others) == (0 if knows_addresses else 1)  # the pair bias has a launch of its own


@kernel
def test_both_sides_of_the_backward_pass_are_expected() -> None:
    place = Recorder("sm_80")
    inputs = cases.make(SMALL)
    q, k, v, *biases = (view(x.array) for x in inputs.values())
    lse = view(np.zeros((1, 2, 1, 20), np.float32))
    arrays = (q, q, k, v, q, lse, *biases, *(None,) * 5)
    backward.OPERATION.plan_on_device(arrays, (None, ("q", "k", "v"), None, None), place, None)
    assert [each.name for each in place.expected] == ["evoformer_backward_sm80"] * 2
