"""The samples of the sweeps lack nothing that a sweep has."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from helpers import sweep_sample
from helpers.sweep_sample import (
    BACKWARD,
    BACKWARD_ON_CPU,
    FORWARD,
    FORWARD_ON_CPU,
    PRODUCTS,
    PRODUCTS_ON_CPU,
    needed,
    of_attention,
    of_gradients,
    of_product,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("whole", "sample", "traits"),
    [
        (FORWARD, FORWARD_ON_CPU, of_attention),
        (BACKWARD, BACKWARD_ON_CPU, of_gradients),
        (PRODUCTS, PRODUCTS_ON_CPU, of_product),
    ],
    ids=["forward", "backward", "products"],
)
def test_every_trait_is_there(
    whole: Sequence[Any], sample: Sequence[Any], traits: Callable[[Any], Any]
) -> None:
    assert {x for case in sample for x in traits(case)} == {
        x for case in whole for x in traits(case)
    }
    assert set(map(repr, sample)) <= set(map(repr, whole))
    assert len(sample) > 0.4 * len(whole)


def test_the_costliest_that_others_make_up_for_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["abc", "ab", "bcd", "d"]
    monkeypatch.setattr(sweep_sample, "WHOLE", False)
    assert needed(words, set, len) == ("ab", "bcd")
    assert needed(words, set, lambda word: -len(word)) == ("abc", "bcd")
    monkeypatch.setattr(sweep_sample, "WHOLE", True)
    assert needed(words, set, len) == tuple(words)
