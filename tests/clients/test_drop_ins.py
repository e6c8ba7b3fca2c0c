"""The functions that take the place of another kernel's: gated triangle attention through each, and
what cuequivariance's call allows and refuses.
"""

from importlib.util import find_spec
from typing import Any

import pytest
from clients.frameworks import check
from clients.modules import Client, ending_node, of_pairs, present, weights

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is absent"),
]


def through_deepspeed(q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
    from cuevo.torch import DS4Sci_EvoformerAttention

    return DS4Sci_EvoformerAttention(q, k, v, [mask_bias.to(q.dtype), pair_bias])


def through_cuequivariance(q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
    from cuevo.torch import triangle_attention

    q, k, v = (x.transpose(2, 3) for x in (q, k, v))
    scale = q.shape[-1] ** -0.5
    out = triangle_attention(q, k, v, pair_bias, mask=mask_bias == 0, scale=scale)
    assert out.shape == q.shape and out.dtype is q.dtype
    return out.transpose(2, 3)


@pytest.mark.parametrize("attend", [through_deepspeed, through_cuequivariance])
def test_triangle_attention(attend: Any) -> None:
    length, channels = 13, 12
    shapes = {"pair": (2, length, length, channels), **weights(channels, 2, 16)}
    mask = of_pairs(present(13, 8, of=length))
    check(Client(ending_node, shapes, mask), "torch", "cpu", attend=attend)


@pytest.fixture
def call() -> dict[str, Any]:
    """Arguments of `triangle_attention`, B = 1."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (3, 2, 5, 8), "k": (3, 2, 7, 8), "v": (3, 2, 7, 8), "bias": (1, 2, 5, 7)}
    made: dict[str, Any] = {
        name: torch.randn(1, *shape, generator=generator) for name, shape in shapes.items()
    }
    made["mask"] = torch.ones(1, 3, 1, 1, 7)
    made["mask"][0, 0, ..., 3:] = 0
    made["mask"][0, 1] = 0
    return made


def test_the_axis_b_may_be_missing_and_float32_is_rounded(call: dict[str, Any]) -> None:
    import torch

    from cuevo.torch import triangle_attention

    found = triangle_attention(**{name: x[0] for name, x in call.items()})
    halves = {name: call[name].bfloat16() for name in ("q", "k", "v")}
    expected = triangle_attention(**{**call, **halves})
    assert (found.dtype, expected.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(found, expected.float())
    everywhere = triangle_attention(**{**call, "mask": None})
    assert torch.equal(everywhere[:, 2], found[:, 2])
    assert not torch.equal(everywhere[:, 0], found[:, 0])


def test_a_row_without_keys_is_the_mean_of_v(call: dict[str, Any]) -> None:
    import torch

    from cuevo.torch import triangle_attention

    mean = call["v"][:, 1].mean(-2, keepdim=True).expand(1, 2, 5, 8)
    for factor in (1, 100, -1e6):
        bias = call["bias"] * factor
        found = triangle_attention(**{**call, "bias": bias})[:, 1]
        torch.testing.assert_close(found, mean, atol=5e-3, rtol=5e-3)


def test_autocast_says_what_float32_is_rounded_to(call: dict[str, Any]) -> None:
    import torch

    from cuevo.torch import triangle_attention

    halves = {name: call[name].half() for name in ("q", "k", "v")}
    expected = triangle_attention(**{**call, **halves})
    with torch.autocast("cpu", torch.float16):
        found = triangle_attention(**call)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected.float())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"return_aux": True}, ValueError, "return_aux: expected False"),
        ({"bias": None}, TypeError, "bias: expected a tensor; got NoneType"),
        ({"mask": [True]}, TypeError, "mask: expected a tensor; got list"),
        ({"scale": "1"}, TypeError, "scale: "),
        (
            {"k": (1, 3, 1, 7, 8)},
            ValueError,
            r"k: expected an array \[B, N, H, Lk, D\] = \(1, 3, 2, 7, 8\); got 5 axes, shape",
        ),
        (
            {"k": (3, 1, 7, 8)},
            ValueError,
            r"k: expected an array \[N, H, Lk, D\] = \(3, 2, 7, 8\); got 4 axes, shape \(3, 1",
        ),
        ({"bias": (1, 1, 2, 7, 5)}, ValueError, r"^bias: expected .* = \(1, 1, 2, 5, 7\)"),
        ({"mask": (1, 3, 1, 1, 6)}, ValueError, r"^mask: expected .* = \(1, 3, 1, 1, 7\)"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_is_refused(
    call: dict[str, Any], change: dict[str, Any], error: type[Exception], message: str
) -> None:
    import torch

    from cuevo.torch import triangle_attention

    shaped = {name: torch.ones(x) if type(x) is tuple else x for name, x in change.items()}
    with pytest.raises(error, match=message):
        triangle_attention(**{**call, **shaped})
    with pytest.raises(ValueError, match=r"v: expected 5 axes, or 4 without B; got shape \(7, 8\)"):
        triangle_attention(**{**call, "v": call["v"][0, 0, 0]})
