"""The selection of cases: nothing that can be together is left out, and little is taken."""

from dataclasses import dataclass, fields
from itertools import combinations

import pytest
from helpers.covering import covering, every, some

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Case:
    a: int
    b: str
    c: bool
    d: tuple[int, int]


CASES = [
    case
    for case in every(Case, a=range(7), b="wxyz", c=(False, True), d=[(i, -i) for i in range(5)])
    if not (case.a == 3 and case.b == "x") and (case.c or case.d[0] < 3)
]


def together(cases: list[Case], count: int) -> set[tuple[object, ...]]:
    names = [field.name for field in fields(Case)]
    return {
        tuple((name, getattr(case, name)) for name in chosen)
        for case in cases
        for chosen in combinations(names, count)
    }


def test_everything_that_can_be_together_is() -> None:
    for count in (1, 2, 3, 4):
        chosen = covering(CASES, together=count)
        assert together(chosen, count) == together(CASES, count)
        assert len(set(chosen)) == len(chosen)


def test_few_are_taken() -> None:
    """Among 7 * 5 pairs of a and d, some cannot be; others take a case each."""
    assert len(CASES) > 200
    assert len(covering(CASES)) < 45
    assert len(covering(CASES, together=4)) == len(CASES)


def test_the_cheapest_of_equals() -> None:
    assert covering(CASES, cost=lambda case: case.a + case.d[0])[0].a == 0


def test_the_same_seed_gives_the_same_cases() -> None:
    assert covering(CASES) == covering(CASES)
    assert covering(CASES, seed=1) != covering(CASES)


@pytest.mark.unit
def test_some_of_all_cases_are_the_same_ones_each_time() -> None:
    fields_of = dict(a=range(7), b="wxyz", c=(False, True), d=[(i, -i) for i in range(5)])
    found = some(Case, 0.1, **fields_of)
    assert len(set(found)) == len(found) == 28
    assert set(found) < set(every(Case, **fields_of))
    assert found == some(Case, 0.1, **fields_of)
    assert set(some(Case, 1.0, **fields_of)) == set(every(Case, **fields_of))
